"""Kills, restarts, other databases, other relays, other writers: what is in the log stays right."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path

import pytest

from databus.client import windows
from databus.core import CRASH_POINTS, LockHeld, PositionPurged, ServiceUnavailable, SourceChanged
from databus.log import Resume
from databus.sources.sqlite import install, remove, status
from databus.testing import RelayProcess
from databus.wire import Commit, EncodedGroup, FrameParser, Group, OpenSnapshot, encode_group
from tests.sqlite.conftest import Shop
from tests.sqlite.model import (
    ModelLog,
    assert_identical,
    changes_of,
    drain,
    drain_until,
    kinds_of,
    make_source,
    resume_after,
)

FROM_A_COPY = r"captured into log log-.*was put back from a copy. Restore the file.*move the log's folder away"
TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER)"


def capture(path: str, file: str, *, until_idle: bool = True) -> None:
    """What a relay does, as a process that can be killed: groups as JSON lines, each fsynced, then told durable."""
    source = make_source(path, chunk_rows_max=2, trim_rows_max=4)
    source.identify()
    lines = Path(file).read_text().splitlines() if Path(file).exists() else []
    source.start(_resume_of([json.loads(line) for line in lines if line.endswith("]")]))
    with Path(file).open("a") as out:
        idle = 0
        while idle < 3 or not until_idle:
            group = source.poll(20)
            if group is None:
                idle += 1
                continue
            idle = 0
            out.write(json.dumps(_line_of(group)) + "\n")
            out.flush()
            os.fsync(out.fileno())
            source.durable(group.commit.position)
    source.close()


def _line_of(group: Group) -> list:
    c = group.commit
    commit = [c.scn, c.seq, c.txid, dict(c.position), {n: s.to_json() for n, s in c.snapshots.items()}]
    rows = [[r["_commit_version"], r["_seq"], r["_change_type"], r["id"], r["v"]] for r in changes_of([group])]
    control = None if group.control is None else dict(group.control.body)
    return [commit, rows, control]


def _resume_of(lines: list) -> Resume:
    if not lines:
        return Resume(log_id="log-1")
    scn, seq, txid, position, snapshots = lines[-1][0]
    opened = {name: OpenSnapshot.from_json(value) for name, value in snapshots.items()}
    return resume_after(Commit(scn, seq, txid, position, 0, opened))


def _replayed(lines: list) -> dict[int, int]:
    rows: dict[int, tuple[tuple[int, int], int | None]] = {}
    for _, images, control in lines:
        for scn, seq, kind, key, value in images:
            assert (scn, seq) > rows.get(key, ((0, 0), None))[0], "a pair came twice, or in another order"
            rows[key] = ((scn, seq), value if kind in (1, 3) else None)
        if control and control["kind"] == "snapshot_end":
            for key, (pair, _) in list(rows.items()):
                if pair < tuple(control["begin"]):
                    rows[key] = (pair, None)
    return {key: value for key, (_, value) in rows.items() if value is not None}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("point", [name for name in CRASH_POINTS if name.startswith("sqlite.")])
def test_killed_at_any_point_it_goes_on_without_loss_or_repetition(
    shop: Shop, tmp_path: Path, point: str, count: int
) -> None:
    shop.run(TABLE)
    shop.db.executemany("INSERT INTO t VALUES (?, 0)", [(i,) for i in range(10)])
    file = str(tmp_path / "groups")
    code = "import sys; from tests.sqlite.test_life import capture; capture(*sys.argv[1:], until_idle=False)"
    command = [sys.executable, "-c", code, shop.path, file]
    stop = threading.Event()

    def write() -> None:
        db = sqlite3.connect(shop.path, isolation_level=None, timeout=60)
        number = 0
        while not stop.is_set():
            number += 1
            db.execute("REPLACE INTO t VALUES (?, ?)", (number % 17, number))
            db.execute("DELETE FROM t WHERE id = ?", (number * 5 % 17,))
            stop.wait(0.01)
        db.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        killed = subprocess.run(
            command, env={**os.environ, "DATABUS_CRASH_AT": f"{point}:{count}"}, timeout=60, check=False
        )
    finally:
        stop.set()
        writer.join()
    assert killed.returncode == -signal.SIGKILL, "it never came past that point"
    capture(shop.path, file)
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    assert _replayed(lines) == dict(shop.db.execute("SELECT id, v FROM t"))


def test_another_relay_is_refused_and_the_first_is_named(shop: Shop) -> None:
    shop.run(TABLE)
    drain(shop.start(), shop.log)
    with pytest.raises(LockHeld, match=r"captured into log log-1, this is log log-2.*--take-over"):
        shop.start(Resume(log_id="log-2 /somewhere/else"))
    install(shop.path, take_over=True)
    shop.log = ModelLog(log_id="log-2")
    drain(shop.start(), shop.log)
    assert status(shop.path)["log"] == "log-2"


def test_starting_over_in_the_same_folder_reads_everything_again(tmp_path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO t VALUES (1), (2)")
    relay = RelayProcess(tmp_path / "state", {"shop": {"type": "sqlite", "path": str(path)}})
    seen = []
    for _ in range(2):
        with relay, windows(relay.url) as following:
            rows = (row.key for window in following for row in window.rows())
            seen.append(sorted(islice(rows, 2)))
        shutil.rmtree(relay.folder / "relay")
    assert seen == [[(1,), (2,)]] * 2


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("log-1 at /a on here", "log-2 at /b on here"),
        ("log-1 at /a on here", "log-2 at /a on elsewhere"),
        ("log-1 at /a", "log-2 at /a"),
        ("log-1", "log-2"),
    ],
)
def test_a_log_takes_no_place_but_that_of_one_in_its_own_folder_on_its_own_machine(shop: Shop, before, now) -> None:
    shop.run(TABLE)
    shop.log = ModelLog(log_id=before)
    drain(shop.start(), shop.log)
    with pytest.raises(LockHeld):
        shop.start(Resume(log_id=now))


def test_a_log_that_was_moved_is_known_by_its_new_folder_and_followed_there(shop: Shop) -> None:
    """A project was moved; later its state was removed."""
    shop.run(TABLE)
    shop.log = ModelLog(log_id="log-1 at /a on here")
    drain(shop.start(), shop.log)
    shop.log.log_id = "log-1 at /b on here"
    drain(shop.start(), shop.log)
    assert status(shop.path)["log"] == "log-1 at /b on here"
    shop.log = ModelLog(log_id="log-2 at /b on here")
    drain(shop.start(), shop.log)
    assert status(shop.path)["log"] == "log-2 at /b on here"


def test_a_log_that_goes_on_does_not_take_the_place_of_a_newer_one(shop: Shop) -> None:
    """The folder was put back from a copy: its log was followed by another, which has trimmed what this one needs."""
    shop.run(TABLE)
    shop.log = old = ModelLog(log_id="log-1 at /a on here")
    drain(shop.start(), shop.log)
    shop.log = ModelLog(log_id="log-2 at /a on here")
    drain(shop.start(), shop.log)
    with pytest.raises(SourceChanged, match=FROM_A_COPY):
        shop.start(old.resume())


def test_a_database_from_before_its_log_was_made_anew_is_told_from_one_that_another_relay_captures(
    shop: Shop, tmp_path: Path
) -> None:
    """Nobody else has it, so there is no relay to be stopped, nor anything to be taken over."""
    shop.run(TABLE)
    shop.log = ModelLog(log_id="log-1 at /a on here")
    drain(shop.start(), shop.log)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        shop.db.backup(copy)
        copy.execute("PRAGMA journal_mode = WAL")
    shop.log = ModelLog(log_id="log-2 at /a on here")
    drain(shop.start(), shop.log)
    restored = make_source(str(tmp_path / "copy.db"))
    shop.opened.append(restored)
    with pytest.raises(SourceChanged, match=FROM_A_COPY):
        restored.start(shop.log.resume())


def test_another_database_is_detected_by_its_cuts(make_shop) -> None:
    ours, other = make_shop("ours"), make_shop("other")
    for each in (ours, other):
        each.run(TABLE)
        drain(each.start(), each.log)
    with pytest.raises(SourceChanged, match="token"):
        other.start(ours.log.resume())


def test_a_database_restored_from_a_copy_is_detected(shop: Shop, tmp_path: Path) -> None:
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log)
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        shop.db.backup(copy)
    copy.execute("PRAGMA journal_mode = WAL")
    copy.close()
    shop.run("INSERT INTO t VALUES (1, 1)")
    drain(source, shop.log)
    restored = make_source(str(tmp_path / "copy.db"))
    shop.opened.append(restored)
    with pytest.raises(SourceChanged, match="no such cut"):
        restored.start(shop.log.resume())


def test_a_database_restored_under_a_running_source_is_detected(shop: Shop, tmp_path: Path) -> None:
    """In place, as `sqlite3 shop.db ".restore copy.db"` does; what it has then is neither read nor trimmed."""
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log)
    shop.run("INSERT INTO t VALUES (1, 1)")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        shop.db.backup(copy)
        shop.run("INSERT INTO t VALUES (2, 2)", "INSERT INTO t VALUES (3, 3)")
        drain(source, shop.log)
        source.durable(shop.log.groups[-1].commit.position)
        copy.backup(shop.db)
    shop.run("INSERT INTO t VALUES (4, 4)")
    with pytest.raises(ServiceUnavailable, match="restored"):
        drain(source, shop.log)
    assert shop.db.execute("SELECT count(*) FROM _databus_change").fetchone() == (2,)
    source.close()
    with pytest.raises(SourceChanged, match="restored"):
        shop.start()


def test_a_restored_database_is_detected_before_anybody_writes_to_it(shop: Shop, tmp_path: Path) -> None:
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        shop.db.backup(copy)
        shop.run("INSERT INTO t VALUES (1, 1)")
        drain(source, shop.log)
        copy.backup(shop.db)
    with pytest.raises(ServiceUnavailable, match="restored"):
        drain(source, shop.log)


def test_another_file_in_the_place_of_the_database_is_detected(shop: Shop, tmp_path: Path) -> None:
    """We have the old one open, to which nobody writes any more."""
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        shop.db.backup(copy)
    shop.run("INSERT INTO t VALUES (1, 1)")
    drain(source, shop.log)
    for end in ("", "-wal", "-shm"):
        Path(shop.path + end).unlink()
    (tmp_path / "copy.db").rename(shop.path)
    with pytest.raises(ServiceUnavailable, match="another file"):
        drain(source, shop.log)
    source.close()
    with pytest.raises(SourceChanged, match="restored"):
        shop.start()


def test_a_log_older_than_what_was_trimmed_is_told_so(shop: Shop) -> None:
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log)
    old = shop.log.resume()
    shop.run("INSERT INTO t VALUES (1, 1)")
    drain(source, shop.log)
    shop.run("INSERT INTO t VALUES (2, 1)")
    drain(source, shop.log)
    source.durable(shop.log.groups[-1].commit.position)
    drain(source, shop.log)
    source.close()
    with pytest.raises(PositionPurged, match="oldest is"):
        shop.start(old)


def test_changes_made_before_the_new_logs_first_group_was_kept_are_not_lost(shop: Shop) -> None:
    """The log is new, its first start was killed before it wrote anything; changes since that start are its own."""
    shop.run(TABLE)
    shop.start(snapshot="never").close()
    shop.run("INSERT INTO t VALUES (1, 1)")
    assert kinds_of(drain(shop.start(snapshot="never"), shop.log)) == [(1, {"id": 1, "v": 1})]


def test_trimming_takes_bounded_steps_and_only_what_is_safe(shop: Shop) -> None:
    shop.run(TABLE)
    source = shop.start(trim_rows_max=100, group_rows_max=50)
    drain(source, shop.log)
    for start in range(0, 1000, 50):
        shop.db.executemany("INSERT INTO t VALUES (?, 0)", [(i,) for i in range(start, start + 50)])
        drain(source, shop.log, 0)
    half = next(g for g in shop.log.groups if g.commit.position["change"] >= 500 and not g.commit.continues)
    source.durable(half.commit.position)
    kept = [shop.db.execute("SELECT count(*), min(id) FROM _databus_change").fetchone()]
    limit = time.monotonic() + 30
    while kept[-1][1] <= half.commit.position["change"] and time.monotonic() < limit:
        source.poll(0)
        kept.append(shop.db.execute("SELECT count(*), min(id) FROM _databus_change").fetchone())
    assert max(a[0] - b[0] for a, b in pairwise(kept)) <= 100
    assert kept[-1] == (1000 - half.commit.position["change"], half.commit.position["change"] + 1)
    source.close()
    log = ModelLog(groups=shop.log.groups[: shop.log.groups.index(half) + 1])
    rest = drain(shop.start(log.resume()), log)
    assert len(kinds_of(rest)) == 1000 - half.commit.position["change"]


def test_a_long_transaction_of_another_process_delays_but_stops_nothing(shop: Shop) -> None:
    shop.run(TABLE)
    source = shop.start(busy_ms_max=20)
    drain(source, shop.log)
    shop.run("INSERT INTO t VALUES (1, 1)", "BEGIN IMMEDIATE", "INSERT INTO t VALUES (2, 2)")
    assert source.poll(100) is None
    shop.run("COMMIT")
    assert [row["id"] for _, row in kinds_of(drain(source, shop.log))] == [1, 2]


def test_a_commit_is_noticed_without_waiting_for_the_poll(shop: Shop) -> None:
    """With a poll interval of ten minutes, the file event wakes it."""
    shop.run(TABLE)
    source = shop.start()
    drain(source, shop.log, 0)
    session = source._session
    assert session is not None
    watch, found, waits = session.watch, [], threading.Event()
    watch._poll_s = 600.0  # more than may be configured
    wait = watch.wait
    watch.wait = lambda deadline: (waits.set(), wait(deadline))[1]
    polling = threading.Thread(target=lambda: found.append(source.poll(600_000)), daemon=True)
    polling.start()
    assert waits.wait(60)
    shop.run("INSERT INTO t VALUES (1, 1)")
    polling.join(60)
    assert [group is not None for group in found] == [True]


def test_remove_leaves_the_database_as_it_was(shop: Shop) -> None:
    shop.run(TABLE)
    before = shop.db.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
    drain(shop.start(), shop.log)
    assert status(shop.path)["tables"] == ["main.t"]
    shop.opened[-1].close()
    remove(shop.path)
    assert status(shop.path)["installed"] is False
    left = shop.db.execute("SELECT type, name, sql FROM sqlite_schema WHERE name != 'sqlite_sequence'").fetchall()
    assert left == before
    shop.run("INSERT INTO t VALUES (1, 1)")


def test_installing_beforehand_captures_from_then_on_and_twice_changes_nothing(shop: Shop) -> None:
    shop.run(TABLE)
    install(shop.path)
    version = shop.db.execute("PRAGMA schema_version").fetchone()
    install(shop.path)
    assert shop.db.execute("PRAGMA schema_version").fetchone() == version
    shop.run("INSERT INTO t VALUES (1, 1)")
    drain(shop.start(), shop.log)
    assert_identical(shop.path, shop.log, ["t"])


def test_a_missing_file_is_unavailable_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailable, match="no such database file"):
        make_source(str(tmp_path / "none.db")).identify()
    assert not (tmp_path / "none.db").exists()


def test_groups_go_through_the_wire_and_come_back(shop: Shop) -> None:
    shop.run(TABLE, "INSERT INTO t VALUES (1, 1)")

    class Numbers:
        def number_of(self, table):
            return 1, 1

    source = shop.start()
    drain(source, shop.log)
    shop.run("UPDATE t SET v = 2", "ALTER TABLE t ADD COLUMN w TEXT DEFAULT 'x'")
    drain(source, shop.log)
    parser = FrameParser("test")
    found = []
    for group in shop.log.groups:
        encoded: EncodedGroup = encode_group(group, Numbers(), 0)
        for buffer in encoded.buffers:
            view = memoryview(buffer).cast("B")
            while view:
                space = parser.space()
                count = min(len(view), len(space))
                space[:count] = view[:count]
                view = view[count:]
                found += parser.received(count)
    assert [Commit.from_header(each.commit).pair for each in found] == [g.commit.pair for g in shop.log.groups]
    assert [f.batch for each in found for f in each.rows] == [r.batch for g in shop.log.groups for r in g.rows]


def test_a_process_that_writes_for_ever_is_followed(shop: Shop) -> None:
    shop.run(TABLE)
    code = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)\n"
        "for i in range(3000): db.execute('INSERT INTO t VALUES (?, ?)', (i, i))\n"
    )
    source = shop.start()
    writer = subprocess.Popen([sys.executable, "-c", code, shop.path])
    drain_until(source, shop.log, lambda: writer.poll() is not None)
    drain(source, shop.log)
    assert len(kinds_of(shop.log.groups)) + len(kinds_of(shop.log.groups, snapshot=True)) >= 3000
    assert_identical(shop.path, shop.log, ["t"])
