"""Parking with real relays and real kills: copies in SQL, members that come and go, commands while a client waits."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest

from databus.client import Client, ClientConfig, ClientLetters, Consumer, load_checkpoint
from databus.core import Checkpoint, ControlKind, Fenced
from databus.forks import Nursery
from tests.client.conftest import wait_for
from tests.client.parking import ORDERS as PARKED
from tests.client.parking import Parts
from tests.client.test_groups import LEASE
from tests.commands import databus
from tests.documents.pages import ROOT
from tests.relay.support import Database, post, scripted

QUICK = ClientConfig(checkpoint_ms=10, retries_max=1, retry_first_ms=1, retry_ms_max=1)


class Shop:
    """A source in SQLite, and a table that callbacks copy it into, guarded as docs/consumers.md says."""

    def __init__(self, folder):
        self.source, self.copy, self.letters = folder / "shop.db", folder / "copy.db", folder / "letters"
        self.is_mended = threading.Event()
        self.run("PRAGMA journal_mode = WAL", "CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        with closing(sqlite3.connect(self.copy)) as db:
            db.executescript("""
            PRAGMA journal_mode = WAL;
            CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, hash INTEGER);
            CREATE TABLE place (number INTEGER PRIMARY KEY, fence INTEGER, scn INTEGER, seq INTEGER, checkpoint TEXT);
            """)

    def run(self, *statements):
        with closing(sqlite3.connect(self.source, isolation_level=None, timeout=30)) as db:
            for statement in statements:
                db.execute(statement)

    def rows(self, path):
        with closing(sqlite3.connect(path, timeout=30)) as db:
            return dict(db.execute("SELECT id, note FROM orders ORDER BY id"))

    @property
    def parked(self):
        """The keys of the letters."""
        if not ClientLetters.is_folder(self.letters):
            return set()
        return {int(each.id) for found in ClientLetters(self.letters).read() for each in found.letters}

    def is_equal_but_for_parked(self):
        parked = self.parked
        found, wanted = self.rows(self.copy), self.rows(self.source)
        return {k: v for k, v in found.items() if k not in parked} == {
            k: v for k, v in wanted.items() if k not in parked
        }

    def is_equal(self):
        return self.rows(self.copy) == self.rows(self.source)


class Writer(Consumer):
    """Writes one partition, in one transaction with its place."""

    def __init__(self, shop, partition=0):
        self.shop, self.number, self.fence = shop, int(partition), 0
        self.db = sqlite3.connect(shop.copy, isolation_level=None, timeout=30, check_same_thread=False)

    def on_take(self, partition, fence):
        self.fence = fence
        self.db.execute("INSERT OR IGNORE INTO place VALUES (?, ?, -1, -1, NULL)", (self.number, fence))
        self.db.execute("UPDATE place SET fence = max(fence, ?) WHERE number = ?", (fence, self.number))
        (told,) = self.db.execute("SELECT checkpoint FROM place WHERE number = ?", (self.number,)).fetchone()
        return None if told is None else Checkpoint.from_json(told)

    def on_start_window(self, window):
        self.db.execute("BEGIN IMMEDIATE")

    def on_control(self, control):
        self.db.create_function("covers", 1, control.covers)
        if control.kind in (ControlKind.TRUNCATE, ControlKind.DROP):
            self.db.execute("DELETE FROM orders WHERE covers(hash)")

    def on_data_events(self, changes):
        for row in changes.rows():
            if row["note"] == "bad" and not self.shop.is_mended.is_set():
                raise ValueError("no such note")
            if row.before is not None:
                self.db.execute("DELETE FROM orders WHERE id = ?", (row.before["id"],))
            if row.after is not None:
                self.db.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", (*row.after.values(), row.key_hash))

    def on_end_window(self, window):
        pair, fence = window.position.pair, (self.number, self.fence)
        if window.is_replayed:  # a change by itself moves no place
            moved = self.db.execute("UPDATE place SET fence = fence WHERE number = ? AND fence = ?", fence)
        else:
            told = (*pair, window.checkpoint.dumps(), *fence, *pair)
            moved = self.db.execute(
                "UPDATE place SET scn = ?, seq = ?, checkpoint = ? "
                "WHERE number = ? AND fence = ? AND (scn, seq) < (?, ?)",
                told,
            )
        if moved.rowcount != 1:
            raise Fenced(f"partition {self.number} is another's")
        self.db.execute("COMMIT")

    def on_rollback(self, physical, position):
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


@contextmanager
def started(shop, relay, **options):
    with Client(
        relay.url, lambda partition: Writer(shop, partition), name="copy", config=QUICK, on_failure="park",
        dead_letters=shop.letters, **options,
    ) as client:  # fmt: skip
        client.start()
        yield client


def letters(client):
    return sum(each.dead_letters for each in client.status().values())


def test_a_copy_is_the_source_but_for_parked_keys_and_all_of_it_after_a_replay(shop, relay_of):
    shop.run("INSERT INTO orders VALUES (1, 'a'), (2, 'bad'), (3, 'c')")
    relay = relay_of(shop={"type": "sqlite", "path": str(shop.source)}, groups=LEASE)
    with started(shop, relay) as client:
        wait_for(
            lambda: shop.letters.exists() and shop.parked == {2} and shop.is_equal_but_for_parked(), "the snapshot"
        )
        shop.run(
            "UPDATE orders SET note = 'fine' WHERE id = 2", "UPDATE orders SET id = 9, note = 'bad' WHERE id = 1",
            "INSERT INTO orders VALUES (1, 'new'), (4, 'd')", "DELETE FROM orders WHERE id = 3",
        )  # fmt: skip
        wait_for(lambda: shop.parked == {1, 2, 9} and shop.is_equal_but_for_parked(), "the changes")
        assert 3 not in shop.rows(shop.copy)
        wait_for(lambda: letters(client) == 6, "the letters")
        assert sum(each.count for each in ClientLetters(shop.letters).files()) == 6
        shop.is_mended.set()
        assert not shop.is_equal()
        said = databus("dead-letters", "replay", shop.letters).stdout
        assert said.startswith(f"{shop.letters}: 6 dead letters are delivered once more by the client")
        wait_for(shop.is_equal, "the replay, while nothing else happens", 10)
        wait_for(lambda: letters(client) == 0, "the letters' end", 10)
        shop.run("UPDATE orders SET note = 'last' WHERE id = 2")
        wait_for(shop.is_equal, "a change of a key that was parked")


def test_letters_go_with_their_partition_to_another_member(shop, relay_of):
    rows = ", ".join(f"({number}, '{'bad' if number % 7 == 0 else 'x'}')" for number in range(1, 30))
    shop.run(f"INSERT INTO orders VALUES {rows}")
    relay = relay_of(shop={"type": "sqlite", "path": str(shop.source)}, groups=LEASE)
    with started(shop, relay, partitions=4) as first, started(shop, relay, partitions=4) as second:
        wait_for(lambda: shop.parked == {7, 14, 21, 28}, "the letters")
        wait_for(shop.is_equal_but_for_parked, "the rows")
        wait_for(lambda: len(first.status()) == len(second.status()) == 2, "an even share")
        wait_for(lambda: letters(first) + letters(second) == 4, "the letters of both")
        first.stop()
        shop.run("UPDATE orders SET note = 'later' WHERE id = 7")
        wait_for(lambda: letters(second) == 6, "all letters, and what follows of them, at the second member")
        post(relay, "/groups/copy/resize", to=8)
        wait_for(lambda: len(second.status()) == 8 and letters(second) == 6, "the letters in eight partitions")
        shop.is_mended.set()
        ClientLetters(shop.letters).replay()
        wait_for(shop.is_equal, "the replay")
        wait_for(lambda: letters(second) == 0 and shop.parked == set(), "the letters' end")


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery(["databus.client", "databus.flow"], wait_s_max=120)
    yield nursery
    nursery.close()


def test_a_kill_between_letter_and_place_loses_nothing_and_doubles_no_letter(tmp_path, nursery):
    feed, database = Parts(), Database(tables=(PARKED,))
    for scn in range(1, 7):
        for number in range(1, 5):
            note = "bad" if (scn, number) in ((2, 2), (4, 1), (5, 2)) else "x"
            feed.insert("main.orders", {"id": number, "note": note, "n": scn})
        feed.commit()
    database.add(*feed._groups)
    all_pairs = {(scn, number) for scn in range(1, 7) for number in range(1, 5)}
    parked = {(scn, 2) for scn in range(2, 7)} | {(scn, 1) for scn in range(4, 7)}

    def pairs():
        found = ClientLetters(tmp_path / "letters").read()
        return sorted(letter.pair for each in found for letter in each.letters)

    def effects():
        return [tuple(map(int, line.split())) for line in (tmp_path / "effects").read_text().splitlines()]

    def victim(crash_at=""):
        env = {name: value for name, value in os.environ.items() if name != "DATABUS_CRASH_AT"}
        env |= {"DATABUS_CRASH_AT": crash_at} if crash_at else {}
        arguments = [
            "-m",
            "tests.client.program",
            str(ROOT / "tests/client/parking_victim.py"),
            relay.url,
            str(tmp_path),
        ]
        with (tmp_path / "victim.log").open("ab") as log:
            forked = nursery.fork(arguments, log.fileno(), env)
            return forked or subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=env)

    with scripted(tmp_path, {"shop": database}) as relay:
        for point in ("parking.before_write", "parking.after_write:2"):
            assert victim(point).wait(60) == -signal.SIGKILL
        process = victim()
        file = tmp_path / "checkpoint.json"
        wait_for(lambda: load_checkpoint(file).sources["shop"].scn == 6, "the end")
        assert pairs() == sorted(parked)
        assert {(scn, seq) for _, scn, seq in effects()} == all_pairs - parked
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        (tmp_path / "mended").touch()
        ClientLetters(tmp_path / "letters").replay()
        assert victim("parking.before_removal:2").wait(60) == -signal.SIGKILL
        process = victim()
        wait_for(lambda: pairs() == [], "the replay")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert {(scn, seq) for _, scn, seq in effects()} == all_pairs
    for number in (1, 2):  # in order, but for the one letter that the kill repeats
        of_key = [(scn, seq) for key, scn, seq in effects() if key == number and (scn, seq) in parked]
        assert list(dict.fromkeys(of_key)) == sorted(pair for pair in parked if pair[1] == number)
        assert len(of_key) <= len(set(of_key)) + 1
