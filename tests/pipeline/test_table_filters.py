"""Filters over whole tables: rows in and out, definitions that change, and copies that follow. Without Spark."""

import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from databus.core import (
    ChangeType,
    Checkpoint,
    ConfigError,
    ControlKind,
    Pair,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownColumn,
    UnsupportedFeature,
)
from databus.filters import StreamFilter
from databus.flow import ChangeBatch, TableControl, TableFilters, TableRows, decode_groups, user_rows_schema
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._plan import QueryPlan
from databus.pipeline.engine._query_filters import check_tables
from databus.pipeline.engine._writer import Writer
from databus.pipeline.filters import MaskFilter, ProjectFilter, RenameFilter, WhereFilter
from databus.pipeline.filters._tablewide import MaskConfig, ProjectConfig, RenameConfig, WhereConfig
from databus.plugins._contract import Shape
from databus.plugins._output import OutputContext
from databus.schema import Column, TableSchema
from databus.sinks import read_delta
from databus.sinks.delta._output import DeltaConfig, DeltaOutput
from databus.testing._staged_writes import write_here
from tests.feeds import bring, feed_of
from tests.local_engine import LocalRows
from tests.pipeline.made_changes import MadeTable

KINDS = {
    "where": (WhereFilter, WhereConfig),
    "project": (ProjectFilter, ProjectConfig),
    "rename": (RenameFilter, RenameConfig),
    "mask": (MaskFilter, MaskConfig),
}
LONG_AGO = Column("id", "int32", nullable=False)
ORDERS = TableSchema("main.orders", (LONG_AGO, Column("total", "int32"), Column("note", "string")), ("id",))


def made(kind: str, **options: Any) -> Any:
    plugin, model = KINDS[kind]
    return plugin(model.model_validate({"from": "x", "type": kind, **options}), Path())


def chain(*filters: Any, tables: Any = (ORDERS,), now: TableSchema | None = None) -> TableFilters:
    named = [(f"filters.f{number}", each.in_tasks) for number, each in enumerate(filters)]
    known = {table.fingerprint: table for table in tables}
    return TableFilters("shop", named, known.__getitem__, lambda _: now)


def rows_of(table: TableSchema, *rows: tuple[Any, ...]) -> TableRows:
    """rows: change type, SCN, seq, then the columns."""
    schema = user_rows_schema(table)
    told = [
        {"_change_type": kind, "_commit_version": scn, "_seq": seq, "_snapshot": False}
        | dict(zip(table.names, values, strict=True))
        for kind, scn, seq, *values in rows
    ]
    return TableRows(table, pa.Table.from_pylist(told, schema=schema))


def shown(items: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in ("_change_type", *item.table.names))
        for item in items
        for row in item.rows.to_pylist()
    ]


PRE, POST = ChangeType.UPDATE_PREIMAGE.label, ChangeType.UPDATE_POSTIMAGE.label


def test_an_update_that_leaves_is_a_delete_and_one_that_enters_an_insert():
    given = rows_of(
        ORDERS,
        (PRE, 1, 1, 1, 50, "a"), (POST, 1, 2, 1, 5, "a"),
        (PRE, 1, 3, 2, 5, "b"), (POST, 1, 4, 2, 50, "b"),
        (PRE, 2, 1, 3, 50, "c"), (POST, 2, 2, 3, 60, "c"),
        (PRE, 2, 3, 4, 1, "d"), (POST, 2, 4, 4, None, "d"),
    )  # fmt: skip
    items, is_exact = chain(made("where", where="total > 10")).item(given)
    assert is_exact
    assert shown(items) == [
        ("delete", 1, 50, "a"),
        ("insert", 2, 50, "b"),
        (PRE, 3, 50, "c"),
        (POST, 3, 60, "c"),
    ]


def test_filters_are_applied_in_their_order_and_the_key_follows():
    filters = (
        made("where", where="total > 10"),
        made("rename", columns={"ID": "order_no", "total": "cents"}),
        made("where", where="cents < 100 AND note LIKE 'a%'"),
        made("project", exclude="note"),
        made("mask", redact=["cents"]),
    )
    given = rows_of(ORDERS, *(("insert", 1, n, n, total, "ab") for n, total in enumerate((5, 50, 500))))
    items, _ = chain(*filters).item(given)
    assert shown(items) == [("insert", 1, None)]
    (table,) = {item.table for item in items}
    assert table.names == ("order_no", "cents")
    assert table.key == ("order_no",)
    assert items[0].rows.schema.equals(user_rows_schema(table))


def test_a_table_that_no_pattern_matches_passes_as_it_is():
    given = rows_of(ORDERS, ("insert", 1, 1, 1, 5, "a"))
    items, _ = chain(made("where", where="nothing = 1", tables=["main.stock"])).item(given)
    assert shown(items) == [("insert", 1, 5, "a")]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("where", {"where": "total > 'x'"}, "filters.f0: shop/main.orders: character 9: column 'total' is int32"),
        ("project", {"columns": ["total"]}, "id is part of the key.*`mask` can `hash` it"),
        ("project", {"exclude": ["id"]}, "id is part of the key"),
        ("rename", {"columns": {"total": "note"}}, "column 'note' stands twice"),
        ("rename", {"columns": {"total": "_seq"}}, "one of the bus's own"),
    ],
)
def test_what_does_not_fit_a_table_is_refused_by_its_name(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        chain(made(kind, **options)).over(ORDERS)


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"truncate": {"note": 1}}, ["total", "text"], "filters.f0: column note of shop/main.orders is in the `key`"),
        ({"redact": ["note"]}, ["text"], "it can be hashed"),
        ({"hash": ["note"], "salt": "sixteen bytes and more"}, ["text"], None),
        ({"redact": ["note"]}, ["total"], None),
        ({"redact": ["note"]}, [], None),
    ],
)
def test_what_an_output_tells_rows_apart_by_is_not_masked_away(options, key, message):
    filters = chain(made("mask", **options), made("rename", columns={"note": "text"}))
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        filters.check_key(ORDERS, key)


def test_a_mirror_by_a_masked_key_takes_no_rows(tmp_path):
    """Two rows whose keys begin alike would become one."""
    config = DeltaConfig(**{"from": "x", "type": "delta", "mode": "mirror", "path": "copy", "key": ["note"]})
    handle = OutputHandle("copy", DeltaOutput(config, OutputContext("p", "copy", tmp_path)), tmp_path / "state")
    feed = feed_of(filters=["filters.f0"])
    filters = {("filters.f0",): chain(made("mask", truncate={"note": 1}))}
    items = (rows_of(ORDERS, ("insert", 1, 1, 1, 5, "ann"), ("insert", 1, 2, 2, 5, "amy")),)
    start, end = (SourceCheckpoint(scn=scn, seq=seq, log="log") for scn, seq in ((0, 0), (1, 2)))

    def decode(_: Any) -> Any:
        return [ChangeBatch("shop", start, end, items)]

    writer = Writer("query", [(feed, handle)], lambda _: None, Ends(), decode=decode, filters=filters)
    with pytest.raises(ConfigError, match=r"column note of shop/main\.orders is in the `key`"):
        writer(one_row(), 0)


@pytest.mark.parametrize("kind", ["where", "project", "rename", "mask"])
def test_a_column_that_a_table_lacks_stops_or_is_left_alone(kind):
    options = {
        "where": {"where": "gone = 1"},
        "project": {"exclude": ["gone"]},
        "rename": {"columns": {"gone": "x"}},
        "mask": {"redact": ["gone"]},
    }[kind]
    with pytest.raises(UnknownColumn, match=r'shop/main.orders has no column "gone"; there are id, total, note'):
        chain(made(kind, **options), now=ORDERS).over(ORDERS)
    given = rows_of(ORDERS, ("insert", 1, 1, 1, 5, "a"))
    items, _ = chain(made(kind, missing="skip", **options), now=ORDERS).item(given)
    assert shown(items) == [("insert", 1, 5, "a")]


def schema_control(old: TableSchema, new: TableSchema, **body: Any) -> TableControl:
    told = {"kind": "schema", "class": 2, "previous": f"{old.fingerprint:016x}", "ddl": "ALTER", "table": new.to_json()}
    return TableControl(new, ControlKind.SCHEMA, (9, 1), {**told, **body})


def with_columns(*columns: Column) -> TableSchema:
    return TableSchema("main.orders", columns, ("id",))


CITY = Column("city", "string")
NEAR = with_columns(*ORDERS.columns, CITY)


def test_a_row_from_before_its_column_is_judged_as_null_and_the_column_that_comes_with_a_value_reads_anew():
    filters = chain(made("where", where="city = 'Bern' OR id = 1"), tables=(ORDERS, NEAR), now=NEAR)
    given = rows_of(ORDERS, ("insert", 1, 1, 1, 5, "a"), ("insert", 1, 2, 2, 5, "a"))
    assert shown(filters.item(given)[0]) == [("insert", 1, 5, "a")]
    assert filters.item(schema_control(ORDERS, NEAR, fill={"city": None}))[1]
    assert not filters.item(schema_control(ORDERS, NEAR, fill={"city": "Bern"}))[1]
    assert chain(made("where", where="id = 1"), tables=(ORDERS, NEAR)).item(
        schema_control(ORDERS, NEAR, fill={"city": "Bern"})
    )[1]


def test_a_filter_that_let_a_table_be_judges_it_from_the_change_that_brings_its_column():
    filters = chain(made("where", where="city = 'Bern'", missing="skip"), tables=(ORDERS, NEAR), now=ORDERS)
    filters.over(ORDERS)
    assert not filters.item(schema_control(ORDERS, NEAR, fill={"city": None}))[1]


def test_a_schema_control_says_what_it_means_behind_the_filters():
    new = with_columns(LONG_AGO, Column("cents", "int64"), Column("note", "string"), CITY, Column("zip", "string"))
    filters = chain(
        made("rename", columns={"note": "remark"}),
        made("mask", truncate={"city": 2}, missing="skip"),
        made("project", exclude=["zip"], missing="skip"),
        tables=(ORDERS, new),
        now=ORDERS,
    )
    filters.over(ORDERS)  # as it follows the table
    body = {"renamed": {"total": "cents"}, "fill": {"city": "Bern", "zip": "3000"}}
    ((control,), is_exact) = filters.item(schema_control(ORDERS, new, **body))
    before = with_columns(LONG_AGO, Column("total", "int32"), Column("remark", "string"))
    after = with_columns(LONG_AGO, Column("cents", "int64"), Column("remark", "string"), CITY)
    assert is_exact
    assert control.table == after
    assert control.body["table"] == after.to_json()
    assert control.body["previous"] == f"{before.fingerprint:016x}"
    assert control.body["renamed"] == {"total": "cents"}
    assert control.body["fill"] == {"city": "Be"}
    assert control.body["ddl"] is None, "it may show what is hidden"


@pytest.mark.parametrize("missing", ["stop", "skip"])
@pytest.mark.parametrize(("kind", "options"), [("mask", {"redact": ["note"]}), ("project", {"exclude": ["note"]})])
def test_a_hidden_column_does_not_go_on_under_another_name(kind, options, missing):
    new = with_columns(LONG_AGO, Column("total", "int32"), Column("remark", "string"))
    before = chain(made(kind, missing=missing, **options), tables=(ORDERS, new), now=new)
    with pytest.raises((UnsupportedFeature, UnknownColumn), match="note"):
        before.item(schema_control(ORDERS, new, renamed={"note": "remark"}))
    hides_new_name = {"mask": {"redact": ["remark"]}, "project": {"exclude": ["remark"]}}[kind]
    later = chain(made(kind, missing=missing, **hides_new_name), tables=(ORDERS, new), now=new)
    with pytest.raises(UnsupportedFeature, match=r"rows of shop/main.orders are from before remark was there"):
        later.over(ORDERS)


@pytest.mark.parametrize(("kind", "option"), [("mask", "redact"), ("project", "exclude")])
def test_a_hidden_column_that_is_named_by_both_names_is_followed(kind, option):
    new = with_columns(LONG_AGO, Column("total", "int32"), Column("remark", "string"))
    filters = chain(made(kind, missing="skip", **{option: ["note", "remark"]}), tables=(ORDERS, new), now=new)
    for table in (ORDERS, new):
        given = rows_of(table, ("insert", 1, 1, 1, 5, "secret"))
        assert "secret" not in str(shown(filters.item(given)[0]))
    assert filters.item(schema_control(ORDERS, new, renamed={"note": "remark"}))[1], "a copy can follow"
    another = with_columns(LONG_AGO, Column("total", "int32"), Column("remark", "string"), Column("more", "string"))
    with pytest.raises(UnsupportedFeature, match=r"got more, .*Hide it by both names"):
        filters.item(schema_control(ORDERS, another, renamed={"note": "more"}))


class Served:
    """What a relay serves."""

    filter = StreamFilter()

    def check_filter(self, *_: Any) -> None:
        pass

    def tables_of(self, context: Any, physical: str | None = None) -> list[str]:
        return [name for name in self.tables_now(context, "shop") if physical in (None, "shop")]

    def tables_now(self, context: Any, physical: str) -> dict[str, TableSchema]:
        return {"shop/main.orders": ORDERS}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("main.Orders", 'filters.f0.tables: no table called main.Orders.*did you mean "main.orders"'),
        ("ordrs", 'no table called ordrs.*did you mean "orders"'),
        ("shop/main.people", "no table called shop/main.people"),
        ("main.orders", None),
        ("main.o*", None),
        ("main.later_*", None),
        ("crm/main.people", None),  # of another physical source, which may come later
    ],
)
def test_a_filter_about_a_table_that_there_is_not_lets_none_pass(pattern, message):
    """What was meant would go on as it is: a mask that masks nothing."""
    feed = feed_of(filters=["filters.f0"])
    plan = QueryPlan("copy", Shape.TABLES, ("inputs.shop",), (feed,), physical="shop")
    filters = {("filters.f0",): chain(made("mask", redact=["note"], tables=[pattern]))}
    with pytest.raises(ServiceUnavailable, match=message) if message else nullcontext():
        check_tables(SimpleNamespace(inputs={"inputs.shop": Served()}), plan, filters, None)


def test_a_thousand_tables_by_one_line():
    tables = [TableSchema(f"main.t{number}", ORDERS.columns, ("id",)) for number in range(1_000)]
    filters = chain(made("where", where="total > 10 AND note LIKE 'a%'", tables=["main.*"]), tables=tables)
    assert len({filters.result(table).source for table in tables}) == 1_000


class Copy:
    """A mirror of the made table behind a condition, which reads its log piece by piece."""

    def __init__(self, folder: Path, where: str) -> None:
        config = DeltaConfig(**{"from": "x", "type": "delta", "mode": "mirror", "path": "copy", "key": ["id"]})
        self._output = DeltaOutput(config, OutputContext("p", "copy", folder))
        self._folder = folder
        self._where = where
        self._position: Pair = (0, 0)
        self.is_exact = True

    def run(self, made_table: MadeTable, rng: random.Random) -> None:
        known = {table.fingerprint: table for _, _, table in made_table.changed}
        first = MadeTable(random.Random()).table
        known[first.fingerprint] = first
        filters = chain(made("where", where=self._where), tables=known.values(), now=made_table.table)
        groups = [each for each in made_table.groups if each.commit.last > self._position]
        if not groups:
            return
        end = groups[-1].commit.last
        pieces = [([each], "log") for each in groups]
        for batch in decode_groups(pieces, "shop", self._position, end, known.__getitem__, rng.choice((1, 1 << 30))):
            items: list[Any] = []
            for item in batch.items:
                out, is_exact = filters.item(item)
                items += out
                self.is_exact &= is_exact
            write_here(self._output, ChangeBatch("shop", batch.start, batch.end, tuple(items)))
        self._position = end

    def held(self, made_table: MadeTable) -> list[tuple[Any, ...]]:
        if not (self._folder / "copy").exists():
            return []
        found = read_delta(self._folder / "copy" / "t", list(made_table.table.names)).to_pylist()
        return sorted((tuple(row[name] for name in made_table.table.names) for row in found), key=repr)


@pytest.mark.parametrize("number", range(20))
def test_a_mirror_behind_a_condition_is_what_it_selects_or_is_read_anew(number, seed, tmp_path):
    """One follows all the time, one now and then, one begins at the end. Sometimes rows are lost that nobody knows."""
    rng = random.Random(seed + number)
    where = ("id > 3", "a > 1", "id > 3 AND (b IS NULL OR b <> '5')")[number % 3]
    made_table = MadeTable(rng)
    copies = [Copy(tmp_path / name, where) for name in ("always", "sometimes", "late")]
    gone: set[Copy] = set()

    def bring_up(copy: Copy) -> None:
        try:
            copy.run(made_table, rng)
        except (UnknownColumn, ConfigError, UnsupportedFeature):
            gone.add(copy)  # a column that is named is not there, or of a type that does not fit

    for _ in range(10):
        made_table.write()
        if rng.random() < 0.4:
            made_table.alter(rng.choice(("rename", "add", "drop", "widen")))
        for copy in (copies[0], *([copies[1]] if rng.random() < 0.3 else [])):
            if copy not in gone:
                bring_up(copy)
    made_table.write()
    for copy in copies:
        if copy not in gone:
            bring_up(copy)
        if copy not in gone and copy.is_exact and not made_table.lossy:
            assert copy.held(made_table) == made_table.selected(f"SELECT * FROM t WHERE {where}")


def one_row() -> LocalRows:
    """A micro-batch of a range, whatever that is."""
    return LocalRows(pa.table({"row": [0]}))


class Ends:
    """The offsets of a query whose every batch ends at one place."""

    physical = "shop"
    origin = SimpleNamespace(starting_version=0)

    def checkpoint(self, batch_id: int) -> Checkpoint:
        del batch_id
        return Checkpoint({"shop": SourceCheckpoint(scn=9, seq=1, log="log")})

    def position(self, batch_id: int) -> SourceCheckpoint:
        return self.checkpoint(batch_id).sources["shop"]


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_change_that_makes_older_rows_pass_has_a_mirror_read_anew_and_nothing_else(mode, tmp_path):
    config = DeltaConfig(**{"from": "x", "type": "delta", "mode": mode, "path": "copy", "key": ["id"]})
    handle = OutputHandle("copy", DeltaOutput(config, OutputContext("p", "copy", tmp_path)), tmp_path / "state")
    feed = bring(handle, filters=["filters.f0"])
    asked: list[Any] = []
    items = (
        rows_of(ORDERS, ("insert", 1, 1, 1, 5, "a"), ("insert", 1, 2, 2, 5, "a")),
        schema_control(ORDERS, NEAR, fill={"city": "Bern"}),
    )

    start, end = (SourceCheckpoint(scn=scn, seq=seq, log="log") for scn, seq in ((0, 0), (9, 1)))
    filters = chain(made("where", where="city = 'Bern' OR id = 1"), tables=(ORDERS, NEAR), now=NEAR)
    writer = Writer(
        "query",
        [(feed, handle)],
        lambda event: None,
        Ends(),
        decode=lambda _: [ChangeBatch("shop", start, end, items)],
        filters={("filters.f0",): filters},
        read_anew=asked.append,
    )
    writer(one_row(), 0)
    position = handle.known("shop")
    assert position is not None
    is_mirror = mode == "mirror"
    assert asked == ([["shop/main.orders"]] if is_mirror else [])
    assert {*position.seeds} == ({"shop/main.orders"} if is_mirror else set()), "asked for again after a crash"
    held = read_delta(tmp_path / "copy" / "orders", ["id", "city"]).to_pylist()
    assert held == [{"id": 1, "city": "Bern" if is_mirror else None}]
    handle.close()
