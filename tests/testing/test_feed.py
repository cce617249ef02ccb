"""A consumer is tested with windows made by hand; docs/consumers.md shows how."""

import pytest

from databus.client import Consumer, ConsumerFailed, Result
from databus.core import ChangeType, ControlKind, InputError
from databus.testing import Feed
from tests.documents.pages import ROOT, blocks


def code_of(page, *names):
    """The Python of a page's blocks that have these words in them, run in order; its names."""
    found = {}
    texts = [each.text for each in blocks(ROOT / "docs" / page) if each.language == "python"]
    for name in names:
        (text,) = [each for each in texts if name in each]
        exec(compile(text, page, "exec"), found)  # noqa: S102 - the code of a page of ours
    return found


def test_the_example_of_the_page_passes():
    found = code_of("consumers.md", "class Cache", "def test_")
    tests = [value for name, value in found.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_the_cache_of_the_page_follows_a_table_that_is_read_again():
    found = code_of("consumers.md", "class Cache", "def test_")
    cache, rows = found["Cache"](["shop/main.orders"]), [{"id": number, "note": "x"} for number in (1, 2, 3)]
    feed = Feed(found["ORDERS"]).snapshot("main.orders", rows).snapshot("main.orders", rows[:2])
    feed.control(ControlKind.GAP, "main.orders").play(cache)
    assert ([key[1] for key in cache.rows], cache.is_complete) == ([1, 2], False)


def test_windows_are_as_a_client_gives_them():
    orders = code_of("consumers.md", "class Cache", "def test_")["ORDERS"]
    feed = Feed(orders).snapshot("main.orders", [{"id": 1}, {"id": 2}])
    feed.insert("main.orders", {"id": 3}).delete("main.orders", {"id": 1}).commit()
    begin, read, end, logged = feed.windows()
    assert (str(begin.control.kind), str(end.control.kind)) == ("snapshot_begin", "snapshot_end")
    assert read.checkpoint.sources["shop"].snapshots
    assert not end.checkpoint.sources["shop"].snapshots
    assert (read.is_snapshot, [row.key for row in read.rows()]) == (True, [(1,), (2,)])
    assert (logged.scn, [row.change_type for row in logged.rows()]) == (1, [ChangeType.INSERT, ChangeType.DELETE])
    with pytest.raises(InputError, match="no column 'di'"):
        list(feed.insert("main.orders", {"di": 3}).commit().windows())


def test_an_error_of_a_callback_is_the_tests():
    orders = code_of("consumers.md", "class Cache", "def test_")["ORDERS"]

    class Refuses(Consumer):
        def on_end_window(self, window):
            return Result.ERROR

    with pytest.raises(ConsumerFailed, match="on_end_window returned ERROR"):
        Feed(orders).insert("main.orders", {"id": 3}).commit().play(Refuses())
