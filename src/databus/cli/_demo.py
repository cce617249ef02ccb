"""The demo: everything that databus promises, on this machine, in under two minutes, and a comparison at the end.

An application keeps a shop in SQLite busy. A relay captures it. A callback keeps a copy in memory; a Spark pipeline
keeps Delta tables identical and a history beside them. A column is added on the way; relay and pipeline are each killed
with SIGKILL. Then the application stops, everything arrives, and every table is compared by value.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from databus.cli._screen import Line, Meter, Screen
from databus.client import AnyWindow, Changes, Client, ClientState, Consumer, ControlEvent, Window
from databus.core import ChangeType, SourceCheckpoint, Stop, Unavailable
from databus.testing import RelayProcess
from databus.testing.shop import TABLES, create_shop

_PIPELINE: Final = """\
name: demo
relay: {{url: "{url}"}}
inputs:
  shop: {{type: databus, tables: [shop/main.*]}}
outputs:
  copy: {{type: delta, from: shop, mode: mirror, path: lake/copy}}
  history: {{type: delta, from: shop, mode: history, path: lake/history}}
"""
_TICK_S: Final = 0.1
_RATE: Final = 150


class Copy(Consumer):
    """The callback: a copy in memory, a dictionary a table, kept by the mirror rule from transaction to transaction."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {name: {} for name in TABLES}
        self.meter = Meter()
        self.changes = 0
        self._rows = 0

    def on_data_events(self, changes: Changes) -> None:
        """Rows of one table, in order."""
        held = self.tables[changes.source.rpartition(".")[2]]
        rows = changes.rows()
        for row in rows:
            if row.before is not None:
                held.pop(tuple(row.before[name] for name in row.table.key), None)
            if row.change_type is not ChangeType.DELETE and row.after is not None:
                held[row.key] = {**row.after, "_pair": row.pair}
        self._rows += len(rows)

    def on_control(self, control: ControlEvent) -> None:
        """A column came, or a snapshot ended."""
        held, body = self.tables[control.source.rpartition(".")[2]], control.body
        if body["kind"] == "schema":
            for row in held.values():
                row.update({column: value for column, value in body["fill"].items() if column not in row})
        elif body["kind"] == "snapshot_end" and body["complete"]:
            begin = tuple(body["begin"])
            for key in [key for key, row in held.items() if row["_pair"] < begin]:
                del held[key]

    def on_end_window(self, window: AnyWindow) -> None:
        """A transaction is complete."""
        is_logged = isinstance(window, Window) and not window.is_snapshot
        self.changes += self._rows if is_logged else 0
        self.meter.add(self._rows, time.time() * 1e3 - window.commit_us / 1e3 if is_logged else None)
        self._rows = 0

    def on_rollback(self, physical: str, position: SourceCheckpoint) -> None:
        """Nothing in here fails, so nothing comes again."""
        raise Stop(f"{physical}: the callback was rolled back to SCN {position.scn}")

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows as the database would give them, in some order."""
        return [
            tuple(value for column, value in row.items() if column != "_pair") for row in self.tables[name].values()
        ]


class Demo:
    """The cast and the plot."""

    def __init__(self, folder: Path, seconds: float, screen: Screen) -> None:
        self._folder = folder
        self._seconds = seconds
        self._screen = screen
        self._database = folder / "shop.db"
        self._relay = RelayProcess(folder / "state", {"shop": {"type": "sqlite", "path": str(self._database)}})
        self._workload: subprocess.Popen[bytes] | None = None
        self._pipeline: subprocess.Popen[bytes] | None = None
        self._progress = folder / "progress.jsonl"
        self._progress_read = 0
        self._copy = Copy()
        self._outputs = {name: Meter() for name in ("copy", "history")}
        self._positions: dict[str, int] = {}
        self._client: Client | None = None
        self._kills = 0

    def run(self) -> str:
        """Play it all; returns the last line. Raises `Stop` for any difference."""
        create_shop(self._database)
        self._screen.say(f"created {self._database}: 4 tables")
        try:
            return self._play()
        finally:
            self._stop_all()

    def _play(self) -> str:
        self._relay.start()
        self._screen.say(f"relay answers at {self._relay.url}")
        (self._folder / "databus.yml").write_text(_PIPELINE.format(url=self._relay.url))
        self._client = Client(self._relay.url, self._copy, sources=["shop/main.*"])
        self._client.start()
        self._start_workload()
        self._start_pipeline()
        self._wait_until("the pipeline's first batch", lambda: len(self._positions) == len(self._outputs), 60)
        self._screen.say("the pipeline's first batch has arrived")
        self._pass(self._seconds * 0.2)
        self._alter()
        self._pass(self._seconds * 0.2)
        self._kill_relay()
        self._pass(self._seconds * 0.3)
        self._kill_pipeline()
        self._pass(self._seconds * 0.3)
        return self._finish()

    def _start_workload(self) -> None:
        arguments = [str(self._database), "--seconds", "600", "--rate", str(_RATE)]
        self._workload = self._spawn("workload", ["-m", "databus.testing.shop", *arguments])
        self._screen.say(f"an application makes up to {_RATE} transactions a second, of one row to a thousand")

    def _start_pipeline(self) -> None:
        arguments = ["run", "databus.yml", "--progress", str(self._progress), "--log-format", "json"]
        self._pipeline = self._spawn("pipeline", ["-m", "databus.cli", *arguments])
        self._screen.say("pipeline started: Spark needs some seconds; its log is in pipeline.log")

    def _spawn(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                [sys.executable, *arguments],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _alter(self) -> None:
        with closing(sqlite3.connect(self._database, timeout=30)) as connection:
            connection.execute("ALTER TABLE orders ADD COLUMN channel TEXT DEFAULT 'web'")
        self._screen.say("ALTER TABLE orders ADD COLUMN channel TEXT DEFAULT 'web'")

    def _kill_relay(self) -> None:
        self._relay.kill()
        self._kills += 1
        self._screen.say("kill -9: the relay")
        self._pass(1)
        self._relay.start()
        self._screen.say("the relay is back; its log was cut to its published end")

    def _kill_pipeline(self) -> None:
        assert self._pipeline is not None  # noqa: S101 - started in _play
        os.killpg(self._pipeline.pid, signal.SIGKILL)
        self._pipeline.wait()
        self._kills += 1
        self._screen.say("kill -9: the pipeline, its Spark and its workers")
        self._positions.clear()
        self._start_pipeline()
        self._wait_until("the pipeline after its kill", lambda: len(self._positions) == len(self._outputs), 60)
        self._screen.say("the pipeline is back and goes on where its tables stand")

    def _finish(self) -> str:
        assert self._workload is not None  # noqa: S101 - started in _play
        self._workload.terminate()
        self._workload.wait(30)
        self._screen.say("the application has stopped; waiting until everything has arrived")
        from databus.client import RelayClient

        relay = RelayClient(self._relay.url)
        self._wait_until("capture", self._is_captured, 60)
        end = relay.head("shop").published.scn
        self._wait_until("the callback", lambda: self._copied() >= end, 60)
        self._wait_until("the outputs", lambda: all(each >= end for each in self._positions.values()), 90)
        return self._compare()

    def _is_captured(self) -> bool:
        """Whether nothing waits in the database."""
        import urllib.request

        with urllib.request.urlopen(f"{self._relay.url}/controlSources/status", timeout=10) as answer:  # noqa: S310
            told = json.load(answer)
        return all(each["state"] == "RUNNING" and not each["lagChanges"] for each in told)

    def _copied(self) -> int:
        status = self._client.status().get("shop") if self._client else None
        return 0 if status is None else status.delivered[0]

    def _compare(self) -> str:
        from databus.pipeline import compare, load_pipeline

        config = load_pipeline(self._folder / "databus.yml")
        found = compare(config, "copy", database=self._database)
        self._screen.say(f"compared the Delta tables: {found.summary()}")
        if not found.is_identical:
            raise Stop(f"source and copy differ:\n{found.details()}")
        with closing(sqlite3.connect(self._database)) as connection:
            for name in TABLES:
                rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()  # noqa: S608 - our own four names
                if sorted(map(repr, rows)) != sorted(map(repr, self._copy.rows(name))):
                    raise Stop(f"the callback's copy of {name} differs from the source")
        self._check_history()
        return (
            f"source and copy identical: {len(found.tables)} tables, {found.rows:,} rows, "
            f"{self._copy.changes:,} changes, {self._kills} kills survived"
        )

    def _check_history(self) -> None:
        """No change twice: (SCN, `_seq`) is unique in the history."""
        from databus.pipeline.outputs import read_delta

        for name in TABLES:
            history = read_delta(self._folder / "lake" / "history" / name, ["_commit_version", "_seq"])
            if history.num_rows != history.group_by(["_commit_version", "_seq"]).aggregate([]).num_rows:
                raise Stop(f"the history of {name} holds a change twice")

    def _pass(self, seconds: float) -> None:
        """Let time pass on the screen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tick()

    def _wait_until(self, what: str, is_there: Callable[[], bool], seconds_max: float) -> None:
        end = time.monotonic() + seconds_max
        while not is_there():
            if time.monotonic() > end:
                raise Unavailable(f"{what} did not arrive within {seconds_max:.0f} s; the logs are in {self._folder}")
            self._tick()

    def _tick(self) -> None:
        self._read_progress()
        for name, process in (("workload", self._workload), ("pipeline", self._pipeline)):
            if process is not None and process.poll() not in (None, 0):
                raise Unavailable(f"the {name} ended by itself; see {self._folder / name}.log")
        if self._client is not None and self._client.state is ClientState.FAILED:
            self._client.join()
        self._screen.show(self._lines())
        time.sleep(_TICK_S)

    def _read_progress(self) -> None:
        if not self._progress.exists():
            return
        with self._progress.open("rb") as file:
            file.seek(self._progress_read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._progress_read += len(line)
                event = json.loads(line)
                if event.get("event") == "batch" and event["output"] in self._outputs:
                    self._outputs[event["output"]].add(event["rows"], event.get("lag_ms"))
                    self._positions[event["output"]] = event["position"]["scn"]

    def _lines(self) -> list[Line]:
        meter = self._copy.meter
        lines = [Line("callback", meter.rows, meter.rate(), "", meter.percentiles())]
        for name, output in self._outputs.items():
            behind = self._copied() - self._positions[name] if name in self._positions else None
            told = "starting" if behind is None else f"{max(behind, 0)} cuts"
            lines.append(Line(f"Delta {name}", output.rows, output.rate(), told, output.percentiles()))
        return lines

    def _stop_all(self) -> None:
        if self._client is not None:
            self._client.stop()
        for process in (self._workload, self._pipeline):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self._relay.stop()
