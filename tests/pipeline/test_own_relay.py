"""The pipeline's own relay lives exactly as long as the pipeline does; its state belongs to one process at a time."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from databus.client import windows
from databus.core import ConfigError, LockHeld, ServiceUnavailable
from databus.disk import FolderLock
from databus.link import RelayClient
from databus.pipeline import load_pipeline
from databus.pipeline.graph._state import StateLock
from databus.pipeline.running._own_relay import OwnRelay
from tests.certificates import Authority
from tests.client.conftest import wait_for

WAIT_S = 60.0
FILE = """
name: gen
sources: {gen: {type: mock, transactions_total: 10}}
inputs: {gen: {type: databus}}
outputs: {n: {type: mock, from: gen}}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(FILE)
    return load_pipeline(path).config


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_database_that_another_log_owns_is_not_waited_for_as_one_that_is_away_is(tmp_path):
    """`run --once` says whose it is, and how to take it over, in seconds: no waiting changes that."""
    relays = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "databus.yml").write_text(
            "{name: p, sources: {shop: {type: sqlite, path: ../shop.db}}, inputs: {i: {type: databus}}, "
            "outputs: {n: {type: mock, from: i}}, run: {start_ms_max: 600_000}}"
        )
        relays.append(OwnRelay(load_pipeline(folder / "databus.yml").config, lambda: None))
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = wal")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    for relay in relays:
        relay.start()
        try:
            relay.wait_until_caught_up(threading.Event())  # for ten minutes, and so for longer than a test may take
            (state,) = relay.states()
        finally:
            relay.stop()
    assert state["error"] == "LockHeld"
    assert "--take-over" in state["message"]


def test_it_has_caught_up_once_it_holds_what_was_committed_before(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = wal")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        (tmp_path / "databus.yml").write_text(
            "sources: {shop: {type: sqlite, path: shop.db}}\ninputs: {shop: {type: databus}}\n"
            "outputs: {copy: {type: files, from: shop, path: out}}\n"
        )
        config = load_pipeline(tmp_path / "databus.yml").config
        relay = OwnRelay(config, lambda: None)
        relay.start()
        try:
            for number in range(10):
                db.execute("INSERT INTO t VALUES (?)", (number,))
                relay.wait_until_caught_up(threading.Event())
                with windows(relay.url, follow=False) as held:
                    tables = [table for batch in held.batches(rows_max=100) for table in batch.tables().values()]
                assert {id_ for table in tables for id_ in table.column("id").to_pylist()} == {*range(number + 1)}
        finally:
            relay.stop()


def test_what_waits_in_a_database_s_log_is_waited_for_also_while_nothing_comes(config, monkeypatch):
    """MySQL tells bytes of its log, and no changes; on a busy machine it takes its time until the first one comes."""
    monkeypatch.setattr("databus.pipeline.running._own_relay._LAG_S", 0.05)
    relay, began, bytes_left = OwnRelay(config, lambda: None), time.monotonic(), []
    state = {"name": "shop", "state": "RUNNING", "SCN": 9, "lagIsNew": True, "lagChanges": None, "error": None}

    def states():
        bytes_left.append(500 if time.monotonic() < began + 0.3 else 0)
        return [{**state, "lagBytes": bytes_left[-1], "snapshots": [], "snapshotRows": 0}]

    monkeypatch.setattr(relay, "_states_if_there", states)
    assert relay.wait_until_caught_up(threading.Event())
    assert bytes_left[-1] == 0


def test_whoever_waited_in_vain_learns_of_it(tmp_path, monkeypatch):
    (tmp_path / "databus.yml").write_text(
        "sources: {shop: {type: sqlite, path: shop.db}}\ninputs: {shop: {type: databus}}\n"
        "outputs: {copy: {type: files, from: shop, path: out}}\nrun: {start_ms_max: 1000}\n"
    )
    relay = OwnRelay(load_pipeline(tmp_path / "databus.yml").config, lambda: None)
    state = {"name": "shop", "state": "RUNNING", "SCN": 9, "lagIsNew": True, "lagChanges": None, "error": None}
    monkeypatch.setattr(
        relay, "_states_if_there", lambda: [{**state, "lagBytes": 500, "snapshots": [], "snapshotRows": 0}]
    )
    assert not relay.wait_until_caught_up(threading.Event())


def test_it_answers_when_start_returns_and_is_gone_when_stop_does(config):
    deaths = []
    relay = OwnRelay(config, lambda: deaths.append(1))
    relay.start()
    pid = relay.pid
    try:
        assert relay.states()[0]["name"] == "gen"
        wait_for(lambda: RelayClient(relay.url).sources(), "its tables")
    finally:
        relay.stop()
    assert not is_alive(pid)
    assert deaths == []


def test_with_a_certificate_it_is_asked_by_https(tmp_path):
    authority = Authority(tmp_path)
    authority.sign("relay")
    tls = "relay: {tls: {certificate_file: relay.pem, key_file: relay.key}, ca_file: ca.pem}\n"
    (tmp_path / "databus.yml").write_text(FILE + tls)
    config = load_pipeline(tmp_path / "databus.yml").config
    relay = OwnRelay(config, lambda: None)
    try:
        relay.start()
        assert relay.url.startswith("https://127.0.0.1:")
        assert relay.states()[0]["name"] == "gen"
    finally:
        relay.stop()


def test_a_certificate_that_its_pipeline_does_not_trust_is_told_at_once(tmp_path):
    Authority(tmp_path).sign("relay")
    tls = "relay: {tls: {certificate_file: relay.pem, key_file: relay.key}}\n"
    (tmp_path / "databus.yml").write_text(FILE + tls)
    relay = OwnRelay(load_pipeline(tmp_path / "databus.yml").config, lambda: None)
    with pytest.raises(ConfigError, match="nobody that this machine trusts has signed its certificate"):
        relay.start()
    pid = relay.pid
    relay.stop()
    assert not is_alive(pid)


def test_a_port_in_use_is_named_within_seconds_and_not_tried_for_a_minute(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "databus.yml").write_text(f"{FILE}relay: {{listen: '127.0.0.1:{port}'}}\n")
        relay = OwnRelay(load_pipeline(tmp_path / "databus.yml").config, lambda: None)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*stop it, or write another port here"):
            relay.start()
        relay.stop()


def test_a_log_that_the_relay_before_it_still_owns_is_waited_for(config, monkeypatch):
    """After kill -9 of a pipeline its relay may take its time. A refusal has the exit code of a wrong file, after which
    nothing would start the pipeline again.
    """
    monkeypatch.setattr("databus.pipeline.running._own_relay._LET_GO_S_MAX", 0.0)
    config.relay_folder.mkdir(parents=True)
    before = FolderLock.take(config.relay_folder)
    looks, was_held = [], FolderLock.is_held

    def is_held(folder):
        if len(looks) == 3:
            before.release()
        looks.append(was_held(folder))
        return looks[-1]

    monkeypatch.setattr("databus.pipeline.running._own_relay.FolderLock.is_held", is_held)
    relay = OwnRelay(config, lambda: None)
    try:
        relay.start()
        assert relay.states()[0]["name"] == "gen"
    finally:
        relay.stop()
    assert looks == [True, True, True, False]


def test_a_log_that_another_relay_owns_for_good_is_refused_and_named(config, monkeypatch):
    monkeypatch.setattr("databus.pipeline.running._own_relay._OWNED_S_MAX", 0.1)
    monkeypatch.setattr("databus.pipeline.running._own_relay._LET_GO_S_MAX", 0.0)
    config.relay_folder.mkdir(parents=True)
    owner = FolderLock.take(config.relay_folder)
    with pytest.raises(ConfigError, match=f"refuses to start:\n.*owned by process {os.getpid()} "):
        OwnRelay(config, lambda: None).start()
    owner.release()


def test_its_death_is_told_and_a_restart_keeps_the_address(config):
    deaths = []
    relay = OwnRelay(config, lambda: deaths.append(1))
    relay.start()
    try:
        url = relay.url
        os.kill(relay.pid, signal.SIGKILL)
        wait_for(lambda: deaths, "its death")
        relay.restart()
        assert relay.url == url
        assert relay.states()[0]["name"] == "gen"
    finally:
        relay.stop()


def test_it_ends_by_itself_when_the_pipeline_is_killed(config):
    code = (
        "import sys, time; from databus.pipeline import load_pipeline\n"
        "from databus.pipeline.running._own_relay import OwnRelay\n"
        "relay = OwnRelay(load_pipeline(sys.argv[1]).config, print); relay.start()\n"
        "print(relay.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(config.path)], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not is_alive(pid), "its end")


def test_one_that_does_not_start_says_why(config):
    (config.relay_folder.parent).mkdir(parents=True, exist_ok=True)
    config.relay_folder.write_text("a file where the folder should be")
    config.sections.run.start_ms_max = 2_000
    config.state.mkdir(parents=True, exist_ok=True)
    (config.state / "relay.log").write_text("what the relay of the run before said\n")
    with pytest.raises(ServiceUnavailable, match="did not start within start_ms_max=2000; if") as raised:
        OwnRelay(config, lambda: None).start()
    assert "give it more time by `run.start_ms_max`" in str(raised.value)
    assert "the run before" not in str(raised.value)


def test_what_it_is_told_comes_as_it_was_and_no_file_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "${not a reference}")
    source = "type: sqlite, path: 'gone/${SECRET}.db'"
    (tmp_path / "databus.yml").write_text(FILE.replace("type: mock, transactions_total: 10", source))
    config = load_pipeline(tmp_path / "databus.yml").config
    relay = OwnRelay(config, lambda: None)
    relay.start()
    try:
        wait_for(lambda: "gone/${not a reference}.db" in relay.states()[0]["message"], "its error")
    finally:
        relay.stop()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "relay.log"]
    assert [path for path in kept if b"${not a" in path.read_bytes()] == []


def test_a_second_pipeline_on_the_same_state_is_refused_and_named(tmp_path):
    first, second = StateLock(tmp_path / "state", "shop"), StateLock(tmp_path / "state", "shop")
    first.take()
    with pytest.raises(LockHeld, match=f"the pipeline shop runs already, as .*{os.getpid()}"):
        second.take()
    assert json.loads((tmp_path / "state" / "lock").read_text())["pid"] == os.getpid()
    first.release()
    second.take()
    second.release()
