"""What becomes of a document when its table changes; and again, when the change comes a second time."""

import pytest

from databus.schema import Column, SchemaChange, TableSchema
from databus.sinks.search import DocumentChange

PAIR = {"_commit_version": 3, "_seq": 1}


def table(*names, key=("id",)):
    return TableSchema("main.t", (Column("id", "int64"), *(Column(name, "string") for name in names)), key)


def change(after, renamed=None, fill=None, pair=(5, 1)):
    return SchemaChange(pair, None, after, renamed or {}, fill or {}, 2)


def made(given, fields, meta=None):
    mapping = {"properties": {name: {"type": "text"} for name in fields}}
    if meta:
        mapping["_meta"] = {"databus": meta}
    return DocumentChange.of(given, mapping, {name: {"type": "text"} for name in given.after.names}, given.after.key)


CASES = {
    "added with a default": (change(table("a", "b"), fill={"b": "x"}), {"a": "1"}, {"a": "1", "b": "x"}),
    "added with null": (change(table("a", "b"), fill={"b": None}), {"a": "1"}, None),
    "dropped": (change(table("b")), {"a": "1", "b": "2"}, {"b": "2"}),
    "renamed": (change(table("b"), {"a": "b"}), {"a": "1"}, {"b": "1"}),
    "renamed and another added": (change(table("a", "b"), {"a": "b"}, {"a": "x"}), {"a": "1"}, {"b": "1", "a": "x"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_document_becomes_a_row_of_the_new_table_and_stays_that(case):
    given, before, after = CASES[case]
    step = made(given, ["id", "a", "b"])
    first = step({"id": 1, **before, **PAIR})
    assert first == (None if after is None else {"id": 1, **after, **PAIR})
    assert step(first or {"id": 1, **before, **PAIR}) is None


def test_changes_that_come_again_leave_what_the_last_of_them_made():
    """a became b, and b became c; then both come again, over a document of today."""
    meta = {"columns": ["id", "c"], "schema": [7, 1], "key": ["id"]}
    fields = ["id", "a", "b", "c"]
    first = made(change(table("b"), {"a": "b"}), fields, meta)
    second = made(change(table("c"), {"b": "c"}, pair=(7, 1)), fields, meta)
    today = {"id": 1, "c": "1", **PAIR}
    assert second(first(today)) == today
    assert second(first({"id": 1, "a": "1", **PAIR})) == today


def test_another_key_is_a_conflict_and_a_renamed_one_is_none():
    meta = {"columns": ["id", "a"], "schema": [1, 1], "key": ["id"]}
    fields = ["id", "a", "no"]
    assert made(change(table("a", key=("id", "a"))), fields, meta).conflicts
    renamed = TableSchema("main.t", (Column("no", "int64"), Column("a", "string")), ("no",))
    assert not made(change(renamed, {"id": "no"}), fields, meta).conflicts


@pytest.mark.parametrize("renamed", [{"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a"}])
def test_columns_with_each_other_s_names_are_a_conflict_since_a_document_does_not_say_which_it_has(renamed):
    """A sweep that was broken off comes again, and would change those documents back that it had done."""
    assert made(change(table("a", "b", "c"), renamed), ["id", "a", "b", "c"]).conflicts
    assert not made(change(table("b", "c"), {"a": "b", "b": "c"}), ["id", "a", "b"]).conflicts
