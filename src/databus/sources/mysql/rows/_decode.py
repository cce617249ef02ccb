"""Row images into Arrow arrays: one arena for all columns of a run of rows events, written by kernels, never copied."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from databus.core import LimitExceeded
from databus.sources.mysql._charsets import is_text, shown
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._arrow_types import Policies, address_type
from databus.sources.mysql.rows._json import json_text
from databus.sources.mysql.rows._layout import ColumnLayout
from databus.sources.mysql.rows._plan import DecodePlan
from databus.sources.mysql.rows._row_errors import LoggedRows, not_this_table, row_error, unknown_member
from databus.sources.mysql.rows._text import TEXT_SLACK, RowPlaces, check_size, text_array, to_text
from databus.sources.mysql.rows._time_text import logged_text, number_text

_TIME: Final = pa.timestamp("us", tz="UTC")
_KINDS: Final = {"uuid": (0, 36), "inet4": (1, 15), "inet6": (2, 39)}
_ADDRESS_SLACK: Final = 8
ROW_BYTES_MAX: Final = 64 << 20
_TEXT_BYTES_MAX: Final = (1 << 31) - 1
_ALIGNED: Final = 64
_PLACES: Final = [ops.VALID, ops.OUT, ops.TEXT]
_NO_LIMIT: Final = 1 << 40
_SLACK: Final = 64  # bytes that a copy by words may overwrite behind a column's text


@dataclass(frozen=True, slots=True)
class Decoded:
    """The images of a run of rows events."""

    first_event: int
    """The number of the first event whose images these are."""
    images_per_event: NDArray[np.int32]
    """How many images each event has."""
    change_types: NDArray[np.int8]
    """Of each image: 1 insert, 2 update_preimage, 3 update_postimage, 4 delete."""
    arrays: list[pa.Array]
    """One for each column of the plan's table."""

    @property
    def images(self) -> int:
        """How many images there are."""
        return self.change_types.size


def decode(
    plan: DecodePlan,
    buffer: NDArray[np.uint8],
    kinds: NDArray[np.int8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    place: Callable[[int], str],
    *,
    row_bytes_max: int = ROW_BYTES_MAX,
    text_bytes_max: int = _TEXT_BYTES_MAX,
) -> list[Decoded]:
    """Decode the images of rows events, in order; one part, or several where a column's text would pass 2 GiB.

    kinds, starts, ends: of each event (1 write, 2 update, 3 delete, 4 partial update); its images in `buffer`. place:
    says where in the log an offset of `buffer` is. Raises `CorruptData` for bytes that are no image of this table,
    `UnrepresentableValue` for a value that the policies refuse, `LimitExceeded` for a row above `row_bytes_max`, unless
    the policies omit values of it: all name table, column and place. Nothing of `buffer` is kept.
    """
    from databus.sources.mysql.rows import _image_kernels as kernels

    if starts.size == 1:  # where most transactions are small, every operation on an array counts
        is_inside = starts[0] >= 0 and ends[0] <= buffer.size
    else:
        is_inside = not starts.size or (int(starts.min()) >= 0 and int(ends.max()) <= buffer.size)
    if not is_inside:
        raise ValueError("events outside of the buffer")
    status = np.zeros(ops.STATUS, dtype=np.int64)
    totals = np.zeros(len(plan.layouts), dtype=np.int64)
    counts = np.zeros(starts.size, dtype=np.int32)
    refused = row_bytes_max if plan.policies.omitter is None else _NO_LIMIT
    images = kernels.measure(
        buffer, kinds, starts, ends, plan.mask, plan.program, plan.steps, plan.json_columns, refused,
        totals, counts, status,
    )  # fmt: skip
    if images < 0:
        raise row_error(plan, status, starts, place, row_bytes_max)
    text_bytes = [_text_bytes(layout, int(totals[i]), images) for i, layout in enumerate(plan.layouts)]
    if max(text_bytes, default=0) <= text_bytes_max:
        return [_decode(plan, buffer, kinds, starts, ends, place, text_bytes, counts, images)]
    if starts.size == 1:
        raise LimitExceeded(
            f"{plan.table.source}: one rows event at {place(int(starts[0]))} holds more than {text_bytes_max} bytes of "
            "one column; lower binlog_row_event_max_size on the server"
        )
    half = starts.size // 2  # a column's text is too much for int32 offsets: decode each half by itself
    parts = []
    for first, last in ((0, half), (half, starts.size)):
        for part in decode(
            plan, buffer, kinds[first:last], starts[first:last], ends[first:last], place,
            row_bytes_max=row_bytes_max, text_bytes_max=text_bytes_max,
        ):  # fmt: skip
            parts.append(  # noqa: PERF401 - reads better than a comprehension of two loops
                Decoded(first + part.first_event, part.images_per_event, part.change_types, part.arrays)
            )
    return parts


def _padded(size: int) -> int:
    return (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED


def _text_bytes(layout: ColumnLayout, total: int, images: int) -> int:
    if layout.shape != "text":
        return 0
    if layout.op == ops.PADDED:
        return layout.needs[0] * images
    if layout.op == ops.DECIMAL_TEXT:
        leading, before, after, last = layout.needs
        return (leading + 9 * (before + after) + last + 3) * images
    return total


def _place_columns(plan: DecodePlan, text_bytes: list[int], images: int) -> tuple[NDArray[np.int64], int]:
    """The program with each column's places in an arena, and the arena's size."""
    program = plan.program.copy()
    at = 0
    bits = _padded((images + 7) // 8)
    for number, layout in enumerate(plan.layouts):
        if layout.shape == "skipped":
            continue
        fields = program[number]
        fields[ops.VALID] = at
        at += bits
        fields[ops.OUT] = at
        if layout.shape == "bits":
            at += bits
        elif layout.shape == "fixed":
            at += _padded(layout.slot * images)
        else:
            at += _padded(4 * (images + 1))
            fields[ops.TEXT] = at
            at += _padded(text_bytes[number] + _SLACK)
    return program, at


def _decode(
    plan: DecodePlan,
    buffer: NDArray[np.uint8],
    kinds: NDArray[np.int8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    place: Callable[[int], str],
    text_bytes: list[int],
    counts: NDArray[np.int32],
    images: int,
) -> Decoded:
    from databus.sources.mysql.rows import _image_kernels as kernels

    program, size = _place_columns(plan, text_bytes, images)
    memory = pa.allocate_buffer(size)
    program[:, _PLACES] += memory.address
    change_types = np.empty(images, dtype=np.int8)
    has_differences = plan.json_columns > 0 and bool((kinds == ops.PARTIAL_UPDATE_ROWS).any())
    differences = np.empty((images * plan.json_columns if has_differences else 0, 2), dtype=np.int64)
    status = np.zeros(ops.STATUS, dtype=np.int64)
    places = np.empty((len(plan.layouts), ops.ROWS_AT_ONCE), dtype=np.int64)
    wrong = kernels.write(
        buffer, kinds, starts, ends, plan.mask, plan.json_columns, images, program, places,
        change_types, differences, status,
    )  # fmt: skip
    if wrong:
        # The kernel counts images through all events; the message names the event, and the image in it.
        last = np.cumsum(counts)
        event = int(np.searchsorted(last, status[ops.IMAGE], side="right"))
        status[ops.EVENT] = event
        status[ops.IMAGE] -= last[event] - counts[event]
        raise row_error(plan, status, starts, place, ROW_BYTES_MAX)
    where = LoggedRows(plan.table.source, starts, counts, place)
    patches = differences[: status[ops.IMAGE]]
    program[:, _PLACES] -= memory.address  # kernels take addresses; arrays are made of places in the arena
    arrays = []
    for number, (layout, column) in enumerate(zip(plan.layouts, plan.definition.columns, strict=True)):
        if layout.shape == "skipped":
            continue
        raw = _array(layout, program[number], memory, images)
        if not layout.is_finished:
            policies = plan.policies.for_column(plan.definition, column)
            raw = finish(column, raw, policies, where, patches[patches[:, 1] == number, 0], layout.form)
        arrays.append(raw)
    if plan.policies.omitter is not None:
        arrays = plan.policies.omitter.apply(plan.definition, plan.table, arrays, where)
    return Decoded(0, counts, change_types, arrays)


def _array(layout: ColumnLayout, fields: NDArray[np.int64], memory: pa.Buffer, images: int) -> pa.Array:
    nulls = int(fields[ops.NULLS])
    valid = memory.slice(int(fields[ops.VALID]), (images + 7) // 8) if nulls else None
    out = int(fields[ops.OUT])
    if layout.shape == "text":
        offsets = memory.slice(out, 4 * (images + 1))
        text = memory.slice(int(fields[ops.TEXT]), int(fields[ops.AT]))
        return pa.Array.from_buffers(layout.raw, images, [valid, offsets, text], null_count=nulls)
    size = (images + 7) // 8 if layout.shape == "bits" else layout.slot * images
    return pa.Array.from_buffers(layout.raw, images, [valid, memory.slice(out, size)], null_count=nulls)


def finish(
    column: ColumnDefinition,
    raw: pa.Array,
    policies: Policies,
    where: RowPlaces,
    differences: NDArray[np.int64],
    form: int,
) -> pa.Array:
    """The column's array of what the kernel wrote for the log's images.

    differences: rows of a JSON column that are differences from the row before. form: see `ColumnLayout`.
    """
    kind = column.type
    if column.name in policies.texts:
        return logged_text(column, form, raw, where) if form else number_text(column, raw)
    if kind in (FieldType.ENUM, FieldType.SET):
        return _members(column, raw, policies, where)
    if kind is FieldType.JSON:
        return json_text(column, raw, where, differences, is_old=policies.json_form == "5.7")
    address = address_type(column)
    if address:
        return address_text(address, raw)
    if kind in (FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED):
        raw = _inflated(column, raw, where)
        if column.charset in (None, BINARY):
            return raw
    return to_text(column, raw, policies, where)


def _members(column: ColumnDefinition, raw: pa.Array, policies: Policies, where: RowPlaces) -> pa.Array:
    from databus.sources.mysql.rows import _text_kernels as kernels

    rows = len(raw)
    if not rows:
        return pa.array([], pa.string())
    if policies.invalid_text == "error":
        _check_known(column, raw, where)
    names = pa.array(["", *map(shown, column.members), " " * TEXT_SLACK], pa.string())  # so that there is always text
    invalid_row = np.zeros(1, dtype=np.int64)
    offsets = pa.allocate_buffer(4 * (rows + 1))
    size, out = 0, pa.allocate_buffer(TEXT_SLACK)
    for writes in (False, True):
        size = kernels.members(
            column.type is FieldType.SET, rows, raw.buffers()[1].address, len(column.members),
            names.buffers()[1].address + 4, names.buffers()[2].address,
            offsets.address, out.address, writes, invalid_row,
        )  # fmt: skip
        if invalid_row[0] >= 0:
            number = raw[int(invalid_row[0])].as_py()
            what = f"{number}, which is none of its {len(column.members)} members"
            raise not_this_table(where.table, column.name, where.row(int(invalid_row[0])), what)
        check_size(size, column, where)
        if not writes:
            out = pa.allocate_buffer(size + TEXT_SLACK)
    return text_array(raw, pa.string(), offsets, out, size)


def _check_known(column: ColumnDefinition, raw: pa.Array, where: RowPlaces) -> None:
    """Refuse rows with a member that is not valid text, or that is unknown."""
    for number, member in enumerate(column.members):
        if is_text(member):
            continue
        values = pc.fill_null(raw, 0).to_numpy()
        has = (values >> np.uint64(number)) & np.uint64(1) if column.type is FieldType.SET else values == number + 1
        if has.any():
            raise unknown_member(where.table, column.name, column.charset, where.row(int(has.argmax())), number + 1)


def _inflated(column: ColumnDefinition, raw: pa.Array, where: RowPlaces) -> pa.Array:
    """MariaDB's COMPRESSED columns. Makes one object for each value; zlib takes longer than that."""
    values = raw.to_pylist()
    for row, value in enumerate(values):
        if not value:
            continue
        plain = _inflate(value)
        if plain is None:
            raise not_this_table(where.table, column.name, where.row(row), "bytes that are no compressed value")
        values[row] = plain
    return pa.array(values, pa.binary())


def _inflate(value: bytes) -> bytes | None:
    """A byte 0 and plain bytes; or 0x80, plus 8 without zlib's header, plus the bytes of the length, which follows."""
    if value[0] == 0:
        return value[1:]
    width = value[0] & 7
    if value[0] >> 4 != 8 or not width or len(value) < 1 + width:
        return None
    size = int.from_bytes(value[1 : 1 + width], "big")
    bits = -zlib.MAX_WBITS if value[0] & 8 else zlib.MAX_WBITS
    try:
        plain = zlib.decompressobj(bits).decompress(value[1 + width :], size + 1)
    except zlib.error:
        return None
    return plain if len(plain) == size else None


def address_text(kind: str, raw: pa.Array) -> pa.Array:
    """The text of addresses of one kind (`uuid`, `inet4`, `inet6`), each padded to its size."""
    from databus.sources.mysql.rows import _address_kernels as kernels

    rows = len(raw)
    if not rows:
        return pa.array([], pa.string())
    number, length = _KINDS[kind]
    valid, offsets, text = raw.buffers()
    out_offsets, out = pa.allocate_buffer(4 * (rows + 1)), pa.allocate_buffer(length * rows + _ADDRESS_SLACK)
    size = kernels.address_text(number, rows, offsets.address, text.address, out_offsets.address, out.address)
    buffers = [valid if raw.null_count else None, out_offsets, out.slice(0, size)]
    return pa.Array.from_buffers(pa.string(), rows, buffers, null_count=raw.null_count)


def bus_arrays(
    decoded: Decoded,
    before: NDArray[np.int64],
    transactions: NDArray[np.int32],
    *,
    scns: NDArray[np.int64],
    commits_us: NDArray[np.int64],
    txids: Callable[[int, int], pa.StringArray],
) -> list[pa.Array]:
    """The bus columns of `databus.core.BUS_COLUMNS`, in their order, of images that were logged.

    Of each event: before (the last `_seq` of its transaction before it), transactions (never less than that of the
    event before). Of each transaction: scns, commits_us; `txids(low, high)` gives the ids of low..high-1.
    """
    from databus.sources.mysql.rows import _bus_kernels as kernels

    count = decoded.images
    wide, narrow = _padded(8 * count), _padded(4 * count)
    # From Arrow's pool, which keeps its pages.
    memory = pa.allocate_buffer(3 * wide + narrow + _padded((count + 7) // 8))
    places = [0, wide, 2 * wide, 3 * wide, 3 * wide + narrow]
    sizes = [8 * count] * 3 + [4 * count, (count + 7) // 8]
    parts = [memory.slice(at, size) for at, size in zip(places, sizes, strict=True)]
    words = np.frombuffer(memory, np.uint8)
    scn, seq, commit_us = (words[at : at + 8 * count].view(np.int64) for at in places[:3])
    number = words[places[3] : places[3] + 4 * count].view(np.int32)
    words[places[4] :] = 0  # from no snapshot
    used = np.empty(len(transactions), np.int64)
    distinct = kernels.stamp(
        decoded.images_per_event, before, transactions, scns, commits_us, scn, seq, commit_us, number, used
    )
    low, high = int(used[0]), int(used[distinct - 1]) + 1
    names = txids(low, high)
    if distinct < high - low:
        names = names.take(pa.array(used[:distinct] - low))
    return [
        pa.array(decoded.change_types),
        *(pa.Array.from_buffers(pa.int64(), count, [None, part]) for part in parts[:2]),
        pa.Array.from_buffers(_TIME, count, [None, parts[2]]),
        pa.DictionaryArray.from_arrays(pa.Array.from_buffers(pa.int32(), count, [None, parts[3]]), names),
        pa.Array.from_buffers(pa.bool_(), count, [None, parts[4]]),
    ]
