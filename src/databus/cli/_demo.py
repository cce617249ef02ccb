"""The demo: everything that databus promises, on this machine, in under two minutes, and a comparison at the end.

An application keeps a shop busy, in SQLite or on a server. A relay captures it. A callback keeps a copy in memory; a
Spark pipeline writes to a target: Delta tables, topics of Kafka or indices of OpenSearch. On the way, a column is added
and one is renamed; relay, pipeline and, where there are some, the servers of database and target are each killed with
SIGKILL. Then the application stops, everything arrives, and every table is compared by value.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from databus.cli._dashboard_beside import dashboard_beside
from databus.cli._demo_stage import DemoStage
from databus.cli._demo_target import DemoTarget
from databus.cli._run_view import source_line
from databus.cli._screen import Meter, ReaderLine, Screen, SourceLine
from databus.client import AnyWindow, Changes, Client, ClientState, Consumer, ControlEvent, Window
from databus.core import ChangeType, FatalError, ServiceUnavailable, SourceCheckpoint
from databus.link import RelayClient
from databus.testing import RelayProcess
from databus.testing.servers import ServerProcess
from databus.testing.shop import TABLES

_PIPELINE: Final = """\
name: demo
relay: {{url: "{url}"}}
inputs:
  shop: {{type: databus, tables: ["{tables}"]}}
"""
_TICK_S: Final = 0.1
_LAST: Final = "closing time"
_CLOSE: Final = "INSERT INTO customers (name) VALUES ('closing time')"


class Demo:
    """The cast and the plot. stage, target: built; they are closed by whoever built them. rate: transactions a second,
    at most.
    """

    def __init__(
        self,
        folder: Path,
        stage: DemoStage,
        target: DemoTarget,
        seconds: float,
        screen: Screen,
        *,
        rate: int,
        dashboard: bool = False,
    ) -> None:
        self._folder = folder
        self._seconds = seconds
        self._rate = rate
        self._screen = screen
        self._stage = stage
        self._target = target
        self._tables = f"shop/{stage.database}.*"
        self._relay = RelayProcess(folder / "state", {"shop": dict(stage.source())})
        self._workload: subprocess.Popen[bytes] | None = None
        self._pipeline: subprocess.Popen[bytes] | None = None
        self._progress = folder / "progress.jsonl"
        self._progress_read = 0
        self._copy = CallbackCopy()
        self._outputs = {name: Meter() for name in target.outputs}
        self._positions: dict[str, int] = {}
        self._client: Client | None = None
        self._waits_for: list[SourceLine] = []
        self._kills = 0
        self._has_dashboard = dashboard
        self._beside = ExitStack()

    def run(self) -> str:
        """Play it all; returns the last line. Raises `FatalError` for any difference."""
        try:
            return self._play()
        finally:
            self._stop_all()

    def _play(self) -> str:
        self._explain()
        self._relay.start()
        self._screen.say(f"relay answers at {self._relay.url}")
        (self._folder / "databus.yml").write_text(
            _PIPELINE.format(url=self._relay.url, tables=self._tables) + self._target.sections()
        )
        shown = [str(self._folder / "databus.yml"), "--relay", self._relay.url]
        folder = self._folder / "dashboard"
        self._beside.enter_context(dashboard_beside(self._has_dashboard, shown, self._screen.say, folder))
        self._client = Client(self._relay.url, self._copy, sources=[self._tables])
        self._client.start()
        self._wait_until("capture (the first one on a machine compiles its decoder)", self._is_capturing, 300)
        self._start_workload()
        self._start_pipeline()
        self._wait_until("the pipeline's first batch", lambda: len(self._positions) == len(self._outputs), 240)
        self._screen.say("the pipeline's first batch has arrived")
        self._pass(self._seconds * 0.2)
        self._alter(f"ALTER TABLE orders ADD COLUMN channel {self._stage.text_type} DEFAULT 'web'")
        self._pass(self._seconds * 0.1)
        self._alter("ALTER TABLE stock RENAME COLUMN weight TO weight_kg")
        self._pass(self._seconds * 0.1)
        self._kill_relay()
        self._pass(self._seconds * 0.3)
        for name, server in (("the database server", self._stage.server), (self._target.product, self._target.server)):
            if server is not None:
                self._kill_server(name, server)
        self._kill_pipeline()
        self._pass(self._seconds * 0.3)
        return self._finish()

    def _start_workload(self) -> None:
        arguments = [str(self._stage.target), "--seconds", "600", "--rate", str(self._rate)]
        self._workload = self._spawn("workload", ["-m", "databus.testing.shop", *arguments])
        self._screen.say(f"an application makes up to {self._rate} transactions a second, of one row to a thousand")

    def _start_pipeline(self) -> None:
        arguments = ["run", "databus.yml", "--progress", str(self._progress), "--log-format", "json"]
        self._pipeline = self._spawn("pipeline", ["-m", "databus.cli", *arguments])
        self._screen.say("pipeline started: Spark needs some seconds; its log is in pipeline.log")

    def _explain(self) -> None:
        self._screen.say(
            "rows are row images, of which an update has two; the readers begin at different times, and what a killed "
            "pipeline had not finished is counted again, so their counts differ. The tables are compared at the end"
        )

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

    def _alter(self, statement: str) -> None:
        self._stage.execute(statement)
        self._screen.say(statement)

    def _kill_relay(self) -> None:
        self._relay.kill()
        self._kills += 1
        self._screen.say("kill -9: the relay")
        self._pass(1)
        self._relay.start()
        self._screen.say("the relay is back; its log was cut to its published end")

    def _kill_server(self, name: str, server: ServerProcess) -> None:
        server.kill()
        self._kills += 1
        self._screen.say(f"kill -9: {name}")
        self._pass(1)
        server.start()
        self._screen.say(f"{name} is back; who needs it connects again")
        self._pass(1)

    def _kill_pipeline(self) -> None:
        assert self._pipeline is not None  # noqa: S101 - started in _play
        os.killpg(self._pipeline.pid, signal.SIGKILL)
        self._pipeline.wait()
        self._kills += 1
        self._screen.say("kill -9: the pipeline, its Spark and its workers")
        self._positions.clear()
        self._start_pipeline()
        self._wait_until("the pipeline after its kill", lambda: len(self._positions) == len(self._outputs), 240)
        self._screen.say("the pipeline is back and goes on where its target stands")

    def _finish(self) -> str:
        assert self._workload is not None  # noqa: S101 - started in _play
        self._workload.terminate()
        self._workload.wait(30)
        self._screen.say("the application has stopped; waiting until everything has arrived")
        self._stage.execute(_CLOSE)
        self._wait_until("the last change", lambda: self._copy.has("customers", "name", _LAST), 90)
        end = RelayClient(self._relay.url).head("shop").published.scn
        self._wait_until("the callback", lambda: self._copied() >= end, 60)
        self._wait_until("the outputs", lambda: all(scn >= end for scn in self._positions.values()), 90)
        return self._compare()

    def _is_capturing(self) -> bool:
        states = RelayClient(self._relay.url).states()
        for state in states:
            if state["state"] == "SUSPENDED_ON_ERROR":
                raise FatalError(f"the relay does not capture: {state['message']}")
        self._waits_for = [source_line(state) for state in states if state["state"] != "RUNNING"]
        return not self._waits_for

    def _copied(self) -> int:
        status = self._client.status().get("shop") if self._client else None
        return 0 if status is None else status.delivered[0]

    def _compare(self) -> str:
        from databus.pipeline import read_source
        from databus.sources import parse_source

        source = parse_source(self._stage.source(), "shop")
        rows = self._target.compare(source, self._relay.url, self._screen.say)
        held = read_source("shop", source)
        for name in TABLES:
            if held[f"{self._stage.database}.{name}"] != self._copy.rows(name):
                raise FatalError(f"the callback's copy of {name} differs from the source")
        return (
            f"source and copy identical: {len(TABLES)} tables, {rows:,} rows, "
            f"{self._copy.changes:,} changes, {self._kills} kills survived"
        )

    def _pass(self, seconds: float) -> None:
        """Let time pass on the screen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tick()

    def _wait_until(self, what: str, is_there: Callable[[], bool], seconds_max: float) -> None:
        end = time.monotonic() + seconds_max
        while not is_there():
            if time.monotonic() > end:
                raise ServiceUnavailable(
                    f"{what} did not arrive within {seconds_max:.0f} s; the logs are in {self._folder}"
                )
            self._tick()

    def _tick(self) -> None:
        self._read_progress()
        for name, process in (("workload", self._workload), ("pipeline", self._pipeline)):
            if process is not None and process.poll() not in (None, 0):
                raise ServiceUnavailable(f"the {name} ended by itself; see {self._folder / name}.log")
        if self._client is not None and self._client.state is ClientState.FAILED:
            self._client.join()
        self._screen.show(self._lines(), self._waits_for)
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

    def _lines(self) -> list[ReaderLine]:
        meter = self._copy.meter
        capturing = "waits for capture" if self._waits_for else "follows"
        lines = [ReaderLine("callback", meter.rows, meter.rate(), "", meter.percentiles(), capturing)]
        for name, output in self._outputs.items():
            behind = self._copied() - self._positions[name] if name in self._positions else None
            behind_text = "-" if behind is None else f"{max(behind, 0)} {self._stage.unit}"
            state = self._state_of_outputs() if behind is None else "follows"
            lines.append(
                ReaderLine(
                    f"{self._target.product} {name}",
                    output.rows,
                    output.rate(),
                    behind_text,
                    output.percentiles(),
                    state,
                )
            )
        return lines

    def _state_of_outputs(self) -> str:
        if self._pipeline is None:
            return "not started yet"
        return "waits for its first batch: Spark starts" if not self._kills else "starts again"

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
        self._beside.close()


class CallbackCopy(Consumer):
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
        """Columns came or have other names, or a snapshot ended."""
        held, body = self.tables[control.source.rpartition(".")[2]], control.body
        if body["kind"] == "schema":
            names = [column["name"] for column in body["table"]["columns"]]
            old = {new: old for old, new in body.get("renamed", {}).items()}
            for row in held.values():
                pair = row["_pair"]
                was = {name: row.get(old.get(name, name), body["fill"].get(name)) for name in names}
                row.clear()
                row.update(was | {"_pair": pair})
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
        raise FatalError(f"{physical}: the callback was rolled back to SCN {position.scn}")

    def has(self, name: str, column: str, value: Any) -> bool:
        """Whether a row has this value. The dictionary is kept by another thread, so a copy of it is looked at."""
        return any(row.get(column) == value for row in self.tables[name].copy().values())

    def rows(self, name: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The rows by key; of a copy, as in `has`."""
        return {
            key: tuple(value for column, value in row.copy().items() if column != "_pair")
            for key, row in self.tables[name].copy().items()
        }
