"""A running pipeline takes commands over HTTP as by its socket, shows what it is made of, and notes who wanted what."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from databus.core import FatalError, InputError, StateDiffers
from databus.pipeline import PipelineFile
from databus.pipeline.running._control import ask as ask_socket
from databus.pipeline.telling import reporting
from tests.commands import databus, failed
from tests.dashboard.parts import WAIT_S, Pipeline, ask, now_us, wait_until


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    with Pipeline(tmp_path, http="127.0.0.1:0") as made:
        yield made


def state_of(pipeline: Pipeline, output: str = "copy") -> str:
    return str(ask(pipeline.url, "/status/light")[1]["outputs"][output]["state"])


def test_an_output_is_paused_over_http_by_who_saw_it_running(pipeline):
    who = {"principal": "ann", "address": "10.0.0.7"}
    asked = {"outputs": ["copy"], "if_seen": {"copy": "running"}, "reason": "disk is full", "by": who}
    assert ask(pipeline.url, "/pause", asked)[:2][0] == 200
    assert state_of(pipeline) == "paused"
    status, said, _ = ask(pipeline.url, "/pause", asked)
    assert (status, said["error"]) == (412, "StateDiffers")
    assert "output copy was running when you looked, and is paused now. Nothing was done." in said["message"]
    entries = ask(pipeline.url, "/audit")[1]["entries"]
    assert [each["result"][:12] for each in entries] == ["StateDiffers", "done"]
    assert entries[1]["asked"] == {"outputs": ["copy"], "reason": "disk is full"}
    assert entries[1]["who"] == {"asker": "address 127.0.0.1", **who}


def test_the_socket_knows_the_same_and_says_who_asked(pipeline):
    state = pipeline.config.state
    with pytest.raises(StateDiffers):
        ask_socket(state, "resume", outputs=["copy"], if_seen={"copy": "failed"})
    ask_socket(state, "resume", outputs=["copy"], if_seen={"copy": "running"})
    with pytest.raises(InputError, match="did you mean"):
        ask_socket(state, "resume", outputs=["cop"])
    entries = ask_socket(state, "audit", limit=2)["entries"]
    assert [each["result"][:10] for each in entries] == ["InputError", "done"]
    assert entries[0]["who"]["asker"].startswith("process ")


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/pause", b"outputs=copy", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        ("/pause", b"outputs=copy", {"Content-Type": "text/plain"}, 400),
        ("/pause", b"[]", {"Content-Type": "application/json"}, 400),
        ("/pause", b'{"outputs": "copy"}', {"Content-Type": "application/json"}, 400),
        ("/pause", b"[" * 30_000, {"Content-Type": "application/json"}, 400),
        ("/pause", b"[" * 70_000, {"Content-Type": "application/json"}, 413),
        ("/pause", b"{}", {"Content-Type": "application/json", "Origin": "http://evil.example"}, 401),
        ("/pause", b"{}", {"Content-Type": "application/json", "Host": "evil.example"}, 401),
        ("/pause", None, {}, 405),
        ("/journal?limit=-1", None, {}, 400),
        ("/journal?limit=9999999", None, {}, 400),
    ],
)
def test_what_is_no_command_changes_nothing(pipeline, path, body, headers, status):
    assert ask(pipeline.url, path, body, headers=headers)[0] == status
    assert state_of(pipeline) == "running"


def test_a_pipeline_shows_its_graph_and_its_file_without_secrets(pipeline):
    graph = ask(pipeline.url, "/graph")[1]
    assert {each["id"] for each in graph["nodes"]} == {
        "sources.shop_db", "inputs.rows", "filters.big", "outputs.copy", "outputs.hook",
    }  # fmt: skip
    ways = {(each["from"], each["to"]) for each in graph["edges"]}
    assert {("sources.shop_db", "inputs.rows"), ("filters.big", "outputs.copy")} < ways
    shown = json.dumps(ask(pipeline.url, "/config")[1])
    assert "outputs" in shown
    assert "hunter2" not in shown


def test_no_secret_in_a_message_leaves_a_pipeline(tmp_path, monkeypatch):
    """Neither over HTTP, nor by the socket, the files or the commands; and what is no secret stays."""
    text = "no table main.t at mysql://root:hunter2@db/shop: token=hunter2; row 'Ann'"
    with Pipeline(tmp_path, http="127.0.0.1:0") as pipeline:
        at = {"query": pipeline._plans[0].name, "outputs": ["copy"], "at_us": now_us()}
        with reporting([pipeline.published.take], tmp_path / "events") as report:
            report({**at, "event": "failed", "error": "FatalError", "message": text})
            report({**at, "event": "refused", "output": "copy", "tables": {"shop_db/main.t": text}})
            report({**at, "event": "reload", "by": "SIGHUP", "problem": text})
        source = {"name": "shop_db", "status": "retrying", "state": "ERROR_RETRYING", "message": text, "error": "X"}
        pipeline.published.sources([{**source, "lagMs": None, "missingTables": [text]}], "")
        pipeline.published.sources([], text)

        def rebuild(*_: object) -> None:
            raise FatalError(text)

        monkeypatch.setattr(pipeline, "rebuild", rebuild)
        refused = ask(pipeline.url, "/rebuild", {"outputs": ["copy"], "tables": ["main.t"]})[1]
        with pytest.raises(FatalError) as by_socket:
            ask_socket(pipeline.config.state, "rebuild", outputs=["copy"], tables=["main.t"])
        status = pipeline.config.state / "status.json"  # it is written each second, and commands read it
        wait_until(lambda: status.exists() and "no table main.t" in status.read_text())
        said = [
            *(json.dumps(ask(pipeline.url, path)[1]) for path in ("/status/light", "/journal", "/audit")),
            ask(pipeline.url, "/admin/ready")[1],
            json.dumps(refused),
            str(by_socket.value),
            json.dumps(ask_socket(pipeline.config.state, "status")),
            (tmp_path / "events").read_text(),
            databus("status", cwd=tmp_path).stderr,
            databus("history", cwd=tmp_path).stdout,
        ]
    said.append((pipeline.config.state / "status.json").read_text())
    for shown in said:
        assert ("hunter2" in shown, "no table main.t at mysql://(hidden)@db/shop" in shown) == (False, True), shown


def test_what_runs_and_what_does_not_answer_the_same_questions(tmp_path):
    with Pipeline(tmp_path) as pipeline:
        file = PipelineFile(pipeline.file)
        pipeline.published.take({"event": "failed", "query": "q", "outputs": ["copy"], "message": "no", "at_us": 1})
        ask_socket(pipeline.config.state, "pause", outputs=["copy"])
        running = {verb: file.ask(verb) for verb in ("graph", "journal", "audit", "letters", "config")}
        assert file.ask("status")["state"] == "running"
        text = pipeline.file.read_text()
        for mistake in ("outputs: [", "outputs: {}", text.replace("name: shop", "name: other"), ""):
            pipeline.file.write_text(mistake)
            assert file.ask("status")["state"] == "running", mistake
        pipeline.file.write_text(text)
    assert file.ask("status")["state"] == "stopped"
    stopped = {verb: file.ask(verb) for verb in running}
    assert stopped == running
    assert running["journal"]["events"][0]["message"] == "no"
    with pytest.raises(InputError, match="does not run"):
        file.ask("pause")


def test_events_are_followed_over_http(pipeline):
    connection = HTTPConnection(urlsplit(pipeline.url).netloc, timeout=WAIT_S)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.readline() == b": follows\n"
    answer.readline()
    pipeline.batch(rows=5)
    assert answer.readline() == b"id: 1\n"
    assert answer.readline() == b"event: batch\n"
    assert json.loads(answer.readline().removeprefix(b"data: "))["rows"] == 5
    connection.close()


def test_outputs_are_throttled_from_the_command_line_until_they_are_resumed(tmp_path):
    with Pipeline(tmp_path) as pipeline:

        def throttle():
            return pipeline.published.status(asks_relay=False)["outputs"]["copy"]["throttle"]

        assert (
            databus("throttle", "copy", "--rows", "10", "--bytes", "4096", cwd=tmp_path).stdout == "copy: throttled\n"
        )
        assert throttle() == {"rows": 10, "bytes": 4096}
        assert "`rows` or `bytes`" in failed(databus("throttle", "copy", cwd=tmp_path), 2)
        databus("resume", "copy", cwd=tmp_path)
        assert throttle() == {}


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/throttle", {"outputs": ["copy"], "rows": 0}, "not a whole number"),
        ("/throttle", {"outputs": ["copy"], "bytes": True}, "not a whole number"),
        ("/throttle", {"outputs": ["nothing"], "rows": 1}, "no output called"),
        ("/rebuild", {"outputs": ["copy"]}, "expected names or patterns"),
        ("/rebuild", {"outputs": ["copy", "hook"], "tables": ["*"]}, "expected one name"),
        ("/rebuild", {"outputs": ["copy"], "tables": [1]}, "expected names or patterns"),
    ],
)
def test_what_cannot_be_steered_is_a_sentence(pipeline, path, body, why):
    status, said, _ = ask(pipeline.url, path, body)
    assert (status, why in said["message"]) == (400, True), said
