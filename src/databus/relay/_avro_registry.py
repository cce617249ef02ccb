"""A registry of Avro schemas: subjects, their versions, and the ids that stand before messages in Kafka.

It is kept in one file of the relay's folder, a line for each version, appended and fsynced. An id is made of the schema
itself, so that the same schema has the same id in every relay, and after a folder was lost: readers keep ids for ever.

Source: Confluent's Schema Registry API reference; Avro specification 1.12, "Schema Resolution".
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from databus.core import CorruptData, DatabusError, LimitExceeded
from databus.disk import make_folder, sync_folder, write_all, write_failure

NAME: Final = "schemas.jsonl"
VERSIONS_MAX: Final = 20_000
SCHEMA_BYTES_MAX: Final = 4 << 20
SUBJECT_LENGTH_MAX: Final = 500
_ID_MAX: Final = (1 << 31) - 1
_NUMBERS: Final = ("int", "long", "bytes", "fixed")
_DECIMAL: Final = "decimal"


class Compatibility(StrEnum):
    """What a subject's next version must be able to do."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    """Read what was written in the version before it."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    """Be read by the version before it."""
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class RegistryRefusal(DatabusError):
    """A request that the registry refuses. code: Confluent's, whose first three digits are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject."""

    subject: str
    number: int
    id: int
    schema: str
    """As compact JSON."""

    def to_json(self) -> dict[str, Any]:
        """As the registry's API says it."""
        return {"subject": self.subject, "version": self.number, "id": self.id, "schema": self.schema}


class SchemaRegistry:
    """What is registered; any thread. The file is read when it is first asked.

    Every method raises `CorruptData` for a file that is damaged.
    """

    def __init__(self, folder: Path, compatibility: Compatibility = Compatibility.BACKWARD) -> None:
        self.compatibility = compatibility
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._end: int | None = None  # of the file's whole lines, once it was read
        self._subjects: dict[str, list[Version]] = {}
        self._by_id: dict[int, str] = {}

    def subjects(self) -> list[str]:
        """Their names."""
        with self._lock:
            self._load()
            return sorted(self._subjects)

    def versions(self, subject: str) -> list[Version]:
        """Those of a subject, the oldest first. Raises `RegistryRefusal` where there is no such subject."""
        with self._lock:
            self._load()
            if subject not in self._subjects:
                raise RegistryRefusal(40401, f"subject {subject[:SUBJECT_LENGTH_MAX]!r} not found")
            return list(self._subjects[subject])

    def version(self, subject: str, number: str) -> Version:
        """One of a subject, by its number or as `latest`. Raises `RegistryRefusal` where there is none."""
        versions = self.versions(subject)
        if number in ("latest", "-1"):
            return versions[-1]
        if not (number.isascii() and number.isdigit() and int(number[:10]) > 0):
            raise RegistryRefusal(42202, f"{number[:100]!r} is no version: a number from 1, or `latest`")
        if int(number[:10]) > len(versions):
            raise RegistryRefusal(
                40402, f"version {number[:10]} of subject {subject!r} not found; there are {len(versions)}"
            )
        return versions[int(number[:10]) - 1]

    def schema(self, number: int) -> str:
        """The schema of an id. Raises `RegistryRefusal` where there is none."""
        with self._lock:
            self._load()
            if number not in self._by_id:
                raise RegistryRefusal(40403, f"schema {number} not found")
            return self._by_id[number]

    def uses(self, number: int) -> list[Version]:
        """The versions that have the schema of an id. Raises `RegistryRefusal` where there is none."""
        self.schema(number)
        with self._lock:
            return [version for versions in self._subjects.values() for version in versions if version.id == number]

    def find(self, subject: str, schema: str) -> Version:
        """The version of a subject that has this schema. Raises `RegistryRefusal` where there is none."""
        text = compact(schema)
        for version in self.versions(subject):
            if version.schema == text:
                return version
        raise RegistryRefusal(40403, f"subject {subject!r} has no such schema")

    def register(self, subject: str, schema: str) -> Version:
        """Make a schema a subject's newest version, unless it has it already; durable when this returns.

        Raises `RegistryRefusal` where the subject's last schemas do not allow it, `LimitExceeded`, and `DiskFull` or
        `ServiceUnavailable` where it could not be written.
        """
        text = compact(schema)
        with self._lock:
            self._load()
            held = self._subjects.get(subject, [])
            for version in held:
                if version.schema == text:
                    return version
            troubles = _incompatibilities(text, [version.schema for version in held], self.compatibility)
            if troubles:
                raise RegistryRefusal(
                    409, f"subject {subject!r}: not {self.compatibility.value}: {'; '.join(troubles)}"
                )
            _check_subject(subject)
            if sum(map(len, self._subjects.values())) >= VERSIONS_MAX:
                raise LimitExceeded(f"the registry holds {VERSIONS_MAX} versions, and no more: use one of your own")
            made = Version(subject, len(held) + 1, self._id_of(text), text)
            self._append(made)
            self._keep(made)
            return made

    def is_compatible(self, subject: str, number: str, schema: str) -> list[str]:
        """What keeps a schema from following that version of a subject; nothing if it may."""
        version = self.version(subject, number)
        return _incompatibilities(compact(schema), [version.schema], self.compatibility)

    def _id_of(self, text: str) -> int:
        """The schema's digest in 31 bits, or the next that is free."""
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) & _ID_MAX
        while self._by_id.get(number, text) != text or number == 0:
            number = (number + 1) & _ID_MAX
        return number

    def _keep(self, version: Version) -> None:
        self._subjects.setdefault(version.subject, []).append(version)
        self._by_id[version.id] = version.schema

    # The file

    def _load(self) -> None:
        if self._end is not None:
            return
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            content = b""
        whole = content.rfind(b"\n") + 1  # what is behind it was never answered
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                value = json.loads(line)
                version = Version(value["subject"], value["version"], value["id"], value["schema"])
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptData(
                    f"{self._path}: line {number} is no schema ({type(error).__name__}); restore the file"
                ) from error
            self._keep(version)
        self._end = whole

    def _append(self, version: Version) -> None:
        assert self._end is not None  # noqa: S101 - loaded before
        line = json.dumps(version.to_json(), separators=(",", ":")).encode() + b"\n"
        try:
            is_new = not self._path.exists()
            make_folder(self._path.parent)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.ftruncate(fd, self._end)
                write_all(fd, [line], self._end)
                os.fsync(fd)
            finally:
                os.close(fd)
            if is_new:
                sync_folder(self._path.parent)
        except OSError as error:
            raise write_failure(self._path, error) from error
        self._end += len(line)


def _check_subject(subject: str) -> None:
    if not subject or len(subject) > SUBJECT_LENGTH_MAX or not subject.isprintable():
        raise RegistryRefusal(42208, f"a subject has 1 to {SUBJECT_LENGTH_MAX} printable characters")


def compact(schema: str) -> str:
    """An Avro schema as JSON without blanks. Raises `RegistryRefusal` for what is none."""
    from avro.errors import AvroException
    from avro.schema import parse  # late: few relays are asked

    if len(schema) > SCHEMA_BYTES_MAX:
        raise RegistryRefusal(42201, f"a schema has {SCHEMA_BYTES_MAX} characters at most")
    try:
        value = json.loads(schema)
        parse(schema)
    except (AvroException, ValueError, RecursionError) as error:
        raise RegistryRefusal(42201, f"this is no Avro schema: {str(error)[:300]}") from error
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _incompatibilities(schema: str, before: list[str], level: Compatibility) -> list[str]:
    """What keeps a schema from following those before it, the newest last."""
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.schema import parse

    if level is Compatibility.NONE or not before:
        return []
    checker, ours, troubles = ReaderWriterCompatibilityChecker(), parse(schema), []
    for text in before if level.value.endswith("_TRANSITIVE") else before[-1:]:
        theirs = parse(text)
        ways = {"BACKWARD": [(ours, theirs)], "FORWARD": [(theirs, ours)]}
        for reader, writer in ways.get(level.value.removesuffix("_TRANSITIVE"), [(ours, theirs), (theirs, ours)]):
            result = checker.get_compatibility(reader, writer)
            if result.compatibility is not SchemaCompatibilityType.compatible:
                troubles += [str(message) for message in result.messages] or ["incompatible"]
            troubles += other_meanings(reader, writer)
    return troubles


def other_meanings(reader: Any, writer: Any) -> list[str]:
    """Where a reader's schema takes a writer's numbers for others. Both as `avro.schema.parse` gives them.

    Avro's libraries compare types alone: bytes are bytes, whatever the scale of the decimal in them, and a long is a
    long, be it milliseconds or microseconds. Avro's reader in Java then takes 1.23 for 0.0123. Decimals match if their
    scales do; of their precisions a larger one harms no value (Avro specification 1.12, "Logical Types").
    """
    return list(_compared(reader, writer, "", set()))


def _compared(reader: Any, writer: Any, place: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    reader, writer = _value_of(reader), _value_of(writer)
    if reader is None or writer is None or (id(reader), id(writer)) in seen:
        return
    seen.add((id(reader), id(writer)))
    kinds = reader.type, writer.type
    if kinds == ("record", "record"):
        written = {field.name: field.type for field in writer.fields}
        for field in reader.fields:
            if field.name in written:
                yield from _compared(field.type, written[field.name], f"{place}/{field.name}", seen)
    elif kinds == ("array", "array"):
        yield from _compared(reader.items, writer.items, f"{place}/[]", seen)
    elif kinds == ("map", "map"):
        yield from _compared(reader.values, writer.values, f"{place}/{{}}", seen)
    elif writer.type in _NUMBERS:
        ours, theirs = _meaning(reader), _meaning(writer)
        is_decimal = (_DECIMAL,) in (ours[:1], theirs[:1])
        if ours != theirs and (is_decimal or (ours and theirs)):
            yield f"{place or '/'}: {_meaning_text(theirs, writer)} would be read as {_meaning_text(ours, reader)}"


def _value_of(schema: Any) -> Any:
    """The schema, or the one that a union has beside null; None for other unions."""
    if schema.type not in ("union", "error_union"):
        return schema
    others = [branch for branch in schema.schemas if branch.type != "null"]
    return others[0] if len(others) == 1 else None


def _meaning(schema: Any) -> tuple[Any, ...]:
    """What its numbers stand for, by Avro's word or else by Connect's; empty for themselves."""
    props = schema.other_props
    logical = props.get("logicalType")
    if logical == _DECIMAL:
        return _DECIMAL, props.get("scale", 0)
    name = props.get("connect.name") or logical
    return (name,) if name else ()


def _meaning_text(meaning: tuple[Any, ...], schema: Any) -> str:
    if meaning[:1] == (_DECIMAL,):
        return f"a decimal of scale {meaning[1]}"
    return str(meaning[0]) if meaning else str(schema.type)
