"""Row images made slowly and obviously from values: what the kernels must read back."""

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME has no zone
DIGITS_TO_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


@dataclass(frozen=True)
class Kind:
    """A type of column: how it is defined, which values it may have, their bytes in an image and in Arrow's Python."""

    define: dict[str, Any]
    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    expect: Callable[[Any], Any] = lambda value: value


def column(name: str, kind: Kind, *, is_nullable: bool) -> ColumnDefinition:
    return ColumnDefinition(name, **{"meta": 0, "column_type": "x", **kind.define}, is_nullable=is_nullable)


def sized(width: int) -> Callable[[bytes], bytes]:
    return lambda value: len(value).to_bytes(width, "little") + value


def encode_decimal(precision: int, scale: int) -> Callable[[decimal.Decimal], bytes]:
    def encode(value: decimal.Decimal) -> bytes:
        with decimal.localcontext(decimal.Context(prec=100)):
            digits = f"{abs(int(value.scaleb(scale))):0{precision}d}"
        whole, fraction = digits[: precision - scale], digits[precision - scale :]
        out = bytearray()
        first = len(whole) % 9
        for group in [whole[:first], *[whole[i : i + 9] for i in range(first, len(whole), 9)]] + [
            fraction[i : i + 9] for i in range(0, len(fraction), 9)
        ]:
            if group:
                out += int(group).to_bytes(DIGITS_TO_BYTES[len(group)], "big")
        out[0] ^= 0x80
        if value < 0:
            out = bytearray(byte ^ 0xFF for byte in out)
        return bytes(out)

    return encode


def decimals(precision: int, scale: int) -> Kind:
    limit = 10**precision - 1
    values = st.integers(-limit, limit).map(lambda n: decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=100)))

    def text(value: decimal.Decimal) -> str:
        number = int(value.scaleb(scale, decimal.Context(prec=100)))
        digits = f"{abs(number):0{scale + 1}d}"
        return ("-" if number < 0 else "") + digits[: len(digits) - scale] + ("." + digits[-scale:] if scale else "")

    define = {"type": FieldType.NEWDECIMAL, "meta": precision << 8 | scale}
    encode = encode_decimal(precision, scale)
    return Kind(define, values, encode, text) if precision > 38 else Kind(define, values, encode)


def fraction(us: int, digits: int) -> bytes:
    width = (digits + 1) // 2
    return (us // 10 ** (6 - 2 * width)).to_bytes(width, "big")


def cut(us: int, digits: int) -> int:
    unit = 10 ** (6 - digits)
    return us // unit * unit


def moments(digits: int) -> st.SearchStrategy[dt.datetime]:
    return st.datetimes().map(lambda d: d.replace(microsecond=cut(d.microsecond, digits)))


def encode_datetime(digits: int) -> Callable[[dt.datetime], bytes]:
    def encode(value: dt.datetime) -> bytes:
        days = (value.year * 13 + value.month) << 5 | value.day
        packed = days << 17 | value.hour << 12 | value.minute << 6 | value.second
        return (packed + 0x80_0000_0000).to_bytes(5, "big") + fraction(value.microsecond, digits)

    return encode


def encode_time(digits: int) -> Callable[[int], bytes]:
    def encode(us: int) -> bytes:
        width = (digits + 1) // 2
        seconds, rest = divmod(abs(us), 1_000_000)
        packed = (seconds // 3600) << 12 | (seconds // 60 % 60) << 6 | seconds % 60
        whole = packed << 8 * width | rest // 10 ** (6 - 2 * width)
        return ((0x80_0000 << 8 * width) + (whole if us >= 0 else -whole)).to_bytes(3 + width, "big")

    return encode


def times(digits: int) -> st.SearchStrategy[int]:
    unit = 10 ** (6 - digits)
    most = (838 * 3600 + 59 * 60 + 59) * 1_000_000 // unit
    return st.integers(-most, most).map(lambda n: n * unit)


def integer(kind: FieldType, bits: int, *, is_unsigned: bool) -> Kind:
    least, most = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    width = bits // 8

    def encode(value: int) -> bytes:
        return value.to_bytes(width, "little", signed=not is_unsigned)

    return Kind({"type": kind, "is_unsigned": is_unsigned}, st.integers(least, most), encode)


def stamps(digits: int) -> Kind:
    unit = 10 ** (6 - digits)
    values = st.integers(1_000_000 // unit, (2**32 * 1_000_000 - 1) // unit).map(lambda n: n * unit)

    def encode(us: int) -> bytes:
        return (us // 1_000_000).to_bytes(4, "big") + fraction(us % 1_000_000, digits)

    return Kind(
        {"type": FieldType.TIMESTAMP2, "meta": digits}, values, encode,
        lambda us: (EPOCH + dt.timedelta(microseconds=us)).replace(tzinfo=dt.UTC),
    )  # fmt: skip


def address(word: str, size: int, expect: Callable[[bytes], str]) -> Kind:
    """One of MariaDB's types that a table map has as CHAR."""
    define = {"type": FieldType.STRING, "meta": size, "column_type": word}
    values = st.binary(min_size=size, max_size=size) | st.lists(
        st.sampled_from([b"\0\0", b"\xff\xff", b"\0\x0a"]), min_size=size // 2, max_size=size // 2
    ).map(b"".join)
    return Kind(define, values, lambda v: sized(1)(v.rstrip(b"\0")), expect)


def inet6(value: bytes) -> str:
    """As MariaDB spells it: two colons for the first of the longest runs of zeros, even of one."""
    words = [value[i : i + 2].hex().lstrip("0") or "0" for i in range(0, 16, 2)]
    runs = [(length, -first) for first in range(8) for length in range(1, 9 - first)
            if words[first : first + length] == ["0"] * length]  # fmt: skip
    length, begin = max(runs, default=(0, 0))
    begin = -begin
    if begin == 0 and (length == 6 or (length == 5 and words[5] == "ffff")):
        words[6:] = [".".join(map(str, value[12:]))]
    if not length:
        return ":".join(words)
    return ":".join(words[:begin]) + "::" + ":".join(words[begin + length :])


MEMBERS = tuple(f"m\N{SNOWMAN}{i}" for i in range(20))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ASCII = st.characters(max_codepoint=127)
LATIN = bytes(range(256)).decode("cp1252", "ignore")
KINDS: list[Kind] = [
    *[
        integer(kind, bits, is_unsigned=unsigned)
        for kind, bits in [
            (FieldType.TINY, 8), (FieldType.SHORT, 16), (FieldType.INT24, 24),
            (FieldType.LONG, 32), (FieldType.LONGLONG, 64),
        ]
        for unsigned in (False, True)
    ],
    Kind({"type": FieldType.FLOAT, "meta": 4}, st.floats(width=32, allow_nan=False), lambda v: struct.pack("<f", v)),
    Kind({"type": FieldType.DOUBLE, "meta": 8}, st.floats(allow_nan=False), lambda v: struct.pack("<d", v)),
    Kind({"type": FieldType.YEAR}, st.integers(1901, 2155) | st.just(0), lambda v: bytes([v - 1900 if v else 0])),
    Kind({"type": FieldType.BIT, "meta": 1}, st.booleans(), lambda v: bytes([v])),
    *[
        Kind({"type": FieldType.BIT, "meta": n // 8 << 8 | n % 8}, st.integers(0, 2**n - 1),
             lambda v, n=n: v.to_bytes((n + 7) // 8, "big"))
        for n in (2, 8, 9, 16, 31, 33, 64)
    ],
    *[decimals(p, s) for p, s in [(1, 0), (5, 5), (12, 2), (18, 9), (19, 3), (28, 10), (38, 0), (38, 38 - 8),
                                  (39, 0), (65, 30), (65, 0), (40, 9)]],
    Kind({"type": FieldType.DATE}, st.dates(), lambda d: (d.day | d.month << 5 | d.year << 9).to_bytes(3, "little")),
    *[Kind({"type": FieldType.DATETIME2, "meta": n}, moments(n), encode_datetime(n)) for n in range(7)],
    *[Kind({"type": FieldType.TIME2, "meta": n}, times(n), encode_time(n)) for n in range(7)],
    *[stamps(n) for n in range(7)],
    Kind({"type": FieldType.DATETIME}, moments(0),
         lambda d: int(d.strftime("%Y%m%d%H%M%S").rjust(14, "0")).to_bytes(8, "little")),
    Kind({"type": FieldType.ENUM, "meta": 1, "charset": "latin1", "members": MEMBERS}, st.integers(0, 20),
         lambda v: bytes([v]), lambda v: MEMBERS[v - 1] if v else ""),
    Kind({"type": FieldType.SET, "meta": 3, "charset": "latin1", "members": MEMBERS}, st.integers(0, 2**20 - 1),
         lambda v: v.to_bytes(3, "little"), lambda v: ",".join(m for i, m in enumerate(MEMBERS) if v >> i & 1)),
    *[Kind({"type": FieldType.VARCHAR, "meta": n, "charset": "utf8mb4"}, TEXT,
           lambda v, n=n: sized(1 if n < 256 else 2)(v.encode())) for n in (200, 1000)],
    *[Kind({"type": FieldType.BLOB, "meta": n, "charset": "utf8mb4"}, TEXT, lambda v, n=n: sized(n)(v.encode()))
      for n in (1, 2, 3, 4)],
    Kind({"type": FieldType.VARCHAR, "meta": 300, "charset": "latin1"}, st.text(LATIN, max_size=30),
         lambda v: sized(2)(v.encode("cp1252"))),
    Kind({"type": FieldType.VARCHAR, "meta": 300, "charset": "gbk"}, st.text("ab\u4e00\u9fa0\u3042", max_size=30),
         lambda v: sized(2)(v.encode("gbk"))),
    Kind({"type": FieldType.BLOB, "meta": 2, "charset": "utf16le"}, TEXT, lambda v: sized(2)(v.encode("utf-16-le"))),
    Kind({"type": FieldType.BLOB, "meta": 2, "charset": "utf32"}, TEXT, lambda v: sized(2)(v.encode("utf-32-be"))),
    Kind({"type": FieldType.VARCHAR, "meta": 50, "charset": "ascii"}, st.text(ASCII, max_size=50),
         lambda v: sized(1)(v.encode())),
    Kind({"type": FieldType.BLOB, "meta": 2, "charset": "binary"}, st.binary(max_size=50), sized(2)),
    Kind({"type": FieldType.STRING, "meta": 20, "charset": "binary"}, st.binary(max_size=20),
         lambda v: sized(1)(v.rstrip(b"\0")), lambda v: v.ljust(20, b"\0")),
    Kind({"type": FieldType.GEOMETRY, "meta": 4}, st.binary(max_size=50), sized(4)),
    address("uuid", 16, lambda v: str(uuid.UUID(bytes=v))),
    address("inet4", 4, lambda v: ".".join(map(str, v))),
    address("inet6", 16, inet6),
]  # fmt: skip


@st.composite
def tables(draw: st.DrawFn, of: Sequence[Kind] = KINDS) -> tuple[TableDefinition, list[Kind], list[list[Any]]]:
    """A definition, its kinds, and rows of values."""
    kinds = draw(st.lists(st.sampled_from(of), min_size=1, max_size=20))
    nullable = [draw(st.booleans()) for _ in kinds]
    columns = tuple(column(f"c{i}", k, is_nullable=n) for i, (k, n) in enumerate(zip(kinds, nullable, strict=True)))
    row = st.tuples(*(st.none() | k.values if n else k.values for k, n in zip(kinds, nullable, strict=True)))
    return TableDefinition("shop", "t", columns), kinds, [list(r) for r in draw(st.lists(row, max_size=8))]


def image(kinds: list[Kind], row: list[Any]) -> bytes:
    bits = sum(1 << i for i, value in enumerate(row) if value is None)
    used = len(kinds)
    bits |= ~((1 << used) - 1) & ((1 << (used + 7) // 8 * 8) - 1)  # as servers do
    values = b"".join(k.encode(v) for k, v in zip(kinds, row, strict=True) if v is not None)
    return bits.to_bytes((used + 7) // 8, "little") + values
