"""Jobs: rewrites of tables' files, divided into parts. A task does one alone, and may be started more than once.

A part writes files that no reader sees, and returns what is to be committed in the place of what. The driver commits
what came of all parts of a table at once. Start with `MergeJob`; `run_all` has the work of many tables done side by
side.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from databus.disk import Location
from databus.flow import (
    GROUP_ROWS_MAX,
    Restage,
    Tasks,
    fitted_rows,
    read_passing_file,
    write_data_pieces,
    write_marked_file,
)
from databus.sinks.delta._layout import Layout, LiveFile, TableParts, divided, mark_of
from databus.sinks.delta._rewrite import GROUP_BYTES_MAX, Rewritten, last_images, opened_file, rewrite

_PART_BYTES_MIN: Final = 64 << 20  # of files, of which less is not worth a task
_TASKS_A_SLOT_MAX: Final = 4  # more cost more than they even out
_PIECE_BYTES: Final = 16 << 20  # of rows, of a row group

T = TypeVar("T")


class RewritePart(Protocol):
    """What one task does of a job; travels there as it is."""

    def __call__(self) -> Rewritten:
        """Write files; returns them, and the names of those whose place they take."""


class Job(Protocol):
    """A rewrite of one table."""

    def parts(self, tasks: Tasks) -> Sequence[RewritePart]:
        """What can be done at the same time, in as many parts as are worth it, or few more."""


def run_jobs(jobs: Sequence[Job], tasks: Tasks) -> list[Rewritten]:
    """Run jobs side by side; returns what each came to. Raises what a part raises."""
    parts = [(number, part) for number, job in enumerate(jobs) for part in job.parts(tasks)]
    count = min(len(parts), tasks.slots * _TASKS_A_SLOT_MAX)
    results = tasks.run(partial(_run_parts, [part for _, part in parts], count), count)
    done: list[list[Rewritten]] = [[] for _ in jobs]
    for place, (number, _) in enumerate(parts):
        done[number].append(results[place % count][place // count])
    return [_joined(rewritten) for rewritten in done]


def _run_parts(parts: Sequence[RewritePart], count: int, number: int) -> list[Rewritten]:
    """What one of so many tasks does."""
    return [part() for part in parts[number::count]]


def _joined(done: Sequence[Rewritten]) -> Rewritten:
    """What a job came to, of whose parts each came to one of these."""
    added = [file for part in done for file in part.added]
    removed = [name for part in done for name in part.removed]
    return Rewritten(added, removed, sum(part.changed for part in done))


Work = Generator[Job, Rewritten, T]
"""What there is to do for one table: yields jobs, one after another, and is sent what each came to."""


def run_all(works: Sequence[Work[T]], tasks: Tasks, *, side_by_side: bool = True) -> list[T]:
    """Do the work of several tables; jobs that stand at the same time are run together. Returns what each returns.

    What needs no job is done first, of all of them. side_by_side: otherwise each sees what the one before has done.
    Raises one `Restage` for all of those that raised it, after the others have been done.
    """
    again: list[Restage] = []
    mine = [_asking_later(work, again) for work in works]
    turns = [mine] if side_by_side else [[work] for work in mine]
    results = [result for turn in turns for result in _run_together(turn, tasks)]
    if again:
        raise Restage.of_all(again)
    return [result for result in results if result is not None]


def _asking_later(work: Work[T], again: list[Restage]) -> Work[T | None]:
    try:
        return (yield from work)
    except Restage as asked:
        again.append(asked)
        return None


def _run_together(works: Sequence[Work[T]], tasks: Tasks) -> list[T]:
    results: dict[int, T] = {}
    standing: list[tuple[int, Job]] = []

    def go_on(number: int, done: Rewritten | None) -> None:
        try:
            job = next(works[number]) if done is None else works[number].send(done)
        except StopIteration as end:
            results[number] = end.value
        else:
            standing.append((number, job))

    for number in range(len(works)):
        go_on(number, None)
    while standing:
        now, standing = standing, []
        for (number, _), done in zip(now, run_jobs([job for _, job in now], tasks), strict=True):
            go_on(number, done)
    return [results[number] for number in range(len(works))]


@dataclass(frozen=True)
class MergeJob:
    """Apply the last images of a batch."""

    folder: Location
    """Of the table."""
    files: Sequence[LiveFile]
    layout: Layout
    staged: tuple[str, ...]
    """Names of the files, in it, that hold the batch's rows."""
    rows: int
    """How many these are."""
    lacks: bool = False
    """Whether rows may lack columns of the table, which are null then."""

    def parts(self, tasks: Tasks) -> Sequence[RewritePart]:
        """See `Job.parts`."""
        count = max(min(tasks.slots, self.rows // tasks.rows_min), 1)
        layout = replace(self.layout, buckets_min=1 << (count.bit_length() - 1))
        parts = divided(self.files, layout, count)
        return [
            _MergePart(self.folder, parts.alone(number), number, self.staged, self.lacks)
            for number in range(len(parts.files))
        ]


@dataclass(frozen=True)
class _MergePart:
    folder: Location
    parts: TableParts
    number: int
    staged: tuple[str, ...]
    lacks: bool

    def __call__(self) -> Rewritten:
        layout = self.parts.layout
        rows = pa.concat_tables([self._read(name) for name in self.staged])
        files = self.parts.files[self.number]
        write = partial(write_marked_file, self.folder, group_rows_max=layout.group_rows_max)
        return rewrite(files, last_images(rows, layout), layout, self.folder, write)

    def _read(self, name: str) -> pa.Table:
        layout = self.parts.layout
        rows = read_passing_file(self.folder, name)
        if len(self.parts.files) > 1:
            keys = fitted_rows(rows.select(layout.key), pa.schema([layout.schema.field(name) for name in layout.key]))
            rows = rows.filter(pa.array(self.parts.part_of(keys) == self.number))
        if self.lacks:
            for field in layout.schema:
                if field.name not in rows.column_names:
                    rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows


Change = Callable[[pa.Table], "pa.Table | None"]
"""What becomes of rows of a table; None if they stay as they are. Travels to tasks as it is."""


@dataclass(frozen=True)
class RemakeJob:
    """Change the rows of files, each by itself."""

    folder: Location
    files: Sequence[LiveFile]
    schema: pa.Schema
    """Of the files."""
    change: Change
    shared: Mapping[str, str] = field(default_factory=dict)
    """Columns with the one value that all these rows have, and no file holds."""
    marks: str | None = None
    """Of which key the marks in names stay true (a `Layout.key_mark`, empty for none), since the change leaves the
    values of its columns as they are; None if it changes no value at all.
    """
    group_rows_max: int = GROUP_ROWS_MAX
    """Of a row group."""

    def parts(self, tasks: Tasks) -> Sequence[RewritePart]:
        """See `Job.parts`."""
        share = max(sum(file.size_bytes for file in self.files) // tasks.slots, _PART_BYTES_MIN)
        shares: list[list[LiveFile]] = [[]]
        for file in self.files:
            if sum(held.size_bytes for held in shares[-1]) >= share:
                shares.append([])
            shares[-1].append(file)
        return [_RemakePart(replace(self, files=tuple(files))) for files in shares]


@dataclass(frozen=True)
class _RemakePart:
    job: RemakeJob

    def __call__(self) -> Rewritten:
        added, removed = [], []
        for file in self.job.files:
            if any(self.job.change(rows) is not None for rows in self._rows(file)):
                removed.append(file.name)
                mark = mark_of(file, self.job.marks)
                most = self.job.group_rows_max
                added += [write_marked_file(self.job.folder, rows, mark, most) for rows in self._changed(file)]
        return Rewritten(added, removed, len(removed))

    def _rows(self, file: LiveFile) -> Iterator[pa.Table]:
        with opened_file(self.job.folder, file.name) as parquet:
            for group in range(parquet.num_row_groups):
                rows = fitted_rows(parquet.read_row_group(group), self.job.schema)
                for name, value in self.job.shared.items():
                    rows = rows.append_column(name, pa.repeat(pa.scalar(value), rows.num_rows))
                yield rows

    def _changed(self, file: LiveFile) -> Iterator[pa.Table]:
        """What becomes of its rows, as files of bounded size."""
        held: list[pa.Table] = []
        for rows in self._rows(file):
            changed = self.job.change(rows)
            held.append((rows if changed is None else changed).drop_columns([*self.job.shared]))
            if sum(rows.nbytes for rows in held) >= GROUP_BYTES_MAX:
                yield pa.concat_tables(held)
                held = []
        left = pa.concat_tables(held) if held else None
        if left is not None and left.num_rows:
            yield left


@dataclass(frozen=True)
class JoinJob:
    """Join files: those of each group become one."""

    folder: Location
    groups: Sequence[Sequence[LiveFile]]
    schema: pa.Schema
    """Of the files, which may lack columns."""

    def parts(self, tasks: Tasks) -> Sequence[RewritePart]:
        """See `Job.parts`: a group is one."""
        del tasks
        return [_JoinPart(self.folder, group, self.schema) for group in self.groups]


@dataclass(frozen=True)
class _JoinPart:
    folder: Location
    files: Sequence[LiveFile]
    schema: pa.Schema

    def __call__(self) -> Rewritten:
        written = write_data_pieces(self.folder, self.schema, self._pieces())
        return Rewritten([written], [file.name for file in self.files], 0)

    def _pieces(self) -> Iterator[pa.Table]:
        """Their rows, in row groups that are worth one."""
        held: list[pa.Table] = []
        for file in self.files:
            with opened_file(self.folder, file.name) as parquet:
                for group in range(parquet.num_row_groups):
                    held.append(fitted_rows(parquet.read_row_group(group), self.schema))
                    if sum(rows.nbytes for rows in held) >= _PIECE_BYTES:
                        yield pa.concat_tables(held)
                        held = []
        if held:
            yield pa.concat_tables(held)


def groups_to_join(files: Sequence[LiveFile], bytes_max: int) -> list[list[LiveFile]]:
    """Which files are to become one, in the order of their first bounds, none of them larger than `bytes_max`.

    A file of half of that is left as it is, so that a row is written again but a few times, however long a table grows.
    """
    small = [file for file in files if file.size_bytes < bytes_max // 2]
    groups: list[list[LiveFile]] = [[]]
    for file in sorted(small, key=lambda file: (file.bounds[0] or (0, 0), file.name)):
        if sum(group.size_bytes for group in groups[-1]) + file.size_bytes > bytes_max:
            groups.append([])
        groups[-1].append(file)
    return [group for group in groups if len(group) > 1]
