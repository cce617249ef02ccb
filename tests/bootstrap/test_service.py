"""The whole way without Spark: a database, a relay that forgets, the stores, the server, a client that looks back."""

import shutil

import pytest

from databus.bootstrap import AnswerRequest, KeptPast, is_eligible
from databus.client import Client, Consumer, windows
from databus.core import PositionPurged
from databus.wire import answer_name
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.client.conftest import wait_for

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, total INTEGER);
CREATE TABLE ballast (id INTEGER PRIMARY KEY, n INTEGER, filler TEXT);
CREATE TABLE stock (id INTEGER PRIMARY KEY, "left" INTEGER);
"""


class Copy:
    """Tables by their keys, filled by windows as they come."""

    def __init__(self):
        self.rows = {f"shop/main.{name}": {} for name in ("orders", "stock", "ballast")}
        self.pairs = []
        self.kinds = set()
        self.checkpoint = None

    def take(self, window):
        control = window.control
        if control is not None and control.kind == "snapshot_end" and control.body["complete"]:
            begin, held = tuple(control.body["begin"]), self.rows[control.source]
            self.rows[control.source] = {key: each for key, each in held.items() if each[0] >= begin}
        for row in window.rows():
            held = self.rows[row.source]
            self.pairs.append((row.scn, row.seq))
            if row.before is not None:
                held.pop(row.before["id"], None)
            if row.after is not None:
                held[row.after["id"]] = ((row.scn, row.seq), tuple(row.after.values()))
        self.kinds.add(window.look_back)
        self.checkpoint = window.checkpoint

    def table(self, name):
        return sorted((row for _, row in self.rows[f"shop/main.{name}"].values()), key=repr)


@pytest.fixture
def shop(tmp_path):
    filler = f"INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');"
    with Shop(tmp_path, TABLES + filler).running() as running:
        yield running


def churn(shop, first, last):
    for number in range(first, last):
        shop.execute(
            f"INSERT INTO orders VALUES ({number}, 'order {number}', {number % 7})",
            f"INSERT OR REPLACE INTO stock VALUES ({number % 5}, {number})",
        )
        if number % 3 == 0:
            shop.execute(f"DELETE FROM orders WHERE id = {number - 2}")
        if number % 4 == 0:
            shop.execute(f"UPDATE orders SET id = id + 10000 WHERE id = {number - 1}")


def follow(shop, copy, **options):
    """To what is published now."""
    with windows(shop.url, follow=False, **options) as following:
        for window in following:
            copy.take(window)
    assert copy.pairs == sorted(copy.pairs)


def assert_equal(shop, copy):
    assert copy.table("orders") == shop.select("SELECT * FROM orders")
    assert copy.table("stock") == shop.select("SELECT * FROM stock")


def test_whoever_has_nothing_or_an_old_position_gets_the_past_and_goes_on_live(shop):
    churn(shop, 1, 20)
    shop.fill()
    old = Copy()
    follow(shop, old)
    assert old.kinds == {None}
    churn(shop, 20, 60)
    shop.fill()
    shop.forget()
    churn(shop, 140, 145)
    shop.captured()

    new = Copy()
    follow(shop, new)
    assert_equal(shop, new)
    assert new.kinds == {"state", None}

    follow(shop, old, checkpoint=old.checkpoint)
    assert_equal(shop, old)
    assert old.kinds == {"since", None}

    churn(shop, 145, 150)
    shop.captured()
    follow(shop, new, checkpoint=new.checkpoint)
    assert_equal(shop, new)


class Told(Consumer):
    """Notes when the past begins and ends."""

    def __init__(self):
        self.copy, self.said = Copy(), []

    def on_start_bootstrap(self, physical):
        self.said.append(f"past of {physical}")

    def on_stop_bootstrap(self, physical):
        self.said.append(f"present of {physical}")

    def on_start_window(self, window):
        self.said.append(window.look_back)

    def on_end_window(self, window):
        self.copy.take(window)


def test_callbacks_are_told_where_the_past_begins_and_ends(shop):
    churn(shop, 1, 30)
    shop.fill()
    shop.forget()
    churn(shop, 30, 33)
    end = shop.captured()
    told = Told()
    with Client(shop.url, told) as client:
        client.start()
        wait_for(lambda: told.copy.checkpoint and told.copy.checkpoint.sources[PHYSICAL].pair >= end.pair, "the end")
    assert_equal(shop, told.copy)
    kinds = [each for number, each in enumerate(told.said) if number == 0 or each != told.said[number - 1]]
    assert kinds == ["past of shop", "state", "present of shop", None]


def test_a_table_that_is_gone_from_the_state_store_is_not_taken_for_one_that_was_dropped(shop):
    """Its output makes it anew: until it has, there is no answer about it, and the older state goes on being served."""
    churn(shop, 1, 10)
    shop.fill()
    before = shop.states()
    shutil.rmtree(shop.folder / "lake" / "state" / "shop" / "main.stock")
    shop.execute("UPDATE orders SET total = 1")
    shop.written["log"] = shop.written["state"] = shop.captured()
    noted = shop.note()
    assert noted.incomplete == {"main.stock"}
    ask = AnswerRequest("shop", frozenset({"main.orders", "main.stock"}))
    kept = KeptPast([*before, noted], shop.head(), lambda _: [], 1 << 62)
    assert [is_eligible(each, ask, kept) for each in kept.states] == [True, False]


def test_a_durable_consumer_that_was_away_for_too_long_gets_what_it_missed(shop):
    """Its checkpoint, also one inside an answer, is kept by the relay, which does not know what it means."""
    churn(shop, 1, 20)
    end, copy = shop.captured(), Copy()

    def take(until, windows_max=None):
        with windows(shop.url, name="billing") as following:
            for number, window in enumerate(following, 1):
                copy.take(window)
                if number == windows_max or (window.position.pair >= until.pair and window.is_consistent):
                    return

    take(end)
    churn(shop, 20, 40)
    shop.forget()
    churn(shop, 40, 45)
    end = shop.captured()
    take(end, windows_max=3)
    assert answer_name(copy.checkpoint.sources[PHYSICAL].log)
    take(end)
    assert_equal(shop, copy)
    assert copy.kinds == {None, "since"}


def test_every_change_comes_where_that_is_asked_for(shop):
    """In the order in which they were made, as from a relay that never forgets; and its begin and end are told."""
    churn(shop, 1, 30)
    shop.forget()
    churn(shop, 30, 33)
    shop.captured()
    copy, kinds = Copy(), []
    with windows(shop.url, follow=False, look_back="all", sources=["shop/main.orders"]) as following:
        for window in following:
            copy.take(window)
            kinds += [row.op for row in window.rows()]
    assert copy.table("orders") == shop.select("SELECT * FROM orders")
    assert copy.kinds == {"every", None}
    assert {"insert", "update", "delete"} <= {*map(str, kinds)}


def test_who_asks_for_a_state_begins_with_one_whatever_the_relay_has(shop):
    churn(shop, 1, 20)
    shop.fill()
    churn(shop, 20, 23)
    shop.captured()
    copy = Copy()
    follow(shop, copy, start="state")
    assert_equal(shop, copy)
    assert copy.kinds == {"state", None}
    shop.relay.config.bootstrap = None
    with pytest.raises(PositionPurged, match="names none"):
        follow(shop, Copy(), start="state")
