"""The driver's and the executors' halves against a real relay, without Spark: waiting, retrying, cut streams."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from databus.core import ConfigError, CorruptData, ServiceUnavailable, SourceCheckpoint
from databus.spark._options import DatabusOptions, parse_options
from databus.spark._plan import Planner, RangePartition
from databus.spark._read import PartitionReader
from databus.spark._schema import FRAMES_SCHEMA, arrow_schema, typed_schema
from databus.testing import RelayProcess, TcpProxy
from tests.relay.support import Database, order, published, scripted
from tests.spark.conftest import StartRelay, wait_until_captured
from tests.spark.kit import parsed

TABLES = {"main.a": {"columns": {"id": "int64", "n": "string"}}, "main.b": {"columns": {"id": "int64", "n": "string"}}}
MOCK = {"type": "mock", "rows_per_transaction": 1, "schemas": TABLES, "updates": 0, "deletes": 0}


def options(url: str, **more: Any) -> DatabusOptions:
    given = {"relay": url, "shape": "typed", "sources": "main.a", **more}
    return parse_options({name: str(value) for name, value in given.items()})


class Counted(Planner):
    """A planner that counts what it asks the relay about ranges."""

    asked = 0

    def _range(self, *args: Any, **more: Any) -> Any:
        self.asked += 1
        return super()._range(*args, **more)


def end_after(planner: Planner, start: SourceCheckpoint, **more: Any) -> SourceCheckpoint:
    return planner.end_after(start, **{"rows_max": None, "bytes_max": None, "available": None, **more})


def test_one_question_waits_for_the_next_row(start_relay: StartRelay) -> None:
    relay = start_relay({"shop": {**MOCK, "transactions_per_s": 1}}, scn=1)
    planner = Counted(options(relay.url, waitMs=10_000), None)
    start = planner.head()
    assert end_after(planner, start).scn > start.scn
    assert planner.asked == 1


def test_a_table_at_rest_in_a_busy_database_makes_neither_questions_nor_batches(start_relay: StartRelay) -> None:
    """Only main.a changes: each question about main.b lasts its time, and moves the position without rows."""
    relay = start_relay({"shop": {**MOCK, "transactions_per_s": 500, "group_transactions_max": 1}}, scn=1)
    planner = Counted(options(relay.url, sources="main.b", waitMs=250), None)
    start = end = planner.head()
    began = time.monotonic()
    while end.scn < start.scn + 50 or planner.asked < 4:
        end = end_after(planner, end)
    assert planner.asked * 0.25 <= time.monotonic() - began
    assert planner.split(start, end) == []


def test_a_query_that_takes_what_is_there_does_not_wait(start_relay: StartRelay) -> None:
    relay = start_relay({"shop": {**MOCK, "transactions_total": 50}}, 50)
    planner = Counted(options(relay.url, waitMs=10_000), None)
    head = planner.head()
    end = end_after(planner, planner.initial(), available=head.pair)
    assert end == head
    assert end_after(planner, end, available=head.pair) == head
    assert planner.asked == 1


def test_a_query_that_has_all_up_to_its_ending_version_asks_no_more(start_relay: StartRelay) -> None:
    relay = start_relay({"shop": {**MOCK, "transactions_total": 50}}, 50)
    planner = Counted(options(relay.url, endingVersion=20, waitMs=0), None)
    end = end_after(planner, planner.initial())
    assert end.scn == 20
    assert [end_after(planner, end) for _ in range(5)] == [end] * 5
    assert planner.asked <= 2


def test_a_relay_that_comes_back_is_asked_again(start_relay: StartRelay) -> None:
    relay = start_relay({"shop": {**MOCK, "transactions_total": 50}}, 50)
    planner = Planner(options(relay.url), None)
    start = planner.initial()
    relay.kill()
    comes_back = threading.Thread(target=relay.start)
    comes_back.start()
    assert end_after(planner, start).scn == 50
    comes_back.join()


def test_a_relay_that_stays_away_is_an_error_that_names_it(start_relay: StartRelay) -> None:
    relay = start_relay({"shop": {**MOCK, "transactions_total": 5}}, 5)
    planner = Planner(options(relay.url, retryMs=50), None)
    start = planner.initial()
    relay.kill()
    with pytest.raises(ServiceUnavailable, match=relay.url.removeprefix("http://")):
        end_after(planner, start)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with 4,000 transactions in many small groups."""
    mock = {**MOCK, "rows_per_transaction": 3, "transactions_total": 2_000, "group_bytes_max": 2048}
    with RelayProcess(Path(tmp_path_factory.mktemp("busy")), {"shop": mock}) as relay:
        wait_until_captured(relay.url, "shop", 2_000)
        yield relay


@pytest.mark.parametrize(("divisor", "ranges"), [(1, 1), (2, 2), (5, 5), (8, 8), (100, 8)])
def test_ranges_are_not_smaller_than_they_are_worth(busy: RelayProcess, divisor: int, ranges: int) -> None:
    """Of eight that are wanted there are fewer where they would be too small; still of like size, and one whole."""
    whole = Planner(options(busy.url), None)
    start = whole.initial()
    found = whole._range(start)
    asked = options(busy.url, partitions=8, partitionBytesMin=found.bytes // divisor)
    parts = Planner(asked, None).split_all()
    assert len(parts) == ranges
    assert [part.until for part in parts[:-1]] == [part.after for part in parts[1:]]
    assert parts[-1].until == whole.split_all()[0].until
    sizes = [whole._range(part.start, to=part.until).bytes for part in parts]
    assert max(sizes) < 2.5 * min(sizes)


def _plan(asked: DatabusOptions, schema_of: Any) -> tuple[PartitionReader, list[RangePartition], int]:
    planner = Planner(asked, None)
    partitions = planner.split_all()
    return PartitionReader(asked, planner.target, schema_of(planner)), partitions, planner.head().scn


def _typed_schema(planner: Planner) -> pa.Schema:
    assert planner.target.table is not None
    return arrow_schema(typed_schema(planner.target.table.schema, meta_full=True))


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_that_is_cut_anywhere_is_read_on_without_loss_or_repeat(busy: RelayProcess, seed: int) -> None:
    """Law: at least once, and inside a partition exactly once, wherever the network breaks."""
    port = int(busy.url.rpartition(":")[2])
    whole, partitions, _ = _plan(options(busy.url, meta="full"), _typed_schema)
    expected = pa.concat_tables(pa.Table.from_batches([b]) for each in partitions for b in whole.read(each))
    randomness = random.Random(seed)
    with TcpProxy("127.0.0.1", port) as proxy:
        reader, partitions, _ = _plan(options(proxy.url, meta="full", partitions=2), _typed_schema)
        batches = []
        for partition in partitions:
            proxy.truncate_after(randomness.randrange(200_000))
            batches += list(reader.read(partition))
    assert pa.Table.from_batches(batches).combine_chunks().equals(expected.combine_chunks()), f"seed {seed}"


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_a_stream_that_is_cut_anywhere_are_whole_groups_once(busy: RelayProcess, seed: int) -> None:
    port = int(busy.url.rpartition(":")[2])
    randomness = random.Random(seed)
    with TcpProxy("127.0.0.1", port) as proxy:
        asked = options(proxy.url, shape="frames", sources="main.*")
        reader, partitions, head = _plan(asked, lambda _: arrow_schema(FRAMES_SCHEMA))
        scns: list[int] = []
        for partition in partitions:
            proxy.truncate_after(randomness.randrange(300_000))
            for batch in reader.read(partition):
                (row,) = batch.to_pylist()
                groups = parsed(row["frames"])
                assert groups[-1].commit.last == (row["scn"], row["seq"])
                scns += [group.commit.last_scn for group in groups]
    assert scns == sorted(set(scns)), f"seed {seed}"
    assert scns[-1] == head


def test_a_flipped_bit_is_an_error_and_never_a_row(busy: RelayProcess) -> None:
    port = int(busy.url.rpartition(":")[2])
    with TcpProxy("127.0.0.1", port) as proxy:
        reader, (partition,), _ = _plan(options(proxy.url, meta="full"), _typed_schema)
        proxy.flip_after(50_000)
        with pytest.raises(CorruptData, match=r"byte \d+"):
            list(reader.read(partition))


def test_small_frames_come_as_few_batches(busy: RelayProcess) -> None:
    reader, (partition,), _ = _plan(options(busy.url, meta="full"), _typed_schema)
    batches = list(reader.read(partition))
    assert sum(map(len, batches)) == 4_000
    assert len(batches) == 1


def test_relays_that_capture_other_tables_are_refused_where_tables_are_chosen_by_patterns(tmp_path: Path) -> None:
    """At the other one rows of a table that it lacks would be passed over."""
    without = {"sources": {"shop": {"type": "mock", "exclude": ["main.stock"]}}}
    with (
        scripted(tmp_path / "a", {"shop": Database(groups=[order(1)])}) as whole,
        scripted(tmp_path / "b", {"shop": Database(groups=[order(1)])}, **without) as less,
    ):
        published(whole, "shop", 1)
        published(less, "shop", 1)
        both = f"{whole.url},{less.url}"
        Planner(options(both, sources="shop/main.orders"), None).close()
        Planner(options(both, sources="shop/main.orders", shape="frames"), None).close()
        with pytest.raises(ConfigError, match="captures other tables or columns than"):
            Planner(options(both, sources="shop/main.*", shape="frames"), None)
