"""Relays and queries for the tests of this folder."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from databus.core import PositionPurged
from databus.link import RelayClient, patiently
from databus.spark import error_of
from databus.testing import RelayProcess

S_MAX = 120

StartRelay = Callable[..., RelayProcess]


@pytest.fixture
def start_relay(tmp_path: Path) -> Iterator[StartRelay]:
    """Start relays that are stopped after the test; waits until each has captured all that there is."""
    relays: list[RelayProcess] = []

    def start(sources: Mapping[str, Any], scn: int | None = None, **options: Any) -> RelayProcess:
        relay = RelayProcess(tmp_path / f"relay{len(relays)}", sources, **options)
        relays.append(relay)
        relay.start()
        if scn is not None:
            for physical in sources:
                wait_until_captured(relay.url, physical, scn)
        return relay

    yield start
    for relay in relays:
        relay.stop()


def wait_until_captured(url: str, physical: str, scn: int, token: str | None = None) -> None:
    """Wait until the relay has published this SCN: each long poll wakes when something is published."""
    client = RelayClient(url, token=token)
    position = patiently(lambda: client.position(physical, start="earliest"), S_MAX * 1000)
    for _ in range(10_000):
        if position.scn >= scn:
            return
        try:
            position = client.range(physical, position, wait_ms=2_000).position
        except PositionPurged:  # retention is quicker than we are
            position = client.position(physical, start="earliest")
    raise AssertionError(f"{physical} stands at {position.scn}, waited for {scn}")


@dataclass
class Drained:
    """What a query's batches were: rows by batch id, in the order in which they came."""

    batches: dict[int, pa.Table] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables(self.batches.values())

    def pairs(self) -> list[tuple[int, int]]:
        rows = self.rows
        return list(zip(rows.column("_commit_version").to_pylist(), rows.column("_seq").to_pylist(), strict=True))


class Failed(Exception):
    """A sink that fails on purpose."""


def options_of(relay: RelayProcess, **more: Any) -> dict[str, Any]:
    return {"relay": relay.url, **more}


def load_stream(spark: Any, relay: RelayProcess, **options: Any) -> Any:
    return spark.readStream.format("databus").options(**options_of(relay, **options)).load()


def load_batch(spark: Any, relay: RelayProcess, **options: Any) -> Any:
    return spark.read.format("databus").options(**options_of(relay, **options)).load()


def drain(stream: Any, checkpoint: Path, *, fail_at: int | None = None) -> Drained:
    """Run a stream until it has taken all that there is. Raises the databus error that stopped it."""
    seen = Drained()

    def sink(batch: Any, batch_id: int) -> None:
        table = batch.toArrow()
        seen.batches[batch_id] = table
        if batch_id == fail_at:
            raise Failed(f"batch {batch_id}")

    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(S_MAX), "the query goes on for ever"
    except Exception as error:
        stopped = error_of(error)
        if stopped is not None:
            raise stopped from error
        if "Failed: batch" not in str(error):
            raise
    finally:
        seen.progress = [json.loads(each.json) for each in query.recentProgress]
        query.stop()
    return seen


def offsets_in(checkpoint: Path) -> dict[int, Any]:
    """The offsets that Spark wrote, by batch id."""
    found = {}
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            found[int(path.name)] = json.loads(path.read_text().splitlines()[-1])
    return dict(sorted(found.items()))
