"""Conditions are exact for every type, unknown where a value is missing, and refused where they would not be exact."""

import sqlite3
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import ConfigError
from databus.schema import Predicate, forms_of

SIGNS = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "decimal(20,0)", "decimal(9,3)")
EDGES = [0, 1, -1, 127, 128, 255, 256, 2**31, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**19]


def held_by(name, number):
    """The number as a value of this type, or None if it is none."""
    try:
        return pa.scalar(number, forms_of(name).arrow).as_py()
    except (pa.ArrowException, OverflowError, ValueError):
        return None


def answers(text, **columns):
    rows = pa.table(columns)
    return Predicate.parse(text).over(rows.schema).test(rows).to_pylist()


numbers = st.one_of(
    st.sampled_from(EDGES), st.integers(-300, 300), st.decimals(-1000, 1000, places=4, allow_nan=False)
).map(Decimal)


@given(st.sampled_from(NUMBERS), st.lists(numbers, min_size=1, max_size=8), numbers, st.sampled_from(sorted(SIGNS)))
def test_a_number_is_compared_with_a_literal_as_the_fractions_that_they_are(name, values, literal, sign):
    held = [held_by(name, each) for each in values] + [None]
    found = answers(f"a {sign} {format(literal, 'f')}", a=pa.array(held, forms_of(name).arrow))
    compare = SIGNS[sign]
    assert found == [None if each is None else compare(Fraction(each), Fraction(literal)) for each in held]


@given(
    st.sampled_from(NUMBERS),
    st.sampled_from(NUMBERS),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8),
    st.sampled_from(sorted(SIGNS)),
)
def test_columns_of_any_two_number_types_are_compared_as_the_fractions_that_they_are(one, other, pairs, sign):
    left = [held_by(one, each) for each, _ in pairs]
    right = [held_by(other, each) for _, each in pairs]
    found = answers(f"a {sign} b", a=pa.array(left, forms_of(one).arrow), b=pa.array(right, forms_of(other).arrow))
    assert found == [
        None if a is None or b is None else SIGNS[sign](Fraction(a), Fraction(b))
        for a, b in zip(left, right, strict=True)
    ]


texts = st.text(st.sampled_from("ab%_\\!\nä𝄞Z"), max_size=6)
leaves = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from("ij"), st.sampled_from(sorted(SIGNS)), st.integers(-3, 3)),
    st.builds("{} {} {}".format, st.sampled_from("ij"), st.sampled_from(sorted(SIGNS)), st.sampled_from("ij")),
    st.builds("{} IN ({}, 2.5, {})".format, st.sampled_from("ij"), st.integers(-3, 3), st.integers(-3, 3)),
    st.builds("{} NOT BETWEEN {} AND {}".format, st.sampled_from("ij"), st.integers(-3, 3), st.integers(-3, 3)),
    st.builds("{} IS {}NULL".format, st.sampled_from("ijs"), st.sampled_from(["", "NOT "])),
    st.builds("s {} '{}'".format, st.sampled_from(sorted(SIGNS)), texts),
    st.builds("s LIKE '{}' ESCAPE '~'".format, texts),
    st.builds("x {} X'{}'".format, st.sampled_from(sorted(SIGNS)), st.binary(max_size=2).map(bytes.hex)),
)
conditions = st.recursive(
    leaves,
    lambda below: st.one_of(
        st.builds("({} AND {})".format, below, below),
        st.builds("({} OR {})".format, below, below),
        st.builds("NOT ({})".format, below),
    ),
    max_leaves=8,
)
small = st.one_of(st.none(), st.integers(-3, 3))
rows_of = st.lists(
    st.tuples(small, small, st.one_of(st.none(), texts), st.one_of(st.none(), st.binary(max_size=2))), max_size=12
)


@given(rows_of, conditions)
def test_a_condition_answers_as_sqlite_does_where_values_are_missing_too(rows, condition):
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA case_sensitive_like = ON")
    database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, i INTEGER, j INTEGER, s TEXT, x BLOB)")
    database.executemany("INSERT INTO t (i, j, s, x) VALUES (?, ?, ?, ?)", rows)
    expected = [row[0] for row in database.execute(f"SELECT {condition} FROM t ORDER BY n")]
    kinds = (pa.int64(), pa.int32(), pa.string(), pa.binary())
    columns = {name: pa.array([row[at] for row in rows], kinds[at]) for at, name in enumerate("ijsx")}
    assert answers(condition, **columns) == [None if each is None else bool(each) for each in expected]


def test_both_zeros_of_floats_are_one_value_and_nan_is_above_all():
    zeros = pa.array([0.0, -0.0, float("nan"), None])
    assert answers("a = -0.0", a=zeros) == [True, True, False, None]
    assert answers("a IN (1, -0)", a=zeros) == [True, True, False, None]
    assert answers("a IN (1, 0)", a=zeros.cast(pa.float32())) == [True, True, False, None]
    assert answers("a > 1e300", a=zeros) == [False, False, True, None]


def test_unknown_does_not_pass():
    rows = pa.table({"a": [1, None, 3]})
    assert Predicate.parse("NOT a = 1").over(rows.schema).keep(rows).column("a").to_pylist() == [3]


def test_columns_are_found_in_any_letter_case_unless_two_differ_in_nothing_else():
    rows = pa.table({"Name": ["x"], "name": ["y"], "City": ["Bern"]})
    assert Predicate.parse("name = 'y' AND CITY = 'Bern'").over(rows.schema).holds(rows).to_pylist() == [True]
    with pytest.raises(ConfigError, match=r"character 1: there is no column 'NAME'"):
        Predicate.parse("NAME = 'y'").over(rows.schema)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sum(a) > 1", r"character 1: sum\(...\): functions are not taken"),
        ("a = 1 AND a = NULL", "character 15: nothing is equal to NULL; write IS NULL"),
        ("a + 1 = 2", r"character 3: '\+' has no meaning here"),
        ("(a = 1", r"character 7: expected \), the condition ends"),
        ("s = 'abc", "character 5: text that does not end"),
        ("1 = 1", "character 3: one side of a comparison has to be a column"),
        ("a = (SELECT 1)", r"character 5: expected a column or a value, found \("),
        ("a IN (1, NULL)", "character 10: nothing is equal to NULL"),
        ("a = 1; DROP TABLE t", "character 6: ';' has no meaning here"),
        ("s LIKE 'a\\'", "character 1: the pattern ends with"),
        ("a = 'x'", "character 5: column 'a' is int64, and is compared with text"),
        ("s = 1", "character 5: column 's' is text, and is compared with a number"),
        ("f = a", "character 3: 'f' is double and 'a' is int64, which are not compared"),
        ("f < 1e400", "character 5: this number is beyond those of a float"),
        ("t > '2026-02-30'", "character 5: column 't' is timestamp.* no time; write 2026-01-31 23:59"),
        ("t > '2026-01-31 10:00:00+01:00'", "character 5: column 't' is timestamp"),
        ("x = 'ab'", "write X'...' with hexadecimal digits"),
        ("x = X'abc'", "character 5: X'abc' is not pairs of hexadecimal digits"),
        ("a AND s = 'x'", "character 1: column 'a' is int64, which is no condition"),
        ("a = 1e999", "an exponent up to 400"),
        ("(" * 100 + "a = 1" + ")" * 100, "nested deeper than 64"),
        ("", "character 1: expected a column or a value, the condition ends"),
    ],
)
def test_what_is_not_understood_or_not_exact_is_refused_with_its_place(text, message):
    schema = pa.schema(
        {"a": pa.int64(), "s": pa.string(), "f": pa.float64(), "x": pa.binary(), "t": pa.timestamp("us")}
    )
    with pytest.raises(ConfigError, match=message):
        Predicate.parse(text).over(schema)


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_refused_by_a_place(text):
    said = ""
    try:
        Predicate.parse(text)
    except ConfigError as error:
        said = str(error)
    assert not said or said.startswith("character ")
