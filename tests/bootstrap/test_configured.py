"""The service's file, its pipeline's, the command line, and the relay that names it."""

import json
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from databus.bootstrap import load_bootstrap, run_bootstrap
from databus.cli._app import app
from databus.core import ConfigError, LockHeld, PositionPurged, SourceCheckpoint
from databus.link import RelayClient
from databus.pipeline import load_pipeline, validate, while_stopped
from databus.relay import Relay, parse_relay
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_service import TABLES

FILE = """
name: kept
relay: {url: "http://127.0.0.1:9", token_file: token}
bootstrap: {path: lake, tables: ["shop/main.*"], merge_ms: 500}
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("relay: {url: x}\nbootstrap: {path: lake}", "relay.url"),
        ("relay: {url: 'http://a:1'}\nbootstrap: {pth: lake}", "bootstrap.pth"),
        ("relay: {url: 'http://a:1'}\nbootstrap: {path: lake, listen: '0.0.0.0:1'}", "set token_file"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, text, says):
    (tmp_path / "bootstrap.yml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_bootstrap(tmp_path / "bootstrap.yml")


def test_the_file_stands_for_a_pipeline_of_two_outputs(tmp_path):
    """Which leaves tables without a key to the log store."""
    (tmp_path / "bootstrap.yml").write_text(FILE)
    (tmp_path / "token").write_text("not-so-secret")
    config = load_bootstrap(tmp_path / "bootstrap.yml")
    path = config.write_pipeline(["shop/main.notes"])
    said = yaml.safe_load(path.read_text())
    assert said["inputs"]["keyed"]["exclude"] == ["shop/main.notes"]
    assert said["relay"] == {"url": "http://127.0.0.1:9", "token_file": "token"}
    assert {name: each["mode"] for name, each in said["outputs"].items()} == {"log": "history", "state": "mirror"}
    nodes = load_pipeline(path).config.nodes
    assert nodes["outputs.log"].config.controls == "all"
    assert nodes["outputs.state"].config.trigger_ms == 500
    assert [each.path for each in validate(path) if not each.is_warning] == []


@pytest.mark.parametrize("edited", [FILE.replace("500", "9000"), FILE.replace("name: kept", "name: other")])
def test_a_second_start_leaves_the_file_of_the_running_service_alone(tmp_path, edited, monkeypatch):
    """Whatever became of the service's file meanwhile: nothing is served, and of the same name it is refused."""

    class Began(BaseException):
        pass

    def begin(config):
        raise Began

    (tmp_path / "token").write_text("not-so-secret")
    (tmp_path / "bootstrap.yml").write_text(FILE)
    config = load_bootstrap(tmp_path / "bootstrap.yml")
    monkeypatch.setattr("databus.bootstrap._service.keyless_tables", lambda _: [])
    monkeypatch.setattr("databus.bootstrap._service.BootstrapServer", begin)
    with while_stopped(config.state, config.name):
        before = config.write_pipeline(["shop/main.notes"]).read_bytes()
        (tmp_path / "bootstrap.yml").write_text(edited)
        second = load_bootstrap(tmp_path / "bootstrap.yml")
        with pytest.raises(LockHeld if second.name == config.name else Began):
            run_bootstrap(second)
    assert config.pipeline_path.read_bytes() == before


def test_status_says_how_far_the_stores_are(tmp_path):
    with Shop(tmp_path, TABLES).running() as shop:
        shop.execute("INSERT INTO orders VALUES (1, 'a', 2)")
        shop.fill()
        scn = shop.head().position.scn
        command = [sys.executable, "-m", "databus.cli", "bootstrap", "status", str(shop.config.path)]
        said = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        assert json.loads(said.stdout)[PHYSICAL]["state_scn"] == scn
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout.split()[:2] == ["physical", "log_scn"]


def test_status_says_how_far_the_stores_are_behind_and_what_is_being_given(tmp_path):
    with Shop(tmp_path, TABLES).running() as shop:
        shop.execute("INSERT INTO orders VALUES (1, 'a', 2)")
        shop.fill()
        at = shop.head().position
        arguments = [*shop.noted(), (at.scn + 3, at.ts_us + 2_000_000)]
        shop._noting.look(*arguments)
        shop.config.path.write_text(shop.config.path.read_text().replace("127.0.0.1:0", shop.service_url[7:]))
        said = CliRunner().invoke(app, ["bootstrap", "status", str(shop.config.path)])
        head, row, answers = said.stdout.splitlines()
        found = dict(zip(head.split(), row.split(), strict=False))
        assert (found["log_lag_ms"], found["state_lag_ms"]) == ("2000", "2000")
        assert int(found["log_bytes"]) > 0 < int(found["state_bytes"])
        assert answers == "answers: 0 open, 0 state, 0 since, 0 every, 0 bytes"


def test_a_relay_names_its_service_where_a_position_has_left_its_log(tmp_path):
    value = {
        "listen": "127.0.0.1:0",
        "folder": "relay",
        "sources": {PHYSICAL: {"type": "mock"}},
        "bootstrap": {"url": "http://past:1"},
    }
    with Relay(parse_relay(value, folder=tmp_path)) as relay:
        relay.captures[PHYSICAL].wait_until_settled(30)
        with pytest.raises(PositionPurged) as found:
            RelayClient(relay.url).stream(PHYSICAL, SourceCheckpoint(scn=1, seq=1, log="other", snapshots={"*": 0}))
        assert found.value.bootstrap == "http://past:1"
    with pytest.raises(ConfigError, match=r"bootstrap\.url"):
        parse_relay({**value, "bootstrap": {"url": "past"}}, folder=tmp_path)
