"""Law: what a source yields, every consumer gets, equal to the last bit and in order: by way of frames, log and HTTP.

Hypothesis makes the tables, the rows and how transactions of several tables follow each other; the relay is a real one.
"""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from databus.client import windows
from databus.core import ChangeType
from databus.formats import to_json_value
from databus.relay import Relay, parse_relay
from databus.schema import TableSchema
from databus.wire import FrameGroup
from tests.spark.conftest import load_batch, wait_until_captured
from tests.spark.kit import parsed
from tests.spark.strategies import images, tables

EXAMPLES = settings.default.max_examples  # 50, and 2,000 in a soak
Image = dict[str, Any]
Logged = tuple[tuple[int, int], int, tuple[Any, ...]]
"""A row as it must arrive: (SCN, `_seq`), change type, exact values."""


@dataclass(frozen=True)
class Change:
    """One change of a table: one image, or both of an update."""

    table: TableSchema
    kinds: tuple[ChangeType, ...]
    images: tuple[Image, ...]

    def to_json(self) -> dict[str, Any]:
        """As the mock source's script has it."""
        written = [{name: to_json_value(value) for name, value in image.items()} for image in self.images]
        if len(written) == 2:
            return {"table": self.table.source, "update": written[1], "before": written[0]}
        return {"table": self.table.source, self.kinds[0].name.lower(): written[0]}


@dataclass(frozen=True)
class History:
    """Tables, and transactions over them; how many of those a group may join, and where a segment ends."""

    tables: list[TableSchema]
    transactions: list[list[Change]]
    group_transactions_max: int
    segment_bytes_max: int

    def logged(self) -> dict[str, list[Logged]]:
        """The rows of each table. The script's first transaction has the schemas and no rows."""
        found: dict[str, list[Logged]] = {table.source: [] for table in self.tables}
        for scn, changes in enumerate(self.transactions, 2):
            seq = 0
            for change in changes:
                for kind, image in zip(change.kinds, change.images, strict=True):
                    seq += 1
                    found[change.table.source].append(((scn, seq), kind.value, exact(change.table, image)))
        return found


def exact(table: TableSchema, image: Image) -> tuple[Any, ...]:
    """The values of an image so that only the very same ones are equal: 0.0 is not -0.0, nor 1 True."""
    return tuple(_exact(column.type, image[column.name]) for column in table.columns)


def _exact(type_name: str, value: Any) -> Any:
    if value is None:
        return None
    if type_name.startswith("float"):
        return struct.pack("<d", value)
    if type_name == "uint64":
        return int(value)  # a decimal in Spark
    return ("Decimal", str(value)) if isinstance(value, Decimal) else (type(value) is bool, value)


_KINDS = {
    1: [(ChangeType.INSERT,), (ChangeType.DELETE,)],
    2: [(ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)],
}


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Up to three tables, and transactions that change any of them, in any turn; some change nothing."""
    chosen = [draw(tables(f"main.t{number}")) for number in range(draw(st.integers(1, 3)))]

    def changes(table: TableSchema) -> st.SearchStrategy[Change]:
        pair = images(table, 2).filter(bool)
        return pair.flatmap(
            lambda rows: st.sampled_from(_KINDS[len(rows)]).map(lambda kinds: Change(table, kinds, tuple(rows)))
        )

    one = st.one_of([changes(table) for table in chosen])
    transactions = draw(st.lists(st.lists(one, max_size=6), min_size=1, max_size=12))
    return History(
        chosen, transactions, draw(st.sampled_from([1, 2, 1_000])), draw(st.sampled_from([4 << 10, 1 << 20]))
    )


@contextmanager
def relay_of(history: History, folder: Path) -> Iterator[Relay]:
    """A relay that has captured all of it."""
    lines = [{"changes": [{"schema": table.to_json()} for table in history.tables]}]
    lines += [{"changes": [change.to_json() for change in changes]} for changes in history.transactions]
    (folder / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mock = {
        "type": "mock",
        "script": str(folder / "script.jsonl"),
        "group_transactions_max": history.group_transactions_max,
    }
    log = {"free_bytes_min": 0, "fsync_interval_ms": 5, "segment_bytes_max": history.segment_bytes_max}
    config = {"listen": "127.0.0.1:0", "folder": "relay", "sources": {"shop": mock}, "log": log}
    with Relay(parse_relay(config, folder=folder)) as relay:
        wait_until_captured(relay.url, "shop", len(lines))
        yield relay


def logged_of(table: TableSchema, rows: list[Image]) -> list[Logged]:
    """Rows of a frame, or of Spark, as they must be."""
    return [((row["_commit_version"], row["_seq"]), _number_of(row["_change_type"]), exact(table, row)) for row in rows]


def _number_of(change_type: int | str) -> int:
    return change_type if isinstance(change_type, int) else ChangeType[change_type.upper()].value


@settings(max_examples=EXAMPLES // 5, suppress_health_check=list(HealthCheck))
@given(history=histories())
def test_the_clients_windows_are_the_transactions_of_the_source(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    got: dict[str, list[Logged]] = {table.source: [] for table in history.tables}
    scns, pairs = [], []
    with (
        relay_of(history, tmp_path_factory.mktemp("client")) as relay,
        windows(relay.url, follow=False) as following,
    ):
        for window in following:
            changes = list(window.changes())
            if changes:
                scns.append(window.scn)
            pairs += [row.pair for row in window.rows()]
            for each in changes:
                assert {row["_txid"] for row in each.batch.to_pylist()} == {window.txid}
                got[each.table.source] += logged_of(each.table, each.batch.to_pylist())
    event(f"{sum(map(len, got.values())) // 10 * 10} rows or more")
    assert got == history.logged()
    assert scns == [scn for scn, changes in enumerate(history.transactions, 2) if changes]
    assert pairs == sorted(set(pairs)), "the rows of a window are not in order"
    assert len(pairs) == sum(map(len, history.transactions))  # both images of an update are one row


@pytest.mark.spark
@pytest.mark.timeout(1800)
@settings(max_examples=max(3, EXAMPLES // 20), suppress_health_check=list(HealthCheck))
@given(history=histories())
def test_spark_reads_back_what_the_source_yields_in_both_shapes(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    expected = history.logged()
    with relay_of(history, tmp_path_factory.mktemp("spark")) as relay:
        for table in history.tables:
            frame = load_batch(spark, relay, shape="typed", sources=table.source, meta="full", partitions=2)
            assert logged_of(table, frame.toArrow().to_pylist()) == expected[table.source]
        runs = load_batch(spark, relay, shape="frames", partitions=2).collect()
    got: dict[str, list[Logged]] = {table.source: [] for table in history.tables}
    known = {table.source: table for table in history.tables}
    for run in runs:
        after, until = (run["after_scn"], run["after_seq"]), (run["until_scn"], run["until_seq"])
        for source, rows in _rows_of(parsed(run["frames"])):
            inside = [row for row in logged_of(known[source], rows) if after < row[0] <= until]
            got[source] += inside
    assert got == expected


def _rows_of(groups: list[FrameGroup]) -> Iterator[tuple[str, list[Image]]]:
    for frame in (frame for group in groups for frame in group.rows):
        yield frame.batch.schema.metadata[b"databus.source"].decode(), frame.batch.to_pylist()
