"""Which tables and columns outputs are made of, as a file tells, and as OpenLineage is told."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import pytest
from referencing import Registry, Resource

from databus.link import RelayClient
from databus.pipeline import load_pipeline, table_lineages
from databus.pipeline.running import _open_lineage
from databus.pipeline.running._open_lineage import OpenLineage
from databus.schema import Column
from databus.wire import Group
from tests.client.conftest import wait_for
from tests.commands import databus
from tests.dashboard.parts import wait_until
from tests.relay.support import ORDERS, Database, commit_of, order, published, rows_of, scripted

SPEC = Path(__file__).parent / "openlineage"
FORMATS = jsonschema.FormatChecker(["uuid"])
FORMATS.checks("date-time", ValueError)(lambda text: datetime.fromisoformat(text).tzinfo is not None)
FORMATS.checks("uri")(lambda text: urlsplit(text).scheme != "")
FILE = """\
name: shop
relay: {{url: '{url}'}}
inputs: {{rows: {{type: databus, tables: [shop/main.orders]}}}}
filters:
  big: {{type: where, from: rows, where: id > 5}}
  said: {{type: mask, from: big, hash: [name], salt: abcdefghijklmnop}}
  made:
    type: sql
    from: rows
    table: main.orders
    select: "SELECT id AS number, upper(name) || id AS label, 7 AS seven FROM orders WHERE id > 2"
  mine: {{type: python, from: made, function: "f.py:f"}}
outputs:
  copy: {{type: delta, from: said, mode: mirror, path: copy}}
  labels: {{type: delta, from: made, mode: mirror, path: labels}}
  own: {{type: delta, from: mine, mode: mirror, path: own}}
lineage: {{to: '{to}', namespace: here}}
"""


@contextmanager
def shop(folder):
    """A relay with one order, and the database that it captures."""
    database = Database()
    (folder / "f.py").write_text("def f(batch):\n    return batch\n")
    with scripted(folder / "relay", {"shop": database}) as relay:
        database.add(order(1))
        published(relay, "shop", 1)
        yield relay, database


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lineage")
    with shop(folder) as (relay, _):
        yield folder, relay.url


@pytest.fixture
def graph(world):
    return loaded(world, "lineage.jsonl")


def loaded(world, to):
    folder, url = world
    (folder / "databus.yml").write_text(FILE.format(url=url, to=to))
    return load_pipeline(folder / "databus.yml")


def test_columns_say_what_they_are_made_of_and_what_nobody_can_tell_is_unknown(world, graph):
    found = {each.output: each for each in table_lineages(graph, RelayClient(world[1]))}
    columns = {name: {each.name: each.origins for each in one.columns} for name, one in found.items()}
    assert columns["copy"] == {"id": ("id",), "name": ("name",)}
    assert columns["labels"] == {"number": ("id",), "label": ("id", "name"), "seven": ()}
    assert columns["own"] == {"number": None, "label": None, "seven": None}
    assert (found["copy"].filters, found["copy"].reads) == (("filters.big", "filters.said"), ("id", "name"))
    assert found["labels"].target == ("file", str(world[0] / "labels" / "orders"))
    said = databus("lineage", graph.config.path)
    assert "label" in said.stdout, said.stderr
    assert "unknown" in said.stdout
    told = json.loads(databus("lineage", graph.config.path, "--json").stdout)
    assert next(each for each in told if each["output"] == "own")["columns"][0]["from"] == "unknown"


def events_of(run):
    at_us = time.time_ns() // 1000
    outputs = ["copy", "labels", "own"]
    run.take({"event": "started", "outputs": outputs, "at_us": at_us})
    run.take({"event": "started", "outputs": outputs, "at_us": at_us})
    run.take({"event": "batch", "output": "copy", "changes": [{"kind": "schema"}], "at_us": at_us})
    run.take({"event": "failed", "outputs": ["own"], "message": "no room", "at_us": at_us})
    run.take({"event": "stopped", "failed": ["own"], "reasons": ["own: no room"], "at_us": at_us})


def test_each_output_is_a_job_that_starts_runs_fails_or_completes(graph, world):
    file = world[0] / "lineage.jsonl"
    with OpenLineage(graph) as run:
        events_of(run)
    told = [json.loads(line) for line in file.read_text().splitlines()]
    jobs = {}
    for each in told:
        assert each["job"]["namespace"] == "here"
        assert each["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        jobs.setdefault(each["job"]["name"], []).append((each["eventType"], each["run"]["runId"]))
    kinds = {name: [kind for kind, _ in found] for name, found in jobs.items()}
    assert kinds == {
        "shop.copy": ["START", "RUNNING", "COMPLETE"],
        "shop.labels": ["START", "COMPLETE"],
        "shop.own": ["START", "FAIL"],
    }
    assert all(len({run for _, run in found}) == 1 for found in jobs.values())
    label = next(each for each in told if each["job"]["name"] == "shop.labels")
    fields = label["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert [each["field"] for each in fields["label"]["inputFields"]] == ["id", "name"]
    assert label["inputs"][0]["facets"]["schema"]["fields"][0]["name"] == "id"
    own = next(each for each in told if each["job"]["name"] == "shop.own")
    assert "columnLineage" not in own["outputs"][0]["facets"]
    judge(told)


def judge(told):
    """By OpenLineage's own JSON schemas, each in the version that an event names."""
    schemas = [json.loads(file.read_text()) for file in SPEC.glob("*.json")]
    registry = Registry().with_resources([(each["$id"], Resource.from_contents(each)) for each in schemas])

    def check(url, value):
        jsonschema.Draft202012Validator({"$ref": url}, registry=registry, format_checker=FORMATS).validate(value)

    for event in told:
        check(event["schemaURL"], event)
        holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
        for name, facet in (each for holder in holders for each in holder["facets"].items()):
            check(facet["_schemaURL"], facet)
            check(facet["_schemaURL"].partition("#")[0], {name: facet})  # by the name that its schema gives it


def test_a_run_is_told_of_again_ten_minutes_after_it_was_told_of_last(graph, world):
    file, now_s = world[0] / "lineage.jsonl", [0.0]
    file.unlink(missing_ok=True)

    def told():
        lines = file.read_text().splitlines() if file.exists() else []
        return [(each["eventType"], each["job"]["name"].partition(".")[2]) for each in map(json.loads, lines)]

    started = [("START", "copy"), ("START", "labels")]
    with OpenLineage(graph, clock=lambda: now_s[0]) as run:
        run.take({"event": "started", "outputs": ["copy", "labels"], "at_us": 1})
        wait_until(lambda: told() == started)
        now_s[0] = 599.0
        run.take({"event": "batch", "output": "copy", "changes": [{"kind": "schema"}], "at_us": 2})
        wait_until(lambda: told() == [*started, ("RUNNING", "copy")])
        now_s[0] = 600.0
        wait_until(lambda: told() == [*started, ("RUNNING", "copy"), ("RUNNING", "labels")])
        now_s[0] = 1_199.0
        wait_until(lambda: told()[-1] == ("RUNNING", "copy"))
        run.take({"event": "batch", "output": "labels", "rows": 1, "at_us": 3})
        run.take({"event": "failed", "outputs": ["labels"], "message": "no room", "at_us": 4})
        wait_until(lambda: told()[-1] == ("FAIL", "labels"))
        now_s[0] = 10_000.0
        wait_until(lambda: told()[-1] == ("RUNNING", "copy"))
    assert told()[4:] == [("RUNNING", "copy"), ("FAIL", "labels"), ("RUNNING", "copy")]
    judge([json.loads(line) for line in file.read_text().splitlines()])


def test_a_schema_that_changed_is_told_as_it_is_now(tmp_path):
    more = replace(ORDERS, columns=(*ORDERS.columns, Column("born", "date")))
    with shop(tmp_path) as (relay, database), OpenLineage(loaded((tmp_path, relay.url), "lineage.jsonl")) as run:
        run.take({"event": "started", "outputs": ["copy"], "at_us": 1})
        file = tmp_path / "lineage.jsonl"
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        database.add(Group(commit_of(2, 1), (rows_of(more, 2, [{"id": 2, "name": "b", "born": None}]),)))
        published(relay, "shop", 2)
        run.take({"event": "batch", "output": "copy", "changes": [{"kind": "schema"}], "at_us": 2})
        wait_until(lambda: len(file.read_text().splitlines()) == 2)
    before, after = (json.loads(line) for line in file.read_text().splitlines())
    for side in ("inputs", "outputs"):
        names = [[each["name"] for each in told[side][0]["facets"]["schema"]["fields"]] for told in (before, after)]
        assert names == [["id", "name"], ["id", "name", "born"]]
    judge([before, after])


def test_who_takes_no_lineage_costs_events_and_nothing_else(world, monkeypatch):
    monkeypatch.setattr(_open_lineage, "_WAITING_MAX", 2)
    with OpenLineage(loaded(world, "http://127.0.0.1:9/lineage"), again_ms=10) as run:
        began = time.monotonic()
        events_of(run)
        assert time.monotonic() - began < 1
    assert run.dropped == 7
    assert "refused" in run.trouble


def test_an_address_that_is_away_for_a_while_gets_what_waits(world):
    heard, refuse = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(503 if refuse.is_set() else 201)
            self.end_headers()
            if not refuse.is_set():
                heard.append(json.loads(body))

        def log_message(self, *_):
            pass

    refuse.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/api/v1/lineage"
    with OpenLineage(loaded(world, address), again_ms=10) as run:
        run.take({"event": "started", "outputs": ["copy"], "at_us": 1})
        wait_for(lambda: run.trouble, "an address that refuses")
        refuse.clear()
        events_of(run)
    server.shutdown()
    assert (heard[0]["eventType"], heard[-1]["eventType"]) == ("START", "COMPLETE")
    assert (run.dropped, run.trouble) == (0, "")
