"""Groups of frames to typed batches: in order, bounded by two pairs, small frames joined to batches worth sending.

Each batch that Spark takes has a price of its own, so rows wait until there are enough; a large frame goes as it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    SNAPSHOT,
    TXID,
    ControlKind,
    Pair,
    UnsupportedFeature,
)
from databus.schema import SchemaChange
from databus.spark._cast import Caster, InexactRowsError, between, join_frames
from databus.spark._schema import CONTROL_LABEL, SCHEMA_AHEAD
from databus.wire import Commit, Frame, FrameGroup

ROWS_WORTH_SENDING: Final = 32_768  # a batch costs Spark about the same, whatever is in it
BYTES_WORTH_SENDING: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class PieceBounds:
    """What of the rows belongs to a batch: those above `after`, up to and including `until`."""

    after: Pair
    until: Pair

    def holds(self, pair: Pair) -> bool:
        """Whether this pair belongs to it."""
        return self.after < pair <= self.until

    def holds_all(self, frame: Frame) -> bool:
        """Whether every row of the frame belongs to it."""
        return self.holds(frame.header.first) and self.holds(frame.header.last)

    def holds_none(self, frame: Frame) -> bool:
        """Whether no row of the frame belongs to it."""
        return frame.header.last <= self.after or frame.header.first > self.until


class TypedDecoder:
    """Turns groups of one table's frames, as a relay filtered them, into batches. Pure: feed, then finish.

    controls_as_rows: with `meta=full`. controls_ignored: with `controls=ignore`. With neither, a control other than
    `schema` raises `UnsupportedFeature`. changes: those of the table's schema, in order, up to the one that is read as;
    rows from before them are made into it. leaves_out: whether rows for which that cannot be done exactly are dropped
    where a snapshot of the table follows; else, and where none does, they raise `UnsupportedFeature`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        where: str,
        bounds: PieceBounds,
        *,
        controls_as_rows: bool,
        controls_ignored: bool,
        changes: tuple[SchemaChange, ...] = (),
        leaves_out: bool = False,
    ) -> None:
        self._schema = schema
        self._where = where
        self._bounds = bounds
        self._controls_as_rows = controls_as_rows
        self._controls_ignored = controls_ignored
        self._changes = changes
        self._leaves_out = leaves_out
        self._caster = Caster(schema, where)
        self._waiting: list[Frame] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def feed(self, group: FrameGroup) -> Iterator[pa.RecordBatch]:
        """Take a group; yields the batches that are complete now."""
        control = group.control
        if control is not None and self._bounds.holds(control.header.first):
            yield from self._control(control, group)
        frames = group.rows
        if len(frames) > 1:
            yield from self.finish()
            yield from self._merged(frames)
            return
        for frame in frames:
            if self._bounds.holds_all(frame):
                yield from self._wait(frame)
            elif not self._bounds.holds_none(frame):
                yield from self.finish()
                rows = between(join_frames([frame]), self._bounds.after, self._bounds.until)
                yield from self._cast(rows, frame)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what still waits."""
        if self._waiting:
            frames, self._waiting, self._waiting_rows, self._waiting_bytes = self._waiting, [], 0, 0
            yield from self._cast(join_frames(frames), frames[0])

    def _wait(self, frame: Frame) -> Iterator[pa.RecordBatch]:
        first = self._waiting[0] if self._waiting else frame
        if first.header.fingerprint != frame.header.fingerprint or self._later(first) != self._later(frame):
            yield from self.finish()
        self._waiting.append(frame)
        self._waiting_rows += frame.header.rows
        self._waiting_bytes += frame.header.body_bytes
        if self._waiting_rows >= ROWS_WORTH_SENDING or self._waiting_bytes >= BYTES_WORTH_SENDING:
            yield from self.finish()

    def _merged(self, frames: tuple[Frame, ...]) -> Iterator[pa.RecordBatch]:
        """Rows of one table in several schemas, in one group: merged by their pairs."""
        parts = [
            batch
            for frame in frames
            for batch in self._cast(between(join_frames([frame]), self._bounds.after, self._bounds.until), frame)
        ]
        if parts:
            whole = pa.Table.from_batches(parts)
            order = pc.sort_indices(whole, sort_keys=[(COMMIT_VERSION, "ascending"), (SEQ, "ascending")])
            yield whole.take(order).combine_chunks().to_batches()[0]

    def _later(self, frame: Frame) -> int:
        """How many changes of the schema stand after this frame's rows."""
        return sum(change.pair > frame.header.last for change in self._changes)

    def _cast(self, rows: pa.Table, frame: Frame) -> Iterator[pa.RecordBatch]:
        """Rows, all from the same place among the changes, as one batch; none if they are dropped."""
        changes = self._changes[len(self._changes) - self._later(frame) :]
        try:
            yield self._caster.cast(rows, changes)
        except InexactRowsError as error:
            if not (self._leaves_out and any(change.needs_snapshot for change in changes)):
                raise self._inexact(frame, changes, error) from None

    def _inexact(self, frame: Frame, changes: Sequence[SchemaChange], error: InexactRowsError) -> UnsupportedFeature:
        scn, seq = frame.header.first
        then = f" up to the change at SCN {changes[-1].pair[0]}" if changes else ""
        onwards = changes[-1].pair[0] if changes else scn + 1
        return UnsupportedFeature(
            f"{self._where}: rows at SCN {scn}, seq {seq}{then} cannot be made into today's schema exactly: {error}. "
            f"Begin after them: in a pipeline with `starting_version: {onwards}` in its input and the output made "
            "again, in Spark with the option startingVersion. Or read them in the schema that they have, with the "
            "option schemaFingerprint"
        )

    def _control(self, frame: Frame, group: FrameGroup) -> Iterator[pa.RecordBatch]:
        if self._controls_as_rows:
            yield from self.finish()
            yield self._control_row(frame, group)
        elif not self._controls_ignored and frame.control.get("kind") != ControlKind.SCHEMA:
            raise refusal(self._where, str(frame.control.get("kind")), frame.header.first)

    def _control_row(self, frame: Frame, group: FrameGroup) -> pa.RecordBatch:
        header = frame.header
        is_last = header.first_scn == group.commit.last_scn  # else no frame of the group says the transaction's id
        values = {
            CHANGE_TYPE: CONTROL_LABEL,
            COMMIT_VERSION: header.first_scn,
            SEQ: header.first_seq,
            COMMIT_TIMESTAMP: header.commit_us,
            TXID: Commit.from_header(group.commit, frame.place).txid if is_last else None,
            SNAPSHOT: False,
            CONTROL: bytes(frame.body).decode().rstrip(" "),
        }
        return _row_of(values, self._schema)

    def ahead(self) -> pa.RecordBatch:
        """A control that says which changes of the schema rows of this batch have been made through already."""
        scn, seq = self._bounds.after
        body = {"kind": SCHEMA_AHEAD, "changes": [change.to_json() for change in self._changes]}
        values = {
            CHANGE_TYPE: CONTROL_LABEL,
            COMMIT_VERSION: scn,
            SEQ: seq,
            COMMIT_TIMESTAMP: 0,
            SNAPSHOT: False,
            CONTROL: json.dumps(body, ensure_ascii=False, separators=(",", ":")),
        }
        return _row_of(values, self._schema)


def _row_of(values: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], field.type) for field in schema], schema=schema
    )


def refusal(where: str, kind: str, pair: Pair) -> UnsupportedFeature:
    """The error for a control that was not asked for."""
    return UnsupportedFeature(
        f"{where}: a control of kind {kind!r} stands at SCN {pair[0]}, seq {pair[1]}, and typed rows alone do not show "
        "it; read with meta=full to get controls as rows, or with controls=ignore to pass over them"
    )
