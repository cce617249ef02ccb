"""The demo keeps its word: identical at the end, and an exit code that tells."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from databus.cli._demo import _CLOSE, _LAST
from databus.cli._demo_copy import Copy
from databus.cli._demo_stage import Stage, stage_of
from databus.client import Client
from databus.pipeline import read_source
from databus.sources import parse_source
from databus.testing import RelayProcess
from databus.testing.servers import ServerMissing, open_server
from databus.testing.shop import TABLES
from tests.commands import databus
from tests.spark.conftest import wait_until_captured

Held = Mapping[str, dict[Any, Any]]
SEEN_S_MAX = 60.0
KINDS = {"mariadb": "mariadb-10.11", "mysql": "mysql-8.0"}


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("source", "kills", "rate"),
    [
        ("mariadb", 3, 30),  # enough to be busy at each kill; the minutes that Spark takes to start make it many
        pytest.param("mysql", 3, 150, marks=pytest.mark.soak),
        pytest.param("sqlite", 2, 150, marks=pytest.mark.soak),  # the same play without a server; see the test below
    ],
)
def test_the_demo_survives_its_kills_and_ends_identical(source, kills, rate, tmp_path):
    if source in KINDS:
        try:
            open_server(KINDS[source], tmp_path / "unused").prepare()
        except ServerMissing as missing:
            pytest.skip(str(missing))
    done = databus("demo", "--source", source, "--seconds", 6, "--rate", rate, "--keep", tmp_path / "demo", timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    expected = rf"source and copy identical: 4 tables, [\d,]+ rows, [\d,]+ changes, {kills} kills survived"
    assert re.fullmatch(expected, last), done.stdout


def _held_once(stage: Stage, is_seen: Callable[[Held], bool]) -> Held:
    """What the source holds as soon as the relay, which looks now and then, has seen a change of a table."""
    end = time.monotonic() + SEEN_S_MAX
    while not is_seen(held := read_source("shop", parse_source(stage.source(), "shop"))) and time.monotonic() < end:
        time.sleep(0.05)
    return held


def test_the_stage_on_sqlite_can_do_what_the_demo_asks_of_it(tmp_path):
    """All that is of SQLite in the demo."""
    stage = stage_of("sqlite", tmp_path)
    stage.build()
    try:
        with RelayProcess(tmp_path / "state", {"shop": dict(stage.source())}) as relay:
            wait_until_captured(relay.url, "shop", 1)
            copy = Copy()
            client = Client(relay.url, copy, sources=["shop/main.*"])
            client.start()
            try:
                stage.execute(f"ALTER TABLE orders ADD COLUMN channel {stage.text_type} DEFAULT 'web'")
                stage.execute("ALTER TABLE stock RENAME COLUMN weight TO weight_kg")
                stage.execute(_CLOSE)
                held = _held_once(stage, lambda held: all(held[f"main.{name}"] == copy.rows(name) for name in TABLES))
            finally:
                client.stop()
            assert all(held[f"main.{name}"] == copy.rows(name) for name in TABLES)
            assert all("weight_kg" in row for row in copy.tables["stock"].values())
        assert set(held) == {f"{stage.database}.{name}" for name in TABLES}
        assert all("web" in row for row in held["main.orders"].values())
        assert [row for row in held["main.customers"].values() if _LAST in row]
        assert not stage.has_server
    finally:
        stage.close()
