"""The log store's old end goes after so many days: who stands below it ends equal to SELECT all the same."""

import copy
import datetime as dt
import time
from dataclasses import replace
from functools import partial

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from databus.bootstrap import _noting, standing_at
from databus.bootstrap._kept_stores import PhysicalStores
from databus.cli._app import app
from databus.client import windows
from databus.core import SEQ_DONE, PositionPurged, ServiceUnavailable
from databus.sinks import read_delta
from databus.stores import LogSelection
from tests.bootstrap import world as worlds
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_service import TABLES, Copy, assert_equal, churn, follow
from tests.bootstrap.world import World

ORDERS = "shop/main.orders"
FILLER = f"INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');"


class Died(BaseException):
    pass


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, TABLES + FILLER, log_days=1).running() as shop:
        yield shop


def test_what_is_above_a_cut_says_all_of_how_tables_stand():
    """Over random histories, wherever one asks: in the middle of a snapshot, behind a drop, before the next state."""
    cuts = 0
    for seed in range(40):
        world = World(seed)
        steps = [world.transaction, world.transaction, world.ddl, world.gap, world.note]
        for _ in range(20):
            world.rng.choice(steps)()
        before = {f"main.{name}": world.controls(f"main.{name}") for name in "stk"}
        world.cut_log()
        cuts += world.cut is not None
        for source, controls in before.items():
            for pair in {each.pair for each in world.log.entries if each.pair >= world.low_pair}:
                now, then = standing_at(world.controls(source), pair), standing_at(controls, pair)
                gone = [each.is_gone(partial(world.first_after, source), pair) for each in (now, then)]
                assert gone[0] == gone[1], (seed, source, pair)
                assert replace(now, dropped=None) == replace(then, dropped=None), (seed, source, pair)
    assert cuts > 15


def test_without_a_word_of_how_a_table_stood_at_the_cut_that_law_breaks(monkeypatch):
    def without(head, source, controls):
        return [control for control in controls if control.pair > head.low]

    monkeypatch.setattr(worlds, "controls_above", without)
    with pytest.raises(AssertionError):
        test_what_is_above_a_cut_says_all_of_how_tables_stand()


def filled(shop):
    """Consumers at some places, the last one at the end."""
    consumers = [Copy()]
    for first in range(1, 25, 6):
        churn(shop, first, first + 6)
        shop.fill()
        follow(shop, consumers[-1], checkpoint=consumers[-1].checkpoint)
        consumers.append(copy.deepcopy(consumers[-1]))
    return consumers[:-1]


def cut(shop, monkeypatch, at_us):
    """Have the service look, as if all until a time were older than `log_days`."""
    monkeypatch.setattr(_noting, "_DAY_US", time.time_ns() // 1000 - at_us)
    shop.note()
    shop._noting.cut_every_s = 0
    shop.note()
    shop._noting.cut_every_s = 3600


def log_files(shop):
    return {each.rpartition("/")[2] for each in DeltaTable(str(shop.folder / "lake/log/shop/main.orders")).file_uris()}


def assert_old_files_are_gone(shop):
    """But for the newest, and those of which no bound says that nothing newer is in them."""
    files = sorted(shop._noting._store.files("main.orders"), key=lambda file: file.last)
    assert [file for file in files[:-1] if file.last <= shop.head().low] == []


def past(shop, *words):
    return CliRunner().invoke(app, [*map(str, words), "-f", str(shop.config.path)])


def test_who_stands_below_the_cut_is_given_tables_whole_and_who_stands_above_is_not(shop, monkeypatch):
    consumers = filled(shop)
    before, states = log_files(shop), shop.states()
    cut(shop, monkeypatch, consumers[1].checkpoint.sources[PHYSICAL].ts_us)
    head = shop.head()
    assert head.low == consumers[1].checkpoint.sources[PHYSICAL].pair
    assert log_files(shop) < before
    assert shop.states()[-1].position == states[-1].position, "the same rows, that say since when changes are told"
    churn(shop, 30, 40)
    shop.forget()
    for number, consumer in enumerate(consumers):
        consumer.kinds.clear()
        given = shop.client.bootstrap(shop.service_url)._get(
            "/range", {"physical": PHYSICAL, "from": consumer.checkpoint.dumps()}
        )
        assert {given["tables"][f"main.{name}"] for name in ("orders", "stock")} == {"all" if number < 1 else "since"}
        follow(shop, consumer, checkpoint=consumer.checkpoint)
        assert consumer.kinds == {"since"}
        assert_equal(shop, consumer)
    new = Copy()
    follow(shop, new)
    assert_equal(shop, new)


def test_what_was_cut_off_is_410_with_what_is_held_and_no_command_shows_it(shop, monkeypatch, tmp_path):
    consumers = filled(shop)
    states = shop.states()
    at_us = consumers[2].checkpoint.sources[PHYSICAL].ts_us
    cut(shop, monkeypatch, at_us)
    low = shop.head().low[0]
    with pytest.raises(PositionPurged, match=f"from SCN {low} on") as purged:
        follow(shop, consumers[0], start="state", look_back="all")
    assert purged.value.oldest == low
    told = past(shop, "history", ORDERS)
    scns = {int(line.split('"_commit_version":')[1].split(",")[0]) for line in told.stdout.splitlines()}
    assert scns
    assert min(scns) > low
    assert f"begins behind SCN {low}" in told.stderr
    older = past(shop, "state", ORDERS, "--at", 1, "--into", tmp_path / "then").exception
    assert f"there are states at SCN {states[0].position.scn}" in str(older)
    exact = past(shop, "state", ORDERS, "--at", states[0].position.scn, "--into", tmp_path / "then")
    assert exact.exception is None, exact.exception
    assert read_delta(tmp_path / "then").num_rows == states[0].tables["main.orders"].rows
    assert "before the log store begins" in str(past(shop, "diff", ORDERS, "--from", 1).exception)
    assert past(shop, "bootstrap", "verify").exit_code == 0
    status = CliRunner().invoke(app, ["bootstrap", "status", str(shop.config.path)])
    head, row = (line.split() for line in status.stdout.splitlines()[:2])
    shown = dict(zip(head, row, strict=False))
    assert (shown["oldest_scn"], shown["oldest"][:4]) == (str(low), str(dt.datetime.now(dt.UTC).year))


def test_a_service_that_is_killed_while_it_cuts_does_the_rest_the_next_time(shop, monkeypatch):
    """Whoever asks meanwhile is answered by what the head says."""
    consumers, before, lows = filled(shop), log_files(shop), [shop.head().low]
    points = ["bootstrap.cut.before_files", "bootstrap.cut.between_tables", "bootstrap.note.between"]
    for point, consumer in zip(points, consumers[1:], strict=True):

        def die(name, point=point):
            if name == point and shop.head().low > lows[-1]:
                raise Died

        with monkeypatch.context() as patched:
            patched.setattr("databus.bootstrap._noting.crash_point", die)
            with pytest.raises(Died):
                cut(shop, patched, consumer.checkpoint.sources[PHYSICAL].ts_us)
        lows.append(shop.head().low)
        shop._noting = None
        monkeypatch.setattr(_noting, "_DAY_US", 10**15)
        shop.note()
        assert shop.head().low == lows[-1] == consumer.checkpoint.sources[PHYSICAL].pair
        assert log_files(shop) <= before
        assert_old_files_are_gone(shop)
        before = log_files(shop)
    shop.forget()
    for consumer in consumers:
        follow(shop, consumer, checkpoint=consumer.checkpoint)
        assert_equal(shop, consumer)


def test_a_look_that_would_miss_what_was_cut_meanwhile_is_refused(shop, monkeypatch):
    consumers = filled(shop)
    stores = PhysicalStores(shop.config.root, PHYSICAL)
    looks = [stores.look(), stores.look()]
    looks[0].hold(["main.orders"])
    cut(shop, monkeypatch, consumers[2].checkpoint.sources[PHYSICAL].ts_us)
    assert [*looks[0].log.pieces({"main.orders": LogSelection.ALL}, (0, -1), looks[0].kept.head.position.pair)]
    with pytest.raises(ServiceUnavailable, match="ask again"):
        looks[1].hold(["main.orders"])


def test_the_pipeline_goes_on_with_a_log_store_whose_files_went(shop, monkeypatch):
    """Also one that has its tables open; and files are removed a day later, but for the newest of each table."""
    shop.keeps_open = True
    consumers, before = filled(shop), log_files(shop)
    cut(shop, monkeypatch, consumers[-1].checkpoint.sources[PHYSICAL].ts_us)
    folder, left = shop.folder / "lake/log/shop/main.orders", log_files(shop)
    assert_old_files_are_gone(shop)
    gone = [name for name in before - left if (folder / name).exists()]
    assert gone
    shop._noting.unnamed_hours = shop._noting.cut_every_s = 0
    shop.note()
    shop._noting.cut_every_s = 3600
    assert [name for name in gone if (folder / name).exists()] == []
    churn(shop, 40, 50)
    shop.forget()
    new = Copy()
    with windows(shop.url, follow=False) as following:
        for window in following:
            new.take(window)
    assert_equal(shop, new)
    assert past(shop, "bootstrap", "verify").exit_code == 0


def test_tables_that_are_added_after_a_cut_hide_nothing_of_the_others(shop, monkeypatch):
    """Every change begins behind that moment; what happened to the others between the cut and then still counts."""
    shop.config.options.tables[:] = [ORDERS]
    consumers = filled(shop)
    cut(shop, monkeypatch, consumers[1].checkpoint.sources[PHYSICAL].ts_us)
    at = shop.head().cut.at
    shop.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
    shop.fill()
    looked = PhysicalStores(shop.config.root, PHYSICAL).look().log.controls("main.orders")
    shop.config.options.tables.append("shop/main.stock")
    end = shop.captured()
    shop._noting.look(*shop.noted(), (end.scn, end.ts_us))
    head = shop.head()
    assert head.low == (end.scn, SEQ_DONE)
    assert head.cut.at == at < head.low
    controls = PhysicalStores(shop.config.root, PHYSICAL).look().log.controls("main.orders")
    assert [*controls] == [*looked]
    assert "city" in controls[-1].table.names
    cut(shop, monkeypatch, consumers[-1].checkpoint.sources[PHYSICAL].ts_us)
    assert shop.head().low == head.low > shop.head().cut.at > at
