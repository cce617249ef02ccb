"""`databus status` and the endpoints of `databus run`: what an operator can know of a running pipeline."""

import errno
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from databus.cli._app import app
from databus.core import PositionPurged
from databus.disk import disk_full
from databus.pipeline import load_pipeline
from databus.pipeline.graph._state import StateLock
from databus.pipeline.running._published import Published
from databus.pipeline.telling._status import write_status
from databus.relay import Relay, State, load_relay
from databus.testing.shop import create_shop
from tests.cli.terminal import WAIT_S
from tests.commands import databus, failed
from tests.relay.support import (
    Database,
    ScriptedSource,
    order,
    published,
    scripted,
    state_of,
    until,
    wait_for_state,
)

PIPELINE = """\
name: shop
spark: {master: "local[2]"}
run: {http: "127.0.0.1:0"}
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [shop/main.*]}}
outputs:
  copy: {type: files, from: shop, path: out}
  broken: {type: files, from: shop, path: in-the-way}
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A pipeline of two outputs, one of which cannot write: a file stands where its folder should be."""
    (tmp_path / "databus.yml").write_text(PIPELINE)
    create_shop(tmp_path / "shop.db", customers=40, products=30, orders=60, seed=7)
    (tmp_path / "in-the-way").write_text("")
    return tmp_path


@pytest.fixture
def running(project) -> Iterator[subprocess.Popen[bytes]]:
    with (project / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "databus.cli", "run"], cwd=project, stdout=said, stderr=said, start_new_session=True
        )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


def asked(project: Path) -> dict[str, Any]:
    answer = databus("status", "--json", cwd=project)
    return json.loads(answer.stdout) if answer.stdout else {"outputs": {}}


def wait_until(is_so: Callable[[dict[str, Any]], bool], project: Path) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while not is_so(found := asked(project)):
        assert time.monotonic() < deadline, (found, (project / "said").read_text()[-3000:])
        time.sleep(0.2)
    return found


def is_copied(found: dict[str, Any]) -> bool:
    """Whether `copy` has everything, and `broken` nothing."""
    outputs = found["outputs"]
    if not outputs or outputs["broken"]["state"] != "failed" or not outputs["copy"].get("backlog"):
        return False
    return outputs["copy"]["rows"] > 0 and all(each["rows"] == 0 for each in outputs["copy"]["backlog"])


def get(url: str) -> tuple[int, str]:
    address = urlsplit(url)
    with closing(HTTPConnection(address.netloc, timeout=30)) as connection:
        connection.request("GET", address.path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.spark
def test_a_failed_output_shows_everywhere_and_the_other_goes_on(project, running):
    found = wait_until(is_copied, project)
    (backlog,) = found["outputs"]["copy"]["backlog"]
    assert (backlog["physical"], backlog["held"], backlog["lag_s"]) == ("shop", True, 0.0)
    assert "in-the-way" in found["outputs"]["broken"]["message"]
    assert {each["lag_s"] for each in found["outputs"]["broken"]["backlog"]} <= {None}  # not since 1970
    (query,) = found["outputs"]["copy"]["queries"].values()
    (ledger,) = (project / "out").glob(".databus-*.ledger.json")
    positions = json.loads(ledger.read_text())["positions"]
    assert query["positions"] == {name: each["at"] for name, each in positions.items()}

    table = databus("status", cwd=project)
    assert re.search(r"^copy +running +[\d,]+ +0.0 s +0 +all of it$", table.stdout, re.M), table.stdout
    assert "broken: failed: " in failed(table, 1)

    url = found["http"]
    assert get(f"{url}/admin/live") == (200, "GOOD\n")
    code, text = get(f"{url}/admin/ready")
    assert (code, text.splitlines()[0]) == (503, "BAD")
    assert "broken: failed" in text
    metrics = get(f"{url}/metrics")[1]
    assert 'databus_output_state{output="broken",state="failed"} 1.0' in metrics
    assert 'databus_output_state{output="copy",state="running"} 1.0' in metrics
    assert 'databus_output_lag_rows{output="copy",physical="shop"} 0.0' in metrics
    assert 'databus_output_held{output="copy",physical="shop"} 1.0' in metrics

    databus("sources", "pause", "shop", "--relay", found["relay"], cwd=project)
    wait_until(lambda now: now["sources"]["shop"]["status"] == "paused", project)
    said = databus("status", cwd=project).stdout
    assert "source shop: paused; to continue capture: databus sources resume shop --relay " + found["relay"] in said

    running.send_signal(signal.SIGINT)
    assert running.wait(WAIT_S) == 2, "the code of the output that failed"
    assert "stopped; failed: broken" in (project / "said").read_text()
    assert (project / "said").read_text().splitlines()[-1].startswith("databus: broken: "), "the reason comes last"
    after = databus("status", cwd=project)
    assert after.stdout.startswith("shop does not run; its exit code was 2: broken: ")
    assert after.returncode == 1
    assert re.search(r"^copy +stopped ", after.stdout, re.M), after.stdout
    assert re.search(r"^broken +failed ", after.stdout, re.M), after.stdout


def test_a_pipeline_that_never_ran_has_no_status(project):
    assert "has never run here" in failed(databus("status", cwd=project), 2)


def test_a_run_whose_end_finds_no_room_on_the_disk_is_not_said_to_have_been_killed(project, monkeypatch) -> None:
    def no_room(path: Path, *_: object, **__: object) -> None:
        raise disk_full(path, OSError(errno.ENOSPC, "No space left on device"))

    config = load_pipeline(project / "databus.yml").config
    config.state.mkdir(parents=True)
    with Published(config, None) as told:
        write_status(config.state, told.status(asks_relay=False))
        monkeypatch.setattr("databus.pipeline.telling._status.replace_file", no_room)
        told.take({"event": "stopped", "code": 0, "reasons": [], "is_complete": False})
    after = databus("status", cwd=project)
    assert after.stdout.startswith(
        "shop does not run, and its last run left no exit code: it was killed, or ended by a second Ctrl-C, or its end "
        "could not be written, as where the disk is full. "
    )


def test_a_run_that_could_not_begin_was_not_killed(project) -> None:
    """Whoever looks later sees why, though the terminal that it was started from is closed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = project / "databus.yml"
        file.write_text(file.read_text() + f'relay: {{listen: "127.0.0.1:{port}"}}\n')
        refused = failed(databus("run", cwd=project), 2)
        after = databus("status", cwd=project)
    assert f"listen: 127.0.0.1:{port}" in refused
    assert after.stdout.startswith("shop does not run; its exit code was 2: the pipeline's own relay refuses to start")
    assert f"listen: 127.0.0.1:{port}" in after.stdout


FAR = """\
name: far
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: [shop/*]}}}}
outputs: {{copy: {{type: files, from: shop, path: out}}}}
"""


def said_here(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, in this process."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def shop() -> Database:
    return Database(groups=[order(1)])


@pytest.fixture
def relay_file(tmp_path: Path) -> Path:
    path = tmp_path / "relay.yml"
    path.write_text("listen: 127.0.0.1:0\nfolder: relay\nsources: {shop: {type: mock}}\n")
    return path


def suspended(relay: Relay, shop: Database) -> None:
    shop.fail(PositionPurged("shop: what comes next was purged"))
    wait_for_state(relay, State.SUSPENDED_ON_ERROR)


def test_a_relay_s_own_file_shows_its_sources_and_whether_it_runs(
    relay_file: Path, shop: Database, tmp_path: Path
) -> None:
    with Relay(load_relay(relay_file), open_source=lambda name, _: ScriptedSource(name, shop)) as relay:
        published(relay, "shop", 1)
        until(lambda: state_of(relay)["lagMs"] is not None)
        code, said, _ = said_here("status", relay_file)
        assert (code, said.splitlines()[0]) == (0, f"the relay answers at {relay.url}")
        assert re.search(r"^shop +running +0.0 s$", said, re.M), said
        suspended(relay, shop)
        code, said, wrong = said_here("status", relay_file)
        assert code == 1
        assert wrong == "source shop: suspended: shop: what comes next was purged\n"
        assert re.search(r"^shop +suspended ", said, re.M), said
        assert "source shop: suspended; do what the reason says, and start the relay again" in said
        assert json.loads(said_here("status", relay_file, "--json")[1])["sources"]["shop"]["status"] == "suspended"
    code, said, wrong = said_here("status", relay_file)
    assert (code, said) == (1, "the relay does not run\n")
    assert wrong == f"relay: does not answer: {tmp_path / 'relay'} names no address of one that runs\n"


def test_a_source_that_a_relay_elsewhere_does_not_capture_is_in_the_status_with_what_to_do(
    tmp_path: Path, shop: Database
) -> None:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        suspended(relay, shop)
        path = tmp_path / "databus.yml"
        path.write_text(FAR.format(url=relay.url))
        config = load_pipeline(path).config
        lock = StateLock(config.state, config.name)
        lock.take()
        try:
            with Published(config, None) as told:
                told.sources([state_of(relay)], "")
                write_status(config.state, told.status(asks_relay=False))
                code, said, wrong = said_here("status", path)
                assert (code, wrong) == (1, "source shop: suspended: shop: what comes next was purged\n")
                assert "source shop: suspended; do what the reason says, and start the relay again" in said
                told.sources([], "Connection refused")
                write_status(config.state, told.status(asks_relay=False))
                code, said, wrong = said_here("status", path)
                assert (code, wrong.splitlines()[0]) == (1, "relay: does not answer: Connection refused")
                assert re.search(r"^shop +suspended when the relay answered last +-$", said, re.M), said
        finally:
            lock.release()


def test_a_run_with_once_that_has_written_everything_counts_as_well_after_its_end(project: Path) -> None:
    (project / "in-the-way").unlink()  # so that each output has a place to write to
    path = project / "databus.yml"
    config = load_pipeline(path).config
    config.state.mkdir(parents=True)
    with Published(config, None) as told:
        told.take({"event": "stopped", "code": 0, "reasons": [], "is_complete": True})
    code, said, _ = said_here("status", path)
    assert code == 0
    assert re.match(
        r"shop ended at 20\d\d-.*\+00:00, with everything written that was there \(--once\)$", said.splitlines()[0]
    )
