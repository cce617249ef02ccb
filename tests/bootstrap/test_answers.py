"""Answers behind filters, of tables without a key and after changes of a schema; and those that are errors."""

import json
from dataclasses import replace
from functools import partial
from urllib.error import HTTPError
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from databus.bootstrap._kept_stores import PhysicalStores
from databus.client import windows
from databus.core import (
    AnswerTooLarge,
    CorruptData,
    MalformedRequest,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    StreamCut,
    TooManyRequests,
    UnknownSource,
)
from databus.filters import StreamFilter
from databus.link import RelayClient
from databus.stores import NoteFolder
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.followers import Follower, selected
from tests.bootstrap.test_service import TABLES, Copy, churn

MORE = f"""
CREATE TABLE notes (said TEXT);
INSERT INTO ballast VALUES (1, 0, '{"x" * 2000}');
"""
ORDERS = "shop/main.orders"


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, TABLES + MORE).running() as running:
        running.captured()  # a table without a key shows a row twice that is logged while it is read
        churn(running, 1, 25)
        running.execute("INSERT INTO notes VALUES ('first')")
        running.fill()
        yield running


def taken(shop, consumer, **options):
    with windows(shop.url, follow=False, checkpoint=consumer.checkpoint, **options) as following:
        for window in following:
            consumer.take(window)


def test_an_answer_behind_a_filter_has_what_passes_it(shop):
    """Rows that leave the filter are removed, too, and those of other partitions do not come."""
    asked = {"sources": [ORDERS], "where": "total >= 3", "columns": ["total"]}
    old, new = Copy(), Copy()
    taken(shop, old, **asked)
    shop.execute("UPDATE orders SET total = (total + 3) % 7", "UPDATE orders SET name = 'x' WHERE id % 2 = 0")
    churn(shop, 25, 40)
    shop.forget()
    taken(shop, old, **asked)
    taken(shop, new, **asked)
    want = shop.select("SELECT id, total FROM orders WHERE total >= 3")
    assert old.table("orders") == new.table("orders") == want
    assert "since" in old.kinds
    assert "state" in new.kinds


def test_each_part_of_the_keys_is_handed_over_by_itself(shop):
    """Also rows whose key goes to another part."""
    parts = [RelayClient(shop.url).filtered(StreamFilter.parse(partition=f"{number}/3")) for number in range(3)]
    old = [Follower().follow(each) for each in parts]
    shop.execute(
        "UPDATE orders SET total = (total + 3) % 7", "UPDATE OR REPLACE orders SET id = id + 1 WHERE id % 4 = 0"
    )
    churn(shop, 30, 45)
    shop.forget()
    for followers in (old, [Follower() for _ in parts]):
        rows = []
        for follower, part in zip(followers, parts, strict=True):
            rows += follower.follow(part).rows("main.orders")
            assert follower.rows("main.orders")
        assert sorted(rows, key=repr) == selected(shop, "orders")


def test_a_table_without_a_key_is_given_from_the_log_store(shop):
    old, new = [], []

    def said(rows, checkpoint=None):
        with windows(shop.url, sources=["shop/main.notes"], follow=False, checkpoint=checkpoint) as following:
            for window in following:
                rows += [row.after["said"] for row in window.rows()]
                checkpoint = window.checkpoint
        return checkpoint

    checkpoint = said(old)
    shop.execute("INSERT INTO notes VALUES ('second')", "INSERT INTO notes VALUES ('third')")
    shop.forget()
    said(old, checkpoint)
    said(new)
    assert old == new == ["first", "second", "third"]


def test_a_column_that_was_added_meanwhile_comes_with_its_control(shop):
    old, new = Copy(), Copy()
    taken(shop, old, sources=[ORDERS])
    shop.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
    churn_wider(shop, 30, 45)
    shop.forget()
    taken(shop, old, sources=[ORDERS])
    taken(shop, new, sources=[ORDERS])
    want = shop.select("SELECT * FROM orders")
    assert new.table("orders") == want
    assert [row if len(row) > 3 else (*row, "Bern") for row in old.table("orders")] == want


def churn_wider(shop, first, last):
    for number in range(first, last):
        shop.execute(f"INSERT INTO orders VALUES ({number}, 'o', 1, 'Basel')")


def asked(shop, position=None, sources=(ORDERS,), **query):
    service = RelayClient(shop.service_url)
    with service.stream(PHYSICAL, position or "beginning", sources=sources, follow=True, **query) as stream:
        return [group for groups in stream for group in groups]


def test_what_cannot_be_answered_says_why(shop):
    head = shop.head().position
    with pytest.raises(PositionForeign, match="of database"):
        asked(shop, replace(head, uuid="another", scn=1, seq=None, txid=""))
    with pytest.raises(ServiceUnavailable, match="ahead of the log store"):
        asked(shop, replace(head, scn=head.scn + 5, txid=""))
    with pytest.raises(UnknownSource, match="did you mean"):
        asked(shop, sources=("shop/main.order",))
    with pytest.raises(MalformedRequest, match="is not the name of an answer"):
        asked(shop, SourceCheckpoint(scn=1, seq=1, log="bootstrap:what"))
    shop.config.options.answers_max, before = 0, shop.config.options.answers_max
    with pytest.raises(TooManyRequests, match="answers_max=0"):
        asked(shop)
    shop.config.options.answers_max = before
    inside = asked(shop)[0].commit
    assert inside.has_unread
    with pytest.raises(PositionPurged):  # by the relay, to which it means another log
        shop.client.stream(PHYSICAL, SourceCheckpoint(scn=1, seq=2, log="bootstrap:x", snapshots={"*": 0}))


def test_a_table_that_the_service_does_not_keep_is_named(shop):
    shop.config.options.tables[:] = ["shop/main.orders"]
    shop.execute("UPDATE orders SET total = 0")
    shop.fill()
    with pytest.raises(UnknownSource, match=r"does not keep shop/main\.stock"):
        asked(shop, sources=("shop/main.stock",))
    for sources in (None, ("shop/main.orders", "shop/main.s*")):  # the relay would go on with them, where it ends
        with pytest.raises(UnknownSource, match=r"does not keep (shop/main\.ballast, .*)?shop/main\.stock"):
            asked(shop, sources=sources)
    assert asked(shop, sources=("shop/main.o*",))


def foreign(path):
    rows = pq.read_table(path)
    pq.write_table(rows.set_column(rows.schema.get_field_index("total"), "total", pa.array([0] * len(rows))), path)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)


def as_long(path):
    """Another file of the same length, as sound as the one that was there."""
    content = path.read_bytes()
    path.write_bytes(content.replace(b"-arrow version", b"-arrow versiom"))
    assert path.read_bytes() != content
    assert pq.read_table(path).num_rows


DAMAGES = {
    "as long": as_long,
    "missing": lambda path: path.unlink(),
    "foreign": foreign,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "flipped": flipped,
}


@pytest.mark.parametrize("store", ["state", "log"])
def test_a_file_that_is_not_as_it_was_written_ends_the_answer_with_its_name(shop, caplog, store):
    """Missing, another one, of another length, with other bytes: nothing of what came is taken for the whole."""
    folder = shop.folder / f"lake/{store}/shop/main.orders"
    before, since = named(folder), shop.head().position
    if store == "log":
        shop.execute("UPDATE orders SET total = 100", "DELETE FROM orders WHERE id = 9")
        shop.fill()
    (file,) = named(folder) - before if store == "log" else filter(partial(is_named, shop), before)
    content = file.read_bytes()
    for damage, made in DAMAGES.items():
        made(file)
        caplog.clear()
        with pytest.raises((CorruptData, StreamCut)) as found:
            asked(shop, since if store == "log" else None)
        assert file.name in f"{found.value} {caplog.text}", damage
        file.write_bytes(content)
    assert asked(shop, since if store == "log" else None)


def test_another_file_is_known_by_whoever_opens_it_first(shop):
    """Also by a server that was started since, which has not seen the one that was there."""
    file = max(named(shop.folder / "lake/log/shop/main.orders"))
    content = file.read_bytes()
    as_long(file)
    try:
        with pytest.raises(CorruptData, match=f"{file.name}: is another file"):
            PhysicalStores(shop.config.root, PHYSICAL).look().hold(["main.orders"])
    finally:
        file.write_bytes(content)
    PhysicalStores(shop.config.root, PHYSICAL).look().hold(["main.orders"])


def test_a_large_answer_is_refused_with_the_estimate(shop):
    service = RelayClient(shop.service_url)
    whole = service.range(PHYSICAL, SourceCheckpoint(), sources=[ORDERS])
    shop.config.options.answer_bytes_max = whole.bytes - 1
    with pytest.raises(AnswerTooLarge, match=f"{whole.bytes} bytes, up to {whole.rows} rows"):
        asked(shop)
    url = f"{shop.service_url}/range?physical={PHYSICAL}&sources={ORDERS}&rows_max=1&estimate=1"
    estimate = json.loads(urlopen(url).read())  # noqa: S310 - our own
    assert (estimate["kind"], estimate["rows"], estimate["bytes"]) == ("state", whole.rows, whole.bytes)
    shop.config.options.answer_bytes_max = whole.bytes
    assert asked(shop)


def test_a_table_that_is_being_read_is_waited_for_and_it_says_how_far_it_is(shop):
    note = shop.states()[-1]
    folder = NoteFolder(shop.config.root, PHYSICAL)
    for state in shop.states():
        folder.remove(state)
    folder.add(replace(note, incomplete=frozenset({"main.orders"})))
    rows = note.tables["main.orders"].rows
    with pytest.raises(ServiceUnavailable, match=f"main.orders is being read, {rows} rows so far"):
        asked(shop)
    with pytest.raises(HTTPError) as found:
        urlopen(f"{shop.service_url}/stream?physical={PHYSICAL}&sources={ORDERS}&output=frames")  # noqa: S310 - our own
    assert (found.value.code, found.value.headers["Retry-After"]) == (503, "1")


def named(folder):
    """The files of a table; others were left in its folder by tasks that were run twice."""
    return {folder / uri.rpartition("/")[2] for uri in DeltaTable(str(folder)).file_uris()}


def is_named(shop, file):
    return file.name in [name for name, _ in shop.states()[-1].tables["main.orders"].files]
