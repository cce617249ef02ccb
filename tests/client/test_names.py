"""Tables with signs in their names, all the way from two SQLite files over a relay to whoever asks for one of them."""

import sqlite3
from contextlib import closing

import pytest

from databus.client import windows
from databus.core import UnknownSource, short_name, source_name
from databus.link import RelayClient
from databus.relay import State
from tests.client.conftest import wait_for
from tests.relay.support import get, post

NAMES = ("a.b", "b", "x,y", "x", "y", "p/q", "s*", "se", "tick`t", "Größe 1", "[z]", "z", " ends ")


@pytest.fixture
def relay(tmp_path, relay_of):
    """Two databases: `one` has a table of each name, with the name in its only row; `other` has `b` alone."""
    for path, names in (("one.db", NAMES), ("other.db", ("b",))):
        with closing(sqlite3.connect(tmp_path / path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            for name in names:
                database.execute(f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY, own TEXT)')
                database.execute(f'INSERT INTO "{name}" VALUES (1, ?)', (name,))
            database.commit()
    sources = {"one": {"type": "sqlite", "path": "one.db"}, "other": {"type": "sqlite", "path": "other.db"}}
    relay = relay_of(**sources)
    client = RelayClient(relay.url)
    wait_for(lambda: len(client.sources()) == len(NAMES) + 1, "the tables")
    wait_for(lambda: len(_read(relay)) == len(NAMES) + 1, "their rows")
    return relay


def _read(relay, *sources):
    """By source, what its rows say that their table is called."""
    found: dict[str, set[str]] = {}
    with windows(relay.url, sources=list(sources) or None, follow=False) as reading:
        for window in reading:
            for row in window.rows():
                found.setdefault(row.source, set()).add(row.after["own"])
    return found


def test_each_table_is_asked_for_by_its_name_alone(relay):
    for name in NAMES:
        source = source_name("main", name)
        assert _read(relay, f"one/{source}") == {f"one/{source}": {name}}
        (told,) = get(relay, "/register", sources=f"one/{source}").json
        assert told["table"]["source"] == source


def test_all_of_them_are_named_in_one_list(relay):
    everything = {f"one/{source_name('main', name)}": {name} for name in NAMES}
    assert _read(relay, *everything) == everything
    assert _read(relay, "one/*") == everything
    short = [short_name(source_name("main", name)) for name in NAMES if name != "b"]  # which both databases have
    assert _read(relay, *short) == {name: each for name, each in everything.items() if each != {"b"}}
    assert _read(relay, "b") == {"one/main.b": {"b"}, "other/main.b": {"b"}}


def test_a_pattern_is_about_the_parts_of_a_name(relay):
    assert set(_read(relay, "one/main.*b")) == {"one/main.a.b", "one/main.b"}
    assert set(_read(relay, "s*")) == {"one/main.`s*`", "one/main.se"}
    assert set(_read(relay, "`s*`")) == {"one/main.`s*`"}
    with pytest.raises(UnknownSource, match=r"a\.b"):
        _read(relay, "a.b")  # a table `b` of a database `a`


def test_a_table_is_read_again_by_its_name(relay):
    wanted = f"one/{source_name('main', 'x,y')}"
    client = RelayClient(relay.url)
    before = client.head("one").published
    post(relay, "/controlSources/snapshot", sources="one", tables=wanted)

    def again():
        with windows(relay.url, start=before, sources=["one/*"], follow=False) as reading:
            return [(row.source, row.after["own"]) for window in reading for row in window.rows()]

    wait_for(lambda: again() == [(wanted, "x,y")], "its row")
    assert all(each.status.state is State.RUNNING for each in relay.captures.values())
