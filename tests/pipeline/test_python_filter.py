"""A user's function: what it is shown, what it may return, and how its errors name it. Without Spark around it."""

import datetime as dt

import pyarrow as pa
import pytest

from databus.core import ConfigError, InputError
from databus.flow import Mapper

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
META = {
    "_change_type": pa.string(),
    "_commit_version": pa.int64(),
    "_commit_timestamp": pa.timestamp("us", "UTC"),
    "_seq": pa.int64(),
    "_txid": pa.string(),
    "_snapshot": pa.bool_(),
    "_control": pa.string(),
}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("name", pa.string()), *(pa.field(*each) for each in META.items())]
)


def batch(*rows):
    """Rows as (id, name), or a control's body as text."""
    made = [
        {"_change_type": "control", "_control": row}
        if isinstance(row, str)
        else {"id": row[0], "name": row[1], "_change_type": "insert"}
        for row in rows
    ]
    common = {"_commit_version": 7, "_commit_timestamp": AT, "_txid": "t", "_snapshot": False}
    return pa.RecordBatch.from_pylist([{**common, **row, "_seq": n} for n, row in enumerate(made)], schema=SCHEMA)


def run(text, rows, schema=SCHEMA):
    out = list(Mapper("f.py:f", text, schema)(iter([rows])))
    return pa.Table.from_batches(out, schema).to_pylist()


def test_rows_left_out_are_gone_and_the_others_keep_what_the_bus_added():
    found = run(
        "def f(b):\n return b.filter(__import__('pyarrow.compute').compute.greater(b['id'], 1))",
        batch((1, "a"), (2, "b")),
    )
    assert [(row["id"], row["_seq"], row["_commit_version"]) for row in found] == [(2, 1, 7)]


def test_a_function_that_says_that_it_leaves_nothing_out_fails_where_it_does():
    keeps = Mapper("f.py:f", "def f(b):\n return b.slice(1)", SCHEMA, keeps_rows=True)
    with pytest.raises(InputError, match="returned 1 rows for 2, and `keeps_rows` says"):
        list(keeps(iter([batch((1, "a"), (2, "b"))])))


def test_controls_pass_by_unseen():
    text = "def f(b):\n assert '_control' not in b.schema.names and b.num_rows == 1\n return b.slice(0, 0)"
    (found,) = run(text, batch((1, "a"), '{"kind": "truncate"}'))
    assert (found["_change_type"], found["_control"], found["id"], found["_seq"]) == (
        "control",
        '{"kind": "truncate"}',
        None,
        1,
    )


def test_columns_may_change_and_the_bus_columns_come_by_themselves():
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("twice", pa.int64()), *(pa.field(*each) for each in META.items())]
    )
    text = (
        "import pyarrow as pa\ndef f(b):\n"
        " return pa.record_batch({'twice': pa.array([2 * v for v in b['id'].to_pylist()]), 'id': b['id']})"
    )
    assert [(row["twice"], row["_seq"]) for row in run(text, batch((3, "a"), (4, "b")), schema)] == [(6, 0), (8, 1)]


MISTAKES = {
    "def f(b):\n raise KeyError('x')": "function f.py:f failed on a batch of 1 rows, at f.py:2: KeyError: 'x'",
    "def f(b):\n return None": "function f.py:f returned NoneType; it must return",
    "def f(b):\n return b.drop_columns(['name'])": "function f.py:f returned no column 'name'",
    "def f(b):\n return b.slice(0, 0).select(['id', 'name'])": "no column '_change_type'; it must keep the bus's",
    "def f(b):\n return b.set_column(0, 'id', b['name'])": "returned column 'id' as string, which is not int64",
    "import no_such_module_x": "function f.py:f does not load: ModuleNotFoundError",
    "f = 3": "function f.py:f: f is not a function",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_errors_name_the_function(text):
    with pytest.raises((InputError, ConfigError)) as found:
        run(text, batch((1, "x")))
    assert MISTAKES[text] in str(found.value)
