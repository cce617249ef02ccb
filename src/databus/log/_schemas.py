"""The schema store: every definition that a log ever used, with the numbers it is known by; kept past retention.

`schemas.json` beside the log: {"crc32c": "...", "store": {"v": 1, "sources": [{"id", "name", "versions": [...]}]}}. The
checksum is over the canonical JSON of `store`. The file is durable before the first frame that uses what it names.
"""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from databus.core import ConfigError, CorruptData, DatabusError
from databus.disk import replace_file
from databus.schema import TableSchema

NAME: Final = "schemas.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One definition of one source: its id in frames, and the relay's own count of its definitions."""

    source_id: int
    version: int
    table: TableSchema


class SchemaStore:
    """Gives numbers at first sight and keeps them. Written by the thread that appends, read by any."""

    def __init__(
        self, path: Path, physical: str, ids: Mapping[str, int], versions: Sequence[SchemaVersion] = ()
    ) -> None:
        self.physical = physical
        self._path = path
        self._forced = dict(ids)
        self._lock = threading.Lock()
        self._by_fingerprint: dict[int, SchemaVersion] = {}
        self._by_id: dict[int, tuple[SchemaVersion, ...]] = {}
        self._ids: dict[str, int] = {}
        self._numbers: dict[int, tuple[int, int]] = {}
        self._in_force: dict[int, int] = {}
        self._add(versions)
        self._check_forced()

    @classmethod
    def load(cls, folder: Path, physical: str, ids: Mapping[str, int]) -> "SchemaStore":
        """Read the store of the log in `folder`; empty if the file is missing. Raises `CorruptData` naming the file."""
        path = folder / NAME
        if not path.exists():
            return cls(path, physical, ids)
        return cls(path, physical, ids, _parse(path))

    def _check_forced(self) -> None:
        owner = {source_id: name for name, source_id in self._ids.items()}
        for name, source_id in self._forced.items():
            if self._ids.get(name, source_id) != source_id:
                raise ConfigError(
                    f"{self.physical}: {name} is known by id {self._ids[name]}, and frames in the log carry it; "
                    f"remove ids.{name}={source_id}, or start a new log"
                )
            if owner.setdefault(source_id, name) != name:
                raise ConfigError(f"{self.physical}: ids.{name}={source_id}: that id belongs to {owner[source_id]}")

    def _add(self, versions: Iterable[SchemaVersion]) -> None:
        """Replaces the mappings, for readers in other threads."""
        by_id = dict(self._by_id)
        by_fingerprint = dict(self._by_fingerprint)
        for version in versions:
            by_id[version.source_id] = (*by_id.get(version.source_id, ()), version)
            by_fingerprint[version.table.fingerprint] = version
        self._by_id, self._by_fingerprint = by_id, by_fingerprint
        self._ids = {version.table.source: version.source_id for version in by_fingerprint.values()}
        self._numbers = {
            fingerprint: (version.source_id, version.version) for fingerprint, version in by_fingerprint.items()
        }

    def number_of(self, table: TableSchema) -> tuple[int, int]:
        """(source id, schema version) of a table. New ones are durable when this returns. Raises `DiskFull`."""
        numbers = self._numbers.get(table.fingerprint)
        if numbers is None:
            self.register([table])
            numbers = self._numbers[table.fingerprint]
        return numbers

    def register(self, tables: Iterable[TableSchema]) -> None:
        """Give numbers to those of `tables` that have none, all at once. Raises `DiskFull`, and none has one then."""
        with self._lock:
            new: dict[int, SchemaVersion] = {}
            ids = dict(self._ids)
            counts = {source_id: len(versions) for source_id, versions in self._by_id.items()}
            for table in tables:
                if table.fingerprint in self._by_fingerprint or table.fingerprint in new:
                    continue
                source_id = ids.get(table.source) or self._forced.get(table.source) or self._free_id(ids)
                ids[table.source] = source_id
                counts[source_id] = counts.get(source_id, 0) + 1
                new[table.fingerprint] = SchemaVersion(source_id, counts[source_id], table)
            if new:
                self._write([*self._by_fingerprint.values(), *new.values()])
                self._add(new.values())

    def adopt(self, definitions: Iterable[SchemaVersion]) -> None:
        """Take definitions with the numbers that they have in the log that this one is a copy of.

        Raises `DiskFull`, and `CorruptData` for numbers that are another table's here.
        """
        with self._lock:
            new = [definition for definition in definitions if definition.table.fingerprint not in self._by_fingerprint]
            for definition in new:
                of_id = self._by_id.get(definition.source_id, ())
                if of_id and of_id[0].table.source != definition.table.source:
                    raise CorruptData(
                        f"{self._path}: id {definition.source_id} is {of_id[0].table.source} here, and "
                        f"{definition.table.source} in the log that this one is a copy of; stop the relay, move that "
                        f"folder away and start it again"
                    )
            if new:
                self._write([*self._by_fingerprint.values(), *new])
                self._add(new)

    def _free_id(self, ids: Mapping[str, int]) -> int:
        taken = {*ids.values(), *self._forced.values()}
        candidate = max(ids.values(), default=0) + 1
        while candidate in taken:
            candidate += 1
        return candidate

    def _write(self, versions: Sequence[SchemaVersion]) -> None:
        sources: dict[int, dict[str, Any]] = {}
        for version in versions:
            source = sources.setdefault(
                version.source_id, {"id": version.source_id, "name": version.table.source, "versions": []}
            )
            source["versions"].append({"version": version.version, **version_json(version.table)})
        store = {"v": _VERSION, "physical": self.physical, "sources": list(sources.values())}
        text = json.dumps({"crc32c": _checksum(store), "store": store}, indent=1)
        replace_file(self._path, [text.encode()], durable=True)

    def __contains__(self, fingerprint: int) -> bool:
        return fingerprint in self._by_fingerprint

    def by_fingerprint(self, fingerprint: int) -> SchemaVersion | None:
        """The definition of that fingerprint, if this log ever had it."""
        return self._by_fingerprint.get(fingerprint)

    def definition(self, fingerprint: int) -> TableSchema | None:
        """The same without its numbers."""
        version = self._by_fingerprint.get(fingerprint)
        return None if version is None else version.table

    def definitions(self, source: str) -> list[TableSchema]:
        """All that a source (`db.table`) has had, oldest first."""
        return [version.table for version in self._by_id.get(self._ids.get(source, 0), ())]

    def definition_now(self, source: str) -> TableSchema | None:
        """The one in force at the log's end; of a source that was dropped, the newest."""
        versions = self._by_id.get(self._ids.get(source, 0), ())
        if not versions:
            return None
        return (self._by_fingerprint.get(self._in_force.get(versions[-1].source_id, 0)) or versions[-1]).table

    def by_id(self, source_id: int) -> tuple[SchemaVersion, ...]:
        """All definitions of a source, oldest first; empty if there is no such source."""
        return self._by_id.get(source_id, ())

    def all(self) -> tuple[SchemaVersion, ...]:
        """All definitions of all sources."""
        return tuple(self._by_fingerprint.values())

    def ids(self) -> Mapping[str, int]:
        """Id by name (`db.table`)."""
        return self._ids

    def full_name(self, source: str) -> str:
        """`physical/db.table`."""
        return f"{self.physical}/{source}"

    def current(self) -> dict[str, SchemaVersion]:
        """By source: the definition in force at the log's end, else the newest; sources that were dropped included."""
        in_force = self._in_force
        by_source = {}
        for source_id, versions in self._by_id.items():
            force = self._by_fingerprint.get(in_force.get(source_id, 0))
            by_source[versions[-1].table.source] = force or versions[-1]
        return by_source

    def in_force(self) -> dict[str, TableSchema]:
        """By source: the definition that the frames up to the log's end use; not those that were dropped."""
        return {
            version.table.source: version.table
            for version in map(self._by_fingerprint.get, self._in_force.values())
            if version
        }

    def set_in_force(self, in_force: Mapping[int, int]) -> None:
        """The log's word on which fingerprint each source id has at its end; 0 for a table that was dropped."""
        self._in_force = dict(in_force)


def version_json(table: TableSchema) -> dict[str, Any]:
    """A definition with its fingerprint, by which `parse_version` knows that it is whole."""
    return {"fingerprint": f"{table.fingerprint:016x}", "table": table.to_json()}


def _checksum(store: Any) -> str:
    return f"{crc32c(json.dumps(store, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _parse(path: Path) -> list[SchemaVersion]:
    advice = "restore the file from a copy; without it the frames in this log cannot be read"
    try:
        value = json.loads(path.read_bytes())
        store, expected = value["store"], value["crc32c"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{path}: not readable: {error!r}; {advice}") from error
    if (seen := _checksum(store)) != expected:
        raise CorruptData(f"{path}: the checksum is {seen}, expected {expected}; {advice}")
    try:
        if store["v"] != _VERSION:
            raise CorruptData(f"{path}: version {store['v']}; this databus reads version {_VERSION}")
        return [
            SchemaVersion(source["id"], version["version"], TableSchema.from_json(version["table"]))
            for source in store["sources"]
            for version in source["versions"]
        ]
    except (KeyError, TypeError, DatabusError) as error:
        raise CorruptData(f"{path}: not readable: {error!r}; {advice}") from error
