"""`unnest`: made changes in, and what a plain reading of its page says. Without Spark."""

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from databus.core import ConfigError, ControlKind, UnrepresentableValue
from databus.flow import TableControl, TableFilters
from databus.schema import Column, TableSchema
from tests.pipeline.test_change_filters import POST, PRE, chain, made, through

ID = Column("id", "int64", nullable=False)
ORDERS = TableSchema("main.orders", (ID, Column("customer", "string"), Column("lines", "string")), ("id",))
TYPES = {"sku": "string", "quantity": "int32", "price": "decimal(10,2)"}


def lines(
    *tables: TableSchema, now: TableSchema | None = None, before: tuple[Any, ...] = (), **options: Any
) -> TableFilters:
    each = made("unnest", **{"tables": ["main.orders"], "column": "lines", "columns": TYPES, **options})
    return chain(*before, each, tables=tables or (ORDERS,), now=now)


def objects_of(document: str | None) -> list[Any]:
    """The rows of a document, by Python's own reader."""
    found = json.loads(document or "null", parse_float=Decimal) or []
    return [
        (number, each.get("sku"), each.get("quantity"), None if each.get("price") is None else Decimal(each["price"]))
        for number, each in enumerate([found] if isinstance(found, dict) else found, 1)
    ]


def document(rng: random.Random) -> str | None:
    """An array of some objects, one object, or nothing."""

    def one() -> dict[str, Any]:
        made = {"sku": rng.choice(("a", "é", "")), "quantity": rng.randrange(9), "price": rng.choice(("1.50", 2, 0.5))}
        return {name: value for name, value in made.items() if rng.random() < 0.9} | {"more": [{}, "]"]}

    if rng.random() < 0.2:
        return rng.choice((None, "null", "[]", " [] ", json.dumps(one())))
    return json.dumps([one() for _ in range(rng.randrange(4))], indent=rng.choice((None, 2)))


def test_a_mirror_of_the_rows_is_what_the_arrays_hold_now(seed):
    rng = random.Random(seed)
    filters = lines(keep=["customer"])
    there: dict[int, tuple[Any, ...]] = {}
    copy: dict[Any, Any] = {}
    for batch in range(40):
        rows = []
        for scn in range(batch * 10 + 1, batch * 10 + rng.randrange(1, 10)):
            key = rng.randrange(6)
            old, new = there.pop(key, None), (key, rng.choice("xy"), document(rng))
            if old is None:
                rows.append(("insert", scn, 1, *new))
            elif rng.random() < 0.2:
                rows.append(("delete", scn, 1, *old))
                continue
            else:
                free = [each for each in range(6) if each not in there]
                new = (rng.choice((key, rng.choice(free))), *new[1:])
                rows += [(PRE, scn, 1, *old), (POST, scn, 2, *new)]
            there[new[0]] = new
        found = through(filters, ORDERS, rows)
        for kind, _, _, key, customer, *values in sorted(found, key=lambda row: row[1:3]):
            if kind in ("insert", POST):
                copy[key, values[0]] = (customer, *values[1:])
            else:
                del copy[key, values[0]]
        wanted = {
            (key, number): (customer, *values)
            for key, customer, text in there.values()
            for number, *values in objects_of(text)
        }
        assert copy == wanted


def test_an_update_deletes_what_left_the_array_updates_what_stays_and_inserts_what_came():
    one, two, three = ({"sku": each} for each in "abc")
    rows = [
        (PRE, 4, 1, 1, "ann", json.dumps([one, two])),
        (POST, 4, 2, 1, "ann", json.dumps([three])),
        (PRE, 4, 3, 2, "bob", json.dumps({"sku": "d"})),
        (POST, 4, 4, 2, "bob", json.dumps([one, two])),
        ("delete", 5, 1, 3, "cyd", json.dumps([one])),
    ]
    assert through(lines(columns={"sku": "string"}), ORDERS, rows) == [
        ("delete", 4, 1, 1, 2, "b"),
        (PRE, 4, 1, 1, 1, "a"),
        (POST, 4, 2, 1, 1, "c"),
        (PRE, 4, 3, 2, 1, "d"),
        (POST, 4, 4, 2, 1, "a"),
        ("insert", 4, 4, 2, 2, "b"),
        ("delete", 5, 1, 3, 1, "a"),
    ]


def test_rows_that_did_not_change_can_be_left_out_behind_it():
    same, rows = {"sku": "a", "quantity": 1}, []
    for scn, other in enumerate((2, 3), 1):
        rows += [(PRE, scn, 1, 1, None, json.dumps([same, {"sku": "b", "quantity": other - 1}]))]
        rows += [(POST, scn, 2, 1, None, json.dumps([same, {"sku": "b", "quantity": other}]))]
    each = made("unnest", tables=["main.orders"], column="lines", columns={"sku": "string", "quantity": "int32"})
    found = through(chain(each, made("dedupe"), tables=(ORDERS,)), ORDERS, rows)
    assert [(row[0], *row[3:]) for row in found] == [
        (PRE, 1, 2, "b", 1), (POST, 1, 2, "b", 2), (PRE, 1, 2, "b", 2), (POST, 1, 2, "b", 3),
    ]  # fmt: skip


def test_rows_that_enter_or_leave_a_condition_take_theirs_with_them():
    where = made("where", where="customer = 'ann'")
    text = json.dumps([{"sku": "a"}, {"sku": "b"}])
    rows = [
        (PRE, 1, 1, 1, "ann", text), (POST, 1, 2, 1, "bob", text),
        (PRE, 2, 1, 1, "bob", text), (POST, 2, 2, 1, "ann", text),
    ]  # fmt: skip
    found = through(lines(before=(where,), columns={"sku": "string"}), ORDERS, rows)
    assert [row[:1] + row[4:] for row in found] == [
        ("delete", 1, "a"), ("delete", 2, "b"), ("insert", 1, "a"), ("insert", 2, "b"),
    ]  # fmt: skip


WRONG = {
    '[{"sku": "a"}': "not JSON: Expecting ',' delimiter",
    '[],"x":[]': "not JSON: Extra data",
    '{"sku": "a"},{"sku": "b"}': "not JSON: Extra data",
    '{"sku": "a"},"x":{"sku": "b"}': "not JSON: Extra data",
    '[{"sku": "\\ud800"}]': 'element 1: sku: "\\ud800" is not a string',
    "7": "neither an array nor an object: 7",
    '[{"sku": "a"}, 7]': "element 2 is not an object: 7",
    '[{"sku": 7}]': "element 1: sku: 7 is not a string",
    '[{"sku": "a", "quantity": 1.5}]': "element 1: quantity: 1.5 is not a int32",
    '[{"sku": "a", "quantity": 3000000000}]': "element 1: quantity: 3000000000 is not a int32",
    '[{"sku": "a"}, {"sku": "b", "price": 1.005}]': "element 2: price: 1.005 is not a decimal",
    '[{"quantity": 1}]': "element 1: sku: is missing or null, and `required` names it",
}


@pytest.mark.parametrize(("text", "why"), WRONG.items())
def test_what_does_not_fit_stops_with_the_row_and_the_reason(text, why):
    good = json.dumps([{"sku": "a"}])
    rows = [("insert", 7, number, number, None, text if number == 3 else good) for number in range(1, 9)]
    with pytest.raises(UnrepresentableValue) as told:
        through(lines(required=["sku"]), ORDERS, rows)
    assert (
        str(told.value)
        .encode()
        .decode()
        .startswith("main.orders: the JSON in lines of the row with id 3, at (7, 3) (SCN, _seq): " + why)
    )
    assert "Say `on_error: null`" in str(told.value)


def test_what_does_not_fit_is_null_where_that_is_asked_for():
    texts = [*WRONG, '[{"sku": "z", "quantity": 9, "price": "1.5"}]']
    rows = [("insert", 1, number, number, None, text) for number, text in enumerate(texts, 1)]
    assert [row[3:] for row in through(lines(on_error=None), ORDERS, rows)] == [
        (5, 1, None, None, None),
        (7, 1, "a", None, None),
        (7, 2, None, None, None),
        (8, 1, None, None, None),
        (9, 1, "a", None, None),
        (10, 1, "a", None, None),
        (11, 1, "a", None, None),
        (11, 2, "b", None, None),
        (12, 1, None, 1, None),
        (13, 1, "z", 9, Decimal("1.50")),
    ]


def test_values_of_every_type_are_those_of_the_json():
    types = {
        "a": "bool", "b": "int8", "c": "uint64", "d": "float32", "e": "float64", "f": "decimal(5,1)", "g": "string",
        "h": "binary", "i": "date", "j": "timestamp", "k": "timestamptz",
    }  # fmt: skip
    text = (
        '{"a": true, "b": -128, "c": 18446744073709551615, "d": 0.5, "e": 1e-3, "f": "2.5", "g": "\\u00e9\\n", '
        '"h": "YWI=", "i": "2026-01-31", "j": "2026-01-31T12:00:00.5", "k": "2026-01-31T12:00:00Z"}'
    )
    for others in ((), ("[[]]",)):  # by Arrow's reader, and beside what that cannot take
        rows = [("insert", 1, number, number, None, each) for number, each in enumerate((text, *others), 1)]
        (found, *_) = through(lines(columns=types, on_error="null"), ORDERS, rows)
        assert [str(value) for value in found[5:]] == [
            "True", "-128", "18446744073709551615", "0.5", "0.001", "2.5", "é\n", "b'ab'", "2026-01-31",
            "2026-01-31 12:00:00.500000", "2026-01-31 12:00:00+00:00",
        ]  # fmt: skip


@pytest.mark.parametrize("kind", [each for each in ControlKind if each is not ControlKind.SCHEMA])
def test_what_is_said_of_the_table_is_said_of_its_rows_too(kind):
    filters = lines()
    told = TableControl(ORDERS, kind, (3, 1), {"kind": kind, "complete": True, "begin": [2, 1]})
    (control,), _ = filters.item(told)
    assert (control.kind, control.body) == (told.kind, told.body)
    assert control.table.key == ("id", "ordinal")


def schema_control(before: TableSchema, after: TableSchema, **body: Any) -> TableControl:
    said = {"kind": "schema", "class": 2, "previous": f"{before.fingerprint:016x}", "fill": {}, "renamed": {}, **body}
    return TableControl(after, ControlKind.SCHEMA, (9, 1), said)


def test_a_column_more_changes_nothing_and_another_document_has_the_table_read_anew():
    more = TableSchema("main.orders", (*ORDERS.columns, Column("at", "int64")), ("id",))
    filters = lines(ORDERS, more, now=more)
    (control,), is_exact = filters.item(schema_control(ORDERS, more))
    assert is_exact
    assert control.table == filters.result(ORDERS)

    other = TableSchema(
        "main.orders", (ID, Column("customer", "string"), Column("old", "string"), Column("lines", "string")), ("id",)
    )
    renamed = schema_control(ORDERS, other, renamed={"lines": "old"})
    _, is_exact = lines(ORDERS, other, now=other).item(renamed)
    assert not is_exact


def test_rows_from_before_the_column_have_none():
    before = TableSchema("main.orders", ORDERS.columns[:2], ("id",))
    filters = lines(ORDERS, before, now=ORDERS)
    assert through(filters, before, [("insert", 1, 1, 1, "ann")]) == []
    _, is_exact = filters.item(schema_control(before, ORDERS))
    assert is_exact
    _, is_exact = filters.item(schema_control(before, ORDERS, fill={"lines": '[{"sku": "a"}]'}))
    assert not is_exact, "the rows that were there have lines now"


def test_what_does_not_fit_the_table_is_said():
    keyless = TableSchema("main.orders", ORDERS.columns, ())
    for options, table, why in (
        ({"column": "id"}, ORDERS, "column: id is int64; JSON is text"),
        ({}, keyless, "it has no key"),
        ({"ordinal": "ID"}, ORDERS, "would both be called ID"),
        ({"columns": {"Ordinal": "int32"}}, ORDERS, "would both be called Ordinal"),
    ):
        with pytest.raises(ConfigError, match=why):
            lines(table, now=table, **options).result(table)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"columns": {"sku": "text"}}, "'text' is not a column type"),
        ({"required": ["sku"], "on_error": "null"}, "`required` goes with `on_error: stop`"),
        ({"required": ["color"]}, "`required` names color, which `columns` does not"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, why):
    with pytest.raises(ValidationError, match=why):
        lines(**options)
