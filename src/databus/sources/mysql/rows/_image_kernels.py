"""The kernels of row images: `measure` checks every bound and counts, `write` puts the values into an arena.

`write` relies on what `measure` has checked in the same bytes, so it reads a value without asking whether it is there.
It notes the places of some rows' values first and goes through their columns then: what a column needs is looked up
once for all of them.

An image is a bitmap of nulls and then the values that are not null, in the order of the columns. Layout: MySQL
internals, "Rows_event"; of a partial update: "Partial_update_rows_event".

`at` and `end` are addresses, as are `fields` (a column's row of the program) and `status`.
"""

import numpy as np
from numba import int8, int32, int64, uint8
from numpy.typing import NDArray

from databus.sources.mysql._compile import kernel, part, read_only, small
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._column_kernels import STRIDE, field, prepare, write_column
from databus.sources.mysql.rows._memory import Bytes, Words, address, little_endian, load8, load64, store64

Kinds = NDArray[np.int8]
Counts = NDArray[np.int32]

BUFFER, KINDS, PLACES = read_only(uint8), read_only(int8), read_only(int64)


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
        fields = program + STRIDE * column
        if _is_null(bitmap, column):
            if not field(fields, ops.IS_NULLABLE):
                return _fail(status, ops.NULL_REFUSED, image, column, bitmap)
            continue
        width = field(fields, ops.LENGTH_BYTES)
        if width:
            count = _measure_text(at, end, width, field(fields, ops.LIMIT), image, column, status)
            if count < 0:
                return -1
            store64(totals + 8 * column, load64(totals + 8 * column) + count)
            at += width + count
        else:
            at += field(fields, ops.WIDTH)
            if at > end:
                return _fail(status, ops.CUT_SHORT, image, column, at - field(fields, ops.WIDTH))
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
def _locate(at: int, mask: Bytes, columns: int, program: int, places: int) -> int:
    """Note where each value of an image is, 0 for a null, and return where the image ends.

    places: the word for the first column; those of the others follow at a distance of `ROWS_AT_ONCE` words.
    """
    bitmap = at
    at += mask.size
    has_nulls = 0
    for i in range(mask.size):
        has_nulls |= load8(bitmap + i) & mask[i]
    fields = program
    for column in range(columns):
        if has_nulls and _is_null(bitmap, column):
            store64(places, 0)
        else:
            store64(places, at)
            width = field(fields, ops.LENGTH_BYTES)
            at += width + little_endian(at, width) if width else field(fields, ops.WIDTH)
        places += 8 * ops.ROWS_AT_ONCE
        fields += STRIDE
    return at


@part
def _write_rows(columns: int, program: int, places: int, row: int, rows: int, limit: int, status: int) -> int:
    """All columns of some rows: 0, or -1 for the first row of which a value is wrong, and which of its columns."""
    outcome = 0
    for column in range(columns):
        at = places + 8 * ops.ROWS_AT_ONCE * column
        wrong, place = write_column(program + STRIDE * column, at, row, rows, limit)
        if wrong:
            outcome = _fail(status, wrong, row + place, column, load64(at + 8 * place))
            rows = place
    return outcome


@kernel(
    int64(
        BUFFER, KINDS, PLACES, PLACES, BUFFER, int64, int64, int64[:, ::1], int64[:, ::1], int8[::1], int64[:, ::1],
        int64[::1],
    )
)  # fmt: skip
def write(
    buffer: Bytes,
    kinds: Kinds,
    starts: Words,
    ends: Words,
    mask: Bytes,
    json_columns: int,
    images: int,
    program: Words,
    places: Words,
    change_types: Kinds,
    differences: Words,
    status: Words,
) -> int:
    """Decode the images that `measure` has been through: 0, or -1 and what is wrong in `status`, whose IMAGE is counted
    through all events then.

    program: its places are addresses in an arena with room for `images` images and the text that was measured. places:
    a row of `ROWS_AT_ONCE` words for each column, of any content. change_types: gets each image's. differences: gets
    (row, column) of each JSON value that is a difference from the image before; their number stands in status[IMAGE]
    at the end.
    """
    base, columns = address(buffer), program.shape[0]
    limit = base + buffer.size
    program_, places_, status_ = address(program), address(places), address(status)
    prepare(columns, program_, images)
    row = 0
    done = 0
    patches = 0
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
                            differences[patches, 0] = row
                            differences[patches, 1] = column
                            patches += 1
                        ordinal += 1
            at = _locate(at, mask, columns, program_, places_ + 8 * (row - done))
            row += 1
            if row - done == ops.ROWS_AT_ONCE or row == images:
                if _write_rows(columns, program_, places_, done, row - done, limit, status_) < 0:
                    status[ops.OFFSET] -= base
                    return -1
                done = row
    status[ops.IMAGE] = patches
    return 0
