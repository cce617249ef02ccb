"""What the input `databus` says of a table that its relay does not have."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from databus.core import Checkpoint, ServiceUnavailable, SourceCheckpoint, UnknownSource
from databus.link import RelayClient
from databus.pipeline.inputs._databus import DatabusInput, DatabusInputConfig
from databus.plugins._contract import RunContext
from databus.relay import Relay, parse_relay
from databus.spark._options import parse_options
from databus.spark._plan import Planner
from databus.spark._target import Target, resolve
from tests.client.conftest import mock, wait_for


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RunContext]:
    value = {"listen": "127.0.0.1:0", "folder": "relay", "sources": {"shop": mock(transactions_total=1)}}
    with Relay(parse_relay(value, folder=tmp_path)) as relay:
        wait_for(lambda: len(RelayClient(relay.url).sources()) == 4, "the sources")
        yield RunContext("p", "inputs.shop", tmp_path, relay.url)


def test_a_table_that_is_there_is_found(context: RunContext) -> None:
    physical, table = DatabusInput(DatabusInputConfig()).schema_of(context, "main.t1")
    assert (physical, table.source) == ("shop", "main.t1")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mian.t1", 'has no mian.t1; did you mean "main.t1"?'),
        ("shop/mian.t1", 'has no shop/mian.t1; did you mean "shop/main.t1"?'),
        ("invoices", "has no invoices"),
        ("main.*", "has several called main.*"),
    ],
)
def test_a_table_that_is_not_there_is_named_with_the_nearest_that_is(
    context: RunContext, written: str, said: str
) -> None:
    with pytest.raises(UnknownSource) as raised:
        DatabusInput(DatabusInputConfig()).schema_of(context, written)
    assert str(raised.value) == f"the relay at {context.relay} {said}"


class Session:
    """Counts the streams that are made; `refuses` as many first. cores: of its master, which is local."""

    def __init__(self, refuses: int = 0, cores: int = 2) -> None:
        self.made: list[object] = []
        self.refuses = refuses
        self.readStream = self
        self.sparkContext = SimpleNamespace(master=f"local[{cores}]", defaultParallelism=cores)

    def format(self, name: str) -> "Session":
        return self

    def options(self, **options: str) -> "Session":
        self.asked = options
        return self

    def load(self) -> object:
        if self.refuses:
            self.refuses -= 1
            raise ServiceUnavailable("not now")
        self.made.append(object())
        return self.made[-1]


def test_outputs_that_read_the_same_tables_from_the_same_position_share_a_stream_of_spark(context: RunContext) -> None:
    source, session = DatabusInput(DatabusInputConfig()), Session()

    def stream(tables: str = "shop/*", after: int | None = None, **more: Any) -> object:
        position = None if after is None else Checkpoint({"shop": SourceCheckpoint(scn=after)})
        return source.tables(session, replace(context, **more), "shop", [tables], position)[0]

    assert stream() is stream()
    assert stream(after=1) is stream(after=1)
    one_each = [stream(), stream("shop/main.t1"), stream(after=1), stream(after=2), stream(relay="http://127.0.0.1:1")]
    assert len(session.made) == len(one_each) == len(set(one_each))
    assert source.tables(Session(), context, "shop", ["shop/*"])[0] not in one_each


def test_a_stream_that_could_not_be_made_is_made_for_the_next_output(context: RunContext) -> None:
    source, session = DatabusInput(DatabusInputConfig()), Session(refuses=1)
    with pytest.raises(ServiceUnavailable):
        source.tables(session, context, "shop", ["shop/*"])
    assert source.tables(session, context, "shop", ["shop/*"])[0] in session.made


def test_what_a_shared_stream_reads_is_said_by_its_options_alone(context: RunContext) -> None:
    """What the relay is asked for while a stream is made changes nothing that queries over it read later."""
    options = parse_options({"relay": context.relay or "", "shape": "ranges", "physical": "shop", "sources": "main.*"})
    client = RelayClient(context.relay or "")
    made_now = resolve(client, options)
    made_then = replace(made_now, published=(0, 0))
    assert made_then == Target("shop", ("main.*",), "shop", (0, 0))
    start = client.position("shop", start="beginning")
    ends = []
    for target in (made_now, made_then):
        planner = Planner(options, target)
        end = planner.end_after(start, rows_max=None, bytes_max=None, available=None)
        ends.append((end, planner.split(start, end)))
        planner.close()
    assert ends[0] == ends[1]
    assert ends[0][0].scn > 0


@pytest.mark.parametrize(
    ("written", "cores", "asked"),
    [
        ({}, 2, {"partitions": "1", "partitionBytesMin": "0"}),
        ({}, 64, {"partitions": "32", "partitionBytesMin": str(4 << 20)}),
        ({}, 1000, {"partitions": "256", "partitionBytesMin": str(4 << 20)}),
        ({"partitions": 3}, 64, {"partitions": "3"}),
    ],
)
def test_a_batch_is_divided_as_the_master_has_cores_unless_the_file_says_how(
    context: RunContext, written: dict[str, int], cores: int, asked: dict[str, str]
) -> None:
    session = Session(cores=cores)
    DatabusInput(DatabusInputConfig(**written)).tables(session, context, "shop", ["shop/*"])
    assert {name: session.asked[name] for name in session.asked if name.startswith("partition")} == asked
