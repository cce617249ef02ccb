"""A user's own kind of source offers what it can; the commands find it there, and say of the rest who has it."""

import os
import sqlite3
from contextlib import closing

import pytest

from tests.commands import databus, failed

PLUGIN = """
from databus.sources import Finding, SourceConfig
from databus.sources.mock import MockConfig, MockSource


class QueueConfig(MockConfig):
    type: str = "queue"


class QueueSource(MockSource):
    config_model = QueueConfig

    @staticmethod
    def check(config):
        return [Finding("warning", "depth", "queue-1", f"{config.rows_per_transaction} rows wait", "drain it")]

    @staticmethod
    def warm_up(physical, say):
        say(f"{physical} is warm")
"""


@pytest.fixture
def relay_config(tmp_path, monkeypatch):
    (tmp_path / "queue_plugin.py").write_text(PLUGIN)
    info = tmp_path / "queue_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: queue-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[databus.sources]\nqueue = queue_plugin:QueueSource\nlost = no_such_module_x:Y\n"
    )
    path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    config = tmp_path / "relay.yml"
    config.write_text(
        "folder: logs\nsources:\n  q: {type: queue, rows_per_transaction: 7}\n  m: {type: mock}\n"
        "  s: {type: sqlite, path: s.db, set_wal: true}\n"
    )
    return config


def test_check_source_asks_every_source_that_can_be_asked_a_plugin_s_too(relay_config):
    said = databus("check-source", relay_config)
    assert said.returncode == 1
    assert "error    s  " in said.stdout
    assert "s.db  path: there is no such database file\n" in said.stdout
    assert "warning  q  queue-1  depth: 7 rows wait\n         > drain it\n" in said.stdout
    of_m = "m: there is nothing to ask of a source of type mock before it is captured\n"
    assert said.stdout.endswith("q, s; errors: 1, warnings: 1, hints: 0\n" + of_m)
    said = databus("check-source", relay_config, "q")
    assert (said.returncode, said.stderr) == (0, "q is warm\n")
    relay_config.write_text("folder: logs\nsources:\n  m: {type: mock}\n")
    said = databus("check-source", relay_config)
    assert (said.returncode, said.stdout) == (0, of_m)


def test_check_source_of_a_pipeline_that_another_relay_feeds_says_where_to_ask(tmp_path):
    file = tmp_path / "databus.yml"
    file.write_text(
        "relay: {url: 'http://127.0.0.1:1'}\ninputs: {shop: {type: databus}}\n"
        "outputs: {all: {type: console, from: shop}}\n"
    )
    said = databus("check-source", file)
    assert said.returncode == 0
    assert "no sources are captured by this file; check them where their relay's file is" in said.stdout


@pytest.mark.parametrize(
    ("command", "source", "kind", "can"),
    [
        (("check-source",), "m", "checkable", "kafka, mysql, queue, sqlite"),
        (("prepare",), "q", "preparable", "sqlite"),
        (("remove",), "q", "preparable", "sqlite"),
    ],
)
def test_what_a_source_does_not_offer_is_refused_naming_who_does(relay_config, command, source, kind, can):
    said = failed(databus(*command, relay_config, source), 3)
    assert f"{source}: a source of type" in said
    assert f"is not {kind}; types that are: {can}" in " ".join(said.split())


def test_what_capture_needs_in_a_database_is_put_there_and_taken_out(relay_config):
    database = relay_config.parent / "s.db"
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    assert "tables captured: main.t" in databus("prepare", relay_config, "s").stdout
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone()[0] > 0
    assert "nothing of databus is left" in databus("remove", relay_config, "s").stdout
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE '%databus%'").fetchone() == (0,)


def test_a_misspelt_source_is_answered_with_the_nearest(relay_config):
    assert 'no physical source called "qq"; did you mean "q"?' in failed(databus("check-source", relay_config, "qq"), 2)


def test_a_source_that_a_relay_elsewhere_captures_is_looked_for_in_that_relay_s_file(tmp_path):
    (tmp_path / "databus.yml").write_text(
        "relay: {url: 'http://127.0.0.1:9'}\ninputs: {s: {type: databus}}\n"
        "outputs: {c: {type: files, from: s, path: out}}\n"
    )
    said = failed(databus("prepare", "shop", cwd=tmp_path), 2)
    assert 'no physical source called "shop"; there are none: sources are in the file of the relay' in said
