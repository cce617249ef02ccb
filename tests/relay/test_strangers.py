"""Strangers: connections that say nothing, pages of other origins, and who did what."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from databus.core import ServiceUnavailable
from databus.link import RelayClient
from databus.relay import Relay, State
from databus.relay._audit import Audit
from tests.relay.support import WAIT_S, Database, ask, connect, get, order, post, published, scripted, until

TOKEN = "correct-horse-battery"  # noqa: S105 - a test's
STATE = ("pause", "unpause", "snapshot?tables=main.orders")


def address_of(relay: Relay) -> tuple[str, int]:
    host, _, port = relay.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has ended it."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# Connections that say nothing


@pytest.mark.parametrize("says", [b"", b"\r\n\r\n", b"GET /admin HTTP/1.1\r\nHost: localhost\r\nx: "])
def test_connections_that_ask_nothing_shut_nobody_out(tmp_path: Path, says: bytes) -> None:
    serve = {"connections_max": 20, "silent_max": 30}
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}, serve=serve) as relay, ExitStack() as stack:
        published(relay, "shop", 1)
        for _ in range(100):
            sock = stack.enter_context(socket.create_connection(address_of(relay), timeout=WAIT_S))
            sock.sendall(says)
        assert get(relay, "/admin").status == 200
        client = RelayClient(relay.url)
        assert client.head("shop").published.scn == 1
        with client.stream("shop", "beginning") as stream:
            assert [group.commit.last_scn for groups in stream for group in groups] == [1]


def test_a_connection_that_asks_nothing_is_closed_after_a_while_and_one_that_asked_is_not(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database()}, serve={"request_ms_max": 2_000}) as relay:
        asked = connect(relay)
        asked.request("GET", "/admin")
        asked.getresponse().read()
        with socket.create_connection(address_of(relay), timeout=WAIT_S) as silent:
            trickling = socket.create_connection(address_of(relay), timeout=WAIT_S)
            trickling.sendall(b"GET /admin HTTP/1.1\r\n")
            until(lambda: is_closed(silent) and is_closed(trickling), "they are closed")
            trickling.close()
        asked.request("GET", "/admin")
        assert asked.getresponse().status == 200
        asked.close()


def test_a_form_that_never_comes_whole_is_408_and_the_connection_ends(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database()}, serve={"request_ms_max": 2_000}) as relay:
        with socket.create_connection(address_of(relay), timeout=WAIT_S) as sock:
            sock.sendall(
                b"POST /sources HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\n\r\nv=2&"
            )
            received = b""
            while piece := sock.recv(65_536):
                received += piece
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b"request_ms_max=2000" in received


def test_beyond_connections_max_operators_are_answered_and_the_others_told_to_come_again(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database()}, serve={"connections_max": 5}) as relay:
        kept = [connect(relay) for _ in range(6)]
        for each in kept:
            each.request("GET", "/admin")
            each.getresponse().read()
        refused = get(relay, "/sources")
        assert (refused.status, refused.headers["x-dbus-error"]) == (429, "TooManyRequests")
        assert refused.headers["connection"] == "close"
        for path in ("/admin", "/admin/ready", "/metrics", "/controlSources/status"):
            assert get(relay, path).status == 200
        for each in kept:
            each.close()
        until(lambda: get(relay, "/sources").status == 200, "there is room again")


def test_who_has_no_token_keeps_no_connection(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    serve = {"connections_max": 5}
    with scripted(tmp_path, {"shop": Database()}, token_file="token", serve=serve) as relay:  # noqa: S106 - a path
        for _ in range(20):
            stranger = connect(relay)
            stranger.request("GET", "/admin")
            answer = stranger.getresponse()
            assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert get(relay, "/sources", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200


@pytest.mark.parametrize("more", [b"Content-Length: 100000\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_who_has_no_token_and_announces_a_form_shuts_nobody_out(tmp_path: Path, more: bytes) -> None:
    """After its answer, such a connection stays for a while, since the rest of the request may still come."""
    (tmp_path / "token").write_text(TOKEN)
    serve = {"connections_max": 5, "silent_max": 30}
    with (
        scripted(tmp_path, {"shop": Database()}, token_file="token", serve=serve) as relay,  # noqa: S106 - a path
        ExitStack() as stack,
    ):
        for _ in range(20):
            stranger = stack.enter_context(socket.create_connection(address_of(relay), timeout=WAIT_S))
            stranger.sendall(b"POST /stream HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n")
            assert stranger.recv(65_536).startswith(b"HTTP/1.1 401 ")
        assert get(relay, "/sources", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200


@pytest.mark.parametrize("line", [f"Authorization : Bearer {TOKEN}", f"Authorization: Bearer {TOKEN}\x01", "no header"])
def test_what_is_no_request_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str) -> None:
    """A token that was sent in the wrong way would stand there, and anybody could fill the disk."""
    (tmp_path / "token").write_text(TOKEN)
    with (
        scripted(tmp_path, {"shop": Database()}, token_file="token") as relay,  # noqa: S106 - a path
        socket.create_connection(address_of(relay), timeout=WAIT_S) as sock,
    ):
        sock.sendall(f"GET /admin HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n".encode())
        assert sock.recv(65_536).startswith(b"HTTP/1.0 400 ")
    assert not [record for record in caplog.records if record.exc_info]
    assert TOKEN not in caplog.text


# Pages of other origins


@pytest.fixture
def shop() -> Database:
    return Database(groups=[order(1)])


@pytest.fixture
def relay(tmp_path: Path, shop: Database) -> Iterator[Relay]:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        until(lambda: relay.captures["shop"].status.state is State.RUNNING)
        yield relay


@pytest.mark.parametrize("action", STATE)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_changes_something_is_done_by_post_only(relay: Relay, shop: Database, action: str, method: str) -> None:
    answer = ask(method, relay, f"/controlSources/{action}")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    if method == "GET":
        assert "curl -X POST" in answer.json["message"]
    assert relay.captures["shop"].status.state is State.RUNNING
    assert not shop.asked
    assert post(relay, f"/controlSources/{action}").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},  # <img src=...>, a form, a link
        {"Sec-Fetch-Site": "same-site"},  # a page of another port of this machine
        {"Origin": "http://evil.example"},
        {"Origin": "null"},  # a sandboxed frame
        {"Host": "evil.example:11115"},  # a name that was made to mean this machine
        {"Host": "0.0.0.0:11115"},
        {"Host": "[::1]evil.example"},
        {"Host": "[::1].evil.example:80"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
def test_a_page_of_another_origin_does_and_learns_nothing(relay: Relay, method: str, headers: dict[str, str]) -> None:
    for path in ("/controlSources/pause", "/config", "/stream?wait_ms=0", "/admin"):
        answer = ask(method, relay, path, headers)
        assert answer.status == 401, path
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert relay.captures["shop"].status.state is State.RUNNING


def test_whoever_types_the_address_into_a_browser_may_look(relay: Relay) -> None:
    assert get(relay, "/admin", headers={"Sec-Fetch-Site": "none"}).status == 200


def test_answers_cannot_be_loaded_as_scripts_or_pictures_of_another_page(relay: Relay) -> None:
    for path in ("/sources", "/config", "/stream?wait_ms=0", "/stream?output=frames&wait_ms=0", "/nothing", "/metrics"):
        answer = get(relay, path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert get(relay, "/sources", callback="steal").status == 400, "there is no JSONP"


# Who did what


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "relay" / "audit.jsonl").read_text().splitlines()]


def test_actions_are_written_down_with_who_when_and_what_came_of_them(tmp_path: Path) -> None:
    (tmp_path / "operators").write_text(TOKEN)
    who = {"Authorization": f"Bearer {TOKEN}", "x-dbus-client": "anna"}
    with scripted(tmp_path, {"shop": Database()}, token_file="operators") as relay:  # noqa: S106 - a path
        until(lambda: relay.captures["shop"].status.state is State.RUNNING)
        post(relay, "/controlSources/pause", headers=who, sources="shop")
        post(relay, "/controlSources/unpause", headers=who)
        post(relay, "/controlSources/snapshot", headers=who, tables="main.orders", where="id < 7")
        post(relay, "/controlSources/pause", headers=who, sources="shpo")
        get(relay, "/controlSources/status", headers=who)
        post(relay, "/controlSources/pause")
    found = entries(tmp_path)
    assert [(each["action"], each["asked"]) for each in found] == [
        ("pause", {"sources": ["shop"]}),
        ("unpause", {}),
        ("snapshot", {"tables": ["main.orders"], "where": "id < 7"}),
        ("pause", {"sources": ["shpo"]}),
    ]
    assert [each["result"].partition(":")[0] for each in found] == ["done", "done", "done", "UnknownSource"]
    assert {(each["who"]["client"], each["who"]["token"]) for each in found} == {("anna", "operators")}
    assert all(each["who"]["address"].startswith("127.0.0.1:") and each["at"] for each in found)
    assert TOKEN not in (tmp_path / "relay" / "audit.jsonl").read_text()


def test_the_audit_log_is_bounded_and_keeps_what_came_last(tmp_path: Path) -> None:
    audit = Audit(tmp_path, bytes_max=4_000)
    for number in range(200):
        audit.note("snapshot", {"client": "x" * 5_000}, {"tables": [f"t{number}"], "where": "y" * 5_000}, "done")
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8_000
    last = (tmp_path / "audit.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["asked"]["tables"] == ["t199"]


def test_an_action_that_cannot_be_written_down_is_done_and_the_failure_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted(tmp_path, {"shop": Database()}) as relay:
        until(lambda: relay.captures["shop"].status.state is State.RUNNING)
        (tmp_path / "relay" / "audit.jsonl").mkdir()
        assert post(relay, "/controlSources/pause").status == 200
        until(lambda: relay.captures["shop"].status.state is State.PAUSED)
    assert "not written to the audit log" in caplog.text


# Whether it lives, and whether it is ready


def test_a_relay_without_its_databases_lives_and_is_ready_once_a_log_can_be_served(tmp_path: Path) -> None:
    shop = Database(groups=[order(1)], identify_errors=[ServiceUnavailable("no route to it")] * 100_000)
    with scripted(tmp_path, {"shop": shop}) as relay:
        assert (get(relay, "/admin").status, get(relay, "/admin/live").status) == (200, 200)
        ready = get(relay, "/admin/ready")
        assert (ready.status, ready.body.splitlines()[0]) == (503, b"BAD")
        assert b"shop: ERROR_RETRY: ServiceUnavailable: no route to it" in ready.body
        shop.identify_errors.clear()
        until(lambda: get(relay, "/admin/ready", sources="shop").status == 200, "it is captured")
        assert get(relay, "/admin/ready").status == 200


def test_a_relay_lives_while_all_its_readers_are_busy(relay: Relay) -> None:
    """A probe that waited behind cold reads would have a busy relay restarted."""
    gate, busy = threading.Event(), threading.Semaphore(0)

    def read() -> None:
        busy.release()
        gate.wait(WAIT_S)

    for _ in range(4):
        relay._commands._small.submit(read)
    for _ in range(4):
        busy.acquire()
    try:
        for path in ("/admin", "/admin/live", "/admin/ready"):
            assert get(relay, path).status == 200
    finally:
        gate.set()


def test_a_path_with_a_line_feed_is_asked_for_the_token_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("correct-horse-1\n")
    with scripted(tmp_path, {"shop": Database()}, token_file="token") as relay:  # noqa: S106 - a path
        assert get(relay, "/sources%0A").status == 401
        assert get(relay, "/sources%0A", headers={"Authorization": "Bearer correct-horse-1"}).status == 404
