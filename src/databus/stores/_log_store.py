"""The log store of one physical source: every change and every control of its tables, in the order of the log."""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, CONTROL, SEQ, ControlKind, CorruptData, Pair
from databus.disk import Location
from databus.flow import rows_above
from databus.schema import TableSchema
from databus.stores._merged import Piece, RowGroup, merged_rows
from databus.stores._notes import HeadNote, LogTableNote, NoteFolder
from databus.stores._parquet import StoredFile, StoredGroup
from databus.stores._tables import StoreTable, table_folder


class LogSelection(Enum):
    """What of a table's rows in the log store; controls always."""

    ALL = auto()
    REMOVALS = auto()
    CONTROLS = auto()


@dataclass(frozen=True, slots=True)
class LoggedControl:
    """A control as it stood in the relay's log. table: the definition that it names; of `schema` the new one."""

    source: str
    kind: ControlKind
    pair: Pair
    body: Mapping[str, Any]
    table: TableSchema

    @property
    def begins_table(self) -> bool:
        """Whether nothing was before it, as the first control of a table."""
        is_first_sight = self.kind is ControlKind.SCHEMA and self.body.get("previous") is None
        return is_first_sight or self.kind is ControlKind.SNAPSHOT_BEGIN


class LogStore:
    """Keeps what never changes of its files, for all who look. Any thread may ask."""

    def __init__(self, root: Location, notes: NoteFolder) -> None:
        self.root = root
        self.physical = notes.physical
        self._notes = notes
        self._tables: dict[str, StoreTable] = {}
        self._checked_ids: dict[str, str] = {}  # by source, the table that is the noted one, or came before any note
        self._listed_at: dict[str, object] = {}  # by source, its stamp before its files were listed last
        self._controls: dict[str, tuple[LoggedControl, ...]] = {}  # by path of the file that they stand in
        self._lock = threading.Lock()

    def look(self, head: HeadNote | None = None, stamp_of: Callable[[str], object] | None = None) -> "LogLook":
        """What is there now, from where the note of the head says that it begins: at least all that a note says that
        was read before. stamp_of: of a source, what changes once something was written to it, or None where nobody
        knows; by default its note. To open a thousand tables takes seconds, so one with the same stamp is not opened
        again.
        """
        return LogLook(self, head, stamp_of or self._note_of)

    def relist(self) -> None:
        """Have all tables be opened again when they are asked for, whatever their stamps."""
        with self._lock:
            self._listed_at.clear()

    def _note_of(self, source: str) -> LogTableNote | None:
        note = self._notes.log_table(source)
        return note if note.table_id else None

    def files(self, source: str, stamp: object = None) -> Sequence[StoredFile]:
        """The files of a source (`db.table`) as its table is now. Raises `CorruptData` if that is not the noted one.
        stamp: see `look`.
        """
        with self._lock:
            table = self._tables.get(source)
            if table is None:
                table = self._tables[source] = StoreTable(table_folder(self.root, self.physical, source))
            if stamp is not None and stamp == self._listed_at.get(source):
                return table.listed
            self._listed_at.pop(source, None)
            is_there = table.refresh()
            self._check_noted(source, table, table.id if is_there else "")
            if not is_there:
                return ()
            files = table.files(lambda: self._notes.log_table(source).digests)
            self._listed_at[source] = stamp
            return files

    def _check_noted(self, source: str, table: StoreTable, table_id: str) -> None:
        """A folder that was removed, or filled again, would be taken for a table of which nothing happened before."""
        if table_id and self._checked_ids.get(source) == table_id:
            return
        noted_id = self._notes.log_table(source).table_id
        if noted_id not in ("", table_id):
            what = "holds another table than was noted" if table_id else "is missing"
            raise CorruptData(
                f"{table.folder}: {what}, and with it changes that nothing brings back. Put back the folder that was "
                'there; without it, begin the stores from nothing: see docs/bootstrap.md, "When a file is missing"'
            )
        self._checked_ids[source] = table_id

    def schema(self, source: str) -> pa.Schema:
        """The columns of a source's table, of all its definitions together."""
        with self._lock:
            table = self._tables.setdefault(source, StoreTable(table_folder(self.root, self.physical, source)))
            return table.schema() if table.refresh() else pa.schema([])

    def newest(self, source: str, application: str) -> tuple[Pair, int] | None:
        """The pair that a source's table has stored for an application, and the number of the log that its newest rows
        came from. Of the table whose files were asked for last.
        """
        with self._lock:
            table = self._tables.get(source)
            if table is None or not self._checked_ids.get(source):
                return None
            stored, number = table.stored(application), table.log_number(application)
            return None if stored is None or number is None else (stored, number)

    def table_id(self, source: str) -> str:
        """See `StoreTable.id`; empty where there is none. Of the table whose files were asked for last."""
        return self._checked_ids.get(source, "")

    @property
    def size_bytes(self) -> int:
        """Of the tables that were looked at."""
        with self._lock:
            return sum(table.size_bytes for table in self._tables.values())

    def controls_in(self, file: StoredFile, source: str) -> tuple[LoggedControl, ...]:
        """The controls in a file."""
        kept = self._controls.get(str(file.path))
        if kept is None:
            kept = self._controls[str(file.path)] = tuple(_controls_in(file, source))
        return kept


class LogLook:
    """The log store as it was when each table was first asked for. Any thread may ask."""

    def __init__(self, store: LogStore, head: HeadNote | None, stamp_of: Callable[[str], object]) -> None:
        self._store = store
        self._head = head
        self._stamp_of = stamp_of
        self._low: Pair = (0, -1) if head is None or head.cut is None else head.cut.at
        self._files_of: dict[str, Sequence[StoredFile]] = {}
        self._controls_of: dict[str, Sequence[LoggedControl]] = {}

    def controls(self, source: str) -> Sequence[LoggedControl]:
        """All controls of a source (`db.table`), in order."""
        controls = self._controls_of.get(source)
        if controls is None:
            each_file = (self._store.controls_in(file, source) for file in self._files(source))
            all_of_them = [control for of_file in each_file for control in of_file]
            controls = self._controls_of[source] = controls_above(self._head, source, all_of_them)
        return controls

    def first(self, sources: Collection[str]) -> Pair | None:
        """No row of these sources is before this pair; None if there is none at all, and was none that was cut off."""
        bounds = [max(group.first, self._low) for source in sources for _, _, group in self._groups_of(source)]
        cut = None if self._head is None else self._head.cut
        return min([*bounds, *(cut.at for source in sources if cut and source in cut.tables)], default=None)

    def last_until(self, source: str, at_us: int) -> Pair | None:
        """The last pair of a source that was committed at a time, microseconds since 1970, or before; None of none."""
        last: Pair | None = None
        for file, number, group in sorted(self._groups_of(source), key=lambda entry: entry[2].last, reverse=True):
            if last is not None and group.last <= last:
                break
            if group.least_us > at_us:
                continue
            rows = file.read(number, [COMMIT_VERSION, SEQ, COMMIT_TIMESTAMP])
            times = rows.column(COMMIT_TIMESTAMP).cast(pa.int64())
            mine = rows.filter(pc.less_equal(times, at_us)).select([COMMIT_VERSION, SEQ])
            if mine.num_rows:
                pair = _extreme(mine, "descending")
                last = pair if last is None else max(last, pair)
        return last if last is not None and last > self._low else None

    def first_after(self, source: str, pair: Pair) -> Pair | None:
        """The pair of a source's first row, or control, above a pair; None if there is none."""
        first: Pair | None = None
        pair = max(pair, self._low)
        for file, number, group in sorted(self._groups_of(source), key=lambda entry: entry[2].first):
            if group.last <= pair:
                continue
            if first is not None and group.first >= first:
                break
            rows = file.read(number, [COMMIT_VERSION, SEQ])
            above = rows_above(rows, pair)
            if above.num_rows:
                least = _extreme(above, "ascending")
                first = least if first is None else min(first, least)
        return first

    def schema(self, source: str) -> pa.Schema:
        """The columns of a source's table, of all its definitions together."""
        return self._store.schema(source)

    def note(self, source: str) -> LogTableNote:
        """What is to be noted of a source's table."""
        digests = {file.path.name: file.digest for file in self._files(source)}
        return LogTableNote(self._store.table_id(source), digests)

    def count(self, source: str, after: Pair, until: Pair) -> int:
        """How many rows of a source there may be in (after, until], controls too; never fewer than there are."""
        groups = (group for _, _, group in self._groups_of(source))
        return sum(group.rows for group in groups if group.last > after and group.first <= until)

    def pieces(self, wanted: Mapping[str, LogSelection], after: Pair, until: Pair) -> Iterator[Piece]:
        """The rows of sources in (after, until], controls too, in order; see `merged_rows`. wanted: by `db.table`; what
        surely holds nothing of that is not read, and of what is read all rows come.
        """
        groups = [
            RowGroup(source, group.first, group.last, partial(file.read, number))
            for source, file, number, group in self._groups(wanted)
        ]
        return merged_rows(groups, max(after, self._low), until)

    def groups(self, wanted: Mapping[str, LogSelection], after: Pair, until: Pair) -> list[tuple[str, StoredGroup]]:
        """What `pieces` would read, in no order, each with its source."""
        groups = ((source, group) for source, _, _, group in self._groups(wanted))
        return [(source, group) for source, group in groups if group.last > after and group.first <= until]

    def _groups(self, wanted: Mapping[str, LogSelection]) -> Iterator[tuple[str, StoredFile, int, StoredGroup]]:
        for source, want in wanted.items():
            for file, number, group in self._groups_of(source):
                has_removals = want is LogSelection.REMOVALS and group.has_removals
                if want is LogSelection.ALL or group.has_controls or has_removals:
                    yield source, file, number, group

    def _groups_of(self, source: str) -> Iterator[tuple[StoredFile, int, StoredGroup]]:
        """The row groups of a source in which there may be something that was not cut off."""
        for file in self._files(source):
            for number, group in enumerate(file.groups):
                if group.last > self._low:
                    yield file, number, group

    def _files(self, source: str) -> Sequence[StoredFile]:
        files = self._files_of.get(source)
        if files is None:
            files = self._files_of[source] = self._store.files(source, self._stamp_of(source))
        return files


def _extreme(rows: pa.Table, order: str) -> Pair:
    """The pair that is first in an order."""
    (at,) = pc.select_k_unstable(rows, 1, [(COMMIT_VERSION, order), (SEQ, order)]).to_pylist()
    return rows.column(COMMIT_VERSION)[at].as_py(), rows.column(SEQ)[at].as_py()


def _controls_in(file: StoredFile, source: str) -> Iterator[LoggedControl]:
    for number, group in enumerate(file.groups):
        if not group.has_controls:
            continue
        rows = file.read(number, [COMMIT_VERSION, SEQ, CONTROL])
        controls = rows.filter(rows.column(CONTROL).is_valid()).to_pylist()  # few, whatever the table
        for row in controls:
            yield control_of(source, (row[COMMIT_VERSION], row[SEQ]), row[CONTROL], str(file.path))


def controls_above(head: HeadNote | None, source: str, controls: Iterable[LoggedControl]) -> list[LoggedControl]:
    """Controls of a source in order. Where the old end of the log store was cut off, those above, and before them one
    that says how the table stood there. It begins no table: something was before it.
    """
    ordered = sorted(controls, key=lambda control: control.pair)
    if head is None or head.cut is None:
        return ordered
    above = [control for control in ordered if control.pair > head.cut.at]
    stood = head.cut.tables.get(source)
    if stood is None:
        return above
    kind = ControlKind.SCHEMA if stood.is_there else ControlKind.DROP
    body: dict[str, Any] = {
        "kind": kind.value,
        "source": source,
        "class": 1,
        "previous": f"{stood.table.fingerprint:016x}",
    }
    body["is_narrowed"] = stood.is_narrowed
    return [LoggedControl(source, kind, head.cut.at, body, stood.table), *above]


def control_of(source: str, pair: Pair, text: str, where: str) -> LoggedControl:
    """A control from what stands in `_control`. Raises `CorruptData`."""
    try:
        body = json.loads(text)
        kind = ControlKind(body["kind"])
        table = TableSchema.from_json(body["table"] if kind is ControlKind.SCHEMA else body.pop("table"))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{where}: the control at {pair} is not one: {error!r}") from error
    return LoggedControl(source, kind, pair, body, table)
