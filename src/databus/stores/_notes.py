"""Notes beside the stores: which states there are, and how far the log store has come.

A state is a set of files of the state store's tables that belong together: all that was there at one position. The
tables themselves show only their newest versions; the note says which files were it. `head.json` says how far the log
store has come, and the definitions of all tables with the numbers that the relay gave them.
"""

import json
import time
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from databus.core import CorruptData, Pair, SourceCheckpoint
from databus.disk import Location
from databus.log import SchemaVersion
from databus.schema import TableSchema
from databus.stores._tables import table_folder

_VERSION: Final = 1
_HEAD: Final = "head.json"
_ANSWER_S: Final = 6 * 3600  # longer than most answers take; who takes longer is given another one


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateTable:
    """One table in a state."""

    files: tuple[tuple[str, int], ...]
    """Names below the table's folder, and how many rows each has; in this order its rows are counted."""
    table: TableSchema
    """The definition that the rows are in."""
    horizon: Pair = (0, 0)
    """From positions at or above it, an answer can give the changes since. It never falls from state to state."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """By name of a file, by what it is known again; see `StoredFile.digest`."""
    is_narrowed: bool = False
    """Whether the table is captured with a WHERE: then nothing says which rows do not meet it any more."""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(rows for _, rows in self.files)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "files": [list(file) for file in self.files],
            "schema": self.table.to_json(),
            "horizon": list(self.horizon),
            "digests": dict(self.digests),
            "is_narrowed": self.is_narrowed,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            tuple((str(file), int(rows)) for file, rows in value["files"]),
            TableSchema.from_json(value["schema"]),
            _pair(value["horizon"]),
            {str(file): str(digest) for file, digest in value.get("digests", {}).items()},
            bool(value.get("is_narrowed", False)),
        )


@dataclass(frozen=True, slots=True)
class StateNote:
    """A state of one physical source."""

    position: SourceCheckpoint
    """All up to it is in the files, and nothing above it."""
    base: int
    """Its begins, rows and ends are counted from here: above every `_seq` of the relay's at this SCN until then, and
    above those of each earlier state there."""
    tables: Mapping[str, StateTable]
    """By `db.table`, those that are there at the position and have a key."""
    incomplete: frozenset[str] = frozenset()
    """Tables, by `db.table`, that wait for a snapshot, or for the end of one."""
    known: tuple[str, ...] = ()
    """All tables, by `db.table`, that were known by then, those that are gone and those without a key too."""
    noted_us: int = 0
    measured: Mapping[str, int] = field(default_factory=dict)
    """When it was noted: sizes of the stores (`log_bytes`, `state_bytes`), and how long the merge took (`merge_ms`)."""

    @property
    def name(self) -> str:
        """By what answers name it."""
        return f"{self.position.scn}.{self.position.pair[1]}.{self.base}"

    @property
    def end(self) -> int:
        """No row of an answer has a `_seq` above this: of each table a drop, a begin, its rows and an end, and a drop
        of each that is gone.
        """
        return self.base + sum(table.rows + 3 for table in self.tables.values()) + len(self.known)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "v": _VERSION,
            "position": self.position.to_json(),
            "base": self.base,
            "tables": {name: table.to_json() for name, table in self.tables.items()},
            "incomplete": sorted(self.incomplete),
            "known": list(self.known),
            "noted_us": self.noted_us,
            "measured": dict(self.measured),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], known: MutableMapping[str, StateTable]) -> Self:
        """Read what `to_json` wrote. known: tables by what was written of them, to which those are added that are new.
        From state to state most of many tables are the same.
        """
        tables = dict[str, StateTable]()
        for name, written in value["tables"].items():
            text = json.dumps(written)
            table = known.get(text)
            if table is None:
                table = known[text] = StateTable.from_json(written)
            tables[str(name)] = table
        return cls(
            SourceCheckpoint.from_json(value["position"], "position"),
            int(value["base"]),
            tables,
            frozenset(map(str, value["incomplete"])),
            tuple(map(str, value["known"])),
            int(value["noted_us"]),
            {str(name): int(number) for name, number in value.get("measured", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class TableAtCut:
    """How a table stood where the old end of the log store was cut off: whole, or not there."""

    table: TableSchema
    is_there: bool = True
    is_narrowed: bool = False
    """See `StateTable.is_narrowed`."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"table": self.table.to_json(), "is_there": self.is_there, "is_narrowed": self.is_narrowed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(TableSchema.from_json(value["table"]), bool(value["is_there"]), bool(value["is_narrowed"]))


@dataclass(frozen=True, slots=True)
class LogCut:
    """Where the old end of a log store was cut off."""

    at: Pair
    """What is at or below does not count any more, whether it is still in a file or not."""
    tables: Mapping[str, TableAtCut]
    """By `db.table`, how the tables stood there of which the log store had a control by then."""
    last_us: int = 0
    """Nothing that was cut off was committed later; microseconds since 1970."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        tables = {name: table.to_json() for name, table in self.tables.items()}
        return {"at": list(self.at), "tables": tables, "last_us": self.last_us}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        tables = {str(name): TableAtCut.from_json(table) for name, table in value["tables"].items()}
        return cls(_pair(value["at"]), tables, int(value["last_us"]))


@dataclass(frozen=True, slots=True)
class HeadNote:
    """How far the log store of one physical source has come."""

    position: SourceCheckpoint
    """All up to it is in the log store; `log` is always the relay's log that it came from."""
    low: Pair
    """What is above this pair has been in it ever since."""
    definitions: tuple[SchemaVersion, ...] = ()
    tables: tuple[str, ...] = ("*",)
    """Patterns over full names: which tables are kept."""
    published: tuple[int, int] = (0, 0)
    """The SCN up to which the relay had come by then, and when that was committed, microseconds since 1970."""
    cut: LogCut | None = None
    """Where older changes were cut off, if any were. `low` is there, or above where tables were added since."""
    logs: tuple[tuple[Pair, str], ...] = ()
    """From which logs of relays the rows are: those above each pair, up to the next one. `position.log` is the last."""

    def log_at(self, pair: Pair) -> str:
        """The log by whose numbers the rows at a pair stand there, or the last before it."""
        return next((log for since, log in reversed(self.logs) if since < pair), self._first_log)

    def log_after(self, pair: Pair) -> tuple[str, Pair | None]:
        """The log that the rows above a pair are of, and the pair up to which they are, if others follow."""
        log = next((log for since, log in reversed(self.logs) if since <= pair), self._first_log)
        return log, next((since for since, _ in self.logs[1:] if since > pair), None)

    @property
    def _first_log(self) -> str:
        return self.logs[0][1] if self.logs else self.position.log or ""

    @property
    def sources(self) -> list[str]:
        """All tables, by `db.table`, that there is a definition of."""
        return list(dict.fromkeys(version.table.source for version in self.definitions))

    @property
    def keyless(self) -> frozenset[str]:
        """The tables, `db.table`, whose last definition has no key: they are in the log store alone."""
        now = {version.table.source: version.table for version in self.definitions}
        return frozenset(source for source, table in now.items() if not table.key)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "v": _VERSION,
            "position": self.position.to_json(),
            "low": list(self.low),
            "tables": list(self.tables),
            "published": list(self.published),
            "cut": None if self.cut is None else self.cut.to_json(),
            "logs": [[*since, log] for since, log in self.logs],
            "definitions": [
                {"id": version.source_id, "version": version.version, "table": version.table.to_json()}
                for version in self.definitions
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        definitions = tuple(
            SchemaVersion(int(version["id"]), int(version["version"]), TableSchema.from_json(version["table"]))
            for version in value["definitions"]
        )
        position, tables = SourceCheckpoint.from_json(value["position"], "position"), tuple(map(str, value["tables"]))
        cut = value.get("cut")
        return cls(
            position,
            _pair(value["low"]),
            definitions,
            tables,
            _pair(value.get("published", (0, 0))),
            None if cut is None else LogCut.from_json(cut),
            tuple(((int(scn), int(seq)), str(log)) for scn, seq, log in value.get("logs", ())),
        )


@dataclass(frozen=True, slots=True)
class LogTableNote:
    """One table of the log store. `HeadNote.low` holds for this table alone: not for one that is made later in its
    folder, which lacks what the other one had.
    """

    table_id: str = ""
    """See `StoreTable.id`; empty where there was no table yet."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """By name of a file, by what it is known again; see `StoredFile.digest`."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"v": _VERSION, "id": self.table_id, "of": dict(self.digests)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(str(value["id"]), {str(file): str(digest) for file, digest in value["of"].items()})


class NoteFolder:
    """The notes of one physical source. root: of both stores. One process writes, any number read."""

    def __init__(self, root: Location, physical: str) -> None:
        self.physical = physical
        self._folder = root / "notes" / physical
        self._read: dict[str, StateNote] = {}
        self._tables = WeakValueDictionary[str, StateTable]()
        self._head: tuple[bytes, HeadNote] | None = None
        self._log_tables: dict[str, tuple[bytes, LogTableNote]] = {}

    def head(self) -> HeadNote | None:
        """What was noted last of the log store. Raises `CorruptData`."""
        written, last = (self._folder / _HEAD).read(), self._head
        if written is None:
            return None
        if last is None or last[0] != written.content:  # with many tables there is much to parse
            last = self._head = written.content, HeadNote.from_json(_value(written.content, self._folder / _HEAD))
        return last[1]

    def put_head(self, head: HeadNote) -> None:
        """Replace that."""
        self._put(_HEAD, head.to_json())

    def log_table(self, source: str) -> LogTableNote:
        """What is noted of a table (`db.table`) in the log store; an empty note if nothing is. While it stays as it is,
        it is one object. Raises `CorruptData`.
        """
        path = self._folder / self._log_table_name(source)
        written, last = path.read(), self._log_tables.get(source)
        if written is None:
            return LogTableNote()
        if last is None or last[0] != written.content:
            last = self._log_tables[source] = written.content, LogTableNote.from_json(_value(written.content, path))
        return last[1]

    def put_log_table(self, source: str, note: LogTableNote) -> None:
        """Replace that."""
        self._put(self._log_table_name(source), note.to_json())

    def _log_table_name(self, source: str) -> str:
        return f"log-{table_folder(self._folder, self.physical, source).name}.json"

    def states(self) -> list[StateNote]:
        """The states that are kept, the oldest first. Raises `CorruptData`."""
        return sorted(self._notes("state-").values(), key=lambda state: (state.position.pair, state.base))

    def add(self, state: StateNote) -> None:
        """Note a state."""
        self._put(f"state-{state.name}.json", state.to_json())

    def forget(self, states: Iterable[StateNote]) -> None:
        """Serve states no more. Their files stay for `_ANSWER_S`, so that answers that are being given end."""
        now_s = time.time_ns() // 1_000_000_000
        for state in states:
            (self._folder / f"state-{state.name}.json").give_name(f"gone-{now_s}-{state.name}.json")
        for name in self._folder.names():
            if name.startswith("gone-") and int(name.split("-")[1]) < now_s - _ANSWER_S:
                (self._folder / name).remove()

    def remove(self, state: StateNote) -> None:
        """Remove a note whose files are removed, too."""
        (self._folder / f"state-{state.name}.json").remove()

    def pinned(self, source: str) -> set[str]:
        """The files of a source's table that upkeep leaves alone: a state names them, or did just now."""
        tables = (state.tables.get(source) for state in self._notes("state-", "gone-").values())
        return {file for table in tables if table is not None for file, _ in table.files}

    def _notes(self, *kinds: str) -> dict[str, StateNote]:
        """Those that are there, by name, and not half-written; each is read once. Several threads ask at a time."""
        known, notes = self._read, dict[str, StateNote]()
        for name in self._folder.names():
            if not (name.startswith(kinds) and name.endswith(".json")):
                continue
            if name in known:
                notes[name] = known[name]
            elif (written := (self._folder / name).read()) is not None:
                notes[name] = StateNote.from_json(_value(written.content, self._folder / name), self._tables)
        self._read = notes
        return notes

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        self._folder.make()
        (self._folder / name).write(json.dumps(value, separators=(",", ":")).encode())


def note_physicals(root: Location) -> list[str]:
    """The physical sources that there are notes of."""
    folder = root / "notes"
    return sorted(name for name in folder.names() if (folder / name / _HEAD).exists())


def _pair(value: Any) -> Pair:
    scn, seq = value
    return int(scn), int(seq)


def _value(content: bytes, where: Location) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
        if value["v"] != _VERSION:
            raise ValueError(f"version {value['v']}")  # noqa: TRY301 - refused like all else that is wrong
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{where}: is not a note of a bootstrap service's: {error!r}") from error
    return dict(value)
