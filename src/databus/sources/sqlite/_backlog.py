"""Backlog: windows between cuts, read from the change table into groups.

The ids, versions and sizes of the next changes are planned first, as NumPy arrays; then the rows of each table are
fetched and turned into columns at once. What lies before a cut never changes, so a plan stays good.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import make_scn
from databus.schema import TableSchema, frame_schema
from databus.sources._bus_frames import bus_columns
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._decode import decode_columns, fetch
from databus.sources.sqlite._store import Cut, TableVersion, read_version
from databus.sources.sqlite._tables import OWN_PREFIX
from databus.sources.sqlite._triggers import CHANGE_TABLE, UPDATE_PREIMAGE
from databus.sources.sqlite._types import exact_sql, size_sql
from databus.wire import Rows

Ints = npt.NDArray[np.int64]

_ROW_BYTES: Final = 40  # of the bus's own columns
_CELL_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive changes, as rows of their tables."""

    rows: tuple[Rows, ...]
    cut: Cut
    """The cut of the last change."""
    seq: int
    """`_seq` of the last change."""
    continues: bool
    """Whether the cut's window goes on after it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Changes to read, in order."""

    ids: Ints
    versions: Ints
    kinds: Ints
    bytes_until: Ints
    is_complete: bool
    """Whether it reaches the last known cut."""

    def after(self, change_id: int) -> "_Plan":
        at = int(np.searchsorted(self.ids, change_id, side="right"))
        gone = self.bytes_until[at - 1] if at else 0
        return _Plan(self.ids[at:], self.versions[at:], self.kinds[at:], self.bytes_until[at:] - gone, self.is_complete)


class Backlog:
    """The windows after one cut. `extend` it to newer cuts; `take` what they hold."""

    def __init__(self, db: sqlite3.Connection, config: SqliteConfig, timeline: int, after: Cut) -> None:
        self._db = db
        self._config = config
        self._timeline = timeline
        self._cut = after  # all up to it has been taken
        self._done = after.change_id  # the last change taken
        self._cuts: list[Cut] = []
        self._stops: set[int] = set()
        nothing = np.zeros(0, np.int64)
        self._plan = _Plan(nothing, nothing, nothing, nothing, is_complete=True)
        self._versions: dict[int, tuple[TableVersion, TableVersion, int]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether everything up to the last cut known has been taken."""
        return not self._cuts

    @property
    def done(self) -> int:
        """The last change taken."""
        return self._done

    @property
    def newest(self) -> Cut:
        """The last cut known."""
        return self._cuts[-1] if self._cuts else self._cut

    def extend(self) -> None:
        """Look for cuts after those known, whichever process made them."""
        rows = self._db.execute(
            f"SELECT id, token, change_id, time_us FROM {OWN_PREFIX}cut WHERE id > ? ORDER BY id LIMIT ?",
            (self.newest.id, self._config.group_rows_max),
        ).fetchall()
        if not rows:
            return
        self._cuts += [Cut(*row) for row in rows]
        stops = self._db.execute(f"SELECT DISTINCT cut FROM {OWN_PREFIX}event WHERE cut >= ?", (self._cuts[0].id,))
        self._stops = {cut for (cut,) in stops}
        self._plan = replace(self._plan, is_complete=False)

    def take(self) -> Stretch:
        """The next stretch: whole windows that fit into a group, or a part of one that alone does not.

        A cut that has controls ends its stretch, since they come next. Not for an empty backlog.
        """
        plan = self._planned()
        fit = int(np.searchsorted(plan.bytes_until, self._config.group_bytes_max, side="right"))
        fit = max(min(fit, self._config.group_rows_max), min(len(plan.ids), 1))
        whole = self._whole_windows(plan, fit)
        if whole == 0:
            return self._take_part(plan, fit)
        taken, last = self._cuts[:whole], self._cuts[whole - 1]
        count = int(np.searchsorted(plan.ids, last.change_id, side="right"))
        rows = self._read(plan, count, taken)
        before = taken[-2].change_id if whole > 1 else self._cut.change_id
        self._cuts = self._cuts[whole:]
        self._cut, self._done = last, last.change_id
        return Stretch(rows, last, last.change_id - before, continues=False)

    def _planned(self) -> _Plan:
        plan = self._plan.after(self._done)
        short = len(plan.ids) < self._config.group_rows_max and (
            len(plan.ids) == 0 or plan.bytes_until[-1] < self._config.group_bytes_max
        )
        if short and not plan.is_complete:
            plan = self._read_plan()
        self._plan = plan
        return plan

    def _read_plan(self) -> _Plan:
        limit = self._config.group_rows_max
        upto = self.newest.change_id
        sizes = self._size_sql(upto)
        rows = self._db.execute(
            f"SELECT id, t, op, {sizes} FROM {CHANGE_TABLE} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
            (self._done, upto, limit),
        )
        table = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, 4)
        return _Plan(table[:, 0], table[:, 1], table[:, 2], np.cumsum(table[:, 3]), len(table) < limit)

    def _size_sql(self, upto: int) -> str:
        """An expression for the bytes of a change row, by its table's version."""
        versions = self._db.execute(f"SELECT t FROM {OWN_PREFIX}table ORDER BY t").fetchall()
        cases = []
        for (t,) in versions:
            version = self._version(t, upto)
            varying = size_sql(version.kinds, (f"c{slot}" for slot in count()))
            cases.append(f"WHEN {t} THEN {_ROW_BYTES + _CELL_BYTES * len(version.kinds)} + {varying}")
        return f"CASE t {' '.join(cases)} ELSE {_ROW_BYTES} END"

    def _whole_windows(self, plan: _Plan, fit: int) -> int:
        """How many windows end within the first `fit` changes of the plan."""
        all_fit = fit == len(plan.ids) and plan.is_complete
        reach = self.newest.change_id if all_fit else int(plan.ids[fit - 1])
        in_part = self._done != self._cut.change_id
        count = 0
        for cut in self._cuts:
            if cut.change_id > reach or (count and in_part):
                break
            count += 1
            if cut.id in self._stops:
                break
        return count

    def _take_part(self, plan: _Plan, fit: int) -> Stretch:
        cut = self._cuts[0]
        if plan.kinds[fit - 1] == UPDATE_PREIMAGE:
            fit = fit - 1 if fit > 1 else 2
        last = int(plan.ids[fit - 1])
        rows = self._read(plan, fit, [cut])
        self._done = last
        if last == cut.change_id:
            self._cuts, before, self._cut = self._cuts[1:], self._cut.change_id, cut
            return Stretch(rows, cut, last - before, continues=False)
        return Stretch(rows, cut, last - self._cut.change_id, continues=True)

    def _read(self, plan: _Plan, count: int, cuts: list[Cut]) -> tuple[Rows, ...]:
        """The first `count` changes of the plan, all of them in these windows, table by table."""
        if count == 0:
            return ()
        lower, upper = self._done, int(plan.ids[count - 1])
        numbers: dict[TableSchema, list[int]] = {}
        versions: dict[TableSchema, TableVersion] = {}
        for t in np.unique(plan.versions[:count]).tolist():
            version = self._version(t, lower)
            numbers.setdefault(version.table, []).append(t)
            versions[version.table] = version
        windows = _Windows(cuts, self._cut.change_id, self._timeline)
        return tuple(self._read_table(versions[table], numbers[table], lower, upper, windows) for table in numbers)

    def _read_table(
        self, version: TableVersion, numbers: list[int], lower: int, upper: int, windows: "_Windows"
    ) -> Rows:
        slots = "".join(f", {exact_sql(kind, f'c{slot}')}" for slot, kind in enumerate(version.kinds))
        sql = (
            f"SELECT id, op{slots} FROM {CHANGE_TABLE} WHERE id > ? AND id <= ? "
            f"AND t IN ({', '.join(map(str, numbers))}) ORDER BY id"
        )
        columns = list(zip(*fetch(self._db, version, sql, (lower, upper), 2), strict=True))
        ids = np.array(columns[0], np.int64)
        arrays = decode_columns(version, columns[2:], f"among changes {ids[0]} to {ids[-1]}")
        arrays += windows.columns(np.array(columns[1], np.int8), ids)
        return Rows(version.table, pa.RecordBatch.from_arrays(arrays, schema=frame_schema(version.table)))

    def _version(self, t: int, change_id: int) -> TableVersion:
        """What change rows of version `t` after `change_id` are read as; see `recast`."""
        if t not in self._versions:
            version = read_version(self._db, t)
            recast, after = self._db.execute(
                f"SELECT recast, recast_after FROM {OWN_PREFIX}table WHERE t = ?", (t,)
            ).fetchone()
            self._versions[t] = (version, version if recast is None else read_version(self._db, recast), after or 0)
        version, recast_as, after = self._versions[t]
        return recast_as if change_id >= after else version


class _Windows:
    """The bus's own columns for changes that lie in some consecutive windows."""

    def __init__(self, cuts: list[Cut], before: int, timeline: int) -> None:
        self._ends = np.array([cut.change_id for cut in cuts], np.int64)
        self._starts = np.concatenate([[before], self._ends[:-1]])
        self._scns = np.array([make_scn(timeline, cut.id) for cut in cuts], np.int64)
        self._times = np.array([cut.time_us for cut in cuts], np.int64)
        self._txids = pa.array([cut.token for cut in cuts], pa.string())

    def columns(self, kinds: Any, ids: Ints) -> list[pa.Array]:
        window = np.searchsorted(self._ends, ids, side="left")
        return bus_columns(
            kinds,
            self._scns[window],
            ids - self._starts[window],
            self._times[window],
            pa.DictionaryArray.from_arrays(pa.array(window.astype(np.int32)), self._txids),
        )


def position_of(cut: Cut, generation: int) -> Mapping[str, Any]:
    """The source's own position after a cut. generation: all readings up to it have ended."""
    return {"cut": cut.id, "token": cut.token, "change": cut.change_id, "generation": generation}
