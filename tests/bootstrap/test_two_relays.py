"""Two relays of one database, whose logs number chunks and parts otherwise: the stores are filled from one of them."""

import random

import pytest

from databus.client import windows
from databus.core import PositionPurged
from tests.bootstrap.followers import Follower
from tests.bootstrap.mysql_shop import MysqlShop
from tests.client.conftest import wait_for

pytestmark = pytest.mark.nightly

TABLES = ("main.orders", "main.stock")


@pytest.fixture
def shop(tmp_path, database_server):
    with MysqlShop(tmp_path, database_server).running() as running:
        running.churn(1, 15)
        yield running


def assert_equal(shop, *followers):
    for follower in followers:
        for table in TABLES:
            assert follower.rows(table) == shop.rows(table), (table, follower.kinds)


def test_a_consumer_goes_from_the_other_relay_over_the_service_to_any_relay_and_back(shop):
    with shop.another_relay() as (other, client):
        both = (shop.relay, shop.client), (other, client)
        old, every = Follower().follow(client.url), Follower().follow(client.url)
        shop.churn(15, 30)
        shop.purged(*both)
        shop.churn(30, 33)
        wait_for(lambda: client.head("shop").published.scn >= shop.captured().scn, "the other relay")
        at_first, new = old.saved().follow(shop.url), Follower().follow(client.url)
        old.follow(client.url)
        every.follow(client.url, look_back="all")
        assert_equal(shop, old, at_first, new, every)
        assert (old.kinds, new.kinds) == ({None, "since"}, {None, "state"})
        assert "every" in every.kinds
        shop.churn(33, 40)
        wait_for(lambda: client.head("shop").published.scn >= shop.captured().scn, "the other relay")
        for each, url in ((old, shop.url), (at_first, client.url), (new, [client.url, shop.url])):
            assert_equal(shop, each.follow(url))


def stopped_in(url, is_there, **options):
    """A follower that dies with the first window for which this holds."""
    follower = Follower()
    with windows(url, **options) as following:
        for window in following:
            follower.take(window)
            if is_there(window):
                return follower
    raise AssertionError("was never there")


def test_a_consumer_inside_a_snapshot_of_the_other_relay_is_given_its_tables_whole(shop):
    shop.execute(*(f"INSERT INTO orders VALUES ({n}, 'o', 1)" for n in range(1000, 6000, 5)))
    with shop.another_relay() as (other, client):
        client.request_snapshot("shop", TABLES)
        opened = lambda window: "main.orders" in window.position.snapshots and len(window) > 0  # noqa: E731
        inside = stopped_in(client.url, opened)
        wait_for(lambda: not client.head("shop").published.snapshots, "the end of the snapshot")
        every = inside.saved()
        shop.churn(50, 60)
        shop.purged((shop.relay, shop.client), (other, client))
        with pytest.raises(PositionPurged, match="in another log"):
            every.follow(client.url, look_back="all")
        for url in (client.url, shop.url):
            assert_equal(shop, inside.saved().follow(url))


def test_a_consumer_inside_a_large_transaction_of_the_other_relay_gets_what_became_of_it(shop):
    """The part that it had is undone; in every change the transaction comes again, whole."""
    with shop.another_relay() as (other, client):
        shop.execute(*(f"INSERT INTO ballast VALUES ({n}, 0, '{'x' * 60000}')" for n in range(100, 300)))
        inside = stopped_in(client.url, lambda window: window.continues and not window.position.snapshots)
        shop.churn(50, 55)
        shop.purged((shop.relay, shop.client), (other, client))
        for more in ({}, {"look_back": "all"}):
            for url in (client.url, shop.url):
                follower = inside.saved().follow(url, **more)
                assert_equal(shop, follower)
                assert follower.rows("main.ballast") == shop.rows("main.ballast")


def test_a_consumer_of_both_relays_is_handed_over_again_and_again(shop, seed):
    """Each of them is asked first at times; both lose what they had, or one does; the consumer dies anywhere."""
    dice = random.Random(seed)
    with shop.another_relay() as (other, client):
        both = [(shop.relay, shop.client), (other, client)]
        follower, number = Follower(), 100
        for _ in range(8):
            shop.churn(number, number + 6)
            number += 6
            if dice.random() < 0.3:
                dice.choice(both)[1].request_snapshot("shop", TABLES)
            shop.purged(*dice.choice((both, both, both[:1], both[1:])))
            shop.churn(number, number + 2)
            number += 2
            end = shop.captured()
            wait_for(lambda end=end: client.head("shop").published.scn >= end.scn, "the other relay")
            for _ in range(50):
                saved, dies_after = follower.saved(), dice.randrange(1, 15)
                urls = [shop.url, client.url]
                dice.shuffle(urls)
                with windows(urls[: dice.choice((1, 2))], follow=False, checkpoint=saved.checkpoint) as following:
                    for count, window in enumerate(following):
                        saved.take(window)
                        if dice.random() < 0.4:
                            follower = saved.saved()
                        if count == dies_after:
                            break
                    else:
                        follower = saved
                        break
            assert_equal(shop, follower)
        assert follower.kinds > {None}
