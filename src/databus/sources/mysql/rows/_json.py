"""MySQL's JSON: the binary form in a row image as exactly the text that the server's own SELECT prints.

`json_text` does a whole column by a kernel. A partial update has, in place of the new document, its differences from
the one before: for those, documents are read into Python objects, changed, and printed. Layout: MySQL internals,
"JSON binary format" (json_binary.h) and "Json_diff".
"""

import base64
import re
import struct
from dataclasses import dataclass
from struct import unpack_from
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from databus.sources.mysql._definition import ColumnDefinition, FieldType
from databus.sources.mysql.rows._row_errors import not_this_table
from databus.sources.mysql.rows._text import RowPlaces, check_size, places_of, text_array

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL = range(5)
INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = range(5, 13)
OPAQUE: Final = 15
DEPTH_MAX: Final = 128  # the server allows 100
DECIMAL_DIGITS_MAX: Final = 81
"""A decimal's nine groups of nine digits. A document has whole groups before the point, and so more digits than the
65 of a column.
"""
EXPANSION_MAX: Final = 8
"""Text has at most so many bytes for each of the binary form, or the form is no server's: its values overlap."""

_LITERALS: Final = (b"null", b"true", b"false")
_ESCAPED: Final = re.compile(rb'["\\\x00-\x1f]')
_ESCAPES: Final = {0x22: b'\\"', 0x5C: b"\\\\", 8: b"\\b", 12: b"\\f", 10: b"\\n", 13: b"\\r", 9: b"\\t"}
_INTEGERS: Final = {INT16: "<h", UINT16: "<H", INT32: "<i", UINT32: "<I", INT64: "<q", UINT64: "<Q"}
_REPLACE, _INSERT, _REMOVE = range(3)
_STEP: Final = re.compile(rb'\.(?:"((?:[^"\\]|\\.)*)"|([^.\["]+))|\[(\d+)\]', re.DOTALL)
_UNESCAPED: Final = {v[1:]: bytes([k]) for k, v in _ESCAPES.items()} | {b"/": b"/"}

Value = bytes | list["Value"] | dict[bytes, "Value"]
"""A document: the text of a scalar, a list, or an object in stored order with its keys not yet quoted."""


class InvalidJson(ValueError):
    """Bytes that are no document, no difference, or a difference that does not fit its document."""


def json_text(
    column: ColumnDefinition, raw: pa.Array, where: RowPlaces, differences: NDArray[np.int64], *, is_old: bool
) -> pa.Array:
    """The text of a column of documents. Raises `CorruptData` naming table, column and place for bytes that are none.

    differences: the rows whose bytes are differences from the row before. is_old: whether as MySQL 5.7 prints it.
    """
    if differences.size:
        return _apply_all(column, raw, where, differences)
    return _texts(column, raw, where, is_old=is_old)


def _texts(column: ColumnDefinition, raw: pa.Array, where: RowPlaces, *, is_old: bool) -> pa.Array:
    from databus.sources.mysql.rows import _json_kernels as kernels

    rows = len(raw)
    if not rows:
        return pa.array([], pa.string())
    raw, offsets, data = places_of(raw)
    size = raw.buffers()[2].size if raw.buffers()[2] else 0
    valid = raw.buffers()[0].address if raw.null_count else 0
    out_offsets = pa.allocate_buffer(4 * (rows + 1))
    out = pa.allocate_buffer(2 * size + 64 * rows + kernels.ROOM, resizable=True)
    stack = np.empty(DEPTH_MAX * kernels.FRAME, dtype=np.int64)
    state = np.zeros(2, dtype=np.int64)  # the row to go on with, the bytes written
    while True:
        outcome = kernels.json_text(
            rows, is_old, valid, offsets, data, kernels.POWERS, stack, out_offsets.address, out.address, out.size, state
        )
        if outcome == kernels.FULL:
            out.resize(2 * out.size)
            continue
        row, written = int(state[0]), int(state[1])
        if outcome == kernels.MALFORMED:
            raise not_this_table(where.table, column.name, where.row(row), "bytes that are no JSON")
        check_size(-1 if outcome == kernels.TOO_MUCH else written, column, where)
        return text_array(raw, pa.string(), out_offsets, out, written)


def _apply_all(column: ColumnDefinition, raw: pa.Array, where: RowPlaces, differences: NDArray[np.int64]) -> pa.Array:
    """The same where some rows are differences; one object a value for those and the rows before them."""
    chosen = differences.tolist()
    plain = raw.to_pylist()
    changed = {}
    for row in chosen:
        try:
            changed[row] = print_value(apply_differences(read_value(plain[row - 1]), plain[row]))
        except (InvalidJson, IndexError, TypeError) as error:
            what = f"a partial update that does not fit the value before it ({error})"
            raise not_this_table(where.table, column.name, where.row(row), what) from error
        plain[row] = None
    texts = _texts(column, pa.array(plain, pa.binary()), where, is_old=False).to_pylist()  # 5.7 has none
    for row, text in changed.items():
        texts[row] = text.decode()
    return pa.array(texts, pa.string())


def read_value(document: bytes, *, is_old: bool = False) -> Value:
    """Read a document in its binary form. Raises `InvalidJson`. is_old: see `json_text`.

    >>> print_value(read_value(bytes([2, 2, 0, 10, 0, 5, 7, 0, 4, 1, 0])))
    b'[7, true]'
    """
    if not document:
        return b"null"
    try:
        return _DocumentReader(EXPANSION_MAX * len(document) + 64, is_old).read(document[0], document[1:], 0)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise InvalidJson(str(error)) from error


class _DocumentReader:
    """Reads one document, whose text may have `budget` bytes."""

    def __init__(self, budget: int, is_old: bool) -> None:
        self._budget = budget
        self._is_old = is_old

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise InvalidJson("its values overlap")

    def read(self, kind: int, data: bytes, depth: int) -> Value:
        """The value of a type; `data` may go on behind it."""
        if kind > LARGE_ARRAY:
            text = self._read_scalar(kind, data)
            self._spend(len(text))
            return text
        if depth >= DEPTH_MAX:
            raise InvalidJson("it is too deep")
        is_large, is_object = bool(kind & 1), kind <= LARGE_OBJECT
        width, number = (4, "<I") if is_large else (2, "<H")
        (count,), (size,) = unpack_from(number, data, 0), unpack_from(number, data, width)
        entry = (1 + width) + ((2 + width) if is_object else 0)
        if size > len(data) or 2 * width + count * entry > size:
            raise InvalidJson("a container runs past its end")
        data = data[:size]
        at = 2 * width
        keys = []
        for _ in range(count if is_object else 0):
            (key_at,), (length,) = unpack_from(number, data, at), unpack_from("<H", data, at + width)
            if key_at + length > size:
                raise InvalidJson("a key runs past its end")
            key = data[key_at : key_at + length]
            key.decode()
            keys.append(key)
            self._spend(length + 4)
            at += width + 2
        if len(set(keys)) < len(keys):
            raise InvalidJson("a key stands twice")
        values = []
        for _ in range(count):
            inner = data[at]
            is_inlined = LITERAL <= inner <= UINT16 or (is_large and INT32 <= inner <= UINT32)
            start = at + 1 if is_inlined else unpack_from(number, data, at + 1)[0]
            end = at + 1 + width if is_inlined else size
            if end > size:
                raise InvalidJson("a value runs past its end")
            values.append(self.read(inner, data[start:end], depth + 1))
            self._spend(2)
            at += 1 + width
        return dict(zip(keys, values, strict=True)) if is_object else values

    def _read_scalar(self, kind: int, data: bytes) -> bytes:
        if kind == LITERAL:
            return _LITERALS[data[0]]
        if kind in _INTEGERS:
            return b"%d" % unpack_from(_INTEGERS[kind], data)[0]
        if kind == DOUBLE:
            text = print_double(unpack_from("<d", data)[0])
            return text.removesuffix(b".0") if self._is_old else text
        if kind == STRING:
            return quote(_sized(data))
        if kind == OPAQUE:
            return self._read_opaque(data[0], _sized(data[1:]))
        raise InvalidJson(f"{kind} is no type of a value")

    def _read_opaque(self, kind: int, data: bytes) -> bytes:
        if kind == FieldType.NEWDECIMAL:
            return _decimal(data)
        if kind in (FieldType.DATE, FieldType.TIME, FieldType.DATETIME, FieldType.TIMESTAMP):
            return _moment(kind, unpack_from("<q", data)[0])
        lines = base64.encodebytes(data)[:-1]
        return b'"base64:type%d:%s"' % (kind, lines if self._is_old else lines.replace(b"\n", b"\\n"))


def _sized(data: bytes) -> bytes:
    size = 0
    for i in range(5):
        size |= (data[i] & 0x7F) << 7 * i
        if data[i] < 0x80:
            if i + 1 + size > len(data):
                raise InvalidJson("a string runs past its end")
            return data[i + 1 : i + 1 + size]
    raise InvalidJson("a length is too long")


def quote(text: bytes) -> bytes:
    """A string as JSON has it: quoted, with what must be escaped."""
    text.decode()
    return b'"' + _ESCAPED.sub(lambda m: _ESCAPES.get(m[0][0], b"\\u%04x" % m[0][0]), text) + b'"'


def print_double(value: float) -> bytes:
    """A double as the server prints one: the shortest digits that say it, in fixed notation unless that is long.

    >>> print_double(1.0), print_double(1e14), print_double(1e15), print_double(-1.5e-20)
    (b'1.0', b'100000000000000.0', b'1e15', b'-1.5e-20')
    """
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - not a number
        raise InvalidJson("a double that is no number")
    mantissa, _, exponent = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0".encode()
    if -14 <= point <= 15 or 15 < point < len(digits):
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}".encode()
        return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}".encode()
    return f"{sign}{digits[0]}{'.' + digits[1:] if digits[1:] else ''}e{point - 1}".encode()


def _decimal(data: bytes) -> bytes:
    precision, scale = data[0], data[1]
    if not 0 < precision <= DECIMAL_DIGITS_MAX or scale > precision:
        raise InvalidJson("a decimal of no size")
    before, leading = divmod(precision - scale, 9)
    after, last = divmod(scale, 9)
    groups = [leading, *[9] * (before + after), last]
    value = bytearray(data[2:])
    sign = b"" if value[0] & 0x80 else b"-"
    value[0] ^= 0x80
    if sign:
        value = bytearray(byte ^ 0xFF for byte in value)
    digits, at = "", 0
    for count in groups:
        width = (count + 1) // 2 if count < 8 else 4
        if at + width > len(value):
            raise InvalidJson("a decimal runs past its end")
        word = int.from_bytes(value[at : at + width], "big")
        if word >= 10**count:
            raise InvalidJson("a decimal has other digits")
        digits += f"{word:0{count}d}" if count else ""
        at += width
    whole = digits[: precision - scale].lstrip("0") or "0"
    return sign + f"{whole}.{digits[precision - scale :]}".encode() if scale else sign + whole.encode()


def _moment(kind: int, packed: int) -> bytes:
    if packed == -(1 << 63):
        raise InvalidJson("a time that is none")
    sign = "-" if packed < 0 else ""
    fraction, whole = abs(packed) & 0xFF_FFFF, abs(packed) >> 24
    minute, second = whole >> 6 & 63, whole & 63
    if kind == FieldType.TIME:
        return f'"{sign}{whole >> 12 & 1023:02d}:{minute:02d}:{second:02d}.{fraction:06d}"'.encode()
    month = whole >> 22
    day = f"{month // 13:04d}-{month % 13:02d}-{whole >> 17 & 31:02d}"
    if kind == FieldType.DATE:
        return f'"{day}"'.encode()
    return f'"{day} {whole >> 12 & 31:02d}:{minute:02d}:{second:02d}.{fraction:06d}"'.encode()


def print_value(value: Value) -> bytes:
    """A document's text."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return b"[" + b", ".join(map(print_value, value)) + b"]"
    return b"{" + b", ".join(quote(key) + b": " + print_value(item) for key, item in value.items()) + b"}"


@dataclass(frozen=True, slots=True)
class _Difference:
    operation: int
    path: tuple[bytes | int, ...]
    value: Value


def apply_differences(value: Value, differences: bytes) -> Value:
    """The document that a partial update makes of the one before. Raises `InvalidJson` if they do not fit."""
    for difference in _read_differences(differences):
        if not difference.path:
            raise InvalidJson("a path that names nothing")
        value = _change(value, difference, 0)
    return value


def _change(value: Value, difference: _Difference, depth: int) -> Value:
    step = difference.path[depth]
    if isinstance(value, dict) and isinstance(step, bytes):
        return _change_object(value, step, difference, depth)
    if isinstance(value, list) and isinstance(step, int):
        return _change_array(value, step, difference, depth)
    raise InvalidJson("a path through a value of another kind")


def _change_object(value: dict[bytes, Value], step: bytes, difference: _Difference, depth: int) -> Value:
    if depth + 1 < len(difference.path):
        if step not in value:
            raise InvalidJson("a path through a key that is not there")
        value[step] = _change(value[step], difference, depth + 1)
        return value
    if (step in value) is (difference.operation == _INSERT):
        raise InvalidJson("a key that is there, or is not")
    if difference.operation == _REMOVE:
        del value[step]
        return value
    value[step] = difference.value
    return value if difference.operation == _REPLACE else dict(sorted(value.items(), key=lambda i: (len(i[0]), i[0])))


def _change_array(value: list[Value], step: int, difference: _Difference, depth: int) -> Value:
    if depth + 1 < len(difference.path):
        value[step] = _change(value[step], difference, depth + 1)
    elif difference.operation == _REPLACE:
        value[step] = difference.value
    elif difference.operation == _INSERT:
        value.insert(step, difference.value)
    else:
        del value[step]
    return value


def _read_differences(data: bytes) -> list[_Difference]:
    differences = []
    while data:
        operation = data[0]
        path, data = _packed(data[1:])
        if operation == _REMOVE:
            differences.append(_Difference(operation, _read_path(path), b""))
        elif operation in (_REPLACE, _INSERT):
            document, data = _packed(data)
            differences.append(_Difference(operation, _read_path(path), read_value(document)))
        else:
            raise InvalidJson(f"{operation} is no operation of a difference")
    return differences


def _packed(data: bytes) -> tuple[bytes, bytes]:
    """Bytes after their length, which is a packed integer, and what follows."""
    if not data:
        raise InvalidJson("a difference ends too early")
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(data[0], 0)
    size = int.from_bytes(data[1 : 1 + width], "little") if width else data[0]
    end = 1 + width + size
    if data[0] in (0xFB, 0xFF) or end > len(data):
        raise InvalidJson("a difference ends too early")
    return data[1 + width : end], data[end:]


def _read_path(path: bytes) -> tuple[bytes | int, ...]:
    """`$.a[3]."b c"` as keys and positions."""
    steps: list[bytes | int] = []
    if path[:1] != b"$":
        raise InvalidJson("a path does not begin with $")
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise InvalidJson(f"a path cannot be read: {path!r}")
        quoted, name, position = match.groups()
        if position is not None:
            steps.append(int(position))
        else:
            steps.append(name if name is not None else _unquote(quoted))
        at = match.end()
    return tuple(steps)


def _unquote(text: bytes) -> bytes:
    def unescaped(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return chr(int(match[1], 16)).encode()
        return _UNESCAPED.get(match[2], match[2])

    return re.sub(rb"\\(?:u([0-9a-fA-F]{4})|(.))", unescaped, text, flags=re.DOTALL)
