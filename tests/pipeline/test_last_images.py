"""What filters make of tables whose updates may come without first images; what they cannot follow is refused."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from databus.core import ChangeType, UnsupportedFeature
from databus.formats import canal_messages, maxwell_messages
from databus.schema import Column, TableSchema, frame_schema
from tests.pipeline.test_table_filters import KINDS, chain, made, rows_of, shown
from tests.pipeline.validated import problems_of

COLUMNS = (Column("id", "int32", nullable=False), Column("total", "int32", nullable=False), Column("note", "string"))
ORDERS = TableSchema("shop.orders", COLUMNS, ("id",), first_images=False)
PRE, POST = ChangeType.UPDATE_PREIMAGE.label, ChangeType.UPDATE_POSTIMAGE.label
LARGE = made("where", where="total > 10")

SOURCE = """
name: shop
sources:
  shop:
    type: kafka
    topics: [orders]
    format: {format}
    kafka: {{bootstrap.servers: "k:9092"}}
    schemas: {{shop.orders: {{columns: {{id: int64, total: int64, lines: string}}{key}}}}}
    {more}
inputs: {{shop: {{type: databus}}}}
filters: {{some: {filter}}}
outputs: {{copy: {{type: delta, from: {branch}, mode: {mode}, path: lake{output}}}}}
"""


def problems(tmp_path: Any, filter_: str, **given: str) -> list[str]:
    options = {
        "format": "debezium",
        "key": ", key: [id]",
        "more": "",
        "mode": "mirror",
        "output": "",
        "branch": "some",
        **given,
    }
    return problems_of(tmp_path, SOURCE.format(filter=f"{{from: shop, {filter_}}}", **options))


def test_the_flag_is_part_of_what_a_definition_is_only_where_it_says_something() -> None:
    whole = replace(ORDERS, first_images=True)
    assert "first_images" not in whole.to_json()
    assert TableSchema.from_json(ORDERS.to_json()) == ORDERS
    assert ORDERS.fingerprint != whole.fingerprint


def test_what_does_not_hold_is_a_delete_of_its_key() -> None:
    given = rows_of(
        ORDERS,
        ("insert", 1, 1, 1, 50, "a"),
        ("insert", 1, 2, 2, 5, "b"),
        (PRE, 1, 3, 3, 50, "c"), (POST, 1, 4, 3, 5, "c"),
        (PRE, 1, 5, 4, 5, "d"), (POST, 1, 6, 4, 50, "d"),
        (PRE, 1, 7, 5, 5, "e"), (POST, 1, 8, 5, 6, "e"),
        (PRE, 2, 1, 6, 5, "f"), (POST, 2, 2, 7, 50, "f"),
        (PRE, 2, 3, 8, 50, "g"), (POST, 2, 4, 8, 60, "g"),
        ("delete", 2, 5, 9, 0, None),
    )  # fmt: skip
    items, _ = chain(LARGE, tables=[ORDERS]).item(given)
    assert shown(items) == [
        ("insert", 1, 50, "a"),
        ("delete", 2, None, None),
        ("delete", 3, 50, "c"),
        ("insert", 4, 50, "d"),
        ("delete", 5, None, None),
        ("delete", 6, None, None),
        ("insert", 7, 50, "f"),
        (PRE, 8, 50, "g"),
        (POST, 8, 60, "g"),
        ("delete", 9, None, None),
    ]
    (table,) = {item.table for item in items}
    assert [each.nullable for each in table.columns] == [False, True, True]


@pytest.mark.parametrize("number", range(20))
def test_a_copy_behind_any_filters_holds_what_the_conditions_say_of_the_last_images(number: int) -> None:
    """Law: whichever first images are missing, a copy is what the filters leave of the source's rows."""
    dice = random.Random(number)
    filters = [made("where", where="total > 10"), made("rename", columns={"note": "text"})]
    filters += [made("where", where="text = 'a'"), made("project", exclude=["text"])]
    source: dict[int, tuple[int, str]] = {}
    rows: list[tuple[Any, ...]] = []
    for step in range(60):
        key, new = dice.randrange(8), (dice.choice([5, 50]), dice.choice("ab"))
        to = dice.choice([key, key, key, dice.randrange(8, 12)])
        old = source.pop(key, None)
        if old is not None and dice.random() < 0.2:
            alone = dice.random() < 0.5
            rows.append(("delete", step, 1, key, *((0, None) if alone else old)))
            continue
        if old is not None and (to != key or dice.random() < 0.5):
            rows += [(PRE, step, 1, key, *old), (POST, step, 2, to, *new)]
        else:
            rows.append(("insert", step, 1, to := key, *new))
        source[to] = new
    copy: dict[int, int] = {}
    items, _ = chain(*filters, tables=[ORDERS]).item(rows_of(ORDERS, *rows))
    for kind, key, total in shown(items):
        if kind in ("insert", POST):
            copy[key] = total
        else:
            copy.pop(key, None)
    assert copy == {key: total for key, (total, note) in source.items() if total > 10 and note == "a"}


def test_a_sample_by_the_key_deletes_nothing() -> None:
    from databus.pipeline.filters import SampleFilter
    from databus.pipeline.filters._changes import SampleConfig

    KINDS.setdefault("sample", (SampleFilter, SampleConfig))
    given = rows_of(ORDERS, *(("insert", 1, number, number, 50, "a") for number in range(1, 41)))
    by_key, _ = chain(made("sample", fraction=0.5), tables=[ORDERS]).item(given)
    assert {row[0] for row in shown(by_key)} == {"insert"}
    by_note, _ = chain(made("sample", fraction=0.0001, by="note"), tables=[ORDERS]).item(given)
    assert {row[0] for row in shown(by_note)} == {"delete"}


def test_what_cannot_be_followed_is_refused(tmp_path: Any) -> None:
    (no_key,) = problems(tmp_path, "type: where, where: total > 10", key="", mode="history")
    assert no_key.startswith("filters.some")
    assert "it has no key" in no_key
    (sql,) = problems(tmp_path, "type: sql, table: shop.orders, where: total > 10")
    assert "nothing would remove a row that this filter leaves out" in sql
    (route,) = problems(tmp_path, "type: route, table: shop.orders, where: {large: total > 10}", branch="some.large")
    assert "nothing would remove" in route
    (marks,) = problems(tmp_path, "type: tombstones, deletes: mark")
    assert "would empty the rows that they mark" in marks
    (lines,) = problems(tmp_path, "type: unnest, tables: [shop.orders], column: lines, columns: {sku: string}")
    assert "which objects left the array" in lines
    columns = "id: id, route: lines, key: total, payload: lines"
    (messages,) = problems(tmp_path, f"type: outbox, tables: [shop.orders], {columns}", mode="history")
    assert "each would be a message" in messages
    (key,) = problems(tmp_path, "type: where, where: total > 10", output=", key: [total]")
    assert "removed by its key, which is id" in key


@pytest.mark.parametrize(
    "given",
    [
        {"more": "first_images: true"},
        {"format": "maxwell"},
        {"filter_": "type: sql, select: 'SELECT id, total FROM shop.orders'"},
        {"filter_": "type: where, where: total > 10"},
        {"filter_": "type: tombstones, deletes: drop"},
    ],
)
def test_what_can_be_followed_is_not_refused(tmp_path: Any, given: dict[str, str]) -> None:
    assert problems(tmp_path, **{"filter_": "type: sql, table: shop.orders, where: total > 10", **given}) == []


@pytest.mark.parametrize("words", ["maxwell", "canal"])
@pytest.mark.parametrize(
    "output",
    [
        "type: kafka, kafka: {bootstrap.servers: 'k:9092'}",
        "type: http, url: 'http://127.0.0.1:1'",
        "type: stream, command: [cat]",
    ],
)
def test_words_for_whole_rows_are_refused_where_rows_may_not_be_whole(tmp_path: Any, words: str, output: str) -> None:
    source = SOURCE.partition("filters:")[0].format(format="debezium", key=", key: [id]", more="")
    text = source + f"outputs: {{copy: {{from: shop, format: {words}, {output}}}}}"
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("outputs.copy.format: shop.orders: its updates may come without first images")
    assert problems_of(tmp_path, text.replace("format: debezium", "format: debezium\n    first_images: true")) == []
    assert problems_of(tmp_path, text.replace(f"format: {words}", "format: debezium")) == []


@pytest.mark.parametrize("make", [maxwell_messages, partial(canal_messages, made_ms=1)])
def test_so_they_are_where_nobody_could_tell_before(make: Any) -> None:
    """As of a relay elsewhere, whose tables `validate` does not know."""
    batch = pa.RecordBatch.from_pylist([], schema=frame_schema(ORDERS))
    with pytest.raises(UnsupportedFeature, match=r"shop\.orders: its updates may come without first images"):
        make(ORDERS, batch)
