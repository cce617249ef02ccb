"""The log store of one physical source: every change and every control of its tables, in the order of the log."""

import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from databus.stores._parquet import StoredFile, StoredGroup
from databus.stores._tables import StoreTable, table_folder


class Wanted(Enum):
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

    def __init__(self, root: Location, physical: str) -> None:
        self.root = root
        self.physical = physical
        self._tables: dict[str, StoreTable] = {}
        self._controls: dict[str, tuple[LoggedControl, ...]] = {}  # by path of the file that they stand in
        self._lock = threading.Lock()

    def look(self) -> "LogLook":
        """What is there now: at least all that a note says that was read before."""
        return LogLook(self)

    def files(self, source: str) -> Sequence[StoredFile]:
        """The files of a source (`db.table`) as its table is now."""
        with self._lock:
            table = self._tables.get(source)
            if table is None:
                table = self._tables[source] = StoreTable(table_folder(self.root, self.physical, source))
            return table.files() if table.refresh() else ()

    def schema(self, source: str) -> pa.Schema:
        """The columns of a source's table, of all its definitions together."""
        with self._lock:
            table = self._tables.setdefault(source, StoreTable(table_folder(self.root, self.physical, source)))
            return table.schema() if table.refresh() else pa.schema([])

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

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._files_of: dict[str, Sequence[StoredFile]] = {}
        self._controls_of: dict[str, Sequence[LoggedControl]] = {}

    def controls(self, source: str) -> Sequence[LoggedControl]:
        """All controls of a source (`db.table`), in order."""
        found = self._controls_of.get(source)
        if found is None:
            each_file = (self._store.controls_in(file, source) for file in self._files(source))
            all_of_them = [control for controls in each_file for control in controls]
            found = self._controls_of[source] = sorted(all_of_them, key=lambda each: each.pair)
        return found

    def first(self, sources: Collection[str]) -> Pair | None:
        """No row of these sources is before this pair; None if there is none at all."""
        bounds = [group.first for source in sources for file in self._files(source) for group in file.groups]
        return min(bounds, default=None)

    def last_until(self, source: str, at_us: int) -> Pair | None:
        """The last pair of a source that was committed at a time, microseconds since 1970, or before; None of none."""
        groups = [(group, file, number) for file in self._files(source) for number, group in enumerate(file.groups)]
        last: Pair | None = None
        for group, file, number in sorted(groups, key=lambda each: each[0].last, reverse=True):
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
        return last

    def first_after(self, source: str, pair: Pair) -> Pair | None:
        """The pair of a source's first row, or control, above a pair; None if there is none."""
        groups = [(group, file, number) for file in self._files(source) for number, group in enumerate(file.groups)]
        found: Pair | None = None
        for group, file, number in sorted(groups, key=lambda each: each[0].first):
            if group.last <= pair:
                continue
            if found is not None and group.first >= found:
                break
            rows = file.read(number, [COMMIT_VERSION, SEQ])
            above = rows_above(rows, pair)
            if above.num_rows:
                least = _extreme(above, "ascending")
                found = least if found is None else min(found, least)
        return found

    def schema(self, source: str) -> pa.Schema:
        """The columns of a source's table, of all its definitions together."""
        return self._store.schema(source)

    def count(self, source: str, after: Pair, until: Pair) -> int:
        """How many rows of a source there may be in (after, until], controls too; never fewer than there are."""
        groups = (group for file in self._files(source) for group in file.groups)
        return sum(group.rows for group in groups if group.last > after and group.first <= until)

    def pieces(self, wanted: Mapping[str, Wanted], after: Pair, until: Pair) -> Iterator[Piece]:
        """The rows of sources in (after, until], controls too, in order; see `merged_rows`. wanted: by `db.table`; what
        surely holds nothing of that is not read, and of what is read all rows come.
        """
        groups = [
            RowGroup(source, group.first, group.last, partial(file.read, number))
            for source, file, number, group in self._groups(wanted)
        ]
        return merged_rows(groups, after, until)

    def groups(self, wanted: Mapping[str, Wanted], after: Pair, until: Pair) -> list[tuple[str, StoredGroup]]:
        """What `pieces` would read, in no order, each with its source."""
        found = ((source, group) for source, _, _, group in self._groups(wanted))
        return [(source, group) for source, group in found if group.last > after and group.first <= until]

    def _groups(self, wanted: Mapping[str, Wanted]) -> Iterator[tuple[str, StoredFile, int, StoredGroup]]:
        for source, want in wanted.items():
            for file in self._files(source):
                for number, group in enumerate(file.groups):
                    has_removals = want is Wanted.REMOVALS and group.has_removals
                    if want is Wanted.ALL or group.has_controls or has_removals:
                        yield source, file, number, group

    def _files(self, source: str) -> Sequence[StoredFile]:
        found = self._files_of.get(source)
        if found is None:
            found = self._files_of[source] = self._store.files(source)
        return found


def _extreme(rows: pa.Table, order: str) -> Pair:
    """The pair that is first in an order."""
    (at,) = pc.select_k_unstable(rows, 1, [(COMMIT_VERSION, order), (SEQ, order)]).to_pylist()
    return rows.column(COMMIT_VERSION)[at].as_py(), rows.column(SEQ)[at].as_py()


def _controls_in(file: StoredFile, source: str) -> Iterator[LoggedControl]:
    for number, group in enumerate(file.groups):
        if not group.has_controls:
            continue
        rows = file.read(number, [COMMIT_VERSION, SEQ, CONTROL])
        told = rows.filter(rows.column(CONTROL).is_valid()).to_pylist()  # few, whatever the table
        for row in told:
            yield control_of(source, (row[COMMIT_VERSION], row[SEQ]), row[CONTROL], str(file.path))


def control_of(source: str, pair: Pair, text: str, where: str) -> LoggedControl:
    """A control from what stands in `_control`. Raises `CorruptData`."""
    try:
        body = json.loads(text)
        kind = ControlKind(body["kind"])
        table = TableSchema.from_json(body["table"] if kind is ControlKind.SCHEMA else body.pop("table"))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{where}: the control at {pair} is not one: {error!r}") from error
    return LoggedControl(source, kind, pair, body, table)
