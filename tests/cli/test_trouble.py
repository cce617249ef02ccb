"""A source that is not captured, or a relay that is none, is said at once: silence would look like a quiet database."""

import json
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import yaml

from databus.core import ServiceUnavailable
from databus.pipeline import compare, load_pipeline
from databus.testing import RelayProcess
from tests.commands import databus, failed

SUSPENDED = {"type": "mysql", "hosts": ["127.0.0.1"], "user": "u", "password_file": "nowhere.txt"}
GREETING = b"J\x00\x00\x00\x0a8.0.31\x00\x08\x00\x00\x00AAAAAAAA\x00\xff\xff\xff\x02\x00mysql_native_password\x00"


@contextmanager
def server_that_says(greeting: bytes) -> Iterator[int]:
    """A port where whoever connects is told this, and nothing more."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.sendall(greeting)
                held.append(connection)

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
    for connection in held:
        connection.close()


def test_a_port_of_a_database_is_named_as_no_relay():
    with server_that_says(GREETING) as port:
        said = failed(databus("tail", "--relay", f"http://127.0.0.1:{port}"), 2)
    assert "does not speak HTTP; is that the port of a database?" in said
    assert "mysql_native_password" not in said


def test_a_port_that_says_nothing_is_given_up_soon():
    with server_that_says(b"") as port:
        said = failed(databus("tail", "--relay", f"http://127.0.0.1:{port}"), 75)
    assert "no answer within 5 s" in said


@pytest.fixture
def suspended(tmp_path) -> Iterator[RelayProcess]:
    """A relay with a source that runs and one that stopped."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (1)")
    sources = {"shop": {"type": "sqlite", "path": str(path)}, "gone": SUSPENDED}
    with RelayProcess(tmp_path / "state", sources) as relay:
        yield relay


def act(relay: RelayProcess, action: str) -> None:
    url = f"{relay.url}/controlSources/{action}?sources=shop"
    urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60).close()  # noqa: S310 - our own relay


def test_tail_names_the_source_that_is_not_captured_and_shows_the_others(suspended):
    said = databus("tail", "--relay", suspended.url, "--from", "beginning", "-n", 2)
    assert said.returncode == 0
    assert "shop/main.orders" in said.stdout
    assert "gone: suspended, so no changes come now" in said.stderr
    assert "nowhere.txt" in said.stderr


def test_tail_of_one_source_leaves_the_trouble_of_others_out(suspended):
    said = databus("tail", "shop/*", "--relay", suspended.url, "--from", "beginning", "-n", 2)
    assert said.returncode == 0
    assert said.stderr == ""


def test_a_source_is_paused_and_resumed_and_says_why_it_is_not(suspended):
    def sources(*arguments):
        return databus("sources", *arguments, "--relay", suspended.url)

    assert sources("pause", "shop").stdout == "shop: paused\n"
    (state,) = json.loads(sources("pause", "shop", "--json").stdout)
    assert (state["name"], state["status"]) == ("shop", "paused")
    assert sources("resume", "shop").stdout == "shop: running\n"
    for verb, wished in (("pause", "paused"), ("resume", "running")):
        said = failed(sources(verb, "shop", "gone"), 3)
        assert f"gone: not {wished}: suspended: " in said
        assert "nowhere.txt" in said
    assert "--relay stands before pause" in failed(databus("sources", "--relay", suspended.url, "pause", "shop"), 2)
    assert "shpo" in failed(sources("pause", "shpo"), 2)


def test_a_snapshot_of_a_source_that_rests_says_what_it_waits_for(suspended):
    act(suspended, "pause")
    asked = databus("snapshot", "shop", "main.orders", "--relay", suspended.url)
    assert asked.stdout.startswith("shop: main.orders will be read again when the source is resumed; it is paused")
    assert "databus sources resume shop" in asked.stdout
    said = failed(databus("snapshot", "gone", "shop.orders", "--relay", suspended.url), 3)
    assert "nowhere.txt" in said
    assert "databus sources resume gone" in said


def test_tail_says_when_capture_is_paused_and_goes_on(suspended):
    with subprocess.Popen(
        [sys.executable, "-m", "databus.cli", "tail", "shop/*", "--relay", suspended.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tail:
        try:
            act(suspended, "pause")
            assert "shop: paused" in tail.stderr.readline()
            act(suspended, "unpause")
            assert tail.stderr.readline() == "shop: running again\n"
        finally:
            tail.terminate()


def test_compare_does_not_wait_for_a_capture_that_is_suspended(tmp_path):
    folder = tmp_path / "project"
    assert databus("init", folder).returncode == 0
    with RelayProcess(tmp_path / "state", {"shop": SUSPENDED}) as relay:
        value = yaml.safe_load((folder / "databus.yml").read_text())
        value["relay"] = {"url": relay.url}
        del value["sources"]
        (folder / "databus.yml").write_text(yaml.safe_dump(value))
        assert "the relay has captured no table yet" in failed(databus("compare", cwd=folder), 75)
        (folder / "relay.yml").write_text(yaml.safe_dump({"sources": {"shop": {"type": "sqlite", "path": "shop.db"}}}))
        said = failed(databus("compare", "databus.yml", "copy", "--relay-config", "relay.yml", cwd=folder), 3)
    assert "capture is suspended" in said
    assert "nowhere.txt" in said


def test_compare_gives_a_relay_no_longer_for_an_answer_than_it_waits_itself(tmp_path, monkeypatch):
    folder, limits = tmp_path / "project", []
    assert databus("init", folder).returncode == 0

    class Silent:
        def __init__(self, url, *, access, read_ms_max):
            limits.append(read_ms_max)

        def states(self):
            raise ServiceUnavailable("no answer")

        head = states

    monkeypatch.setattr("databus.link.RelayClient", Silent)
    state = folder / ".databus" / "relay"
    state.mkdir(parents=True)
    (state / "relay.json").write_text('{"url": "http://127.0.0.1:1"}')
    with pytest.raises(ServiceUnavailable, match="not compared"):
        compare(load_pipeline(folder / "databus.yml"), "copy", wait_ms_max=300)
    assert limits
    assert max(limits) <= 2_000
