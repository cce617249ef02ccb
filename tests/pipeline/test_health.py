"""What a running pipeline answers over HTTP while something it asks does not answer, or its database cannot be read."""

import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from databus.pipeline import unwell
from databus.pipeline.checks._validate import load_pipeline
from databus.pipeline.running._health import HealthServer, render_pipeline_metrics
from databus.pipeline.running._published import Published
from databus.relay import Tokens
from tests.client.conftest import wait_for

WAIT_S = 60
PIPELINE = """\
name: shop
sources: {shop: {type: mock}, crm: {type: mock}}
inputs: {shop: {type: databus}}
outputs: {copy: {type: files, from: shop, path: "out/{physical}/{table}"}}
"""


def get(url: str, token: str = "") -> tuple[int, str]:
    address = urlsplit(url)
    with closing(HTTPConnection(address.netloc, timeout=WAIT_S)) as connection:
        connection.request("GET", address.path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.fixture
def blocked() -> Iterator[tuple[HealthServer, threading.Semaphore]]:
    """A server whose relay does not answer; the semaphore tells how many have asked."""
    asked, ends = threading.Semaphore(0), threading.Event()

    def status(asks_relay: bool) -> dict[str, Any]:
        if asks_relay:
            asked.release()
            ends.wait()
        return {"sources": {}, "outputs": {}}

    server = HealthServer("127.0.0.1", 0, Tokens(None, tuple), status)
    server.start()
    yield server, asked
    ends.set()
    server.stop()


def test_a_relay_that_does_not_answer_keeps_no_probe_waiting(blocked):
    server, asked = blocked
    for _ in range(8):
        threading.Thread(target=get, args=(f"{server.url}/metrics",), daemon=True).start()
    for _ in range(4):
        assert asked.acquire(timeout=WAIT_S)
    assert get(f"{server.url}/admin/live") == (200, "GOOD\n")
    assert get(f"{server.url}/admin/ready") == (200, "GOOD\n")


@pytest.fixture
def published(tmp_path: Path) -> Published:
    path = tmp_path / "databus.yml"
    path.write_text(PIPELINE)
    return Published(load_pipeline(path).config, None)


def test_a_source_that_the_own_relay_cannot_capture_is_not_well_until_it_can(published):
    said = {"name": "shop", "status": "suspended", "state": "SUSPENDED_ON_ERROR", "message": "Access denied"}
    other = {"name": "crm", "status": "running", "state": "RUNNING", "message": ""}
    published.sources([said, other], "")
    status = published.status(asks_relay=False)
    assert unwell(status) == ["source shop: suspended: Access denied"]
    metrics = render_pipeline_metrics(status).decode()
    assert 'databus_pipeline_source_captured{source="shop"} 0.0' in metrics
    assert 'databus_pipeline_source_captured{source="crm"} 1.0' in metrics
    published.sources([], "Connection refused")
    away = published.status(asks_relay=False)
    assert unwell(away) == ["relay: does not answer: Connection refused", "source shop: suspended: Access denied"]
    assert "databus_pipeline_relay_answers 0.0" in render_pipeline_metrics(away).decode()
    published.sources([{**said, "status": "running", "state": "RUNNING", "message": ""}, other], "")
    assert unwell(published.status(asks_relay=False)) == []


def test_a_token_is_replaced_while_the_pipeline_runs(tmp_path: Path):
    """As a relay's: whoever asks has one of the file's lines, as it is now; a file that is no good changes nothing."""
    path, file = tmp_path / "databus.yml", tmp_path / "token"
    old, new = "the-old-token", "the-new-token"
    relay = f"relay: {{url: 'http://127.0.0.1:1', token_file: {file}}}\n"
    path.write_text(PIPELINE.replace("sources: {shop: {type: mock}, crm: {type: mock}}\n", relay))
    file.write_text(f"{old}\n{new}\n")
    with Published(load_pipeline(path).config, "127.0.0.1:0") as published:
        url = published.status(asks_relay=False)["http"] + "/admin/live"
        assert [get(url, each)[0] for each in (old, new, "another-one")] == [200, 200, 401]
        file.write_text("short")
        file.write_text(new)
        wait_for(lambda: get(url, old)[0] == 401, "the end of the old token")
        assert get(url, new)[0] == 200
