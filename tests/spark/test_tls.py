"""A relay at `https://`: Spark's tasks read it with files that the options name."""

from pathlib import Path
from typing import Any

import pytest

from databus.core import ConfigError
from databus.link import RelayClient, patiently
from databus.spark import error_of
from databus.testing import RelayProcess
from tests.certificates import Authority
from tests.spark.conftest import S_MAX, StartRelay, drain, load_batch, load_stream

pytestmark = pytest.mark.spark

MOCK = {"type": "mock", "transactions_total": 30, "rows_per_transaction": 4, "updates": 0, "deletes": 0}
TYPED = {"shape": "typed", "sources": "main.events"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def relay(start_relay: StartRelay, authority: Authority) -> RelayProcess:
    tls = {**authority.sign("relay").relay, "client_ca_file": str(authority.ca)}
    return start_relay({"shop": MOCK}, tls=tls)


def captured(relay: RelayProcess, options: dict[str, str], scn: int) -> int:
    client = RelayClient(relay.url, **options)
    position = patiently(lambda: client.position("shop", start="earliest"), S_MAX * 1000)
    while position.scn < scn:
        position = client.range("shop", position, wait_ms=2_000).position
    return position.scn


def test_tasks_read_over_tls_and_show_a_certificate(
    spark: Any, relay: RelayProcess, authority: Authority, tmp_path: Path
) -> None:
    assert relay.url.startswith("https://")
    files = {"ca_file": str(authority.ca), **authority.sign("spark").client}
    captured(relay, files, 30)
    assert load_batch(spark, relay, **TYPED, **files).count() == 120
    seen = drain(load_stream(spark, relay, **TYPED, **files, partitions=2), tmp_path / "checkpoint")
    assert seen.rows.num_rows == 120


def test_an_unknown_authority_ends_the_query_at_once(spark: Any, relay: RelayProcess) -> None:
    with pytest.raises(Exception, match="nobody that this machine trusts has signed its certificate") as caught:
        load_batch(spark, relay, **TYPED).count()
    assert isinstance(error_of(caught.value), ConfigError)
