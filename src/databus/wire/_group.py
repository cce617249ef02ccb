"""Groups: what a source yields and the log holds; at most one frame of rows per (source, schema), then a commit.

A group ends at the end of a transaction and may hold many. Only a transaction that alone exceeds the limit is spread
over several groups of its own, all but the last marked `continues`. A control is the first frame of its group. Inside a
group a reader that wants order merges the rows by (`_commit_version`, `_seq`); it never has to look further.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from crc32c import crc32c
from pyarrow import ipc

from databus.core import BUS_COLUMNS, COMMIT_VERSION, SEQ, ControlKind, CorruptData, LimitExceeded, Pair
from databus.schema import TableSchema, frame_schema
from databus.wire._frame import GROUP_FRAMES_MAX
from databus.wire._header import (
    COMMIT,
    CONTINUES,
    CONTROL,
    POSITION_INLINE_BYTES_MAX,
    ROWS,
    SNAPSHOT,
    UNREAD,
    Header,
    check_body_size,
    pack_header,
)

# Made once: in groups of one row, making them each time would be a third of the work.
_IPC_OPTIONS: Final = ipc.IpcWriteOptions()
_SMALL_BYTES: Final = 32 << 10
_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_SCN_FROM_END: Final = len(BUS_COLUMNS) - BUS_COLUMNS.index(COMMIT_VERSION)
_SEQ_FROM_END: Final = len(BUS_COLUMNS) - BUS_COLUMNS.index(SEQ)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table: a batch in `frame_schema(table)`, ordered by (`_commit_version`, `_seq`), not empty."""

    table: TableSchema
    batch: pa.RecordBatch
    body: Any = field(default=None, compare=False, repr=False)
    """The batch as `encode_body` writes it, where the maker of the batch already has those bytes."""


@dataclass(frozen=True, slots=True)
class Control:
    """Something that happened to a table as a whole. It takes one `_seq` of its SCN."""

    kind: ControlKind
    table: TableSchema
    scn: int
    seq: int
    body: Mapping[str, Any]
    """JSON, with at least `kind` and `source`; see docs/wire-format.md for what each kind adds."""

    @property
    def pair(self) -> Pair:
        """(SCN, `_seq`)."""
        return self.scn, self.seq


@dataclass(frozen=True, slots=True)
class OpenSnapshot:
    """A snapshot that has begun and not ended: its generation, and the last key read (JSON values; None before any)."""

    generation: int
    last_key: tuple[Any, ...] | None = None
    begin: Pair = (0, 0)
    where: str | None = None
    """The condition that its request narrowed it by."""
    order: tuple[str, ...] = ()
    """How the database ordered the rows that were read: `last_key` is a place in this order, and in no other."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        last_key = None if self.last_key is None else list(self.last_key)
        value: dict[str, Any] = {"generation": self.generation, "last_key": last_key, "begin": list(self.begin)}
        if self.where is not None:
            value["where"] = self.where
        if self.order:
            value["order"] = list(self.order)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "OpenSnapshot":
        """Read what `to_json` wrote."""
        key = value.get("last_key")
        begin = value.get("begin", (0, 0))
        where = value.get("where")
        return cls(
            int(value["generation"]),
            None if key is None else tuple(key),
            (int(begin[0]), int(begin[1])),
            None if where is None else str(where),
            tuple(map(str, value.get("order", ()))),
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a group."""

    scn: int
    """SCN of the last transaction in the group."""
    seq: int
    """Last `_seq` of that transaction."""
    txid: str
    """Id of that transaction."""
    position: Mapping[str, Any]
    """The source's own position after it, JSON, opaque to the bus."""
    commit_us: int
    """Commit time of that transaction, microseconds since 1970."""
    snapshots: Mapping[str, OpenSnapshot] = field(default_factory=dict)
    """The snapshots that are open after the group, by source."""
    continues: bool = False
    """Whether the group is a part of a transaction that goes on in the next group."""
    has_unread: bool = False
    """Whether more tables, besides those of `snapshots`, wait to be read; the source remembers which."""

    @property
    def pair(self) -> Pair:
        """(SCN, `_seq`)."""
        return self.scn, self.seq

    def position_bytes(self) -> bytes:
        """What the commit frame says beside its header's fields: JSON of txid, position and open snapshots."""
        return _to_json(self._members()).encode()

    def position_parts(self) -> tuple[bytes, bytes]:
        """`position_bytes` as two JSON objects: what stands in the header, and in the body what is too large for that.

        The second is empty where all fits. txid is always in the first.
        """
        whole = self.position_bytes()
        if len(whole) <= POSITION_INLINE_BYTES_MAX:
            return whole, b""
        rest = self._members()
        inline = {"txid": rest.pop("txid")}
        for name in ("snapshots", "position"):
            if name in rest and len(_to_json({**inline, name: rest[name]}).encode()) <= POSITION_INLINE_BYTES_MAX:
                inline[name] = rest.pop(name)
        return _to_json(inline).encode(), _to_json(rest).encode() if rest else b""

    def _members(self) -> dict[str, Any]:
        value: dict[str, Any] = {"txid": self.txid, "position": dict(self.position)}
        if self.snapshots:
            value["snapshots"] = {name: snapshot.to_json() for name, snapshot in self.snapshots.items()}
        return value

    @classmethod
    def from_header(cls, header: Header, place: str = "commit frame") -> "Commit":
        """Decode a commit frame's header, which has all of its position (see `whole_commit`).

        Raises `CorruptData` if its position is not what `position_bytes` wrote.
        """
        try:
            value = json.loads(header.position)
            snapshots = {
                name: OpenSnapshot.from_json(snapshot) for name, snapshot in value.get("snapshots", {}).items()
            }
            txid, position = str(value["txid"]), dict(value["position"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"{place}: its position is not readable: {error!r}") from error
        return cls(
            header.last_scn,
            header.last_seq,
            txid,
            position,
            header.commit_us,
            snapshots,
            continues=header.continues,
            has_unread=header.has_unread,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """What a source yields."""

    commit: Commit
    rows: tuple[Rows, ...] = ()
    control: Control | None = None
    snapshot: bool = False
    """Whether its rows were read from a table, not from the database's log. It is served only after fsync."""
    unrepeatable: bool = False
    """Whether reading again may group the same changes differently, as where the source itself decides what is one
    transaction. It is served only after fsync, too."""
    encoded: "EncodedGroup | None" = field(default=None, compare=False, repr=False)
    """The whole group as another log has it: it goes into this log byte for byte, and `rows` is empty."""


class Registry(Protocol):
    """Who knows the numbers of sources and schemas; a relay's schema store."""

    def number_of(self, table: TableSchema) -> tuple[int, int]:
        """(source id, schema version) of a table, given at first sight and kept."""
        ...


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A group as it goes into the log: buffers to write one after the other, and what the log must know of them."""

    buffers: tuple[Any, ...]
    """Each frame's header and the pieces of its body; the commit frame comes last."""
    bytes_total: int
    """Length of all buffers."""
    commit_bytes: int
    """Length of the commit frame."""
    rows: int
    first: Pair
    """Pair of its first change."""
    commit: Commit
    needs_sync: bool
    """Whether it is served only after fsync."""
    schemas: tuple[tuple[int, int], ...] = ()
    """(source id, fingerprint) of each frame but the commit frame; the fingerprint is 0 where the frame says that the
    table was dropped."""

    @property
    def is_commit_alone(self) -> bool:
        """Whether it only says that nothing more has happened."""
        return self.commit_bytes == self.bytes_total


def encode_body(batch: pa.RecordBatch) -> list[Any]:
    """One self-contained Arrow IPC stream, schema and one batch, as buffers to write one after the other; their length
    together is a multiple of 8. Large ones are the batch's own memory: nothing is copied.
    """
    if batch.get_total_buffer_size() < _SMALL_BYTES:  # a piece costs more than its bytes
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, batch.schema, options=_IPC_OPTIONS) as writer:
            writer.write_batch(batch)
        return [sink.getvalue()]
    pieces = _Pieces()
    with ipc.new_stream(pa.PythonFile(pieces, mode="w"), batch.schema, options=_IPC_OPTIONS) as writer:
        writer.write_batch(batch)
    return pieces.taken


class _Pieces:
    """A file to Arrow, which hands over its buffers as they are."""

    closed = False

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def write(self, piece: Any) -> None:  # bytes or `pa.Buffer`
        self.taken.append(piece)

    def close(self) -> None:
        self.closed = True


def rows_again(header: Header, batch: pa.RecordBatch, fingerprint: int) -> list[Any]:
    """A frame with some of the rows of another, whose header is given, as buffers to write one after the other.

    fingerprint: of the definition that these rows are in; the batch is in its `frame_schema`, and not empty.
    """
    body = encode_body(batch)
    first, last = _pairs_of(batch)
    return [_header_again(header, body, fingerprint, first, last, batch.num_rows), *body]


def control_again(header: Header, body: Mapping[str, Any], fingerprint: int) -> list[Any]:
    """A control as another says it, whose header is given."""
    text = _to_json(dict(body)).encode()
    text += b" " * (-len(text) % 8)
    return [_header_again(header, [text], fingerprint, header.first, header.last, header.rows), text]


def commit_again(header: Header, commit: Commit) -> list[Any]:
    """A commit frame that says something else of its position, whose header is given."""
    position, text = commit.position_parts()
    text += b" " * (-len(text) % 8)
    body = [text] if text else []
    return [_header_again(header, body, header.fingerprint, header.first, header.last, header.rows, position), *body]


def _header_again(
    header: Header,
    body: Sequence[Any],
    fingerprint: int,
    first: Pair,
    last: Pair,
    rows: int,
    position: bytes = b"",
) -> bytes:
    body_crc = body_bytes = 0
    for piece in body:
        body_crc = crc32c(piece, body_crc)
        body_bytes += len(piece)
    return pack_header(
        header.kind,
        flags=header.flags,
        body_crc=body_crc,
        rows=rows,
        body_bytes=body_bytes,
        source_id=header.source_id,
        schema_version=header.schema_version,
        fingerprint=fingerprint,
        first=first,
        last=last,
        commit_us=header.commit_us,
        capture_us=header.capture_us,
        position=position,
    )


def _pairs_of(batch: pa.RecordBatch) -> tuple[Pair, Pair]:
    """The first and last pair of a batch in a frame's schema, whose last columns are the bus's."""
    width, last = batch.num_columns, batch.num_rows - 1
    scns, seqs = batch.column(width - _SCN_FROM_END), batch.column(width - _SEQ_FROM_END)
    first_pair = scns[0].as_py(), seqs[0].as_py()
    return first_pair, first_pair if last == 0 else (scns[last].as_py(), seqs[last].as_py())


def _encode_control(control: Control, registry: Registry, flags: int, commit_us: int, capture_us: int) -> list[bytes]:
    body = _to_json(dict(control.body)).encode()
    body += b" " * (-len(body) % 8)
    check_body_size(CONTROL, len(body), f"{control.table.source}: a control of kind {control.kind}")
    source_id, version = registry.number_of(control.table)
    header = pack_header(
        CONTROL,
        flags=flags,
        body_crc=crc32c(body),
        body_bytes=len(body),
        source_id=source_id,
        schema_version=version,
        fingerprint=control.table.fingerprint,
        first=control.pair,
        last=control.pair,
        commit_us=commit_us,
        capture_us=capture_us,
    )
    return [header, body]


def _encode_rows(
    rows: Rows, registry: Registry, flags: int, commit_us: int, capture_us: int
) -> tuple[list[Any], Pair, Pair]:
    if rows.body is None and not rows.batch.schema.equals(frame_schema(rows.table)):
        raise ValueError(f"{rows.table.source}: the batch's schema is not the table's: {rows.batch.schema}")
    if rows.batch.num_rows == 0:
        raise ValueError(f"{rows.table.source}: a frame of no rows in a group")
    first, last = _pairs_of(rows.batch)
    body = encode_body(rows.batch) if rows.body is None else [rows.body]
    body_crc = body_bytes = 0
    for piece in body:
        body_crc = crc32c(piece, body_crc)
        body_bytes += len(piece)
    check_body_size(ROWS, body_bytes, f"{rows.table.source}: a frame of {rows.batch.num_rows} rows")
    source_id, version = registry.number_of(rows.table)
    header = pack_header(
        ROWS,
        flags=flags,
        body_crc=body_crc,
        rows=len(rows.batch),
        body_bytes=body_bytes,
        source_id=source_id,
        schema_version=version,
        fingerprint=rows.table.fingerprint,
        first=first,
        last=last,
        commit_us=commit_us,
        capture_us=capture_us,
    )
    return [header, *body], first, last


def _encode_commit(group: Group, first: Pair, rows: int, capture_us: int) -> list[bytes]:
    commit = group.commit
    flags = (SNAPSHOT if group.snapshot else 0) | (CONTINUES if commit.continues else 0)
    position, body = commit.position_parts()
    body += b" " * (-len(body) % 8)
    check_body_size(COMMIT, len(body), f"the position after SCN {commit.scn}")
    header = pack_header(
        COMMIT,
        flags=flags | (UNREAD if commit.has_unread else 0),
        body_crc=crc32c(body),
        rows=rows,
        body_bytes=len(body),
        first=first,
        last=commit.pair,
        commit_us=commit.commit_us,
        capture_us=capture_us,
        position=position,
    )
    return [header, body] if body else [header]


def encode_group(group: Group, registry: Registry, capture_us: int) -> EncodedGroup:
    """Encode a source's group as frames, unless it is encoded.

    Raises ValueError where it breaks a rule of this module's first lines, `LimitExceeded` where readers refuse it.
    """
    if group.encoded is not None:
        return group.encoded
    if len(group.rows) >= GROUP_FRAMES_MAX:
        raise LimitExceeded(f"{len(group.rows)} frames of rows in one group; the most are {GROUP_FRAMES_MAX - 1}")
    commit = group.commit
    flags = SNAPSHOT if group.snapshot else 0
    buffers: list[Any] = []
    firsts: list[Pair] = []
    bytes_total = row_count = 0
    schemas: list[tuple[int, int]] = []
    if group.control is not None:
        buffers += _encode_control(group.control, registry, flags, commit.commit_us, capture_us)
        bytes_total += len(buffers[0]) + len(buffers[1])
        firsts.append(group.control.pair)
        is_gone = group.control.kind is ControlKind.DROP
        table = group.control.table
        schemas.append((registry.number_of(table)[0], 0 if is_gone else table.fingerprint))
    for rows in group.rows:
        encoded, first, last = _encode_rows(rows, registry, flags, commit.commit_us, capture_us)
        if last > commit.pair:
            raise ValueError(f"{rows.table.source}: rows up to {last} in a group that ends at {commit.pair}")
        buffers += encoded
        bytes_total += sum(map(len, encoded))
        row_count += rows.batch.num_rows
        firsts.append(first)
        schemas.append((registry.number_of(rows.table)[0], rows.table.fingerprint))
    if len(group.rows) > 1 and len({rows.table.fingerprint for rows in group.rows}) < len(group.rows):
        raise ValueError(f"two frames of rows of one table in one schema, in the group that ends at {commit.pair}")
    first = min(firsts, default=commit.pair)
    commit_buffers = _encode_commit(group, first, row_count, capture_us)
    commit_bytes = sum(map(len, commit_buffers))
    return EncodedGroup(
        buffers=(*buffers, *commit_buffers),
        bytes_total=bytes_total + commit_bytes,
        commit_bytes=commit_bytes,
        rows=row_count,
        first=first,
        commit=commit,
        needs_sync=group.snapshot or group.unrepeatable,
        schemas=tuple(schemas),
    )
