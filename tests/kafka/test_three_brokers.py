"""Three brokers, of which one after the other is away, in whatever way: rows go on without it, each there once."""

import threading
import time
from itertools import chain

import pytest
from confluent_kafka.admin import AdminClient

from databus.core import TransientError
from databus.testing._staged_writes import write_batch
from databus.testing.servers import ServerMissing
from tests.kafka.cluster import ThreeBrokers
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import log_of

AWAY = {"kill": "start", "suspend": "resume"}
BATCHES_AWAY = 4
TRIES_MAX = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        with ThreeBrokers(tmp_path_factory.mktemp("cluster"), heap_mb=256) as cluster:
            yield cluster
    except ServerMissing as missing:
        pytest.skip(str(missing))


def write(output, batch):
    """As a run does, which begins again where something was away."""
    failures = []
    while len(failures) < TRIES_MAX:
        try:
            if failures:
                output.open()
            return write_batch(output, batch)
        except TransientError as error:
            failures.append(str(error))
    raise AssertionError(failures)


def in_step(cluster, *names):
    """Wait until all replicas of topics are in sync, so that the next broker can be missed."""
    deadline = time.monotonic() + 120
    while True:
        topics = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=30).topics
        parts = [part for name in (*names, "__transaction_state") for part in topics[name].partitions.values()]
        if all(len(part.isrs) == len(cluster.nodes) for part in parts):
            return
        assert time.monotonic() < deadline
        time.sleep(0.2)  # brokers do not tell when a replica has caught up


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("leave", "come_back"), AWAY.items())
def test_rows_go_on_without_a_broker_and_each_is_there_once(cluster, tmp_path, leave, come_back):
    prefix, log = new_prefix(), log_of(*range(1, 100))
    output = output_of(cluster, tmp_path, prefix, request_ms_max=30_000, transaction_ms_max=60_000)  # as by default
    output.open()
    ends = iter(range(1, 100))
    write(output, log.batch(0, next(ends)))
    for node in cluster.nodes:
        away = threading.Thread(target=getattr(node, leave))  # in the middle of a batch, wherever that is then
        away.start()
        for end in (next(ends) for _ in range(BATCHES_AWAY)):
            write(output, log.batch(end - 1, end))
        away.join()
        getattr(node, come_back)()
        in_step(cluster, f"{prefix}.orders", f"{prefix}.control")
    found = sorted(row["id"] for row in chain(*rows_in(cluster, f"{prefix}.orders")))
    assert found == [*range(1, len(found) + 1)]
    assert len(found) == 1 + BATCHES_AWAY * len(cluster.nodes)
