"""Following behind a filter: which rows come, and what happens where the filter comes to mean something else."""

from pathlib import Path

import pytest

from databus.client import Client, Consumer, FollowConfig, RelayClient, windows
from databus.core import MalformedRequest, SchemaChanged, UnknownColumn
from databus.filters import StreamFilter, row_hashes
from databus.wire import Group
from tests.relay.support import ORDERS, Database, commit_of, order, parts, published, rows_of, sale, scripted, until
from tests.relay.support import truncate as truncated
from tests.relay.test_filters import TOTALS, altered


def test_windows_have_what_passes_and_checkpoints_are_good_at_any_filter(tmp_path: Path):
    database = Database(groups=[order(1), order(2, "b"), sale(3), *parts(4, 2), truncated(5)])
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 5)
        asked = {"sources": ["orders"], "follow": False}
        with windows(relay.url, where="name = 'b'", columns=["name"], **asked) as following:
            found = list(following)
        assert [row["id"] for window in found for row in window.rows()] == [2, 3]
        assert [window.control.kind for window in found if window.control] == ["truncate"]
        with windows(
            relay.url, checkpoint=found[0].checkpoint, filters={"orders": {"where": "id > 18"}}, **asked
        ) as rest:
            assert [row["id"] for window in rest for row in window.rows()] == [19, 20]
        with windows(relay.url, checkpoint=found[0].checkpoint, **asked) as rest:
            assert next(iter(rest)).scn == 3


def test_a_client_takes_a_filter_too(tmp_path: Path):
    class Kept(Consumer):
        ids: list[int] = []  # noqa: RUF012 - of this test

        def on_data_events(self, changes):
            self.ids.extend(row["id"] for row in changes.rows())

    with scripted(tmp_path, {"shop": Database(groups=[order(1), order(2, "b"), order(3)])}) as relay:
        published(relay, "shop", 3)
        with Client(relay.url, Kept(), sources=["orders"], where="id <> 2") as client:
            client.start()
            until(lambda: len(Kept.ids) == 2)
    assert Kept.ids == [1, 3]


@pytest.mark.parametrize("where", ["totl > 1", "name = 1"])
def test_what_does_not_fit_is_raised_by_the_iterator(tmp_path: Path, where: str):
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}) as relay:
        published(relay, "shop", 1)
        with (
            windows(relay.url, sources=["orders"], where=where) as following,
            pytest.raises((UnknownColumn, MalformedRequest), match=r"main\.orders"),
        ):
            next(following)


def changed() -> Database:
    told = {"fill": {"total": 9}, "class": 2}
    after = Group(commit_of(3, 1), (rows_of(TOTALS, 3, [{"id": 3, "name": "c", "total": 9}]),))
    return Database(tables=(ORDERS,), groups=[order(1), altered(2, ORDERS, TOTALS, **told), after])


def test_a_changed_filter_has_the_table_read_again(tmp_path: Path):
    database = changed()
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 3)
        with windows(relay.url, where="total = 9", follow=False) as following:
            assert [row["id"] for window in following for row in window.rows()] == [3]
        assert database.asked == ["main.orders"]


def test_a_changed_filter_stops_where_that_is_wanted_behind_what_came_before(tmp_path: Path):
    database = changed()
    with scripted(tmp_path, {"shop": database}) as relay:
        published(relay, "shop", 3)
        with windows(
            relay.url, where="name = 'a' OR total = 9", config=FollowConfig(), on_filter_change="stop"
        ) as following:
            assert [row["id"] for row in next(following).rows()] == [1]
            with pytest.raises(SchemaChanged, match="SCN 2"):
                next(following)
        assert database.asked == []


def test_a_control_covers_the_keys_of_its_partition_alone(tmp_path: Path):
    with scripted(tmp_path, {"shop": Database(groups=[*parts(1, 2), truncated(2)])}) as relay:
        published(relay, "shop", 2)
        client = RelayClient(relay.url)
        for part in range(3):
            with windows(client.filtered(StreamFilter.parse(partition=f"{part}/3")), follow=False) as following:
                found = list(following)
            rows = [row for window in found for row in window.rows()]
            (control,) = [window.control for window in found if window.control]
            assert rows
            assert all(row.key_hash % 3 == part and control.covers(row.key_hash) for row in rows)
            assert not control.covers(rows[0].key_hash + 1)
            batch = next(iter(found[0].changes())).batch
            assert row_hashes(ORDERS, batch).tolist() == [row.key_hash for row in found[0].rows()]
        with windows(client, follow=False) as following:
            (control,) = [window.control for window in following if window.control]
            assert control.covers(1)
        client.close()
