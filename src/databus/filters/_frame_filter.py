"""FrameFilter: the bytes of a stream behind a filter, made of the frames of its log. Pure; no row becomes an object.

Each image is judged alone, in the definition that it was written in, and one that passes without the other is an insert
or a delete. Controls pass, as what they mean behind the filter. Commit frames pass, so that who gets nothing else still
moves on; of what they say about tables, only what the reader may know. A frame that passes whole is the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from databus.core import ControlKind, CorruptData, DatabusError, MalformedRequest, UnknownColumn, is_pattern
from databus.filters._choice import matches, nearest
from databus.filters._stream_filter import StreamFilter
from databus.filters._table_cut import (
    Hashes,
    KnownDefinitions,
    TableCut,
    hidden_columns,
    misfit,
    row_hashes,
    unknown_column,
)
from databus.filters._table_step import changed_by, previous_of, schema_body
from databus.schema import SchemaChange, TableSchema, column_named
from databus.wire import (
    COMMIT,
    CONTROL,
    Commit,
    Frame,
    Header,
    OpenSnapshot,
    commit_again,
    control_again,
    frames_in,
    rows_again,
    whole_commit,
)

_EXACT: Final = "exact"
_PARTITION: Final = "partition"
_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class FilteredGroups:
    """What is left of whole groups."""

    content: bytes
    taken: int
    """How many bytes of the groups were filtered: fewer than all where `error` stands before the next group."""
    error: DatabusError | None = None


class FrameFilter:
    """A filter over the frames of one physical source. Has no place in a stream: any number of readers share it, in any
    threads.
    """

    def __init__(self, wanted: StreamFilter, physical: str, known: KnownDefinitions) -> None:
        self.wanted = wanted
        self.physical = physical
        self._known = known
        self._cuts: dict[tuple[int, bool], TableCut] = {}
        self._made: dict[int, TableSchema] = {}

    @classmethod
    def over(cls, wanted: StreamFilter, physical: str, table: TableSchema) -> "FrameFilter":
        """Over the definition that one table has now, where no other is known."""
        return cls(wanted, physical, _Now(table))

    def cut_of(self, table: TableSchema) -> TableCut:
        """What the filter makes of a definition. Raises as `TableCut.of` does."""
        now = self._known.definition_now(table.source)
        key = table.fingerprint, now is not None and now.fingerprint == table.fingerprint
        cut = self._cuts.get(key)
        if cut is None:
            cut = self._cuts[key] = TableCut.of(self.wanted, self.physical, table, self._known)
            self._made[table.fingerprint] = cut.after
        return cut

    def after(self, table: TableSchema) -> tuple[TableSchema, ...]:
        """The definition of what comes out of one; none where the filter does not fit it."""
        return (self.cut_of(table).after,) if self._fits(table) else ()

    def made_of(self, table: TableSchema) -> tuple[TableSchema, ...]:
        """What was made of a definition so far."""
        made = self._made.get(table.fingerprint)
        return () if made is None else (made,)

    def check(self, sources: Sequence[str], *, is_at_end: bool) -> None:
        """Raise `UnknownColumn` or `MalformedRequest` where the filter does not fit these tables (`db.table`).

        is_at_end: what comes is in the definitions of now. Else a table fits if it did once: the stream ends where it
        does not any more.
        """
        for source in sources:
            now = self._known.definition_now(source)
            if now is None:
                continue
            versions = self._known.definitions(source)
            self._check_columns(source, now, versions)
            try:
                self.cut_of(now)
            except UnknownColumn:
                if is_at_end or not any(self._fits(version) for version in versions):
                    raise

    def unmatched(self, sources: Sequence[str]) -> str | None:
        """The error text for a rule about a table that is not among these (`db.table`); patterns may match nothing."""
        full = [f"{self.physical}/{source}" for source in sources]
        for rule in self.wanted.rules:
            if not is_pattern(rule.tables) and not any(matches(name, [rule.tables]) for name in full):
                near = nearest(rule.tables, full)
                hint = f"; did you mean {near!r}?" if near else f"; there are {', '.join(full[:_NAMED_MAX]) or 'none'}"
                return f"filters: there is no table called {rule.tables[:200]!r}{hint}"
        return None

    def _fits(self, table: TableSchema) -> bool:
        try:
            self.cut_of(table)
        except (MalformedRequest, UnknownColumn):
            return False
        return True

    def _check_columns(self, source: str, now: TableSchema, versions: Sequence[TableSchema]) -> None:
        name = f"{self.physical}/{source}"
        rules, forced = self.wanted.about(name)
        visible = {
            column: None
            for table in (now, *versions)
            for hidden in [hidden_columns(table, forced, self._known)]
            for column in table.names
            if column not in hidden
        }
        for rule in rules:
            for column in rule.columns or ():
                if column_named(column, tuple(visible)) is None:
                    raise unknown_column("columns", name, column, [other for other in now.names if other in visible])

    # Frames

    def filtered(
        self, content: bytes, frames: Sequence[tuple[int, Frame]] | None = None, sources: frozenset[int] | None = None
    ) -> FilteredGroups:
        """What is left of whole groups; the same object where that is all.

        frames: the frames of `content`, and where each begins, where the caller has them. sources: ids whose frames are
        wanted; None for all.
        """
        cut = list(frames_in(content, self.physical)) if frames is None else frames
        out = _FilteredContent(content)
        start = first = 0
        for number, (at, frame) in enumerate(cut):
            if frame.header.kind != COMMIT:
                continue
            end = at + frame.header.frame_bytes
            try:
                group = [self._left(piece, frame.header, sources) for _, piece in cut[first:number]]
            except DatabusError as error:
                return FilteredGroups(out.content(start), start, error)  # the groups before it are served first
            for (place, piece), left in zip(cut[first:number], group, strict=True):
                if left is not None:
                    out.replace(place, place + piece.header.frame_bytes, left)
            if self.wanted.conceals:
                out.replace(at, end, self._commit(frame))
            start, first = end, number + 1
        return FilteredGroups(out.content(len(content)), len(content))

    def measured(self, frames: Sequence[Frame]) -> tuple[int, int]:
        """Roughly how many rows and bytes are left of the frames of a group, without its commit frame."""
        rows = size = 0
        for frame in frames:
            header = frame.header
            if header.kind == CONTROL:
                self._control(frame)  # which may be where the stream ends
                size += header.frame_bytes
                continue
            cut = self.cut_of(self._table_of(header))
            if cut.is_nothing:
                rows, size = rows + header.rows, size + header.frame_bytes
                continue
            left = cut.count(frame.batch, self._hashes(frame, cut))
            rows += left
            size += header.frame_bytes * left // header.rows * len(cut.after.columns) // len(cut.before.columns)
        return rows, size

    def _left(self, frame: Frame, commit: Header, sources: frozenset[int] | None) -> list[Any] | None:
        """The buffers of a frame behind the filter, none where nothing is left; None where it passes as it is."""
        if sources is not None and frame.header.source_id not in sources:
            return []
        if frame.header.kind == CONTROL:
            return self._control(frame)
        cut = self.cut_of(self._table_of(frame.header))
        if cut.is_nothing:
            return None
        is_being_read = bool(commit.body_bytes) or b'"snapshots"' in commit.position  # also where that is hard to say
        rows = cut.rows(frame.batch, self._hashes(frame, cut), all_updates=is_being_read)
        if rows is None:
            return []
        if rows is frame.batch and cut.after.fingerprint == frame.header.fingerprint:
            return None
        return rows_again(frame.header, rows, cut.after.fingerprint)

    def _commit(self, frame: Frame) -> list[Any]:
        """A commit frame without what only the source itself reads, such as the keys up to which it has read tables."""
        commit = Commit.from_header(whole_commit(frame.header, frame.body))
        snapshots = {
            name: OpenSnapshot(snapshot.generation, None, snapshot.begin)
            for name, snapshot in commit.snapshots.items()
            if self.wanted.sees(f"{self.physical}/{name}")
        }
        return commit_again(frame.header, replace(commit, position={}, snapshots=snapshots))

    def _hashes(self, frame: Frame, cut: TableCut) -> Hashes | None:
        if cut.partition is None:
            return None
        if frame.key_hashes is None:
            frame.key_hashes = row_hashes(cut.before, frame.batch)
        hashes: Hashes = frame.key_hashes
        return hashes

    def _table_of(self, header: Header) -> TableSchema:
        table = self._known.definition(header.fingerprint)
        if table is None:
            raise CorruptData(f"{self.physical}: no definition {header.fingerprint:016x} is known, which a frame names")
        return table

    def _control(self, frame: Frame) -> list[Any] | None:
        table = self._table_of(frame.header)
        part = self.wanted.partition
        body = frame.control if part is None else {**frame.control, _PARTITION: str(part)}
        if frame.control_kind is not ControlKind.SCHEMA:
            after = self.cut_of(table).after.fingerprint
            is_same = after == table.fingerprint and part is None
            return None if is_same else control_again(frame.header, body, after)
        previous = previous_of(body)
        before = None if previous is None else self._known.definition(previous)
        old = None if before is None or not self._fits(before) else self.cut_of(before)
        if old is not None:
            self._check_gone(old, table)
        new = self.cut_of(table)
        conceals = self.wanted.conceals  # the DDL may name other tables
        if new.is_nothing and (before is None or (old is not None and old.is_nothing)) and not conceals:
            return None
        change = SchemaChange.of_control(frame.header.first, body, before, table)
        seen, is_exact = changed_by(None if old is None else old.step, new.step, change)
        new_body = schema_body(body, seen, hides=conceals or bool(new.hidden or (old is not None and old.hidden)))
        if not (is_exact or change.needs_snapshot or before is None):
            new_body[_EXACT] = False
        return control_again(frame.header, new_body, new.after.fingerprint)

    def _check_gone(self, old: TableCut, table: TableSchema) -> None:
        """Raise `UnknownColumn` where a column of a condition is dropped: what passes from there on is unknown."""
        names = old.before.names
        lost = [name for name in old.step.reads if name in names and column_named(name, table.names) is None]
        if lost and self.wanted.conceals:
            raise misfit(f"{self.physical}/{table.source}")
        if lost:
            raise UnknownColumn(
                f"where: {self.physical}/{table.source} loses its column {', '.join(sorted(lost))} here, by which rows "
                "are chosen; the stream ends before that. Go on from the same place with a condition over the columns "
                f"that there are: {', '.join(table.names)}"
            )


@dataclass(frozen=True)
class _Now:
    """Definitions where only the last one of each table is known."""

    table: TableSchema

    def definition(self, fingerprint: int) -> TableSchema | None:
        return self.table if fingerprint == self.table.fingerprint else None

    def definitions(self, source: str) -> Sequence[TableSchema]:
        return (self.table,) if source == self.table.source else ()

    def definition_now(self, source: str) -> TableSchema | None:
        return self.table if source == self.table.source else None


class _FilteredContent:
    """Stretches of `content` as they are, and what stands in place of others."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._view = memoryview(content)
        self._pieces: list[Any] = []
        self._kept = 0

    def replace(self, start: int, end: int, buffers: Sequence[Any]) -> None:
        """Have these stand there instead."""
        self._pieces += [self._view[self._kept : start], *buffers]
        self._kept = end

    def content(self, end: int) -> bytes:
        """All up to there."""
        if not self._pieces and end == len(self._content):
            return self._content
        return b"".join([*self._pieces, self._view[self._kept : end]])
