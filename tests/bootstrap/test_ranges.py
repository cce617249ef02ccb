"""Answers in parts, as Spark's batches and their tasks read them: any number of parts is the same as the whole."""

from dataclasses import replace

import pytest

from databus.bootstrap import TablePast, verified
from databus.core import ChangeType, PositionForeign, PositionPurged, SourceCheckpoint
from databus.link import LookBack, RangeReader, RelayClient, any_of
from databus.pipeline import load_pipeline
from databus.spark._options import parse_options
from databus.spark._plan import Planner
from databus.spark._read import PartitionReader
from databus.spark._schema import arrow_schema, typed_schema
from databus.wire import is_answer, is_inside_answer
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_answers import MORE
from tests.bootstrap.test_service import TABLES, Copy, assert_equal, churn, follow

SOURCES = ("shop/main.orders", "shop/main.stock", "shop/main.notes")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Which the relay has forgotten, but for the end; `old` is a position that it no longer has."""
    with Shop(tmp_path_factory.mktemp("shop"), TABLES + MORE).running() as running:
        running.captured()
        churn(running, 1, 30)
        running.execute("INSERT INTO notes VALUES ('first')")
        running.old, running.orders = running.captured(), running.select("SELECT * FROM orders")
        churn(running, 30, 60)
        running.execute("UPDATE orders SET total = (total + 2) % 7 WHERE id < 30")
        running.execute("UPDATE notes SET said = 'second'", "DELETE FROM orders WHERE id % 7 = 0")
        running.forget()
        running.execute("UPDATE orders SET total = 1 WHERE id = 3")
        running.end = running.captured()
        yield running


def planner_of(shop, sources=SOURCES, **options):
    given = {
        "relay": shop.url,
        "shape": "ranges",
        "waitMs": "0",
        "physical": PHYSICAL,
        "sources": ",".join(sources),
        **options,
    }
    return Planner(parse_options(given), None)


def batches(planner, start, rows_max):
    """Where each batch ends, up to the end of the log, with its ranges."""
    while (end := planner.end_after(start, rows_max=rows_max, bytes_max=None, available=None)) != start:
        yield start, end, planner.split(start, end)
        start = end


def read(shop, part, sources=SOURCES, **how):
    """What a task is given of a range: controls, and rows as (pair, kind, table, values)."""
    client = RelayClient(shop.url).looking_back(LookBack(by_table=True, **how))
    reader = RangeReader(client, PHYSICAL, sources, any_of(sources, PHYSICAL), 0, 1000, part.log)
    found = []
    for groups, _ in reader.groups(part.start, part.until):
        for group in groups:
            if group.control is not None:
                found.append((group.control.header.first, group.control.control["kind"]))
            for frame in group.rows:
                table = client.table_of(frame.header.fingerprint)
                for row in frame.batch.to_pylist():
                    values = tuple(row[name] for name in table.names)
                    found.append(((row["_commit_version"], row["_seq"]), row["_change_type"], table.source, values))
    return sorted((each for each in found if part.after < each[0] <= part.until), key=lambda each: each[0])


def all_of(shop, start, rows_max, sources=SOURCES, **options):
    how = options.get("lookBack")
    every, images = how == "all", how == "images"
    planner, found, ends = planner_of(shop, sources, **options), [], []
    for _, end, parts in batches(planner, start, rows_max):
        ends.append(end)
        for part in parts:
            found += read(shop, part, sources, every=every, first_images=images)
    planner.close()
    return found, ends


def changes_of(found, table):
    return [each[1::2] for each in found if len(each) == 4 and each[2] == table]


@pytest.mark.parametrize("since", [False, True])
def test_parts_of_an_answer_are_the_same_as_the_whole(shop, since):
    """However small, and however many tasks share one; then the relay goes on."""
    start = shop.old if since else SourceCheckpoint()
    whole, ends = all_of(shop, start, None)
    assert is_answer(ends[0].log)
    assert not is_inside_answer(ends[0])
    assert (ends[-1].scn, ends[-1].log) == (shop.end.scn, None)
    pairs = [each[0] for each in whole]
    assert pairs == sorted(set(pairs))
    for rows_max, tasks in ((11, 1), (25, 3)):
        parts, ends = all_of(shop, start, rows_max, partitions=str(tasks), partitionBytesMin="0")
        assert parts == whole
        assert len(ends) > 2


def test_every_change_comes_where_that_is_asked_for(shop):
    whole, ends = all_of(shop, SourceCheckpoint(), None, lookBack="all")
    assert not is_answer(ends[0].log)
    parts, _ = all_of(shop, SourceCheckpoint(), 9, lookBack="all", partitions="2", partitionBytesMin="0")
    assert parts == whole
    rows = {}
    for kind, values in changes_of(whole, "main.orders"):
        rows[values[0]] = values
        if kind in (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE):
            del rows[values[0]]
    assert sorted(rows.values(), key=repr) == shop.select("SELECT * FROM orders")


def test_who_chooses_among_the_rows_himself_is_told_of_each_that_was_changed(shop):
    """A row that he does not choose any more would stay: what it is now does not come to him."""

    def is_chosen(values):
        return values[2] in (1, 2)

    def fold(**options):
        rows = {values[0]: values for values in shop.orders if is_chosen(values)}
        for kind, values in changes_of(all_of(shop, shop.old, None, **options)[0], "main.orders"):
            if kind in (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE):
                rows.pop(values[0], None)
            elif is_chosen(values):
                rows[values[0]] = values
        return sorted(rows.values(), key=repr)

    want = [values for values in shop.select("SELECT * FROM orders") if is_chosen(values)]
    assert fold() != want
    assert fold(lookBack="images") == want


def test_a_position_inside_an_answer_is_good_for_other_tables_where_each_has_its_place(shop):
    planner = planner_of(shop)
    inside = planner.end_after(SourceCheckpoint(), rows_max=5, bytes_max=None, available=None)
    assert is_inside_answer(inside)
    fewer = planner_of(shop, SOURCES[:1])
    assert fewer.end_after(inside, rows_max=5, bytes_max=None, available=None).log == inside.log
    with pytest.raises(PositionForeign, match="another request"):
        RelayClient(shop.url).looking_back(LookBack()).range(PHYSICAL, inside, sources=SOURCES)


def test_a_batch_that_was_planned_of_a_state_that_is_gone_is_not_read_from_another(shop):
    planner = planner_of(shop)
    inside = planner.end_after(SourceCheckpoint(), rows_max=5, bytes_max=None, available=None)
    gone = replace(inside, log=inside.log.replace(f";{shop.states()[-1].name};", ";1.1.1;"))
    with pytest.raises(PositionPurged, match="does not have any more"):
        planner_of(shop).split(SourceCheckpoint(), gone)
    assert planner_of(shop).split(SourceCheckpoint(), inside)


def test_a_query_that_is_to_end_below_the_state_is_not_answered(shop):
    planner = planner_of(shop, endingVersion=str(shop.old.scn))
    with pytest.raises(PositionPurged, match="endingVersion"):
        planner.end_after(SourceCheckpoint(), rows_max=5, bytes_max=None, available=None)


def test_typed_rows_come_from_the_log_store_over_changes_of_the_schema(tmp_path):
    """In today's columns, however the batches are cut, and then from the relay."""
    with Shop(tmp_path, TABLES + MORE).running() as shop:
        shop.captured()
        churn(shop, 1, 12)
        shop.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
        shop.execute("UPDATE orders SET city = 'Chur' WHERE id = 4", "DELETE FROM orders WHERE id = 5")
        shop.execute("ALTER TABLE orders ADD COLUMN zip INTEGER DEFAULT 7")
        shop.execute("INSERT INTO orders VALUES (90, 'o', 1, 'Basel', 8)")
        shop.forget()
        shop.execute("UPDATE orders SET total = 100 WHERE id = 90")
        shop.captured()
        given = {"relay": shop.url, "shape": "typed", "sources": "shop/main.orders", "meta": "full", "waitMs": "0"}
        for rows_max in (1000, 7):
            options = parse_options({**given, "schemaChanges": "ahead", "inexact": "leave_out"})
            planner, rows = Planner(options, None), {}
            schema = arrow_schema(typed_schema(planner.target.table.schema, meta_full=True))
            reader = PartitionReader(options, planner.target, schema)
            for _, _, parts in batches(planner, planner.initial(), rows_max):
                found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
                for row in sorted(found, key=lambda row: (row["_commit_version"], row["_seq"])):
                    if row["_change_type"] in ("insert", "update_postimage"):
                        rows[row["id"]] = tuple(row[name] for name in ("id", "name", "total", "city", "zip"))
                    elif row["_change_type"] in ("delete", "update_preimage"):
                        rows.pop(row["id"], None)
            planner.close()
            assert sorted(rows.values(), key=repr) == shop.select("SELECT * FROM orders")


def test_the_state_store_gets_from_the_log_store_what_the_relay_has_lost(tmp_path):
    """Every change, by the words that its input has."""
    with Shop(tmp_path, f"{TABLES} INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');").running() as shop:
        churn(shop, 1, 12)
        shop.fill()
        churn(shop, 12, 30)
        shop.fill("log")
        log = shop.relay.captures[PHYSICAL].log
        log.config = log.config.model_copy(update={"retention_bytes_max": 0})
        while shop.client.head(PHYSICAL).oldest.pair <= shop.written["state"].pair:
            shop.execute("UPDATE ballast SET n = n + 1")
            shop.fill("log")
        said = load_pipeline(shop.config.pipeline_path).config.nodes["inputs.keyed"].config
        assert said.look_back == "all"
        client = shop.client
        with pytest.raises(PositionPurged):
            shop.fill("state")
        shop.client = client.looking_back(LookBack(by_table=True, every=True))
        shop.fill("state")
        shop.client = client
        shop.forget()
        new = Copy()
        follow(shop, new)
        assert_equal(shop, new)
        assert {each.is_equal for past in TablePast.all(shop.config) for each in verified(past)} == {True}
