"""Rows taken out of a Delta table for good: out of its files, and out of those that older versions are made of."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_VERSION
from databus.disk import Location
from databus.flow import DataFile, Stored, write_data_pieces
from databus.sinks.delta._layout import LiveFile, live_files, mark_of
from databus.sinks.delta._read import opened_delta
from databus.sinks.delta._rewrite import opened_file
from databus.sinks.delta._table import DeltaTarget, check_may_remove, engine_errors

Finds = Callable[[pa.Table], pa.Array]
"""By row, whether it goes."""


@dataclass
class Erased:
    """What was done in one table. Nothing has been removed yet."""

    replaced: dict[str, tuple[str, int] | None] = field(default_factory=dict)
    """By name, the file that stands for one now, and how many rows that has; None where no row is left."""
    left: list[str] = field(default_factory=list)
    """Files that nothing names any more, and that hold such rows."""
    rows: int = 0
    last_scn: int = 0
    """The greatest SCN of a row that went."""

    @property
    def gone(self) -> list[str]:
        """The files that may be removed once nothing names them."""
        return [*self.replaced, *self.left]


def erase_rows(target: DeltaTarget, finds: Finds, also: Collection[str]) -> Erased:
    """Have no file of the table hold such rows: in one commit for those that it is made of.

    also: files besides, that another caller names. A second call does what a first one has not done.
    """
    erased = Erased()
    live = {file.name: file for file in target.live(())}
    added: dict[str, DataFile] = {}
    for name in sorted({*live, *also}):
        if (target.path / name).exists() and _counts(target, name, finds, erased):
            made = _rewritten(target, name, finds)
            erased.replaced[name] = None if made is None else (made.name, made.rows)
            if made is not None:
                added[name] = made
    changed = [live[name] for name in erased.replaced if name in live]
    if changed:
        target.replace(
            [added[file.name] for file in changed if file.name in added], changed, target.stored() or Stored()
        )
    known = {*live, *also, *(file.name for file in added.values())}
    for name in target.path.names():
        if name.endswith(".parquet") and name not in known and _counts(target, name, finds, erased):
            erased.left.append(name)
    return erased


def _counts(target: DeltaTarget, name: str, finds: Finds, erased: Erased) -> bool:
    """Whether a file holds such rows; adds them to what was found."""
    count = 0
    with opened_file(target.path, name) as parquet:
        for group in range(parquet.num_row_groups):
            goes = finds(parquet.read_row_group(group))
            if pc.any(goes).as_py():
                scns = parquet.read_row_group(group, columns=[COMMIT_VERSION]).column(COMMIT_VERSION).filter(goes)
                erased.last_scn = max(erased.last_scn, pc.max(scns).as_py())
                count += pc.sum(goes).as_py()
    erased.rows += count
    return count > 0


def _rewritten(target: DeltaTarget, name: str, finds: Finds) -> DataFile | None:
    """A file without such rows, in its row groups; None if none is left."""
    with opened_file(target.path, name) as parquet:
        pieces = _left(parquet, finds)
        first = next(pieces, None)
        if first is None:
            return None
        mark = mark_of(LiveFile(name, 0, 0, ()))
        return write_data_pieces(target.path, first.schema, _chained(first, pieces), mark=mark)


def _left(parquet: Any, finds: Finds) -> Iterator[pa.Table]:
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group)
        rows = rows.filter(pc.invert(finds(rows)))
        if rows.num_rows:
            yield rows


def _chained(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def drop_files(path: Location, names: Collection[str], hours: int) -> None:
    """Make old files no part of a history any more, whoever writes it meanwhile, and remove from its folder what has
    not been part of it for so many hours. Never name its newest file: by its rows others know that nothing has put the
    table back.
    """
    from deltalake.transaction import RemoveAction

    with engine_errors(path, "a history", "remove files from"):
        table, now_ms = opened_delta(path), time.time_ns() // 1_000_000
        files = live_files(pa.table(table.get_add_actions(flatten=True)), ())
        gone = [RemoveAction(file.name, True, now_ms, size=file.size_bytes) for file in files if file.name in names]
        if gone:
            check_may_remove(path, table)
            # it stores no pair: else it were a second writer's
            table.create_write_transaction(gone, "append", table.schema())
        for name in table.vacuum(hours, dry_run=True, enforce_retention_duration=False):
            (path / name).remove()


def replaced_in(
    files: tuple[tuple[str, int], ...], replaced: Mapping[str, tuple[str, int] | None]
) -> tuple[tuple[str, int], ...]:
    """Names of files with their rows, as they are behind this; in the order of the names."""
    now = (replaced.get(name, (name, rows)) for name, rows in files)
    return tuple(sorted(name for name in now if name is not None))
