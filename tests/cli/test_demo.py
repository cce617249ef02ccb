"""The demo keeps its word: identical at the end, and an exit code that tells."""

import re
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from databus.cli._demo import _CLOSE, _LAST, CallbackCopy, Demo
from databus.cli._demo_kafka import folded
from databus.cli._demo_stage import DemoStage, stage_of
from databus.cli._demo_target import _typed
from databus.cli.demo import DemoSink, DemoSource, demo
from databus.client import Client
from databus.core import FatalError
from databus.pipeline import read_source
from databus.schema import Column, TableSchema
from databus.sources import parse_source
from databus.testing import RelayProcess
from databus.testing.servers import Kafka, SearchServer, Server, ServerMissing, open_search_server, open_server
from databus.testing.shop import TABLES
from tests.commands import databus
from tests.spark.conftest import wait_until_captured

Held = Mapping[str, dict[Any, Any]]
SEEN_S_MAX = 60.0
KINDS: Mapping[str, Callable[[Path], Server | Kafka | SearchServer]] = {
    "mariadb": lambda folder: open_server("mariadb-10.11", folder),
    "mysql": lambda folder: open_server("mysql-8.0", folder),
    "kafka": Kafka,
    "opensearch": lambda folder: open_search_server("opensearch-2.19", folder),
}


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("source", "sink", "kills", "rate"),
    [
        ("mariadb", "delta", 3, 30),  # enough to be busy at each kill; Spark's minutes of starting make it many
        pytest.param("sqlite", "kafka", 3, 30, marks=pytest.mark.nightly),
        pytest.param("mysql", "delta", 3, 150, marks=pytest.mark.soak),
        pytest.param("sqlite", "delta", 2, 150, marks=pytest.mark.soak),  # without a server; see the test below
        pytest.param("mariadb", "kafka", 4, 150, marks=pytest.mark.soak),
        pytest.param("mariadb", "opensearch", 4, 150, marks=pytest.mark.soak),
    ],
)
def test_the_demo_survives_its_kills_and_ends_identical(source, sink, kills, rate, tmp_path):
    needed = [KINDS[each] for each in (source, sink) if each in KINDS]
    for each in needed:
        try:
            each(tmp_path / "unused").prepare()
        except ServerMissing as missing:
            pytest.skip(str(missing))
    given = ("--source", source, "--sink", sink, "--seconds", 6, "--rate", rate, "--keep", tmp_path / "demo")
    done = databus("demo", *given, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    expected = rf"source and copy identical: 4 tables, [\d,]+ rows, [\d,]+ changes, {kills} kills survived"
    assert re.fullmatch(expected, last), done.stdout


def test_a_demo_that_is_interrupted_leaves_no_folder_behind(tmp_path, monkeypatch):
    def interrupted(_: Demo) -> str:
        assert [*tmp_path.iterdir()]
        raise KeyboardInterrupt

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Demo, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo(DemoSource.sqlite, DemoSink.delta, 5, 1, None)
    assert [*tmp_path.iterdir()] == []


def _held_once(stage: DemoStage, is_seen: Callable[[Held], bool]) -> Held:
    """What the source holds as soon as the relay, which looks now and then, has seen a change of a table."""
    end = time.monotonic() + SEEN_S_MAX
    while not is_seen(held := read_source("shop", parse_source(stage.source(), "shop"))) and time.monotonic() < end:
        time.sleep(0.05)
    return held


def test_the_stage_on_sqlite_can_do_what_the_demo_asks_of_it(tmp_path):
    """All that is of SQLite in the demo."""
    stage = stage_of("sqlite", tmp_path)
    stage.build()
    with RelayProcess(tmp_path / "state", {"shop": dict(stage.source())}) as relay:
        wait_until_captured(relay.url, "shop", 1)
        copy = CallbackCopy()
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
    assert stage.server is None


def _message(kind: str, scn: int, seq: int, **row: Any) -> tuple[bytes, dict[str, Any]]:
    return str(row["id"]).encode(), {**row, "_change_type": kind, "_commit_version": scn, "_seq": seq}


def _control(scn: int, seq: int, **body: Any) -> tuple[None, dict[str, Any]]:
    return None, {"_control": body, "_commit_version": scn, "_seq": seq}


def test_a_topic_folded_by_key_is_the_table_whichever_partition_its_messages_were_in():
    renamed = _control(3, 1, kind="schema", renamed={"weight": "weight_kg"}, fill={"channel": "web"})
    ended = _control(5, 1, kind="snapshot_end", complete=True, begin=[4, 1])
    messages = [
        _message("insert", 1, 1, id=1, weight=2),
        _message("insert", 1, 2, id=2, weight=3),
        _message("update_preimage", 2, 1, id=1, weight=2),
        _message("update_postimage", 2, 2, id=3, weight=2),
        renamed,
        renamed,  # of another partition
        _message("insert", 4, 2, id=3, weight_kg=9, channel="shop"),
        _message("delete", 4, 3, id=4, weight_kg=9, channel="shop"),
    ]
    told = [(each["id"], each["weight_kg"], each["channel"]) for each in folded([*reversed(messages)], "stock")]
    assert sorted(told) == [(2, 3, "web"), (3, 9, "shop")]
    assert [each["id"] for each in folded([ended, *messages], "stock")] == [3], "the snapshot did not find 2"


def test_a_change_that_a_topic_holds_twice_ends_the_demo():
    twice = _message("insert", 1, 1, id=1)
    with pytest.raises(FatalError, match=r"the topic of stock holds the change at \(1, 1\) \(SCN, _seq\) twice"):
        folded([twice, _message("delete", 2, 1, id=1), twice], "stock")


def test_a_document_is_compared_by_its_values_as_the_database_has_them():
    columns = (Column("id", "uint64", nullable=False), Column("weight", "decimal(8,3)"), Column("gift", "binary"))
    document = {"id": 2**64 - 1, "weight": "1.500", "gift": "YWI=", "_commit_version": 7, "_seq": 1}
    found = _typed(TableSchema("main.stock", columns, ("id",)), [document])
    assert found == {(Decimal(2**64 - 1),): (Decimal(2**64 - 1), Decimal("1.5"), b"ab")}
