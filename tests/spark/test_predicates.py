"""Conditions answer as Spark's do, for every type, at the edges and where values are missing."""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from databus.schema import Predicate, forms_of

pytestmark = pytest.mark.spark

NAN, INF = float("nan"), float("inf")
D = Decimal
UTC = dt.UTC
MOMENTS = ("2026-01-31T23:59:59.999999", "1970-01-01", "1900-02-28T01:02:03")
TIMES = [dt.datetime.fromisoformat(moment) for moment in MOMENTS]
VALUES = {
    "bool": [True, False],
    "int8": [-128, 127, 0, 1],
    "int32": [-(2**31), 2**31 - 1, 0, 1],
    "int64": [-(2**63), 2**63 - 1, 2**53 + 1, 0, 1],
    "uint64": [0, 1, 2**64 - 1, 2**63, 2**53 + 1],
    "float32": [0.5, -0.0, 0.0, NAN, INF, -INF],
    "float64": [0.1, -0.0, 1.0, NAN, INF, -INF, 2.0**53],
    "decimal(12,4)": [D("1.0001"), D("1.0000"), D("-99999999.9999"), D("0.0000")],
    "decimal(20,0)": [D(1), D(2**64 - 1), D(-(10**19)), D(0)],
    "string": ["", "a", "B", "ab", "ä", "𝄞", "a_b", "a%b", "a\nb"],
    "binary": [b"", b"\x00", b"\xff", b"ab"],
    "date": [dt.date(2026, 1, 31), dt.date(1969, 12, 31), dt.date(1, 1, 1)],
    "timestamp": TIMES,
    "timestamptz": [time.replace(tzinfo=UTC) for time in TIMES],
}
LITERALS = {
    "bool": ["TRUE", "FALSE"],
    "float32": ["0", "0.5", "-1.5", "1"],
    "float64": ["0.1", "0", "1", "-1.5", "9007199254740993"],
    "string": ["''", "'a'", "'B'", "'ä'", "'𝄞'", "'a_b'"],
    "binary": ["X''", "X'00'", "X'ff'", "X'6162'"],
    "date": ["DATE '2026-01-31'", "DATE '1970-01-01'"],
    "timestamp": ["'2026-01-31 23:59:59.999999'", "'1970-01-01 00:00:00'", "'1900-02-28 01:02:03'"],
    "timestamptz": ["TIMESTAMP '2026-01-31 23:59:59.999999Z'", "TIMESTAMP '1970-01-01 01:00:00+01:00'"],
}
WHOLE = ["0", "1", "-1", "2.5", "127", "128", "9223372036854775807"]
BEYOND = ["9223372036854775808", "18446744073709551615"]
"""Not compared with integer columns: Spark reads `c <= 9223372036854775808` as true, where `c` is null too."""
SIGNS = ["=", "<>", "<", "<=", ">", ">="]
FEW = ("bool", "float32", "float64", "binary", "date", "timestamp", "timestamptz", "string")


def name_of(kind):
    return "c_" + "".join(each if each.isalnum() else "_" for each in kind)


def leaf(rng):
    kind = rng.choice(list(VALUES))
    name, literals = name_of(kind), LITERALS.get(kind, WHOLE if kind.startswith("int") else [*WHOLE, *BEYOND])
    match rng.randrange(6):
        case 0:
            return f"{name} IS {rng.choice(['', 'NOT '])}NULL"
        case 1:
            return f"{name} {rng.choice(['', 'NOT '])}IN ({', '.join(rng.sample(literals, 2))})"
        case 2 if kind == "string":
            return f"{name} LIKE '{rng.choice(['a%', '_', '%!_%', 'a!%b', '%', 'a_b'])}' ESCAPE '!'"
        case 3:
            others = [kind] if kind in FEW else [value for value in VALUES if value not in FEW]
            other = rng.choice([*others, *(["float32", "float64"] if kind.startswith("float") else [])])
            return f"{name} {rng.choice(SIGNS if kind != 'bool' else SIGNS[:2])} {name_of(other)}"
        case _:
            return f"{name} {rng.choice(SIGNS if kind != 'bool' else SIGNS[:2])} {rng.choice(literals)}"


def condition(rng, depth=3):
    if depth == 0 or rng.random() < 0.3:
        return leaf(rng)
    if rng.random() < 0.25:
        return f"NOT ({condition(rng, depth - 1)})"
    return f"({condition(rng, depth - 1)} {rng.choice(['AND', 'OR'])} {condition(rng, depth - 1)})"


@pytest.mark.parametrize("form", ["arrow", "sink"])
def test_random_conditions_answer_as_in_spark(spark, seed, form):
    rng = random.Random(seed)
    made = {kind: [rng.choice([*values, None]) for _ in range(80)] for kind, values in VALUES.items()}
    sink = pa.table({name_of(kind): pa.array(values, forms_of(kind).sink) for kind, values in made.items()})
    rows = pa.table({name_of(kind): pa.array(made[kind], getattr(forms_of(kind), form)) for kind in made})
    texts = [*(leaf(rng) for _ in range(200)), *(condition(rng) for _ in range(60))]
    answers = spark.createDataFrame(sink).selectExpr(*(f"({text}) AS q{n}" for n, text in enumerate(texts))).toArrow()
    for number, text in enumerate(texts):
        found = Predicate.parse(text).over(rows.schema).test(rows).to_pylist()
        assert found == answers.column(number).to_pylist(), text
