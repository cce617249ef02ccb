"""MySQL's binary JSON: the kernel against the slow reader, whole, damaged, and as differences."""

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import CorruptData
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import _json as js
from databus.sources.mysql.rows import decode, make_plan
from tests.mysql.rows.guarded import exact, guarded
from tests.mysql.rows.walker import place

pytestmark = pytest.mark.usefixtures("walls")

COLUMN = ColumnDefinition("j", FieldType.JSON, 4, "json")
NO_ROWS = np.zeros(0, dtype=np.int64)


class Here:
    """Rows of a test."""

    table = "shop.t"

    def row(self, number: int) -> str:
        return f"row {number}"


def sized(data: bytes) -> bytes:
    size, out = len(data), b""
    while size >= 0x80:
        out += bytes([size & 0x7F | 0x80])
        size >>= 7
    return out + bytes([size]) + data


def encode(value: Any, is_large: bool) -> tuple[int, bytes]:  # noqa: PLR0911
    """A Python value as type and bytes; containers in the large form where asked for."""
    if value is None or isinstance(value, bool):
        return js.LITERAL, bytes([0 if value is None else 1 if value else 2])
    if isinstance(value, int):
        for kind, code in ((js.INT16, "<h"), (js.UINT16, "<H"), (js.INT32, "<i"), (js.UINT32, "<I"), (js.INT64, "<q")):
            try:
                return kind, struct.pack(code, value)
            except struct.error:
                continue
        return js.UINT64, struct.pack("<Q", value)
    if isinstance(value, float):
        return js.DOUBLE, struct.pack("<d", value)
    if isinstance(value, str):
        return js.STRING, sized(value.encode())
    if isinstance(value, bytes):  # kind and data of an opaque value
        return js.OPAQUE, value[:1] + sized(value[1:])
    return encode_container(value, is_large)


def encode_container(value: dict[str, Any] | list[Any], is_large: bool) -> tuple[int, bytes]:
    width, code = (4, "<I") if is_large else (2, "<H")
    keys = sorted((k.encode() for k in value), key=lambda k: (len(k), k)) if isinstance(value, dict) else []
    items = [value[k.decode()] for k in keys] if isinstance(value, dict) else value
    at = 2 * width + len(keys) * (width + 2) + len(items) * (width + 1)
    key_entries, key_bytes = b"", b""
    for key in keys:
        key_entries += struct.pack(code, at + len(key_bytes)) + struct.pack("<H", len(key))
        key_bytes += key
    entries, body = b"", key_bytes
    for item in items:
        kind, data = encode(item, is_large)
        is_inlined = kind in (js.LITERAL, js.INT16, js.UINT16) or (is_large and kind in (js.INT32, js.UINT32))
        entries += bytes([kind])
        if is_inlined:
            entries += (data + b"\0\0\0")[:width] if kind == js.LITERAL else data.ljust(width, b"\0")
        else:
            entries += struct.pack(code, at + len(body))
            body += data
    whole = key_entries + entries + body
    kind = (js.LARGE_OBJECT if is_large else js.SMALL_OBJECT) if isinstance(value, dict) else (
        js.LARGE_ARRAY if is_large else js.SMALL_ARRAY
    )  # fmt: skip
    return kind, struct.pack(code, len(items)) + struct.pack(code, len(whole) + 2 * width) + whole


def document(value: Any, *, is_large: bool) -> bytes:
    kind, data = encode(value, is_large)
    return bytes([kind]) + data


def kernel(documents: list[bytes | None], *, is_old: bool = False) -> list[str | None]:
    raw = exact(pa.array(documents, pa.binary()))
    return js.json_text(COLUMN, raw, Here(), NO_ROWS, is_old=is_old).to_pylist()


DECIMALS = st.binary(min_size=1, max_size=12).map(lambda b: b"\xf6" + bytes([9, 2]) + b)
OPAQUE = DECIMALS | st.tuples(st.sampled_from([7, 10, 11, 12]), st.binary(min_size=8, max_size=8)).map(
    lambda t: bytes([t[0]]) + t[1][:7] + bytes([t[1][7] & 0x7F])
) | st.binary(max_size=200).map(lambda b: b"\xfc" + b)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.integers(-70000, 70000)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | OPAQUE
)  # fmt: skip
KEYS = st.text('ab"\\\n\u20ac', max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@given(st.lists(st.none() | st.tuples(VALUES, st.booleans()), max_size=6), st.booleans())
def test_the_kernel_prints_what_the_slow_reader_prints(items: list[tuple[Any, bool] | None], is_old: bool) -> None:
    documents = [None if item is None else document(item[0], is_large=item[1]) for item in items]
    try:
        want = [d if d is None else js.print_value(js.read_value(d, is_old=is_old)).decode() for d in documents]
    except js.InvalidJson:
        with pytest.raises(CorruptData):
            kernel(documents, is_old=is_old)
        return
    assert kernel(documents, is_old=is_old) == want


@given(VALUES, st.booleans(), st.integers(0, 2**32))
@settings(max_examples=max(100, settings.default.max_examples))
def test_damaged_documents_are_refused_or_read_by_both_alike(value: Any, is_large: bool, seed: int) -> None:
    dice = random.Random(seed)
    whole = document(value, is_large=is_large)
    for _ in range(20):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(data))
            if dice.random() < 0.7:
                data[at] = dice.choice([0, 1, 2, 0xFF, data[at] ^ 1 << dice.randrange(8), dice.randrange(256)])
            else:
                del data[at : at + dice.randrange(1, 5)]
                data = data or bytearray(b"\4\0")
        both_alike(bytes(data))


def both_alike(data: bytes) -> None:
    try:
        want = js.print_value(js.read_value(data)).decode()
    except js.InvalidJson as error:
        if "twice" in str(error):
            return  # the kernel prints what it finds; no server has it
        want = None
    try:
        have = kernel([data])[0]
    except CorruptData as error:
        assert "row 0" in str(error)  # noqa: PT017 - there need be none
        have = None
    assert have == want, data.hex()


@pytest.mark.parametrize(
    "value",
    ["text", "t" * 130, 2**40, 1.5, b"\xf6\x05\x02\x80\x7b\x2d", b"\x0c" + bytes(8), b"\xfcdata", {"a": 1},
     {"k" * 9: True},
     [1, 70_000, None], [{"a": "b"}]],
)  # fmt: skip
@pytest.mark.parametrize("is_large", [False, True])
def test_a_length_that_is_wrong_by_one_is_seen_at_the_end_of_memory(value: Any, is_large: bool) -> None:
    """Every byte of a document one more and one less, and every end of it."""
    whole = document(value, is_large=is_large)
    for at in range(len(whole)):
        both_alike(whole[:at])
        for change in (1, -1):
            both_alike(whole[:at] + bytes([(whole[at] + change) % 256]) + whole[at + 1 :])


def test_containers_that_share_their_members_do_not_blow_up() -> None:
    """Forty levels of an array whose two members are the same array: small bytes, endless text."""
    body = b"\4\0"
    for _ in range(40):
        inner = struct.pack("<HH", 2, 10 + len(body)) + (bytes([js.SMALL_ARRAY]) + struct.pack("<H", 10)) * 2 + body
        body = inner
    with pytest.raises(CorruptData, match="no JSON"):
        kernel([bytes([js.SMALL_ARRAY]) + body])
    with pytest.raises(js.InvalidJson):
        js.read_value(bytes([js.SMALL_ARRAY]) + body)


def test_nothing_deeper_than_servers_allow_is_read() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]
    assert kernel([document(value, is_large=True)]) == ["[" * 100 + "1" + "]" * 100]
    for _ in range(100):
        value = [value]
    with pytest.raises(CorruptData):
        kernel([document(value, is_large=True)])


def test_no_bytes_at_all_are_null() -> None:
    assert kernel([b"", None]) == ["null", None]


def test_text_much_longer_than_its_bytes_finds_room() -> None:
    value = ["\x01" * 1000] * 50
    assert (
        kernel([document(value, is_large=True)] * 3)
        == [js.print_value(js.read_value(document(value, is_large=True))).decode()] * 3
    )


def packed(data: bytes) -> bytes:
    return (bytes([len(data)]) if len(data) < 0xFB else b"\xfc" + struct.pack("<H", len(data))) + data


def difference(operation: int, path: str, value: Any = None) -> bytes:
    tail = b"" if operation == 2 else packed(document(value, is_large=False))
    return bytes([operation]) + packed(path.encode()) + tail


BEFORE = {"a": [1, {"b": "x"}, 3], "cc": {"k": None}, 'q"': 1}


@pytest.mark.parametrize(
    ("differences", "after"),
    [
        ([(0, "$.a[0]", "new")], '{"a": ["new", {"b": "x"}, 3], "cc": {"k": null}, "q\\"": 1}'),
        ([(0, "$.a[1].b", [1])], '{"a": [1, {"b": [1]}, 3], "cc": {"k": null}, "q\\"": 1}'),
        ([(1, "$.a[1]", 7)], '{"a": [1, 7, {"b": "x"}, 3], "cc": {"k": null}, "q\\"": 1}'),
        ([(1, "$.a[99]", 7)], '{"a": [1, {"b": "x"}, 3, 7], "cc": {"k": null}, "q\\"": 1}'),
        ([(1, "$.b", 7)], '{"a": [1, {"b": "x"}, 3], "b": 7, "cc": {"k": null}, "q\\"": 1}'),
        ([(2, "$.a[0]"), (2, "$.cc")], '{"a": [{"b": "x"}, 3], "q\\"": 1}'),
        ([(0, '$."q\\""', True)], '{"a": [1, {"b": "x"}, 3], "cc": {"k": null}, "q\\"": true}'),
    ],
)
def test_differences_make_the_document_after(differences: list[Any], after: str) -> None:
    before = document(BEFORE, is_large=False)
    rows = pa.array([before, b"".join(difference(*d) for d in differences), before], pa.binary())
    found = js.json_text(COLUMN, rows, Here(), np.array([1]), is_old=False).to_pylist()
    assert found[1] == after
    assert found[0] == found[2] == js.print_value(js.read_value(before)).decode()


@pytest.mark.parametrize(
    "differences",
    [
        b"\0", b"\7\1$", difference(0, "$.none", 1), difference(2, "$.a[9]"), difference(0, "$", 1),
        difference(1, "$.a", 1), difference(0, "$.a.b", 1), difference(0, "$.a[0][0]", 1), difference(0, "a", 1),
        difference(0, "$.a[", 1),
    ],
)  # fmt: skip
def test_differences_that_do_not_fit_are_refused_by_place(differences: bytes) -> None:
    rows = pa.array([document(BEFORE, is_large=False), differences], pa.binary())
    with pytest.raises(CorruptData, match="row 1"):
        js.json_text(COLUMN, rows, Here(), np.array([1]), is_old=False)


def test_differences_on_nothing_are_refused_by_place() -> None:
    rows = pa.array([None, difference(0, "$.a", 1)], pa.binary())
    with pytest.raises(CorruptData, match="row 1"):
        js.json_text(COLUMN, rows, Here(), np.array([1]), is_old=False)


def test_an_image_says_which_of_its_documents_are_differences() -> None:
    columns = (
        ColumnDefinition("id", FieldType.LONG, 0, "int", is_nullable=False),
        COLUMN,
        ColumnDefinition("k", FieldType.JSON, 4, "json"),
    )
    plan = make_plan(TableDefinition("shop", "t", columns), [3, 245, 245], [0, 4, 4])
    before, other = document(BEFORE, is_large=False), document([5], is_large=False)

    def long(data: bytes) -> bytes:
        return struct.pack("<I", len(data)) + data

    head = struct.pack("<i", 1)
    images = b"\xf8" + head + long(before) + long(other)
    images += b"\1\2" + b"\xf8" + head + long(other) + long(difference(0, "$[0]", 6))  # the second only
    images += b"\xf8" + head + long(before) + long(other)
    images += b"\0" + b"\xf8" + head + long(other) + long(before)
    images += b"\xf8" + head + long(before) + long(other)
    images += b"\1\1" + b"\xfc" + head + long(difference(2, "$.a"))  # the first, the second is null
    (found,) = decode(plan, guarded(images), np.array([4], np.int8), np.array([0]), np.array([len(images)]), place)
    text = js.print_value(js.read_value(before)).decode()
    assert found.change_types.tolist() == [2, 3] * 3
    assert found.arrays[1].to_pylist() == [text, "[5]", text, "[5]", text, '{"cc": {"k": null}, "q\\"": 1}']
    assert found.arrays[2].to_pylist() == ["[5]", "[6]", "[5]", text, "[5]", None]
