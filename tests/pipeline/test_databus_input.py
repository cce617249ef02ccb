"""What the input `databus` says of a table that its relay does not have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.core import UnknownSource
from databus.link import RelayClient
from databus.pipeline._contract import RunContext
from databus.pipeline.inputs._databus import DatabusInput, DatabusInputConfig
from databus.relay import Relay, parse_relay
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
