"""A campaign: the shop is busy while relay, consumer and pipeline are killed again and again; then nothing is missing.

Everything is a process of its own and every kill is SIGKILL, at a named crash point or at a random moment. The seed is
in each assertion's message.
"""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from databus.core import BUS_SEQ_MIN, CRASH_POINTS
from databus.link import RelayClient
from databus.pipeline import compare, load_pipeline
from databus.sinks import read_delta
from databus.testing import RelayProcess
from databus.testing.shop import TABLES, create_shop

PIPELINE = """\
name: campaign
relay: {{url: "{url}"}}
inputs:
  shop: {{type: databus, tables: [shop/main.*]}}
outputs:
  copy: {{type: delta, from: shop, mode: mirror, path: lake/copy}}
  history: {{type: delta, from: shop, mode: history, path: lake/history}}
"""
RELAY_POINTS = [name for name in CRASH_POINTS if name.startswith(("log.", "capture.", "sqlite."))]
CONSUMER_POINTS = [name for name in CRASH_POINTS if name.startswith("client.")]
PIPELINE_POINTS = [name for name in CRASH_POINTS if name.startswith(("delta.", "pipeline."))]


class Part:
    """A process that is started, killed and started again."""

    def __init__(self, folder: Path, name: str, arguments: list[str]) -> None:
        self.folder, self.name, self.arguments = folder, name, arguments
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, crash_at: str = "") -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "DATABUS_CRASH_AT": crash_at, "PYTHONPATH": str(Path(__file__).parents[2])},
            )

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it died at its crash point
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log_end(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")[-3000:]


class Campaign:
    """One campaign in `folder`. `with_pipeline` false leaves Spark out, for the many cheap cycles."""

    def __init__(self, folder: Path, seed: int, *, with_pipeline: bool, relay_options: dict | None = None) -> None:
        self.folder, self.seed = folder, seed
        self.dice = random.Random(seed)
        self.database = folder / "shop.db"
        create_shop(self.database, customers=200, orders=200)
        options = relay_options or {"log": {"segment_bytes_max": 1 << 20}}
        self.relay = RelayProcess(folder / "state", {"shop": {"type": "sqlite", "path": str(self.database)}}, **options)
        self.relay.start()
        (folder / "databus.yml").write_text(PIPELINE.format(url=self.relay.url))
        shop = ["-m", "databus.testing.shop", str(self.database), "--seconds", "3600", "--rate", "100"]
        self.workload = Part(folder, "workload", [*shop, "--seed", str(seed)])
        recorder = ["-m", "tests.laws.recorder", self.relay.url, "consumer.checkpoint", "record.db"]
        self.consumer = Part(folder, "consumer", recorder)
        self.pipeline = Part(folder, "pipeline", ["-m", "databus.cli", "run", "databus.yml"])
        self.with_pipeline = with_pipeline
        self.altered = 0
        self.kills: list[str] = []
        self.crashes = 0  # deaths at crash points, as against kills at random moments
        self.pipeline_points: list[str] = []  # where it dies after each of its coming revivals; then nowhere

    def start(self, pipeline_point: str = "") -> None:
        self.workload.start()
        self.consumer.start()
        if self.with_pipeline:
            self.pipeline.start(pipeline_point)

    def kill_relay(self, point: str = "") -> None:
        """Kill at the point that the running relay was armed with or now; the next one is armed with `point`."""
        self.relay.kill()
        self.kills.append(f"relay, next {point or 'at random'}")
        self.relay.env = {"DATABUS_CRASH_AT": point}
        self.restart_relay()

    def restart_relay(self) -> None:
        """Start it, also where it dies at its crash point while it starts."""
        for _ in range(3):
            try:
                self.relay.start()
            except Exception:  # noqa: BLE001 - died at its crash point before it answered: that is the test
                self.crashes += 1
                self.relay.env = {}
            else:
                return
        raise AssertionError(f"seed {self.seed}: the relay does not come back:\n{self.relay.log_end()}")

    def kill_part(self, part: Part, point: str = "") -> None:
        part.kill()
        self.kills.append(f"{part.name}, next {point or 'at random'}")
        part.start(point)

    def revive(self) -> None:
        """Start again what died at its crash point: disarmed, but for the pipeline's coming points."""
        assert self.workload.process is None or self.workload.process.poll() in (None, 0), self.workload.log_end()
        if not self.relay.is_running:
            self.crashes += 1
            self.relay.env = {}
            self.restart_relay()
        for part in (self.consumer, self.pipeline):
            if part.process is not None and not part.is_running:
                self.crashes += 1
                is_armed = part is self.pipeline and self.pipeline_points
                part.start(self.pipeline_points.pop(0) if is_armed else "")

    def alter(self) -> None:
        self.altered += 1
        with closing(sqlite3.connect(self.database, timeout=30)) as connection:
            table = self.dice.choice(["customers", "stock", "orders"])
            name = "channel" if self.altered == 1 and table == "orders" else f"extra_{self.altered}"
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} TEXT DEFAULT 'web {self.altered}'")

    def run_for(self, seconds: float) -> None:
        """Let it work; processes that died at crash points are started again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            self.revive()

    def finish(self) -> None:
        """Stop the workload, wait until everything has arrived, and check all of it."""
        assert self.workload.process is not None
        self.workload.process.terminate()
        self.workload.process.wait(30)
        self.relay.env = {}
        self.relay.kill()
        self.restart_relay()
        self.kill_part(self.consumer)
        if self.with_pipeline:
            self.kill_part(self.pipeline)
        self.wait_until("capture", self.is_captured)
        self.wait_until("the consumer", lambda: self.recorded() >= self.last_row(), 60)
        self.check_record()
        if self.with_pipeline:
            found = compare(
                load_pipeline(self.folder / "databus.yml"), "copy", database=self.database, wait_ms_max=120_000
            )
            assert found.is_identical, f"seed {self.seed}, {self.kills}:\n{found.details()}"
            self.wait_until("the history", self.history_is_whole, 120)

    def stop(self) -> None:
        for part in (self.workload, self.consumer, self.pipeline):
            part.kill()
        self.relay.stop()

    def wait_until(self, what: str, is_there: Callable[[], bool], seconds_max: float = 60) -> None:
        end = time.monotonic() + seconds_max
        while not is_there():
            logs = f"{self.relay.log_end()}\n{self.consumer.log_end()}"
            assert time.monotonic() < end, f"seed {self.seed}, {self.kills}: {what} did not arrive\n{logs}"
            time.sleep(0.05)
            self.revive()

    def is_captured(self) -> bool:
        try:
            url = f"{self.relay.url}/controlSources/status"
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own relay
                told = json.load(answer)
        except OSError:
            return False
        # lag is measured once a second: seen twice in a row it is true
        if not all(each["state"] == "RUNNING" and each["lagChanges"] == 0 for each in told):
            return False
        with closing(sqlite3.connect(self.database)) as connection:
            (cut,) = connection.execute("SELECT max(id) FROM _databus_cut").fetchone()
        return told[0]["SCN"] >= cut

    def last_row(self) -> tuple[int, int]:
        """The pair of the last logged row that the relay has."""
        client = RelayClient(self.relay.url)
        last = (0, 0)
        head = client.head("shop")
        with client.stream("shop", "beginning", to=head.published.pair) as stream:
            for groups in stream:
                for group in groups:
                    for frame in group.rows:
                        last = max(last, frame.header.last)
        return last

    def recorded(self) -> tuple[int, int]:
        with closing(sqlite3.connect(self.folder / "record.db")) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'seen'").fetchone():
                return (0, 0)  # each consumer was killed before it began
            found = connection.execute(
                "SELECT scn, max(seq) FROM seen WHERE scn = (SELECT max(scn) FROM seen)"
            ).fetchone()
        return (found[0] or 0, found[1] or 0)

    def check_record(self) -> None:
        """Nothing lost, order kept: in each transaction the logged rows are 1, 2, 3... without a hole."""
        told = f"seed {self.seed}, {self.kills}"
        with closing(sqlite3.connect(self.folder / "record.db")) as connection:
            assert connection.execute("SELECT * FROM faults").fetchall() == [], told
            holes = connection.execute(
                "SELECT scn, count(*), max(seq) FROM seen WHERE seq < ? GROUP BY scn HAVING count(*) < max(seq)",
                (BUS_SEQ_MIN,),
            ).fetchall()
            controls = self.controls()
            assert [hole for hole in holes if hole[2] - hole[1] != controls.get(hole[0], 0)] == [], told

    def controls(self) -> dict[int, int]:
        """How many controls each SCN holds; each takes a `_seq` of its own."""
        client = RelayClient(self.relay.url)
        found: dict[int, int] = {}
        with client.stream("shop", "beginning", to=client.head("shop").published.pair) as stream:
            for groups in stream:
                for group in groups:
                    if group.control is not None and group.control.header.first_seq < BUS_SEQ_MIN:
                        scn = group.control.header.first_scn
                        found[scn] = found.get(scn, 0) + 1
        return found

    def history_is_whole(self) -> bool:
        """Whether the history holds just what the consumer recorded, each change once."""
        recorded: dict[str, set[tuple[int, int]]] = {name: set() for name in TABLES}
        with closing(sqlite3.connect(self.folder / "record.db")) as connection:
            for source, scn, seq in connection.execute("SELECT source, scn, seq FROM seen"):
                recorded[source.rpartition(".")[2]].add((scn, seq))
        for name in TABLES:
            table = read_delta(self.folder / "lake" / "history" / name, ["_commit_version", "_seq"])
            pairs = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
            assert len(pairs) == len(set(pairs)), f"seed {self.seed}, {self.kills}: {name} has a change twice"
            if set(pairs) != recorded[name]:
                return False
        return True
