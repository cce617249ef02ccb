"""Outputs of every kind whose past has left the relay's log: the service gives it, whatever kills a run and wherever.

An index gets what became of its tables; topics, hooks and files get every change, in the order in which it was made. No
table is read by a snapshot.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from databus.core import TransientError
from databus.link import RelayClient
from databus.pipeline import run
from databus.pipeline.engine._handle import OutputHandle
from databus.testing.servers import ServerMissing, open_search_server
from tests.bootstrap.filled import Shop
from tests.bootstrap.test_answers import MORE
from tests.bootstrap.test_service import TABLES, churn
from tests.client.conftest import wait_for
from tests.http.receiver import Receiver
from tests.kafka.support import new_prefix, rows_in

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1200)]


class Target:
    """What all have: rows of a table, of each partition in the order in which they came."""

    is_exact = True
    """Whether no row is there twice."""

    def rows(self, table):
        """By partition, without controls."""
        raise NotImplementedError

    def check(self, shop, tables):
        """Nothing twice, each key in order, and what is left of each is what SELECT says."""
        for table in tables:
            alive, seen, last = {}, set(), {}
            for part in self.rows(table):
                for row in part:
                    pair = row["_commit_version"], row["_seq"]
                    if pair in seen:
                        assert not self.is_exact, (table, pair)
                        continue
                    seen.add(pair)
                    assert last.get(row["id"], (0, 0)) < pair, (table, row)
                    last[row["id"]] = pair
                    if row["_change_type"] in ("insert", "update_postimage"):
                        alive[row["id"]] = row
                    else:
                        alive.pop(row["id"], None)
            assert_is_selected(shop, table, alive.values())


class Topics(Target):
    def __init__(self, request, folder):
        self.server, self.prefix = request.getfixturevalue("kafka"), new_prefix()
        self.output = {
            "type": "kafka",
            "kafka": {"bootstrap.servers": self.server.bootstrap},
            "topic": f"{self.prefix}.{{table}}",
            "control_topic": f"{self.prefix}.control",
            "create_topics": {"partitions": 3},
        }

    def rows(self, table):
        return rows_in(self.server, f"{self.prefix}.{table}")


class Hook(Target):
    is_exact = False

    def __init__(self, request, folder):
        self.receiver = Receiver()
        self.output = {"type": "http", "url": self.receiver.url, "request_rows_max": 10}

    def rows(self, table):
        return [[row for row in self.receiver.changes if row["_source"] == f"shop/main.{table}" and "id" in row]]


class Lines(Target):
    def __init__(self, request, folder):
        self.folder = folder / "out"
        self.output = {"type": "files", "path": "out", "format": "json"}

    def rows(self, table):
        files = sorted(each for each in (self.folder / table).glob("*.json*") if not each.name.startswith((".", "_")))
        found = [json.loads(line) for each in files for line in each.read_text().splitlines()]
        rows = [row for row in found if "_control" not in row and "id" in row]
        return [sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"]))]


class Index(Target):
    def __init__(self, request, folder):
        self.server = open_search_server("opensearch-2.19", folder / "search")
        try:
            self.server.start()
        except ServerMissing as missing:
            pytest.skip(str(missing))
        settings = {"number_of_shards": 1, "number_of_replicas": 0}
        self.output = {"type": "opensearch", "url": self.server.url, "settings": settings}

    def check(self, shop, tables):
        for table in tables:
            assert_is_selected(shop, table, self.server.documents(table).values())


KINDS = {"kafka": Topics, "http": Hook, "files": Lines, "opensearch": Index}


def assert_is_selected(shop, table, rows):
    names = [row[1] for row in shop.db.execute(f"PRAGMA table_info({table})")]
    found = sorted((tuple(row.get(name) for name in names) for row in rows), key=repr)
    assert found == shop.select(f"SELECT * FROM {table}"), table


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, TABLES + MORE).running() as running:
        running.captured()
        churn(running, 1, 30)
        running.forget()
        yield running


@pytest.fixture(params=KINDS)
def target(request, tmp_path):
    made = KINDS[request.param](request, tmp_path)
    yield made
    if isinstance(made, Index):
        made.server.close()


def written(shop, target, *tables):
    """The file of a pipeline of this target alone."""
    asked = {"type": "databus", "tables": [f"shop/main.{name}" for name in tables], "max_rows_per_trigger": 15}
    value = {
        "name": "copies",
        "relay": {"url": shop.url},
        "run": {"retry_ms_min": 50, "retry_ms_max": 200},
        "inputs": {"changes": {**asked, "partitions": 2}},
        "outputs": {"copy": {"from": "changes", **target.output}},
    }
    path = shop.folder / "copies.yml"
    path.write_text(json.dumps(value))
    shop.captured()
    return path


def once(shop, target, spark, *tables):
    events = []
    code = run(written(shop, target, *tables), once=True, session=spark, on_event=events.append)
    assert code == 0, [each for each in events if each["event"] in ("retry", "failed")]
    target.check(shop, tables)


@pytest.fixture
def asked(monkeypatch):
    """The tables that the relay was asked to read."""
    names = []
    monkeypatch.setattr(RelayClient, "request_snapshot", lambda _, physical, tables: names.extend(tables))
    return names


@pytest.fixture
def dying(monkeypatch):
    """Each second batch dies so often: before it is written, or when it is in the target and not in the ledger."""
    left, turn = [0], [0]

    def dies_in(name):
        right = getattr(OutputHandle, name)

        def wrong(*args, **options):
            turn[0] += 1
            if left[0] and turn[0] % 2:
                left[0] -= 1
                raise TransientError(f"it dies in {name}")
            return right(*args, **options)

        monkeypatch.setattr(OutputHandle, name, wrong)

    dies_in("advance")
    dies_in("_apply")
    return left


def test_an_output_begins_joins_and_goes_on_by_answers(spark, shop, target, asked, dying):
    dying[0] = 4
    once(shop, target, spark, "orders")
    assert dying == [0]
    churn(shop, 30, 40)
    once(shop, target, spark, "orders", "stock")
    churn(shop, 40, 60)
    shop.execute("DELETE FROM orders WHERE id % 5 = 0")
    shop.forget()
    churn(shop, 60, 63)
    dying[0] = 3
    once(shop, target, spark, "orders", "stock")
    assert dying == [0]
    assert asked == []


CODE = """
import sys
from pathlib import Path
from databus.pipeline import run
sys.exit(run(sys.argv[1], once=True, events_file=Path(sys.argv[2])))
"""
SPARK = {"master": "local[2]", "settings": {"spark.driver.memory": "1g"}}


def killed_at(point, path):
    """Have the pipeline's processes killed where the first of them comes past a crash point: a task's commits, too,
    whose process Spark would replace by one that dies there again.
    """
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "spark": SPARK}))
    events, log = path.with_suffix(".events"), path.with_suffix(".log")
    events.unlink(missing_ok=True)

    def has_died():
        said = events.read_text() if events.exists() else ""
        return process.poll() is not None or '"retry"' in said or '"failed"' in said

    with log.open("wb") as said:
        command = [sys.executable, "-c", CODE, str(path), str(events)]
        environment = {**os.environ, "DATABUS_CRASH_AT": point}
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
    try:
        wait_for(has_died, point, 300)
        assert process.poll() in (None, -signal.SIGKILL), f"{point} was never passed: {log.read_text()[-3000:]}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return log.read_text() + events.read_text()


def test_a_topic_has_each_change_once_where_spark_is_killed_before_and_after_the_commit_of_an_answer(
    spark, shop, tmp_path, request, asked
):
    """The process itself: the next one begins with what Kafka and the ledger say, in the middle of the answer."""
    target = Topics(request, tmp_path)
    pairs = []
    for number, point in enumerate(("kafka.before_commit", "kafka.after_commit:2", "kafka.after_commit:3")):
        before = pairs
        said, pairs = killed_at(point, written(shop, target, "orders")), committed(target)
        assert len({*pairs}) == len(pairs), "each once, for whoever reads what is committed"
        assert {*pairs} >= {*before}
        if point == "kafka.before_commit":
            assert pairs == before
        churn(shop, 30 + 3 * number, 33 + 3 * number)
    assert pairs, said
    once(shop, target, spark, "orders")
    assert asked == []


def committed(target):
    return [(row["_commit_version"], row["_seq"]) for part in target.rows("orders") for row in part]
