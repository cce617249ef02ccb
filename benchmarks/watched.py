"""What watching costs those who are watched: a relay's capture and a pipeline's output, with all of it and without.

Off and on in turn; each ratio is of one round. On: a dashboard in a process of its own, whose page somebody has open,
looks at the relay or the pipeline. Off: it is stopped (SIGSTOP), and the pipeline has neither its journal of batches
nor the reporter. Tasks count their rows in both, since nothing turns that off.

    python -m benchmarks.watched
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from tests.dashboard.parts import wait_until

from benchmarks._changes import insert_groups
from benchmarks.dashboard import Tabs, process
from benchmarks.figures import Figure
from benchmarks.spark_delta import CONFIG, PIPELINE, rate_of
from benchmarks.spark_tasks import log_of
from databus.link import RelayClient
from databus.pipeline import run
from databus.pipeline.running import _run
from databus.pipeline.telling import BatchJournal
from databus.spark import tuned_session
from databus.testing import RelayProcess

ROUNDS = 5
CAPTURED = 4_000
"""Transactions of `ROW_COUNT` rows that a relay captures as quickly as it can."""
ROW_COUNT = 1_000
ROWS = 3_000_000
ROWS_A_BATCH = 300_000
ROWS_MIN = 20_000
BATCHES_MIN = 5
LOOK_S = 0.05
CAPTURE_S_MAX = 300.0
SETTLE_S = 3.0  # what starts leaves behind is over
AT_LEAST = 0.97


@contextmanager
def watching(folder: Path, *arguments: str) -> Iterator[psutil.Process]:
    """A dashboard whose page somebody has open; stopped until it is told to go on."""
    with process(folder, *arguments) as dashboard:
        tabs = Tabs(*dashboard.signed_in(), 1)
        tabs.start()
        wait_until(lambda: tabs.bytes)
        time.sleep(SETTLE_S)
        dashboard.process.suspend()
        yield dashboard.process
        tabs.end()


@contextmanager
def _awake(dashboard: psutil.Process, *, is_on: bool) -> Iterator[None]:
    if is_on:
        dashboard.resume()
    try:
        yield
    finally:
        dashboard.suspend()


def _compared(what: str, unit: str, rounds: list[dict[bool, float]]) -> Iterator[Figure]:
    on, off = (statistics.median(each[is_on] for each in rounds) for is_on in (True, False))
    ratios = sorted(each[True] / each[False] for each in rounds)
    yield Figure(what, on, unit, "off", off)
    name = f"{what}, of off, median of {len(ratios)} rounds ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    yield Figure(name, statistics.median(ratios), "", "at least", AT_LEAST)


def _capture(folder: Path, scale: float) -> Iterator[Figure]:
    """A new relay for each, at the same port, which the dashboard knows."""
    transactions = max(int(CAPTURED * scale), 20)
    source = {"type": "mock", "rows_per_transaction": ROW_COUNT, "transactions_total": transactions, "updates": 0}
    first = RelayProcess(folder / "first", {"mock": {**source, "transactions_total": 1}})
    with first:
        port = first.url.rpartition(":")[2]
    rounds: list[dict[bool, float]] = []
    with watching(folder, "--relay", f"http://127.0.0.1:{port}") as dashboard:
        for number in range(ROUNDS + 1):
            rates = {}
            for is_on in (False, True) if number % 2 else (True, False):
                place = folder / f"{number}-{is_on}"
                with (
                    _awake(dashboard, is_on=is_on),
                    RelayProcess(place, {"mock": {**source, "deletes": 0}}, listen=f"127.0.0.1:{port}") as relay,
                ):
                    rates[is_on] = _captured(relay, transactions)
                shutil.rmtree(place)
            rounds.append(rates)
    yield from _compared("capture of a mock source with a dashboard", "rows/s", rounds[1:])


def _captured(relay: RelayProcess, transactions: int) -> float:
    """Rows a second since the process answered."""
    client, began = RelayClient(relay.url), time.perf_counter()
    while not client.physicals()["mock"] or client.head("mock").published.scn < transactions:
        if time.perf_counter() - began > CAPTURE_S_MAX:
            raise AssertionError(f"the relay has not captured {transactions} transactions in {CAPTURE_S_MAX:.0f} s")
        time.sleep(LOOK_S)  # asking without a pause would take the processor from what is measured
    return transactions * ROW_COUNT / (time.perf_counter() - began)


@contextmanager
def _kept(*, is_on: bool) -> Iterator[None]:
    """With the journal of batches and the reporter, or without."""
    if is_on:
        yield
        return
    with mock.patch.object(BatchJournal, "take"), mock.patch.object(_run, "BatchReports"):
        yield


def _output(folder: Path, scale: float) -> Iterator[Figure]:
    rows = max(int(ROWS * scale), ROWS_MIN)
    sources = log_of(folder, insert_groups(0, rows, 1, 1_000), CONFIG)
    a_batch = min(ROWS_A_BATCH, rows // BATCHES_MIN)
    names = [f"{number}-{is_on}" for number in range(ROUNDS + 1) for is_on in (True, False)]
    spark = tuned_session("watched", "local[2]", folder=folder / "spark")
    rounds: list[dict[bool, float]] = []
    try:
        with RelayProcess(folder, sources) as relay:
            for name in names:
                (folder / name).mkdir()
                text = PIPELINE.format(url=relay.url, mode="history", rows=a_batch)
                (folder / name / "databus.yml").write_text(text.replace("benchmark", f"benchmark-{name}"))
            files = [f"{name}/databus.yml" for name in names if name.endswith("True")]
            with watching(folder, *files) as dashboard:
                for number in range(ROUNDS + 1):
                    rates = {}
                    for is_on in (False, True) if number % 2 else (True, False):
                        with _awake(dashboard, is_on=is_on), _kept(is_on=is_on):
                            rates[is_on] = _rate(spark, folder / f"{number}-{is_on}")
                    rounds.append(rates)
    finally:
        spark.stop()
    yield from _compared("relay to Delta history with dashboard, journal and reporter", "rows/s", rounds[1:])


def _rate(spark: Any, folder: Path) -> float:
    events: list[Any] = []
    code = run(folder / "databus.yml", once=True, on_event=events.append, session=spark)
    if code:
        raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    found = rate_of([each for each in events if each["event"] == "batch" and each["rows"]])
    shutil.rmtree(folder / "history")
    return found


def figures(scale: float = 1.0) -> Iterator[Figure]:
    """See this module's first lines."""
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        for part, measure in (("capture", _capture), ("output", _output)):
            (Path(name) / part).mkdir()
            yield from measure(Path(name) / part, scale)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
