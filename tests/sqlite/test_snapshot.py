"""A snapshot is consistent with the changes: the last (`_commit_version`, `_seq`) of a key is what the table holds."""

import random
import sqlite3
import threading
from collections.abc import Callable

import pytest

from databus.core import BUS_SEQ_MIN, UnknownSource
from databus.sources.sqlite import _cuts, _session
from databus.wire import Group
from tests.sqlite.conftest import Shop
from tests.sqlite.model import assert_identical, controls_of, drain, drain_until

TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER)"
FILL = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40) INSERT INTO t SELECT i, 0 FROM n"


def one_step(shop: Shop, rng: random.Random) -> None:
    """Change, delete and re-insert the same few keys, moving some."""
    i, j = rng.randint(1, 40), rng.randint(1, 40)
    shop.run(
        rng.choice(
            [
                f"REPLACE INTO t VALUES ({i}, {rng.randint(1, 1000)})",
                f"UPDATE t SET v = v + 1 WHERE id = {i}",
                f"DELETE FROM t WHERE id = {i}",
                f"UPDATE OR REPLACE t SET id = {j} WHERE id = {i}",
            ]
        )
    )


def snapshot_among_writes(shop: Shop, seed: int, during: list[Callable[[], None]]) -> bool:
    """Read 40 rows in chunks of 5 while rows change between polls and, by `during`, around each cut.

    Returns whether each chunk showed exactly what the changes before it, in the log's order, had made of its range.
    """
    shop.run(TABLE, FILL)
    rng = random.Random(seed)
    source = shop.start(chunk_rows_max=5)
    drain(source, shop.log)
    source.request_snapshot(["main.t"])
    logged, last, exact = shop.log.mirror(), -(2**63), True
    during.append(lambda: one_step(shop, rng))
    while (group := source.poll(0)) is not None:
        shop.log.append(group)
        one_step(shop, rng)
        if group.control is not None and group.control.kind == "snapshot_end":
            break
        if not group.snapshot:
            logged.apply(group)
        for rows in group.rows if group.snapshot else ():
            names = rows.table.names
            chunk = {row["id"]: {name: row[name] for name in names} for row in rows.batch.to_pylist()}
            expected = {key: row for (key,), row in logged.rows["main.t"].items() if last < key <= max(chunk)}
            exact = exact and chunk == expected
            last = max(chunk)
    during.clear()
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["t"])
    return exact


Actions = list[Callable[[], None]]


@pytest.fixture
def at_cuts(monkeypatch: pytest.MonkeyPatch) -> Actions:
    """What other processes do right before a cut, and between a cut and the reading of the chunk that belongs to it."""
    actions: Actions = []
    cut = _cuts.cut_if_changed

    def act_and_cut(*args, **options):
        for action in actions:
            action()
        try:
            return cut(*args, **options)
        finally:
            for action in actions:
                action()

    monkeypatch.setattr(_session, "cut_if_changed", act_and_cut)
    return actions


@pytest.mark.parametrize("seed", range(5))
def test_every_chunk_is_what_the_changes_before_it_made(shop: Shop, at_cuts: Actions, seed: int) -> None:
    assert snapshot_among_writes(shop, seed, at_cuts)


def all_exact(make_shop: Callable[[str], Shop], at_cuts: Actions) -> bool:
    return all(snapshot_among_writes(make_shop(str(seed)), seed, at_cuts) for seed in range(5))


def test_a_chunk_read_after_the_lock_was_released_would_not_be_exact(make_shop, at_cuts, monkeypatch) -> None:
    """The high watermark: what is written after the cut must not show."""
    monkeypatch.setattr(_session.SqliteSession, "_open_reader", lambda self: None)
    assert not all_exact(make_shop, at_cuts)


def test_a_reader_opened_before_the_lock_was_held_would_undo_changes(make_shop, at_cuts, monkeypatch) -> None:
    """The low watermark: what was written before the cut must show, since the chunk comes after it."""
    cut = _session.cut_if_changed

    def open_early(*args, under_lock=None, **options):
        if under_lock is not None:
            under_lock()
        return cut(*args, **options)

    monkeypatch.setattr(_session, "cut_if_changed", open_early)
    with pytest.raises(AssertionError, match="the copy of t differs"):
        all_exact(make_shop, at_cuts)


def test_a_chunk_placed_before_the_windows_that_it_shows_would_not_be_exact(make_shop, at_cuts, monkeypatch) -> None:
    """The boundary: the SCN of a chunk is that of the cut it was read at, not of what had been delivered by then."""
    look, take = _session.SqliteSession._look, _session.SqliteSession.next_group
    early: list[Group] = []

    def look_and_deliver(self, target):
        looked = look(self, target)
        if self._chunk is not None and not self._backlog.is_empty:
            early.append(self._snapshot_rows(self._chunk))
        return looked

    def early_first(self):
        if early:
            return early.pop()
        group = take(self)
        if early:
            early.append(group)
            return early.pop(0)
        return group

    monkeypatch.setattr(_session.SqliteSession, "_look", look_and_deliver)
    monkeypatch.setattr(_session.SqliteSession, "next_group", early_first)
    assert not all_exact(make_shop, at_cuts)


def test_chunk_rows_numbered_like_logged_ones_would_stand_before_rows_already_delivered(
    make_shop, at_cuts, monkeypatch
) -> None:
    """`_seq`: a consumer that is done with the logged rows of an SCN would never be given its chunk."""
    monkeypatch.setattr(_session, "next_bus_seq", lambda last, now: 1)
    with pytest.raises(AssertionError, match="after"):
        all_exact(make_shop, at_cuts)


def test_snapshot_pairs_stand_above_every_logged_row_and_increase(shop: Shop, at_cuts: Actions) -> None:
    snapshot_among_writes(shop, 1, at_cuts)
    last = 0
    for group in shop.log.groups:
        for rows in group.rows:
            batch = rows.batch
            if batch["_snapshot"][0].as_py():
                assert group.snapshot
                assert min(batch["_seq"].to_pylist()) > max(BUS_SEQ_MIN, last)
                last = max(batch["_seq"].to_pylist())
                assert set(batch["_commit_version"].to_pylist()) == {group.commit.scn}
            else:
                assert max(batch["_seq"].to_pylist()) < BUS_SEQ_MIN


def test_a_reading_goes_on_where_it_was_after_every_group(shop: Shop) -> None:
    shop.run(
        TABLE, FILL, "CREATE TABLE w(a TEXT, b REAL, c BLOB, PRIMARY KEY(a, b)) WITHOUT ROWID", "CREATE TABLE k(x, y)"
    )
    for i in range(23):
        shop.db.execute("INSERT INTO w VALUES (?, ?, ?)", ("it's" * (i % 3), i / 3, b"x"))
        shop.db.execute("INSERT INTO k VALUES (?, ?)", (i % 5, i))
    rng = random.Random(3)
    for _ in range(500):
        source = shop.start(chunk_rows_max=4)
        group = source.poll(0)
        source.close()
        if group is None:
            break
        shop.log.append(group)
        if rng.random() < 0.3:
            one_step(shop, rng)
    assert_identical(shop.path, shop.log, ["t", "w", "k"])
    begins = [body for body in controls_of(shop.log.groups) if body["kind"] == "snapshot_begin"]
    ends = [body for body in controls_of(shop.log.groups) if body["kind"] == "snapshot_end"]
    assert sorted(body["source"] for body in ends) == ["main.k", "main.t", "main.w"]
    assert [b["generation"] for b in begins] == [e["generation"] for e in ends]
    assert all(body["complete"] for body in ends)


def test_an_asked_for_snapshot_mends_a_copy_that_went_wrong(shop: Shop) -> None:
    shop.run(TABLE, FILL)
    source = shop.start()
    drain(source, shop.log)
    shop.run("PRAGMA writable_schema = OFF", "DROP TRIGGER _databus_1_ad", "DELETE FROM t WHERE id < 10")
    shop.run("UPDATE _databus_state SET value = '1' WHERE name = 'nothing'")
    source.request_snapshot(["main.t"])
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["t"])
    with pytest.raises(UnknownSource, match=r"main\.nope.*main\.t"):
        source.request_snapshot(["main.nope"])


def test_a_snapshot_asked_for_is_not_forgotten_by_a_restart(shop: Shop) -> None:
    shop.run(TABLE, FILL)
    source = shop.start()
    drain(source, shop.log)
    source.request_snapshot(["main.t"])
    group = source.poll(0)  # its begin is yielded, and lost with the process
    assert group is not None
    source.close()
    again = drain(shop.start(), shop.log)
    assert [body["kind"] for body in controls_of(again)] == ["snapshot_begin", "snapshot_end"]


def test_a_reading_that_is_cancelled_ends_as_it_is_and_stays_so_over_a_restart(shop: Shop) -> None:
    shop.run(TABLE, FILL, "CREATE TABLE u(id INTEGER PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    source = shop.start(chunk_rows_max=5)
    drain(source, shop.log)
    rows, controls = len(shop.log.mirror().rows["main.t"]), len(controls_of(shop.log.groups))
    source.request_snapshot(["main.t", "main.u"])
    drain_until(source, shop.log, lambda: bool(shop.log.groups[-1].rows))
    source.cancel_snapshot(["main.t", "main.u"])
    drain(source, shop.log)
    (begin, end) = controls_of(shop.log.groups)[controls:]
    assert (begin["kind"], begin["source"], end["kind"]) == ("snapshot_begin", "main.t", "snapshot_end")
    assert (end["generation"], end["complete"]) == (begin["generation"], False)
    assert shop.log.groups[-1].commit.snapshots == {}
    source.close()
    shop.run("DELETE FROM t WHERE id > 20")
    again = drain(shop.start(), shop.log)
    assert controls_of(again) == [], "nothing of it is read, nor begun again"
    assert len(shop.log.mirror().rows["main.t"]) == rows - 20
    assert_identical(shop.path, shop.log, ["t", "u"])
    with pytest.raises(UnknownSource, match=r"main\.nope"):
        shop.opened[-1].cancel_snapshot(["main.nope"])


def test_never_means_only_changes_but_a_table_that_comes_later_is_read(shop: Shop) -> None:
    shop.run(TABLE, FILL)
    source = shop.start(snapshot="never")
    assert controls_of(drain(source, shop.log)) == []
    shop.run("CREATE TABLE later(id INTEGER PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    drain(source, shop.log)
    assert shop.log.mirror().rows["main.later"] == {(1,): {"id": 1}}
    assert "main.t" not in shop.log.mirror().rows


def test_a_busy_writer_does_not_starve_a_snapshot(shop: Shop) -> None:
    shop.run(TABLE, FILL)
    stop = threading.Event()

    def write() -> None:
        db = sqlite3.connect(shop.path, isolation_level=None, timeout=60)
        while not stop.is_set():
            db.execute("UPDATE t SET v = v + 1 WHERE id = 5")
        db.close()

    writer = threading.Thread(target=write)
    source = shop.start(chunk_rows_max=7)
    writer.start()
    try:
        drain_until(source, shop.log, lambda: any(b["kind"] == "snapshot_end" for b in controls_of(shop.log.groups)))
    finally:
        stop.set()
        writer.join()
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["t"])


def test_rowids_given_anew_by_vacuum_do_not_make_a_reading_skip_rows(shop: Shop) -> None:
    shop.run("CREATE TABLE k(x INTEGER)")
    for i in range(1, 41):
        shop.db.execute("INSERT INTO k(rowid, x) VALUES (?, ?)", (i * 10, i))
    source = shop.start(chunk_rows_max=10)
    while not any(group.rows for group in shop.log.groups):
        shop.log.append(source.poll(0))
    shop.run("VACUUM")
    drain(source, shop.log)
    rows = shop.log.mirror().rows["main.k"].values()
    assert sorted(row["x"] for row in rows) == list(range(1, 41))


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_key_of_another_collation_is_read_from_its_beginning(shop: Shop, restarted: bool) -> None:
    shop.run("CREATE TABLE w(k TEXT COLLATE NOCASE PRIMARY KEY) WITHOUT ROWID")
    words = sorted(f"{letter}{i:02}" for i, letter in enumerate("aBcDeFgHiJkLmNoPqRsTuVwX"))
    shop.db.executemany("INSERT INTO w VALUES (?)", [(word,) for word in words])
    source = shop.start(chunk_rows_max=5)
    while sum(len(group.rows) for group in shop.log.groups) < 2:
        shop.log.append(source.poll(0))
    if restarted:
        source.close()
    shop.run(
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'NOCASE', 'BINARY') WHERE name = 'w'",
        "PRAGMA writable_schema = RESET",
        "REINDEX w",
        "VACUUM",
    )
    if restarted:
        source = shop.start(chunk_rows_max=5)
    drain(source, shop.log)
    last = max(
        at for at, group in enumerate(shop.log.groups) if group.control and group.control.kind == "snapshot_begin"
    )
    read = [key for group in shop.log.groups[last:] for rows in group.rows for key in rows.batch["k"].to_pylist()]
    assert sorted(read) == words


def test_nothing_waits_for_an_idle_source(shop: Shop) -> None:
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log)
    assert source.lag().changes == 0
    assert source.poll(0) is None


def test_what_waits_while_nobody_polls_has_an_age_that_the_source_does_not_know(shop: Shop) -> None:
    """As while capture is paused: it is not 0."""
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log)
    assert (source.lag().behind_ms, source.lag().changes) == (0.0, 0)
    shop.run("INSERT INTO t VALUES (1000, 1)")
    assert (source.lag().behind_ms, source.lag().changes) == (None, 1)
