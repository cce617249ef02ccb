"""The kernels of row images: `measure` checks every bound and counts, `write` puts the values into an arena.

`write` relies on what `measure` found in the same bytes, so it reads a value without asking whether it is there.
An image is a bitmap of nulls and then the values that are not null, in the order of the columns. Layout: MySQL
internals, "Rows_event"; of a partial update: "Partial_update_rows_event".

`at` and `end` are addresses, as are `fields` (a column's row of the program) and `status`.
"""

import numpy as np
from numba import int8, int32, int64, uint8
from numpy.typing import NDArray

from databus.sources.mysql._compile import kernel, read_only, small
from databus.sources.mysql.rows import _opcodes as ops
from databus.sources.mysql.rows._machine import (
    HIGH_BITS,
    Bytes,
    Words,
    address,
    big_endian,
    copy_bytes,
    little_endian,
    load8,
    load16,
    load24,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
)
from databus.sources.mysql.rows._numbers import (
    NONE,
    date,
    datetime,
    datetime_hires,
    datetime_old,
    decimal,
    decimal_text,
    decimal_wide,
    time,
    time_hires,
    time_old,
    timestamp,
    timestamp_hires,
)
from databus.sources.mysql.rows._utf8 import utf8_valid

Kinds = NDArray[np.int8]
Counts = NDArray[np.int32]

BUFFER, KINDS, PLACES = read_only(uint8), read_only(int8), read_only(int64)

_STRIDE = 8 * ops.FIELDS


@small
def _field(fields: int, number: int) -> int:
    return load64(fields + 8 * number)


@small
def _is_null(bitmap: int, column: int) -> bool:
    return (load8(bitmap + (column >> 3)) >> (column & 7) & 1) != 0


@small
def _fail(status: int, code: int, image: int, column: int, at: int) -> int:
    store64(status + 8 * ops.CODE, code)
    store64(status + 8 * ops.IMAGE, image)
    store64(status + 8 * ops.COLUMN, column)
    store64(status + 8 * ops.OFFSET, at)
    return -1


@small
def _partial_prefix(at: int, end: int, json_columns: int) -> tuple[int, int]:
    """Where an after image of a partial update begins, and where the bits of its differences stand (0 for none)."""
    if at >= end or load8(at) > 1:
        return -1, 0
    if load8(at) == 0:
        return at + 1, 0
    after = at + 1 + (json_columns + 7) // 8
    if after > end:
        return -1, 0
    return after, at + 1


@small
def _measure_text(at: int, end: int, width: int, limit: int, image: int, column: int, status: int) -> int:
    """The bytes of a value after its length at `at`, or -1."""
    if at + width > end:
        return _fail(status, ops.CUT_SHORT, image, column, at)
    count = little_endian(at, width)
    if count > end - at - width:
        return _fail(status, ops.CUT_SHORT, image, column, at)
    if count > limit:
        return _fail(status, ops.TOO_LONG, image, column, at)
    return count


@small
def _measure_with_nulls(
    bitmap: int, at: int, end: int, image: int, columns: int, program: int, totals: int, status: int
) -> int:
    """Where the values of an image end, or -1."""
    for column in range(columns):
        fields = program + _STRIDE * column
        if _is_null(bitmap, column):
            if not _field(fields, ops.IS_NULLABLE):
                return _fail(status, ops.NULL_REFUSED, image, column, bitmap)
            continue
        width = _field(fields, ops.LENGTH_BYTES)
        if width:
            count = _measure_text(at, end, width, _field(fields, ops.LIMIT), image, column, status)
            if count < 0:
                return -1
            store64(totals + 8 * column, load64(totals + 8 * column) + count)
            at += width + count
        else:
            at += _field(fields, ops.WIDTH)
            if at > end:
                return _fail(status, ops.CUT_SHORT, image, column, at - _field(fields, ops.WIDTH))
    return at


@small
def _measure_without_nulls(at: int, end: int, image: int, steps: int, last: int, totals: int, status: int) -> int:
    """The same by steps: bytes of fixed values to skip, then a length of so many bytes, its limit, the column."""
    for _ in range(last):
        at += load64(steps)
        width, column = load64(steps + 8), load64(steps + 24)
        count = _measure_text(at, end, width, load64(steps + 16), image, column, status)
        if count < 0:
            return -1
        store64(totals + 8 * column, load64(totals + 8 * column) + count)
        at += width + count
        steps += 32
    at += load64(steps)
    if at > end:
        return _fail(status, ops.CUT_SHORT, image, load64(steps + 24), at - load64(steps))
    return at


@kernel(
    int64(
        BUFFER, KINDS, PLACES, PLACES, BUFFER, read_only(int64, 2), read_only(int64, 2), int64, int64,
        int64[::1], int32[::1], int64[::1],
    )
)  # fmt: skip
def measure(
    buffer: Bytes,
    kinds: Kinds,
    starts: Words,
    ends: Words,
    mask: Bytes,
    program: Words,
    steps: Words,
    json_columns: int,
    row_bytes_max: int,
    totals: Words,
    counts: Counts,
    status: Words,
) -> int:
    """Walk all images and check every bound: the number of images, or -1 and what is wrong in `status`.

    starts, ends: of each event's images in `buffer`, inside it. mask: the bits of the null bitmap that are columns.
    steps: see `_measure_without_nulls`; the last has no length. totals: gets the bytes of each column of variable size.
    counts: gets the images of each event.
    """
    base, columns, last = address(buffer), program.shape[0], steps.shape[0] - 1
    program_, steps_, totals_, status_ = address(program), address(steps), address(totals), address(status)
    images = 0
    for event in range(starts.size):
        at, end = base + starts[event], base + ends[event]
        kind = kinds[event]
        in_event = 0
        while at < end and images >= 0:
            start = at
            if kind == ops.PARTIAL_UPDATE_ROWS and in_event & 1:
                at, _ = _partial_prefix(at, end, json_columns)
                if at < 0:
                    at = images = _fail(status_, ops.PARTIAL_UNKNOWN, in_event, -1, start)
                    break
            bitmap = at
            at += mask.size
            if at > end:
                images = _fail(status_, ops.CUT_SHORT, in_event, -1, bitmap)
                break
            has_nulls = 0
            for i in range(mask.size):
                has_nulls |= load8(bitmap + i) & mask[i]
            if has_nulls:
                at = _measure_with_nulls(bitmap, at, end, in_event, columns, program_, totals_, status_)
            else:
                at = _measure_without_nulls(at, end, in_event, steps_, last, totals_, status_)
            if at < 0:
                images = -1
            elif at - start > row_bytes_max:
                images = _fail(status_, ops.ROW_TOO_LARGE, in_event, -1, start)
            else:
                in_event += 1
                images += 1
        if images >= 0 and in_event & 1 and (kind == ops.UPDATE_ROWS or kind == ops.PARTIAL_UPDATE_ROWS):
            images = _fail(status_, ops.ODD_IMAGES, in_event, -1, end)
        if images < 0:
            status[ops.EVENT] = event
            status[ops.OFFSET] -= base
            return -1
        counts[event] = in_event
    return images


@small
def _set_null(fields: int, row: int) -> None:
    """A null; what stands under it is zero, so that the same rows are the same bytes."""
    store64(fields + 8 * ops.NULLS, _field(fields, ops.NULLS) + 1)
    bits = _field(fields, ops.VALID) + (row >> 3)
    store8(bits, load8(bits) & ~(1 << (row & 7)))
    slot = _field(fields, ops.SLOT)
    at = _field(fields, ops.OUT) + slot * row
    if slot == 0:
        if _field(fields, ops.OP) != ops.BIT:
            store32(at + 4 * row + 4, _field(fields, ops.AT))
    elif slot == 8:
        store64(at, 0)
    elif slot == 4:
        store32(at, 0)
    else:
        for i in range(slot):
            store8(at + i, 0)


@small
def _write_decimal(op: int, at: int, fields: int, out: int) -> int:
    leading, before = _field(fields, ops.A), _field(fields, ops.B)
    after, last = _field(fields, ops.C), _field(fields, ops.D)
    if op == ops.DECIMAL:
        low, wrong = decimal(at, leading, before, after, last)
        high = low >> 63
    else:
        low, high, wrong = decimal_wide(at, leading, before, after, last)
    store64(out, low)
    store64(out + 8, high)
    return wrong


@small
def _write_number(op: int, at: int, fields: int, row: int) -> int:
    out = _field(fields, ops.OUT)
    if op == ops.COPY64:
        store64(out + 8 * row, load64(at))
    elif op == ops.COPY32:
        store32(out + 4 * row, load32(at))
    elif op == ops.COPY16:
        store16(out + 2 * row, load16(at))
    elif op == ops.COPY8:
        store8(out + row, load8(at))
    elif op == ops.DECIMAL or op == ops.DECIMAL_WIDE:
        return _write_decimal(op, at, fields, out + 16 * row)
    elif op == ops.INT24:
        value = load24(at)
        store32(out + 4 * row, value - ((value & 0x80_0000) << 1))
    elif op == ops.UINT24:
        store32(out + 4 * row, load24(at))
    elif op == ops.YEAR:
        year = load8(at)
        store16(out + 2 * row, year + 1900 if year else 0)
    elif op == ops.BIT:
        bits = out + (row >> 3)
        store8(bits, load8(bits) | (load8(at) & 1) << (row & 7))
    elif op == ops.UNSIGNED:
        store64(out + 8 * row, little_endian(at, _field(fields, ops.WIDTH)))
    else:
        value = big_endian(at, _field(fields, ops.WIDTH))
        slot = _field(fields, ops.SLOT)
        for i in range(slot):
            store8(out + slot * row + i, value >> 8 * i)
    return ops.FINE


@small
def _moment(op: int, at: int, fields: int) -> int:
    digits = _field(fields, ops.A)
    if op == ops.DATETIME:
        return datetime(at, digits)
    if op == ops.TIMESTAMP:
        return timestamp(at, digits)
    if op == ops.TIME:
        return time(at, digits)
    if op == ops.DATETIME_OLD:
        return datetime_old(at)
    if op == ops.TIMESTAMP_OLD:
        seconds = load32(at)
        return seconds * 1_000_000 if seconds else NONE
    if op == ops.TIME_OLD:
        return time_old(at)
    width = _field(fields, ops.WIDTH)
    if op == ops.DATETIME_HIRES:
        return datetime_hires(at, width, digits)
    if op == ops.TIMESTAMP_HIRES:
        return timestamp_hires(at, width, digits)
    return time_hires(at, width, digits)


@small
def _write_time(op: int, at: int, fields: int, row: int) -> int:
    value = date(at) if op == ops.DATE else _moment(op, at, fields)
    if value == NONE:
        if op == ops.TIME or op == ops.TIME_OLD or op == ops.TIME_HIRES:
            return ops.NOT_A_TIME
        if not _field(fields, ops.B):
            return ops.NOT_A_DATE
        _set_null(fields, row)
    elif op == ops.DATE:
        store32(_field(fields, ops.OUT) + 4 * row, value)
    else:
        store64(_field(fields, ops.OUT) + 8 * row, value)
    return ops.FINE


@small
def _end_text(fields: int, row: int, count: int) -> None:
    after = _field(fields, ops.AT) + count
    store64(fields + 8 * ops.AT, after)
    store32(_field(fields, ops.OUT) + 4 * row + 4, after)


@small
def _write_text(op: int, at: int, count: int, limit: int, fields: int, row: int) -> int:
    to = _field(fields, ops.TEXT) + _field(fields, ops.AT)
    seen = copy_bytes(at, count, limit, to)
    if seen & HIGH_BITS and (op == ops.ASCII or (op == ops.UTF8 and not utf8_valid(at, count))):
        return ops.NOT_TEXT
    if op == ops.PADDED:
        padded = _field(fields, ops.A)
        for i in range(count, padded):
            store8(to + i, 0)
        count = padded
    _end_text(fields, row, count)
    return ops.FINE


@small
def _write_decimal_text(at: int, fields: int, row: int) -> int:
    to = _field(fields, ops.TEXT) + _field(fields, ops.AT)
    end, wrong = decimal_text(
        at, _field(fields, ops.A), _field(fields, ops.B), _field(fields, ops.C), _field(fields, ops.D), to
    )
    _end_text(fields, row, end - to)
    return wrong


@small
def _write_image(
    at: int, bitmap_bytes: int, limit: int, image: int, row: int, columns: int, program: int, status: int
) -> int:
    """Where the image ends, or -1."""
    bitmap = at
    at += bitmap_bytes
    for column in range(columns):
        fields = program + _STRIDE * column
        op = _field(fields, ops.OP)
        if _is_null(bitmap, column):
            if op != ops.SKIP:
                _set_null(fields, row)
            continue
        wrong = ops.FINE
        width = _field(fields, ops.LENGTH_BYTES)
        if width:
            after = at + width + little_endian(at, width)
            if op != ops.SKIP:
                wrong = _write_text(op, at + width, after - at - width, limit, fields, row)
        else:
            after = at + _field(fields, ops.WIDTH)
            if op == ops.SKIP:
                pass
            elif op < ops.DATE:
                wrong = _write_number(op, at, fields, row)
            elif op < ops.BYTES:
                wrong = _write_time(op, at, fields, row)
            else:
                wrong = _write_decimal_text(at, fields, row)
        if wrong:
            return _fail(status, wrong, image, column, at)
        at = after
    return at


@small
def _prepare(columns: int, program: int, images: int) -> None:
    """All values valid, all bits off, text from 0."""
    bits = (images + 7) // 8
    for column in range(columns):
        fields = program + _STRIDE * column
        op, valid, out = _field(fields, ops.OP), _field(fields, ops.VALID), _field(fields, ops.OUT)
        if op == ops.SKIP:
            continue
        for i in range(bits):
            store8(valid + i, 0xFF)
        if op == ops.BIT:
            for i in range(bits):
                store8(out + i, 0)
        elif _field(fields, ops.SLOT) == 0:
            store32(out, 0)


@kernel(int64(BUFFER, KINDS, PLACES, PLACES, int64, int64, int64, int64[:, ::1], int8[::1], int64[:, ::1], int64[::1]))
def write(
    buffer: Bytes,
    kinds: Kinds,
    starts: Words,
    ends: Words,
    bitmap_bytes: int,
    json_columns: int,
    images: int,
    program: Words,
    change_types: Kinds,
    differences: Words,
    status: Words,
) -> int:
    """Decode the images that `measure` has been through: 0, or -1 and what is wrong in `status`.

    program: its places are addresses in an arena with room for `images` images and the text that was measured.
    change_types: gets each image's. differences: gets (row, column) of each JSON value that is a difference from the
    image before; their number stands in status[IMAGE] at the end.
    """
    base, columns = address(buffer), program.shape[0]
    limit = base + buffer.size
    program_, status_ = address(program), address(status)
    _prepare(columns, program_, images)
    row = 0
    found = 0
    for event in range(starts.size):
        at, end = base + starts[event], base + ends[event]
        kind = kinds[event]
        is_update = kind == ops.UPDATE_ROWS or kind == ops.PARTIAL_UPDATE_ROWS
        first = row
        while at < end:
            image = row - first
            change_types[row] = (2 + (image & 1)) if is_update else (1 if kind == ops.WRITE_ROWS else 4)
            if kind == ops.PARTIAL_UPDATE_ROWS and image & 1:
                at, bits = _partial_prefix(at, end, json_columns)
                ordinal = 0
                for column in range(columns):
                    if program[column, ops.IS_JSON]:
                        if bits and not _is_null(at, column) and _is_null(bits, ordinal):  # a bit that is set
                            differences[found, 0] = row
                            differences[found, 1] = column
                            found += 1
                        ordinal += 1
            at = _write_image(at, bitmap_bytes, limit, image, row, columns, program_, status_)
            if at < 0:
                status[ops.EVENT] = event
                status[ops.OFFSET] -= base
                return -1
            row += 1
    status[ops.IMAGE] = found
    return 0
