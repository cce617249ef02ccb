"""Keys have the same bytes exactly if they are the same key, whatever type holds them; their buckets are Kafka's."""

import datetime as dt
import json
import math
import re
import struct
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from databus.core import ConfigError
from databus.formats import from_json_value
from databus.schema import TYPE_NAMES, column_hashes, forms_of, key_buckets, key_bytes, key_form, key_hashes, widens
from tests.documents.pages import ROOT

CONCRETE = [*[name for name in TYPE_NAMES if "(" not in name], "decimal(38,0)", "decimal(38,38)", "decimal(12,2)"]
PAGE = (ROOT / "docs" / "key-bytes.md").read_text()
VECTORS = [
    [cell.strip("`") for cell in line.removeprefix("| ").removesuffix(" |").split(" | ")]
    for line in PAGE.partition("## Test vectors")[2].partition("|---|\n")[2].splitlines()
]
KAFKAS = {  # Apache Kafka, UtilsTest.testMurmur2
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def obvious_bytes(value):  # noqa: PLR0911 - one for each form
    """The specification, one value at a time."""
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
        case float():
            return struct.pack(">d", math.nan if math.isnan(value) else value + 0.0)
        case dt.datetime():
            since = dt.datetime(1970, 1, 1, tzinfo=value.tzinfo)
            return struct.pack(">q", (value - since) // dt.timedelta(microseconds=1))
        case dt.date():
            return struct.pack(">q", (value - dt.date(1970, 1, 1)).days)
        case bool() | int() | Decimal():
            number, scale = Fraction(value), 0
            while (number * 10**scale).denominator != 1:
                scale += 1
            whole = int(number * 10**scale)
            if scale == 0 and -(2**63) <= whole < 2**63:
                return struct.pack(">q", whole)
            return bytes([scale]) + whole.to_bytes(16, "big", signed=True)
    raise AssertionError(value)


def obvious_key(values):
    parts = [obvious_bytes(value) for value in values]
    if len(parts) == 1:
        return parts[0]
    return b"".join(b"\xff" * 4 if part is None else struct.pack(">i", len(part)) + part for part in parts)


def obvious_murmur2(octets):
    """Austin Appleby's 32-bit hash with the seed of Kafka's clients; signed, as in Java."""
    h = 0x9747B28C ^ len(octets)
    for at in range(0, len(octets) // 4 * 4, 4):
        k = int.from_bytes(octets[at : at + 4], "little") * 0x5BD1E995 % 2**32
        k = (k ^ k >> 24) * 0x5BD1E995 % 2**32
        h = h * 0x5BD1E995 % 2**32 ^ k
    if rest := octets[len(octets) // 4 * 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * 0x5BD1E995 % 2**32
    h = (h ^ h >> 13) * 0x5BD1E995 % 2**32
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


def values_of(name):  # noqa: PLR0911 - one for each type
    """Values of a type, edges often."""
    arrow = forms_of(name).arrow
    if pa.types.is_boolean(arrow):
        return st.booleans()
    if pa.types.is_integer(arrow):
        is_signed = pa.types.is_signed_integer(arrow)
        low, high = (-(2 ** (arrow.bit_width - 1)) if is_signed else 0), 2 ** (arrow.bit_width - is_signed) - 1
        return st.integers(low, high) | st.sampled_from([low, high, 0, 1])
    if pa.types.is_decimal(arrow):
        most = 10**arrow.precision - 1
        whole = st.integers(-most, most) | st.sampled_from([0, 1, -1, 10, -100, most, -most])
        whole |= st.integers(-99, 99).map(lambda n: n * 10**arrow.scale % most)
        return whole.map(lambda n: Decimal(f"{n}E-{arrow.scale}"))
    if pa.types.is_floating(arrow):
        return st.floats(width=arrow.bit_width) | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf])
    if pa.types.is_date(arrow):
        return st.dates()
    if pa.types.is_timestamp(arrow):
        return st.datetimes(timezones=st.none() if arrow.tz is None else st.just(dt.UTC))
    return st.text(st.characters(exclude_categories=("Cs",)), max_size=9) if name == "string" else st.binary(max_size=9)


@st.composite
def keys(draw):
    """The types of a key's columns, and rows of values."""
    types = draw(st.lists(st.sampled_from(CONCRETE), min_size=1, max_size=3))
    return types, draw(st.lists(st.tuples(*[st.none() | values_of(name) for name in types]), max_size=12))


def arrays_of(types, rows):
    return [pa.array([row[i] for row in rows], forms_of(name).arrow) for i, name in enumerate(types)]


def bytes_of(name, value):
    (found,) = key_bytes([pa.array([value], forms_of(name).arrow)]).to_pylist()
    return found


@given(keys())
@example((["decimal(38,38)"], [(Decimal(f"{'-' * n}1E-38"),) for n in (0, 1)]))
@example((["uint64", "binary"], [(2**64 - 1, b""), (2**63, None), (2**63 - 1, b"\xff\xff\xff\xff")]))
def test_bytes_are_as_specified(given_keys):
    types, rows = given_keys
    assert key_bytes(arrays_of(types, rows)).to_pylist() == [obvious_key(row) for row in rows]


@given(keys())
def test_keys_differ_in_bytes_exactly_if_they_differ_in_a_value(given_keys):
    types, rows = given_keys
    same = [tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in row) for row in rows]
    found = key_bytes(arrays_of(types, rows)).to_pylist()
    pairs = [(i, j) for i in range(len(rows)) for j in range(i)]
    assert [found[i] == found[j] for i, j in pairs] == [same[i] == same[j] for i, j in pairs]


@given(st.sampled_from([(a, b) for a in CONCRETE for b in CONCRETE if widens(a, b)]), st.data())
def test_a_key_keeps_its_bytes_when_its_column_widens(names, data):
    old, new = names
    value = data.draw(values_of(old))
    assert bytes_of(old, value) == bytes_of(new, value)
    assert key_form(forms_of(old).arrow) == key_form(forms_of(new).arrow)


@given(st.sampled_from(CONCRETE), st.data())
def test_a_key_has_the_same_bytes_in_the_types_of_frames_and_of_tables(name, data):
    forms = forms_of(name)
    values = pa.array(data.draw(st.lists(st.none() | values_of(name), max_size=5)), forms.arrow)
    assert key_bytes([values]).equals(key_bytes([values.cast(forms.sink)]))
    assert key_form(forms.arrow) == key_form(forms.sink)


@pytest.mark.parametrize("form", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_text_has_the_same_bytes_in_every_arrow_form(form):
    text = pa.array(["one", None, "", "zwölf"])
    assert key_bytes([text.cast(form)]).to_pylist() == [b"one", None, b"", "zwölf".encode()]


@given(keys(), st.data())
def test_a_slice_and_chunks_have_the_bytes_of_their_rows(given_keys, data):
    types, rows = given_keys
    start = data.draw(st.integers(0, len(rows)))
    arrays = arrays_of(types, rows)
    expected = key_bytes(arrays)
    part = key_bytes([array[start:] for array in arrays])
    assert part.equals(expected[start:])
    assert key_bytes([pa.chunked_array([array[:start], array[start:]]) for array in arrays]).equals(expected)
    assert key_hashes(expected[start:]).tolist() == key_hashes(part).tolist()


def test_a_type_that_no_column_has_is_refused():
    with pytest.raises(ConfigError, match="list<item: int8>"):
        key_bytes([pa.array([[1]], pa.list_(pa.int8()))])


@pytest.mark.parametrize(("types", "values", "octets", "hashed", "bucket"), VECTORS, ids=[str(v[:2]) for v in VECTORS])
def test_the_vectors_of_the_specification(types, values, octets, hashed, bucket):
    for each in types.split(", "):
        given = zip(each.split("; "), values.split("; "), strict=True)
        row = [(name, json.loads(value)) for name, value in given]
        arrays = [
            pa.array([None if value is None else from_json_value(value, name)], forms_of(name).arrow)
            for name, value in row
        ]
        found = key_bytes(arrays)
        expected = None if octets == "null" else b"" if octets == "no bytes" else bytes.fromhex(octets)
        assert found.to_pylist() == [expected]
        assert key_hashes(found).astype(np.int32).tolist() == [int(hashed)]
        assert key_buckets(found, 12).tolist() == [int(bucket)]


def test_the_specification_has_a_vector_for_each_type():
    named = {re.sub(r"\(.*", "", name) for types, *_ in VECTORS for name in re.findall(r"\w+(?:\([\d,]+\))?", types)}
    assert named == {name.partition("(")[0] for name in TYPE_NAMES}


def test_hashes_are_those_of_kafka():
    assert key_hashes(pa.array(KAFKAS, pa.large_binary())).astype(np.int32).tolist() == list(KAFKAS.values())
    assert [obvious_murmur2(octets) for octets in KAFKAS] == list(KAFKAS.values())


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20))
def test_a_hash_does_not_depend_on_the_keys_beside_it(octets):
    found = key_hashes(pa.array(octets, pa.large_binary())).astype(np.int32).tolist()
    assert found == [obvious_murmur2(each or b"") for each in octets]


@given(st.data(), st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]))
def test_whole_numbers_that_are_hashed_without_their_bytes_have_the_hashes_of_these(data, name):
    kind = forms_of(name).arrow
    least, most = (0, 1) if name == "bool" else (np.iinfo(name).min, np.iinfo(name).max)
    numbers = data.draw(st.lists(st.integers(least, most) | st.none(), max_size=20))
    column = pa.array(numbers, kind if name != "bool" else pa.int8()).cast(kind).slice(data.draw(st.integers(0, 3)))
    expected = key_hashes(key_bytes([column])).tolist()
    assert column_hashes([column]).tolist() == expected
    assert column_hashes([pa.chunked_array([column])]).tolist() == expected
    assert column_hashes([column.drop_null()]).tolist() == key_hashes(key_bytes([column.drop_null()])).tolist()


def test_more_keys_than_are_hashed_at_once():
    octets = [b"x" * (i % 7) + str(i).encode() for i in range(40_000)]
    found = key_hashes(pa.array(octets, pa.large_binary())).astype(np.int32)
    assert found[::997].tolist() == [obvious_murmur2(each) for each in octets[::997]]


@given(st.binary(max_size=12), st.integers(0, 9))
def test_a_bucket_is_two_of_twice_as_many(octets, doublings):
    keys = pa.array([octets], pa.large_binary())
    n = 1 << doublings
    assert 0 <= key_buckets(keys, n)[0] < n
    assert key_buckets(keys, 2 * n)[0] in (key_buckets(keys, n)[0], key_buckets(keys, n)[0] + n)
