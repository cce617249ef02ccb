"""`sample`, `dedupe`, `tombstones`, `outbox`: made changes in, and what a plain reading of their pages says.

Without Spark.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from databus.core import ConfigError, ControlKind, InputError, UnsupportedFeature
from databus.flow import TableControl, TableFilters, TableRows, decode_groups, user_rows_schema
from databus.pipeline.graph._registry import NodeKind, plugin_class
from databus.schema import Column, TableSchema
from tests.pipeline.made_changes import MadeTable

ID = Column("id", "int32", nullable=False)
ORDERS = TableSchema("main.orders", (ID, Column("total", "float64"), Column("note", "string")), ("id",))
OUTBOX = TableSchema(
    "main.outbox",
    (
        Column("id", "int64", nullable=False),
        Column("aggregatetype", "string"),
        Column("aggregateid", "string"),
        Column("type", "string"),
        Column("payload", "string"),
    ),
    ("id",),
)
PRE, POST = "update_preimage", "update_postimage"

Row = tuple[Any, ...]
"""Change type, SCN, seq, then the columns."""


def made(kind: str, **options: Any) -> Any:
    plugin = plugin_class(NodeKind.FILTER, kind)
    return plugin(plugin.config_model.model_validate({"from": "x", "type": kind, **options}), Path())


def chain(*filters: Any, tables: Any = (ORDERS, OUTBOX), now: TableSchema | None = None) -> TableFilters:
    known = {table.fingerprint: table for table in tables}
    found = [(f"filters.f{number}", each.in_tasks) for number, each in enumerate(filters)]
    return TableFilters("shop", found, known.__getitem__, lambda _: now)


def rows_of(table: TableSchema, rows: Any, *, is_being_read: bool = False) -> TableRows:
    told = [
        {"_change_type": kind, "_commit_version": scn, "_seq": seq, "_commit_timestamp": scn, "_snapshot": False}
        | dict(zip(table.names, values, strict=True))
        for kind, scn, seq, *values in rows
    ]
    return TableRows(table, pa.Table.from_pylist(told, schema=user_rows_schema(table)), is_being_read)


def through(filters: TableFilters, table: TableSchema, rows: Any, **more: Any) -> list[Row]:
    """What comes out, as rows of the same form."""
    items, _ = filters.item(rows_of(table, rows, **more))
    found: list[Row] = []
    for item in items:
        assert item.rows.schema.equals(user_rows_schema(item.table))
        names = ("_change_type", "_commit_version", "_seq", *item.table.names)
        found += [tuple(row[name] for name in names) for row in item.rows.to_pylist()]
    return found


def history(rng: random.Random, count: int) -> list[Row]:
    """Changes of a table: keys that change, updates that change nothing, NULL, NaN and both zeros."""
    there: dict[int, Row] = {}
    rows: list[Row] = []
    totals = (None, 0.0, -0.0, float("nan"), 7.5, 100.0)
    for scn in range(1, count + 1):
        seq = 0
        for _ in range(rng.choice((1, 1, 3))):
            key = rng.randrange(6)
            new = (key, rng.choice(totals), rng.choice((None, "a", "b")))
            old = there.pop(key, None)
            if old is None:
                rows.append(("insert", scn, seq + 1, *new))
                there[key] = new
            elif rng.random() < 0.25:
                rows.append(("delete", scn, seq + 1, *old))
            else:
                free = [each for each in range(6) if each not in there]
                new = rng.choice((old, new, (old[0], old[1], new[2]), (rng.choice(free), *old[1:])))
                rows += [(PRE, scn, seq + 1, *old), (POST, scn, seq + 2, *new)]
                there[new[0]] = new
                seq += 1
            seq += 1
    return rows


def changes(rows: list[Row]) -> list[list[Row]]:
    """Rows by change: the two images of an update together."""
    found: list[list[Row]] = []
    for row in rows:
        if row[0] == POST and found and found[-1][-1][0] == PRE and found[-1][-1][1:3] == (row[1], row[2] - 1):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def mirrored(rows: list[Row], into: dict[Any, Row] | None = None) -> dict[Any, Row]:
    """The rule of mirrors, over rows in order."""
    copy = {} if into is None else into
    for kind, _, _, key, *values in rows:
        if kind in ("insert", POST):
            copy[key] = tuple(values)
        else:
            copy.pop(key, None)
    return copy


def shown(value: Any) -> Any:
    """Rows in which equal is what has the same bits."""
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


# sample


@pytest.mark.parametrize(("key", "share"), [(1, 2100486060 / 2**32), (-1, 185950397 / 2**32)])
def test_a_sample_takes_a_key_by_the_hash_that_the_page_of_keys_lists(key, share):
    for kind in ("int32", "int64"):
        table = TableSchema("main.t", (Column("id", kind, nullable=False),), ("id",))
        rows = [("insert", 1, 1, key)]
        assert through(chain(made("sample", fraction=share + 1e-6)), table, rows) == rows
        assert through(chain(made("sample", fraction=share - 1e-6)), table, rows) == []


def test_a_sample_is_about_as_large_as_it_says_and_a_larger_one_holds_it():
    table = TableSchema("main.t", (Column("id", "int64", nullable=False),), ("id",))
    count = 100_000
    given = {"id": np.arange(count), "_change_type": ["insert"] * count, "_commit_version": np.arange(count)}
    schema = user_rows_schema(table)
    empty = {each.name: pa.nulls(count, each.type) for each in schema}
    rows = pa.table({**empty, **given, "_seq": np.zeros(count, np.int64)}).cast(schema)
    taken = {}
    for fraction in (0.01, 0.1, 1.0):
        items, _ = chain(made("sample", fraction=fraction)).item(TableRows(table, rows))
        taken[fraction] = set(items[0].rows.column("id").to_pylist())
        assert len(taken[fraction]) == pytest.approx(count * fraction, rel=0.1)
    assert taken[0.01] < taken[0.1] < taken[1.0]


@pytest.mark.parametrize("number", range(10))
def test_a_mirror_of_a_sample_holds_the_rows_of_the_keys_in_it(number, seed):
    rows = history(random.Random(seed + number), 60)
    sample = chain(made("sample", fraction=0.5))
    taken = {key for key in range(6) if through(sample, ORDERS, [("insert", 1, 1, key, None, None)])}
    expected = {key: row for key, row in mirrored(rows).items() if key in taken}
    assert shown(mirrored(through(sample, ORDERS, rows))) == shown(expected)


def test_rows_of_two_tables_go_together_where_one_column_decides():
    lines = TableSchema("main.lines", (ID, Column("order_no", "int64")), ("id",))
    orders = TableSchema("main.orders", (ID,), ("id",))
    by_order = chain(made("sample", fraction=0.5, by=["order_no"]), tables=(lines,), now=lines)
    by_key = chain(made("sample", fraction=0.5), tables=(orders,))
    given = range(50)
    taken = {row[4] for row in through(by_order, lines, [("insert", 1, n, 100 + n, n) for n in given])}
    assert taken == {row[3] for row in through(by_key, orders, [("insert", 1, n, n) for n in given])}
    assert 10 < len(taken) < 40


def test_a_sample_of_a_table_without_a_key_needs_to_be_told_by_what():
    table = TableSchema("main.log", (Column("line", "string"),))
    with pytest.raises(ConfigError, match=r"filters.f0: shop/main.log: it has no key; say in `by`"):
        chain(made("sample", fraction=0.5)).over(table)
    assert len(through(chain(made("sample", fraction=1, by="line"), now=table), table, [("insert", 1, 1, "a")])) == 1


def test_a_key_that_becomes_another_has_a_mirror_of_a_sample_read_anew():
    new = TableSchema("main.orders", ORDERS.columns, ("id", "note"))
    filters = chain(made("sample", fraction=0.5), tables=(ORDERS, new), now=new)
    assert not filters.item(schema_control(ORDERS, new))[1]
    wider = TableSchema("main.orders", (Column("id", "int64", nullable=False), *ORDERS.columns[1:]), ("id",))
    assert chain(made("sample", fraction=0.5), tables=(ORDERS, wider), now=wider).item(schema_control(ORDERS, wider))[1]


def schema_control(old: TableSchema, new: TableSchema, **body: Any) -> TableControl:
    told = {"kind": "schema", "class": 1, "previous": f"{old.fingerprint:016x}", "ddl": "ALTER", "table": new.to_json()}
    return TableControl(new, ControlKind.SCHEMA, (9, 1), {**told, **body})


# dedupe


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize(
    ("options", "counts"), [({}, (0, 1, 2)), ({"columns": "total"}, (0, 1)), ({"ignore": ["NOTE"]}, (0, 1))]
)
def test_updates_that_change_nothing_that_counts_are_left_out_and_nothing_else(number, options, counts, seed):
    rows = history(random.Random(seed + number), 60)
    expected = [
        row
        for change in changes(rows)
        if len(change) == 1 or any(shown(change[0][3 + at]) != shown(change[1][3 + at]) for at in counts)
        for row in change
    ]
    assert len(expected) < len(rows)
    assert shown(through(chain(made("dedupe", **options), now=ORDERS), ORDERS, rows)) == shown(expected)


@pytest.mark.parametrize("number", range(10))
def test_a_mirror_behind_project_and_dedupe_is_what_it_is_without(number, seed):
    rows = history(random.Random(seed + number), 60)
    plain = chain(made("project", exclude="note"), now=ORDERS)
    deduped = chain(made("project", exclude="note"), made("dedupe"), now=ORDERS)
    out, fewer = through(plain, ORDERS, rows), through(deduped, ORDERS, rows)
    assert shown(mirrored(fewer)) == shown(mirrored(out))
    assert len(fewer) < len(out)


def test_while_a_snapshot_is_open_all_updates_pass():
    """The snapshot leaves out a row that was updated meanwhile: without the update, a copy would never get it."""
    rows = [(PRE, 1, 1, 1, 5.0, "a"), (POST, 1, 2, 1, 5.0, "a")]
    filters = chain(made("dedupe"))
    assert through(filters, ORDERS, rows) == []
    assert through(filters, ORDERS, rows, is_being_read=True) == rows


def test_rows_say_whether_a_snapshot_of_their_table_is_open(seed):
    made_table = MadeTable(random.Random(seed))
    made_table.write()
    made_table.alter("convert")  # it is read anew
    made_table.write()
    known = {table.fingerprint: table for _, _, table in made_table.changed}
    known[MadeTable(random.Random()).table.fingerprint] = MadeTable(random.Random()).table
    end = made_table.groups[-1].commit.last

    def told(after: Any, snapshots: Any) -> list[bool]:
        pieces = [([each], "log") for each in made_table.groups if each.commit.last > after]
        batches = decode_groups(pieces, "shop", after, end, known.__getitem__, 1, snapshots)
        return [item.is_being_read for batch in batches for item in batch.items if isinstance(item, TableRows)]

    assert told((0, 0), {}) == [False, True, False]
    begin = next(item.commit.last for item in made_table.groups if _kind(item) == "snapshot_begin")
    assert told(begin, {"main.t": 1}) == [True, False]


def _kind(group: Any) -> Any:
    return None if group.control is None else group.control.control["kind"]


# tombstones


@pytest.mark.parametrize("number", range(10))
def test_deletes_are_left_out_and_a_mirror_keeps_all_rows_that_ever_were(number, seed):
    rows = history(random.Random(seed + number), 60)
    out = through(chain(made("tombstones", deletes="drop")), ORDERS, rows)
    expected: list[Row] = []
    for change in changes(rows):
        if len(change) == 1:
            expected += [row for row in change if row[0] != "delete"]
        elif change[0][3] == change[1][3]:
            expected += change
        else:
            expected.append(("insert", *change[1][1:]))
    assert shown(out) == shown(expected)
    ever: dict[Any, Row] = {}
    for kind, _, _, key, *values in rows:
        if kind in ("insert", POST):
            ever[key] = tuple(values)
    assert shown(mirrored(out)) == shown(ever)


@pytest.mark.parametrize("number", range(10))
def test_deletes_mark_their_rows_with_their_last_values_and_their_time(number, seed):
    rows = history(random.Random(seed + number), 60)
    filters = chain(made("tombstones", deletes="mark", column="gone", time_column="gone_at"))
    out = through(filters, ORDERS, rows)
    state: dict[Any, tuple[Any, ...]] = {}
    for kind, scn, _, key, *values in rows:
        gone = kind in ("delete", PRE)  # what an update removes it puts again, unless it changes the key
        state[key] = (*values, gone, scn if gone else None)
    found = {key: (*row[:-1], row[-1] and int(row[-1].timestamp() * 1e6)) for key, row in mirrored(out).items()}
    assert sorted(map(shown, found.items())) == sorted(map(shown, state.items()))
    assert "delete" not in {row[0] for row in out}


def test_a_row_that_leaves_a_filter_before_it_counts_as_deleted():
    filters = chain(made("where", where="total > 10"), made("tombstones", deletes="mark"), now=ORDERS)
    rows = [("insert", 1, 1, 1, 50.0, "a"), (PRE, 2, 1, 1, 50.0, "a"), (POST, 2, 2, 1, 5.0, "a")]
    assert through(filters, ORDERS, rows) == [
        ("insert", 1, 1, 1, 50.0, "a", False),
        ("insert", 2, 1, 1, 50.0, "a", True),
    ]


@pytest.mark.parametrize("before", [True, False])
def test_rows_are_not_chosen_by_the_mark(before):
    """The marked row would not pass, and the one that a copy has would stay as it is."""
    steps = [made("tombstones", deletes="mark"), made("rename", columns={"__deleted": "gone"})]
    steps.insert(1 if before else 2, made("where", where="__deleted = FALSE" if before else "gone = FALSE"))
    with pytest.raises(ConfigError, match=r"filters.f\d: shop/main.orders: __deleted is made by `tombstones`"):
        chain(*steps, now=ORDERS).over(ORDERS)


def test_a_mark_does_not_take_the_name_of_a_column():
    with pytest.raises(ConfigError, match="it has a column Note already"):
        chain(made("tombstones", deletes="mark", column="Note")).over(ORDERS)


def control(kind: ControlKind, table: TableSchema = ORDERS, **body: Any) -> TableControl:
    return TableControl(table, kind, (9, 1), {"kind": kind, "source": table.source, **body})


@pytest.mark.parametrize("kind", [ControlKind.TRUNCATE, ControlKind.DROP])
def test_what_empties_a_table_stops_stays_out_or_passes(kind):
    with pytest.raises(UnsupportedFeature, match=r"filters.f0: shop/main.orders: .*`truncate: ignore`"):
        chain(made("tombstones", deletes="drop")).item(control(kind))
    assert chain(made("tombstones", deletes="drop", truncate="ignore")).item(control(kind)) == ([], True)
    ((passed,), _) = chain(made("tombstones", deletes="mark", truncate="pass")).item(control(kind))
    assert passed.kind is kind
    assert passed.table.names[-1] == "__deleted"


def test_the_end_of_a_snapshot_removes_nothing_behind_them_and_is_an_end_all_the_same():
    body = {"complete": True, "begin": [1, 2], "generation": 1}
    for each, table in ((made("tombstones", deletes="drop"), ORDERS), (made("outbox", tables="outbox"), OUTBOX)):
        ((end,), _) = chain(each).item(control(ControlKind.SNAPSHOT_END, table, **body))
        assert not end.body["complete"]
        assert end.body["as_configured"]


# outbox


def test_each_row_that_is_inserted_is_a_message_and_nothing_else_is():
    filters = chain(made("outbox", tables=["outbox"], keep=["Type"]), now=OUTBOX)
    row = (7, "order", "o-1", "placed", '{"a": 1}')
    other = (8, "crème", "c-1", "made", None)
    rows = [
        ("insert", 1, 1, *row), ("insert", 1, 2, *other),
        (PRE, 2, 1, *row), (POST, 2, 2, *row),
        (PRE, 2, 3, *row), (POST, 2, 4, 9, *row[1:]),
        ("delete", 3, 1, *row),
    ]  # fmt: skip
    assert through(filters, OUTBOX, rows) == [
        ("insert", 1, 1, 7, "outbox.event.order", "o-1", '{"a": 1}', "placed"),
        ("insert", 1, 2, 8, "outbox.event.crème", "c-1", None, "made"),
    ]
    assert filters.result(OUTBOX).key == ("key",)
    assert filters.item(control(ControlKind.TRUNCATE, OUTBOX)) == ([], True)
    assert through(filters, ORDERS, [("delete", 1, 1, 1, None, "a")]) == [("delete", 1, 1, 1, None, "a")]


def test_a_row_that_an_update_brings_through_a_condition_is_no_message():
    filters = chain(
        made("where", where="type = 'sent'", tables=["outbox"]), made("outbox", tables=["outbox"]), now=OUTBOX
    )
    row = (7, "order", "o-1", "new", "x")
    assert through(filters, OUTBOX, [(PRE, 2, 1, *row), (POST, 2, 2, *row[:3], "sent", "x")]) == []


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("events", "events"), ("{route}", "order"), ("a.{route}.b.{route}", "a.order.b.order")],
)
def test_the_topic_is_made_of_the_route(topic, expected):
    filters = chain(made("outbox", tables=["outbox"], topic=topic), now=OUTBOX)
    ((*_, found, _, _),) = through(filters, OUTBOX, [("insert", 1, 1, 7, "order", "o-1", "new", "x")])
    assert found == expected


def test_a_message_that_goes_nowhere_stops_and_says_which():
    filters = chain(made("outbox", tables=["outbox"]), now=OUTBOX)
    with pytest.raises(InputError, match=r"main.outbox: the row at \(4, 2\).*`aggregatetype IS NOT NULL`"):
        through(filters, OUTBOX, [("insert", 4, 1, 1, "a", "", "", ""), ("insert", 4, 2, 1, None, "", "", "")])


@pytest.mark.parametrize("kind", ["redact", "hash"])
def test_the_key_of_messages_is_not_masked_away_before_they_are_made(kind):
    """All messages would have one key, and a mirror of them one row."""
    options = {"redact": ["aggregateid"]} if kind == "redact" else {"hash": "aggregateid", "salt": "sixteen bytes here"}
    filters = chain(made("mask", **options), made("outbox", tables=["outbox"]), now=OUTBOX)
    if kind == "hash":
        filters.check_key(OUTBOX, [])
        return
    with pytest.raises(ConfigError, match=r"filters\.f0: column aggregateid"):
        filters.check_key(OUTBOX, [])


def test_a_column_more_in_an_outbox_changes_no_message():
    filters = chain(made("outbox", tables=["outbox"], keep=["type"]), now=OUTBOX)
    told = schema_control(OUTBOX, TableSchema("main.outbox", (*OUTBOX.columns, Column("at", "int64")), ("id",)))
    ((same,), is_exact) = filters.item(told)
    assert is_exact
    assert same.table.names == ("id", "topic", "key", "payload", "type")
