"""What strangers and parts that misbehave try with a dashboard: rows and names of others, and everybody's time."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from databus.core import FatalError
from databus.dashboard import _operations as operations
from databus.dashboard import _server as server
from databus.dashboard import _watch as watch
from databus.dashboard import part_of_file, part_of_pipeline, part_of_relay
from databus.dashboard._board import Board
from databus.dashboard._watcher import Watcher
from databus.link import Access
from databus.pipeline.running import _commands as commands
from databus.pipeline.running import _shown as shown
from tests.dashboard.parts import WAIT_S, Pipeline, ask, wait_until
from tests.dashboard.running import MARK, Running, token_of
from tests.relay.support import ORDERS, Database, Group, commit_of, order, published, rows_of, scripted

RIGHTS = ["see", "rows", "control", "admin"]
PRINCIPALS = [
    {"name": "ann", "rights": RIGHTS},
    {"name": "sal", "rights": RIGHTS, "projects": ["sales"]},
    {"name": "con", "rights": ["see", "control", "admin"]},
    {"name": "eve", "rights": ["see"]},
]
SHOP = """\
name: shop
project: sales
relay: {{url: '{url}'}}
inputs: {{rows: {{type: databus, tables: [erp/main.orders]}}}}
outputs: {{copy: {{type: files, from: rows, path: out}}}}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A relay with sources of two projects, a pipeline that reads one of them, and a pipeline with its own source."""
    folder = tmp_path_factory.mktemp("strangers")
    databases = {"erp": Database(), "hr": Database()}
    sources = {"erp": {"type": "mock", "project": "sales"}, "hr": {"type": "mock", "project": "people"}}
    with scripted(folder / "relay", databases, sources=sources) as relay:
        for name, database in databases.items():
            database.add(order(1, f"of {name}"))
            published(relay, name, 1)
        (folder / "shop").mkdir()
        (folder / "shop" / "databus.yml").write_text(SHOP.format(url=relay.url))
        with Pipeline(folder / "shop") as shop, Pipeline(folder / "crm", "crm", "sales") as crm:
            parts = [part_of_file(shop.file), part_of_file(crm.file), ("erp", part_of_relay(relay.url, Access())[1])]
            with Running(folder / "dashboard", parts, PRINCIPALS) as running:
                wait_until(lambda: len(running.api("/status", token=token_of("ann"))[1]["sources"]) == 3)
                yield running, crm, databases


def test_a_source_of_another_project_is_not_read_through_one_s_own(world):
    running, _, databases = world
    for tables in ("hr/main.orders", "main.orders,hr/main.orders", "nobody/main.orders"):
        for method in ("POST", "DELETE"):
            body = {"reason": "x", "tables": tables}
            status, said, _ = running.api("/sources/erp/erp/snapshot", body, token=token_of("sal"), method=method)
            assert (status, "of another source" in said["message"]) == (400, True), said
    assert databases["hr"].asked == databases["hr"].cancelled == databases["erp"].asked == []


def test_only_what_a_pipeline_reads_is_traced_through_it(world):
    running, _, _ = world

    def trace(table: str) -> tuple[int, Any, Any]:
        asked = urlencode({"pipeline": "shop", "table": table, "key": "id=1", "since_s": 0})
        return running.api(f"/trace?{asked}", token=token_of("sal"))

    status, said, _ = trace("main.orders")
    assert (status, [each["after"]["name"] for each in said["changes"]]) == (200, ["of erp"])
    for table in ("hr/main.orders", "main.stock", "nothing"):
        status, said, _ = trace(table)
        assert (status, said["message"].partition("; ")[2]) == (400, "there are erp/main.orders")


def test_rows_of_megabytes_are_traced_with_their_verdicts_and_cut(world):
    running, _, databases = world
    for scn in range(2, 9):
        rows = rows_of(ORDERS, scn, [{"id": 700, "name": "x" * 3_000_000}])
        databases["erp"].add(Group(commit_of(scn, 1), (rows,)))
    asked = urlencode({"pipeline": "shop", "table": "main.orders", "key": "id=700", "since_s": 0})

    def traced() -> Any:
        status, said, _ = running.api(f"/trace?{asked}", token=token_of("ann"))
        assert status == 200, said
        return len(said["changes"]) == 7 and said

    said = wait_until(traced)
    assert {change["outputs"]["copy"]["verdict"] for change in said["changes"]} == {"not yet"}
    assert said["changes"][0]["after"]["name"] == f"{'x' * 2000}… (3,000,000 characters)"
    assert said["command"].endswith("/databus.yml main.orders id=700 --since earliest --spark")


def test_a_pipeline_s_graph_has_no_source_of_another_project(world):
    running, crm, _ = world
    state = {"name": "crm_db", "status": "running", "state": "RUNNING", "message": ""}

    def nodes(who: str) -> set[str]:
        return {each["id"] for each in running.api("/graph", token=token_of(who))[1]["nodes"]}

    try:
        crm.published.sources([{**state, "project": "people"}], "")
        wait_until(lambda: "crm/sources.crm_db" not in nodes("sal"))
        assert "crm/outputs.copy" in nodes("sal")
        assert "crm/sources.crm_db" in nodes("ann")
    finally:
        crm.published.sources([state], "")


def test_a_source_of_a_relay_that_is_a_part_too_is_shown_once_to_who_sees_it_there(tmp_path):
    sources = {"erp": {"type": "mock"}}
    with scripted(tmp_path / "relay", {"erp": Database()}, sources=sources) as relay:
        (tmp_path / "databus.yml").write_text(SHOP.format(url=relay.url))
        parts = [part_of_file(tmp_path / "databus.yml"), ("erp-relay", part_of_relay(relay.url, Access())[1])]
        with Pipeline(tmp_path) as shop, Running(tmp_path / "d", parts, PRINCIPALS) as running:
            shop.published.sources([{"name": "erp", "status": "running", "state": "RUNNING", "message": ""}], "")

            def nodes(who: str) -> list[str]:
                status = running.api("/status", token=token_of(who))[1]
                graph = running.api("/graph", token=token_of(who))[1]
                assert len(graph["edges"]) == 2
                return [source["node"] for source in status["sources"]]

            wait_until(
                lambda: all(watch.seen.status.get("sources") for watch in running.dashboard.board.watches.values())
            )
            wait_until(lambda: running.dashboard.board.watches["shop"].seen.graph)
            assert nodes("ann") == ["erp-relay/sources.erp"]
            assert nodes("sal") == ["shop/sources.erp"], "the relay has no project"


def test_who_may_not_see_rows_gets_none_with_what_comes_of_a_command(world, monkeypatch):
    running, crm, _ = world
    row = "crm_db/main.t: 'the 3rd of Ann' is no date"

    def fails(output: str, tables: Any) -> None:
        raise FatalError(row)

    monkeypatch.setattr(crm, "rebuild", fails)
    monkeypatch.setattr(commands, "steer_letters", lambda *_: {"refused": 1, "reasons": {row: 1}, "message": row})
    asked = {"reason": "x", "confirm": "crm_db/main.t"}
    for who, is_shown in (("con", False), ("ann", True)):
        token = {"token": token_of(who)}
        status, said, _ = running.api("/tables/crm/copy/crm_db%2Fmain.t/rebuild", asked, **token)
        assert (status, "3rd of Ann" in said["message"]) == (500, is_shown), said
        done = running.api("/letters/crm/hook/replay", {"reason": "x"}, **token)[1]
        assert (done["result"]["refused"], "3rd of Ann" in json.dumps(done)) == (1, is_shown)
        for path in ("/operations", f"/operations/{done['id']}"):
            assert ("3rd of Ann" in json.dumps(running.api(path, **token)[1])) == is_shown


def test_a_password_of_a_proxy_neither_stands_for_a_session_nor_keeps_one_open(world):
    running, _, _ = world
    cookie = running.api("/session", {"token": token_of("ann")})[2]["set-cookie"].partition(";")[0]
    assert str(urlsplit(running.url).port) in cookie, "another dashboard of this host has another one"
    basic = {"Authorization": "Basic eDp5"}
    assert running.api("/session", cookie=cookie, **basic)[1]["principal"]["name"] == "ann"
    headers = {"Cookie": cookie, **basic, **MARK}
    assert ask(running.url, "/api/v1/outputs/crm/copy/resume", {"reason": "x"}, headers=headers)[0] == 403
    assert running.api("/session", cookie=cookie, method="DELETE", **basic)[0] == 200
    assert running.api("/status", cookie=cookie)[0] == 401
    assert running.api("/status", Authorization=f"bearer {token_of('ann')}")[0] == 200


def test_what_is_no_origin_and_no_text_is_refused_with_a_sentence(world):
    running, _, _ = world
    for origin in ("http://[", "http://", "http://@", "//"):
        assert running.api("/status", token=token_of("ann"), Origin=origin)[0] == 403
    for reason in ("\ud800", "a\x9bb", "a\x7f"):
        body = {"reason": reason, "tables": "main.orders"}
        status, said, _ = running.api("/sources/erp/erp/snapshot", body, token=token_of("ann"))
        assert (status, said["message"]) == (400, "reason: has control characters in it")


def test_who_signs_in_often_or_wrongly_keeps_nobody_else_out(world):
    running, _, _ = world
    first = running.api("/session", {"token": token_of("ann")})[2]["set-cookie"].partition(";")[0]
    for _ in range(105):
        last = running.api("/session", {"token": token_of("eve")})[2]["set-cookie"].partition(";")[0]
    assert running.api("/status", cookie=first)[0] == running.api("/status", cookie=last)[0] == 200
    statuses = {running.api("/session", {"token": "guessed"})[0] for _ in range(31)}
    assert statuses == {401, 429}
    elsewhere = HTTPConnection(urlsplit(running.url).netloc, timeout=WAIT_S, source_address=("127.0.0.2", 0))
    headers = {"Content-Type": "application/json", **MARK}
    elsewhere.request("POST", "/api/v1/session", json.dumps({"token": token_of("ann")}), headers)
    assert elsewhere.getresponse().status == 200
    elsewhere.close()


def test_two_others_who_read_the_log_leave_commands_their_threads(world):
    running, _, _ = world
    for _ in range(2):
        assert shown._SCANNING.acquire(timeout=WAIT_S)
    try:
        assert running.api("/batches?pipeline=shop", token=token_of("eve"))[0] == 503
        assert running.api("/journal?pipeline=shop", token=token_of("eve"))[0] == 200
    finally:
        shown._SCANNING.release(2)
    assert running.api("/batches?pipeline=shop", token=token_of("eve"))[0] == 200


def test_what_is_reloaded_is_the_file_that_was_seen(world):
    running, crm, _ = world
    ann = {"token": token_of("ann")}
    seen = running.api("/config?pipeline=crm", **ann)[1]["hash"]
    body = {"reason": "x", "if_file": seen}
    assert running.api("/pipelines/crm/reload", body, **ann)[0] == 202
    crm.file.write_text(crm.file.read_text() + "# changed by somebody else\n")
    assert running.api("/pipelines/crm/reload", body, **ann)[0] == 412


@contextmanager
def silent() -> Iterator[str]:
    """A server that takes requests, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(WAIT_S)
            for each in taken:
                each.close()


def test_a_part_that_never_answers_says_so_and_keeps_nobody_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "UNSEEN_S", 0.5)
    monkeypatch.setattr(operations, "_WAIT_S", 0.1)
    with silent() as url, Pipeline(tmp_path) as shop:
        parts = [part_of_file(shop.file), ("hung", part_of_pipeline(url, Access())[1])]
        with Running(tmp_path / "dashboard", parts, PRINCIPALS) as running:
            ann = {"token": token_of("ann")}

            def unseen() -> str:
                told = running.api("/status", **ann)[1]["parts"]
                return next((each["unseen"] for each in told if each["name"] == "hung"), "")

            assert "no answer for" in wait_until(unseen)
            since = time.monotonic()
            found = running.api("/journal", **ann)[1]
            assert list(found["unanswered"]) == ["hung"]
            assert running.api("/audit?pipeline=hung", **ann)[0] == 503
            with ThreadPoolExecutor(9) as several:
                asked = list(
                    several.map(lambda _: running.api("/pipelines/hung/reload", {"reason": "x"}, **ann)[0], range(9))
                )
            assert sorted(asked) == [202] * 4 + [503] * 5
            assert running.api("/outputs/shop/copy/pause", {"reason": "x"}, **ann)[1]["state"] == "done"
            assert time.monotonic() - since < 9.0, "a look itself gives up after ten"


def test_parts_that_never_answer_do_not_hold_up_its_end(tmp_path):
    with silent() as url:
        running = Running(tmp_path, [(f"hung{each}", part_of_pipeline(url, Access())[1]) for each in range(10)])
        with running:
            since = time.monotonic()
        assert time.monotonic() - since < 10, "a second for each thread of them would be twenty"


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    """A server that answers the same to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "answer",
    [
        b'{"outputs": [1]}',
        b'{"outputs": {"x": {"state": "running", "rows": "many"}}}',
        b'{"outputs": {"x": {"state": "running", "rows": NaN}}}',
        b'{"outputs": {"x": {"state": "running", "last_batch_us": 1e999}}}',
        b'{"outputs": {"x": {"state": "running"}}, "nodes": [{"id": 1}]}',
        b'{"outputs": {"x": {"state": "running"}}, "edges": [{"to": "outputs.x"}]}',
    ],
    ids=str,
)
def test_a_part_that_answers_nonsense_is_the_end_of_nothing_else(tmp_path, answer):
    with answering(answer) as url, Pipeline(tmp_path) as shop:
        parts = [("junk", part_of_pipeline(url, Access())[1]), part_of_file(shop.file)]
        with Running(tmp_path / "dashboard", parts, PRINCIPALS) as running:
            ann = {"token": token_of("ann")}

            def seen() -> Any:
                status, told, _ = running.api("/status", **ann)
                assert status == 200, told
                (junk, other) = told["parts"]
                return junk["unseen"] and other["seen_us"] and junk

            assert any(each in wait_until(seen)["unseen"] for each in ("not what this version knows", "no JSON"))
            alerts = wait_until(lambda: running.api("/alerts", **ann)[1]["open"])
            assert {each["labels"].get("pipeline") for each in alerts} == {"junk"}
            assert running.api("/graph", **ann)[0] == 200


@pytest.mark.parametrize("more", [{"dead_letters": "many"}, {"backlog": [{"physical": "x", "rows": "many"}]}], ids=str)
def test_a_backlog_that_is_none_is_unknown_and_costs_nobody_an_alert(tmp_path, more):
    said = json.dumps({"outputs": {"x": {"state": "failed", **more}}}).encode()
    with (
        answering(said) as url,
        Running(tmp_path, [("junk", part_of_pipeline(url, Access())[1])], PRINCIPALS) as running,
    ):
        (output,) = running.wait_for_outputs(1, token_of("ann"))
        assert (output["lag_s"], output["lag_rows"], output["dead_letters"]) == (None, None, None)
        alerts = wait_until(lambda: running.api("/alerts", token=token_of("ann"))[1]["open"])
        assert [each["rule"] for each in alerts] == ["OutputNotWell"]


NONSENSE: dict[str, Any] = {
    "backlog": {"outputs": {"copy": {"backlog": [{"physical": "crm_db", "lag_s": "long"}]}}},
    "journal": {"events": [{"event": 5}]},
    "audit": {"entries": [{"at": "1", "action": "pause", "who": "ann", "asked": {}, "result": "done"}]},
    "letters": {"counts": [{"output": "copy", "table": "t", "count": "many"}], "letters": {}},
    "config": {"config": []},
    "trace": {"changes": [{"pair": 1}], "command": ""},
    "batches": {"chains": [{"output": "copy", "start": None}]},
    "lineage": {"tables": [{"output": "copy", "filters": None}]},
    "pause": {"outputs": float("inf")},
}
"""What a pipeline of no known version answers on its control socket, by verb."""


def test_whatever_is_answered_on_a_control_socket_is_shown_or_a_sentence(tmp_path, monkeypatch, caplog):
    answer, nonsense = commands.Commands.answer, dict(NONSENSE)

    def answered(self, verb, request, asker=""):
        return nonsense[verb] if verb in nonsense else answer(self, verb, request, asker)

    monkeypatch.setattr(commands.Commands, "answer", answered)
    with (
        Pipeline(tmp_path, "crm") as crm,
        Running(tmp_path / "dashboard", [part_of_file(crm.file)], PRINCIPALS) as running,
    ):
        ann = {"token": token_of("ann")}
        running.wait_for_outputs(2, token_of("ann"))
        trace = urlencode({"pipeline": "crm", "table": "main.t", "key": "id=1"})
        for path in ("/journal", "/audit", "/letters", "/lineage"):
            status, told, _ = running.api(path, **ann)
            assert status == 200
            assert "is not what this version knows" in told["unanswered"]["crm"], path
        of_one = ("/letters/rows?pipeline=crm", "/config?pipeline=crm", f"/trace?{trace}", "/batches?pipeline=crm")
        for path in of_one:
            status, told, _ = running.api(path, **ann)
            assert (status, "is not what this version knows" in told["message"]) == (503, True), path
        status, told, _ = running.api("/outputs/crm/copy/pause", {"reason": "x"}, **ann)
        assert (status, "Infinity is no JSON" in told["message"]) == (503, True)
        nonsense["status"] = {"outputs": {"copy": {"state": "running", "more": float("nan")}}}
        (part,) = wait_until(lambda: [each for each in running.api("/status", **ann)[1]["parts"] if each["unseen"]])
        assert "NaN is no JSON" in part["unseen"]
    assert [each.message for each in caplog.records if "defect" in each.message or each.exc_info] == []


def test_a_relay_that_answers_nonsense_is_a_sentence(tmp_path, caplog):
    for number, answer in enumerate((b"[1]", b'[{"name": "x", "lagMs": NaN}]', b'{"a": 1}', b"[" * 100_000)):
        with (
            answering(answer) as url,
            Running(tmp_path / str(number), [("erp", part_of_relay(url, Access())[1])], PRINCIPALS) as running,
        ):
            seen = partial(running.api, "/status", token=token_of("ann"))
            wait_until(lambda seen=seen: seen()[1]["parts"][0]["unseen"])
    assert [each.message for each in caplog.records if "defect" in each.message or each.exc_info] == []


FREE_TEXT = "mysql://root:hunter2@db/shop: token=hunter2, Authorization: Bearer hunter2; row 'Ann'"


def test_no_free_text_of_a_part_reaches_who_may_not_see_rows_nor_a_secret_anybody(tmp_path):
    said = {
        "state": "running", "relay_error": FREE_TEXT, "failure": FREE_TEXT, "doing": "",
        "reload": {"by": "SIGHUP", "problem": FREE_TEXT, "warnings": [FREE_TEXT]},
        "outputs": {"x": {"state": "failed", "error": "FatalError", "message": FREE_TEXT, "refused": {"t": FREE_TEXT}}},
        "sources": {"s": {"status": "retrying", "message": FREE_TEXT, "missingTables": [FREE_TEXT]}},
        "events": [{"at_us": 1, "event": "reload", "problem": FREE_TEXT}, {"at_us": 1, "event": "x", "new": FREE_TEXT}],
        "entries": [{"at": "1", "who": {}, "action": "x", "asked": {}, "result": f"FatalError: {FREE_TEXT}"}],
        "chains": [{"output": "x", "why_unknown": FREE_TEXT}], "problem": FREE_TEXT,
    }  # fmt: skip
    paths = (
        "/status",
        "/journal",
        "/audit",
        "/letters",
        "/lineage",
        "/alerts",
        "/batches?pipeline=x",
        "/journal?pipeline=y",
    )
    refused = {"error": "FatalError", "message": FREE_TEXT}
    with (
        answering(json.dumps(said).encode()) as up,
        answering(json.dumps(refused).encode(), 500) as down,
        Running(
            tmp_path, [(each, part_of_pipeline(url, Access())[1]) for each, url in (("x", up), ("y", down))], PRINCIPALS
        ) as running,
    ):
        wait_until(lambda: running.api("/status", token=token_of("ann"))[1]["outputs"])
        wait_until(lambda: running.api("/status", token=token_of("ann"))[1]["parts"][1]["unseen"])
        for path in paths:
            ann, eve = (json.dumps(running.api(path, token=token_of(who))[1]) for who in ("ann", "eve"))
            assert ("hunter2" in ann + eve, "Ann" in eve) == (False, False), path
        assert "row 'Ann'" in ann, "why a part does not answer, for whom it may be shown to"
        problem = running.api("/config?pipeline=x", token=token_of("con"))[1]["problem"]
        assert ("row 'Ann'" in problem, "hunter2" in problem) == (True, False)


def test_a_graph_that_goes_in_a_circle_and_lists_that_are_none_are_shown(tmp_path):
    node = {"id": "outputs.x", "kind": "output", "name": "x", "type": "files"}
    graph = {"nodes": [node], "edges": [{"from": "outputs.x", "to": "outputs.x"}]}
    lists = {"events": [1, {"at_us": "x"}, {"at_us": 1}], "entries": {"at": 1}, "counts": [[]], "tables": "none"}
    with answering(json.dumps({"outputs": {"x": {"state": "running"}}, **graph, **lists}).encode()) as url:
        parts = [("round", part_of_pipeline(url, Access())[1])]
        with Running(tmp_path, parts, PRINCIPALS) as running:
            ann = {"token": token_of("ann")}
            wait_until(lambda: running.api("/graph", **ann)[1]["edges"])
            assert running.api("/status", **ann)[1]["edges"] == []
            for path in ("/journal", "/audit", "/letters", "/lineage"):
                assert running.api(path, **ann)[0] == 200, path


def test_who_goes_away_has_an_alert_acknowledged_and_is_written_down(tmp_path, monkeypatch):
    with answering(b"{}x") as url:
        parts = [("junk", part_of_pipeline(url, Access())[1])]
        with Running(tmp_path, parts, PRINCIPALS) as running:
            ann = {"token": token_of("ann")}
            (alert, *_) = wait_until(lambda: running.api("/alerts", **ann)[1]["open"])
            begun = threading.Event()

            async def waits(_: Watcher) -> None:
                begun.set()
                await asyncio.sleep(WAIT_S)

            monkeypatch.setattr(Watcher, "save", waits)
            body = json.dumps({"reason": "quietly"})
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ann['token']}", **MARK}
            connection = HTTPConnection(urlsplit(running.url).netloc, timeout=WAIT_S)
            connection.request("POST", f"/api/v1/alerts/{alert['id']}/ack", body, headers)
            wait_until(lambda: running.api("/alerts", **ann)[1]["open"][0]["acked_by"] == "ann")
            connection.close()
            wait_until(lambda: "quietly" in json.dumps(running.api("/audit", **ann)[1]))


def kept(running: Running, who: str, address: str = "127.0.0.1") -> tuple[HTTPConnection, int]:
    """A connection that stays open, and how its first request was answered."""
    connection = HTTPConnection(urlsplit(running.url).netloc, timeout=WAIT_S, source_address=(address, 0))
    connection.request("GET", "/api/v1/graph", headers={"Authorization": f"Bearer {token_of(who)}"})
    answer = connection.getresponse()
    answer.read()
    return connection, answer.status


def test_connections_are_bounded_in_all_and_of_an_address_with_an_answer(tmp_path):
    with Running(tmp_path, [], PRINCIPALS, connections_max=3, address_connections_max=2) as running:
        ann = [kept(running, "ann") for _ in range(3)]
        assert [status for _, status in ann] == [200, 200, 429]
        others = [kept(running, "ann", "127.0.0.2"), kept(running, "ann", "127.0.0.3")]
        assert [status for _, status in others] == [200, 429]
        assert ask(running.url, "/")[0] == 200, "what is not about a session has a bound of its own"
        for connection, _ in (*ann, *others):
            connection.close()
        assert wait_until(lambda: kept(running, "ann")[1] == 200)


def test_who_only_connects_keeps_nobody_out_who_has_signed_in(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_SILENT_MAX", 10)
    with Running(tmp_path, [], PRINCIPALS) as running:
        known, _ = kept(running, "ann")
        address = urlsplit(running.url)
        silent = [socket.create_connection((address.hostname, address.port)) for _ in range(30)]
        wait_until(lambda: not is_open(silent[0]))
        assert kept(running, "ann")[1] == 200
        known.request("GET", "/api/v1/graph", headers={"Authorization": f"Bearer {token_of('ann')}"})
        assert known.getresponse().status == 200
        for each in silent:
            each.close()


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_who_does_not_read_an_answer_loses_the_connection_and_fills_no_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(server, "_WRITE_S_MAX", 0.2)
    monkeypatch.setattr(Board, "graph", lambda *_: {"nodes": ["x" * 1_000_000] * 20, "edges": []})
    with Running(tmp_path, [], PRINCIPALS) as running:
        address = urlsplit(running.url)
        with socket.create_connection((address.hostname, address.port)) as connection:
            token = f"Authorization: Bearer {token_of('ann')}"
            connection.sendall(f"GET /api/v1/graph HTTP/1.1\r\nHost: {address.netloc}\r\n{token}\r\n\r\n".encode())
            wait_until(lambda: running.dashboard._admitted)
            wait_until(lambda: all(each.is_closing() for each in running.dashboard._admitted))
        assert running.api("/session", token=token_of("ann"))[0] == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
