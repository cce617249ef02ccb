"""A server's transactions in Kafka, from runs that were killed: a reader counts what the server itself has counted."""

import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress

import pytest

from databus.testing.servers import ServerMissing, open_server
from tests.kafka.support import new_prefix
from tests.kafka.transactions import counts_of_whole_transactions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TABLES = ("a", "b", "c")
FILTERED = ("a", "b")
RUN_S_MAX = 240
ROWS_MAX = 80
FILE = """
name: shop
spark:
  master: local[2]
  settings: {{spark.driver.memory: 1g, spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1"}}
sources:
  shop: {{type: mysql, hosts: ["{host}:{port}"], user: {user}, password: {password}, tables: ["shop.*"]}}
inputs: {{shop: {{type: databus, tables: ["shop/shop.*"], max_rows_per_trigger: {rows_max}}}}}
filters: {{seen: {{type: where, from: shop, tables: [a, b], where: "kind <> 'hidden'"}}}}
outputs:
  topics:
    type: kafka
    from: seen
    format: debezium
    debezium: {{transaction_topic: "{prefix}.transaction"}}
    buckets: 3
    topic: "{prefix}.{{table}}"
    control_topic: "{prefix}.control"
    create_topics: {{partitions: 3}}
    transaction_ms_max: 20000
    kafka: {{bootstrap.servers: "{bootstrap}"}}
"""
CODE = "import sys; from databus.pipeline import run; sys.exit(run(sys.argv[1], once=True))"
POINTS = ("kafka.before_commit:2", "pipeline.batch.after:2", "kafka.after_commit:2")
"""Each is sure to be passed: tasks count in two workers, which have the first batch's three buckets between them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    found = open_server("mariadb-10.11", tmp_path_factory.mktemp("mariadb"))
    try:
        found.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))  # which says why it cannot be had here
    yield found
    found.close()


class Shop:
    """Tables whose changes the server counts in `counted.changes`, in the same transactions."""

    def __init__(self, server, dice):
        self.dice = dice
        self.names = {}  # of transactions, by GTID
        self.unused = itertools.count(1)
        self.db = server.connect(autocommit=False)
        self.cursor = self.db.cursor()
        server.run("CREATE DATABASE shop", "CREATE DATABASE counted")
        server.run("CREATE TABLE counted.changes (name INT, of VARCHAR(10), n INT)")
        for table in TABLES:
            server.run(
                f"CREATE TABLE shop.{table} (id INT PRIMARY KEY AUTO_INCREMENT, kind VARCHAR(10), v INT)",
                f"INSERT INTO shop.{table} (kind, v) VALUES ('seen', 0), ('seen', 0), ('hidden', 0)",
            )

    def work(self):
        """Some transactions, of which one is larger than several batches."""
        sizes = [60, *self.dice.choices((1, 2, 5, 30), k=4)]
        for size in self.dice.sample(sizes, len(sizes)):
            name = len(self.names)
            for _ in range(size):
                self._change(name, self.dice.choice(TABLES))
            self.db.commit()
            self.cursor.execute("SELECT @@last_gtid")
            self.names[self.cursor.fetchone()[0]] = name

    def _change(self, name, table):
        """A statement, and how many messages each of the rows that it changes becomes."""
        kind = self.dice.choice(("seen", "hidden"))
        each = 0 if table in FILTERED and kind == "hidden" else 1
        some = f"WHERE kind = '{kind}' ORDER BY id LIMIT {self.dice.randint(1, 4)}"
        times, statement = self.dice.choice(
            (
                (each, f"INSERT INTO shop.{table} (kind, v) VALUES ('{kind}', 1), ('{kind}', 2), ('{kind}', 3)"),
                (each, f"UPDATE shop.{table} SET v = v + 1 {some}"),
                (each, f"DELETE FROM shop.{table} {some}"),
                (2 * each, f"UPDATE shop.{table} SET id = -{next(self.unused)} WHERE kind = '{kind}' LIMIT 1"),
                (1, f"UPDATE shop.{table} SET kind = IF(kind = 'seen', 'hidden', 'seen') {some}"),
            )
        )
        self.cursor.execute(statement)
        self.cursor.execute(f"INSERT INTO counted.changes VALUES ({name}, 'shop.{table}', ROW_COUNT() * {times})")

    def counts(self):
        """By GTID, as SQL has it."""
        self.db.commit()
        self.cursor.execute(
            "SELECT name, of, CAST(SUM(n) AS INT) FROM counted.changes GROUP BY name, of HAVING SUM(n) > 0"
        )
        by_name = {}
        for name, table, count in self.cursor.fetchall():
            by_name.setdefault(name, {})[table] = count
        return {gtid: by_name[name] for gtid, name in self.names.items() if name in by_name}


@contextmanager
def running(folder, **env):
    """The pipeline in a session of its own, which is killed at the end, with all that it started."""
    with (folder / "pipeline.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(folder / "databus.yml")],
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_to_its_end(folder):
    with running(folder) as process:
        assert process.wait(RUN_S_MAX) == 0, (folder / "pipeline.log").read_text()[-3000:]


def die_at(folder, point):
    """The driver dies by itself; where a task does, the driver is killed as it begins to try again."""
    log, deadline = folder / "pipeline.log", time.monotonic() + RUN_S_MAX
    begun = log.stat().st_size
    with running(folder, DATABUS_CRASH_AT=point) as process:
        while process.poll() is None and "query retry" not in log.read_text()[begun:]:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # a log does not tell when something is in it
        assert process.poll() in (None, -signal.SIGKILL), f"{point} was never passed"


@pytest.mark.nightly
def test_what_a_reader_counts_is_what_the_server_counted_whatever_was_killed(server, kafka, tmp_path, seed):
    prefix, shop = new_prefix(), Shop(server, random.Random(seed))
    given = {"host": server.host, "port": server.port, "prefix": prefix, "bootstrap": kafka.bootstrap}
    given |= {"rows_max": ROWS_MAX, "user": server.capture_user, "password": server.capture_password}
    (tmp_path / "databus.yml").write_text(textwrap.dedent(FILE).format(**given))
    run_to_its_end(tmp_path)
    for point in POINTS:
        shop.work()
        die_at(tmp_path, point)
    shop.work()
    run_to_its_end(tmp_path)
    topics = [f"{prefix}.{table}" for table in TABLES]
    found, without = counts_of_whole_transactions(kafka, topics, f"{prefix}.transaction")
    assert found == shop.counts()
    assert max(sum(each.values()) for each in found.values()) > ROWS_MAX, "no transaction was cut"
    assert {each["op"] for each in without} <= {"r"}


def test_a_transaction_ends_though_the_batch_of_its_end_has_no_rows_of_these_tables(server, kafka, tmp_path):
    """Nothing else happens after it: its end does not wait for that."""
    prefix = new_prefix()
    given = {"host": server.host, "port": server.port, "prefix": prefix, "bootstrap": kafka.bootstrap}
    given |= {"rows_max": ROWS_MAX, "user": server.capture_user, "password": server.capture_password}
    text = FILE.replace('tables: ["shop.*"]', 'tables: ["ending.*"], group_bytes_max: 1024')
    text = text.replace('["shop/shop.*"]', "[shop/ending.a], max_bytes_per_trigger: 1").replace("[a, b]", "[a]")
    (tmp_path / "databus.yml").write_text(textwrap.dedent(text).format(**given))
    server.run("CREATE DATABASE ending")
    for table in ("a", "z"):
        server.run(f"CREATE TABLE ending.{table} (id INT PRIMARY KEY AUTO_INCREMENT, kind VARCHAR(200))")
    run_to_its_end(tmp_path)
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO ending.a (kind) VALUES ('seen'), ('hidden'), ('seen')")
        for _ in range(50):
            cursor.execute("INSERT INTO ending.z (kind) VALUES (REPEAT('z', 200))")
        connection.commit()
    run_to_its_end(tmp_path)
    found, _ = counts_of_whole_transactions(kafka, [f"{prefix}.a"], f"{prefix}.transaction")
    assert [*found.values()] == [{"ending.a": 2}]
