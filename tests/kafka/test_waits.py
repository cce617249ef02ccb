"""How long an output waits for brokers that know something later, on a given clock; no server."""

import logging
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition, Uuid

from databus.core import ServiceUnavailable
from databus.sinks.kafka import Cluster
from databus.sinks.kafka._lost_markers import Undecided
from databus.sinks.kafka._topics import Topics
from databus.testing import FakeClock

REQUEST_MS, TRANSACTION_MS = 30_000, 60_000


@pytest.fixture
def cluster():
    settings = (("bootstrap.servers", "127.0.0.1:9"),)
    return Cluster(settings, request_ms_max=REQUEST_MS, transaction_ms_max=TRANSACTION_MS, clock=FakeClock())


@pytest.fixture
def brokers(monkeypatch, cluster):
    """What they say of topics; of `late` only from a moment on, in milliseconds."""
    late = SimpleNamespace(knows_ms=0)

    def described(_, names):
        knows = cluster.clock.monotonic_s() * 1e3 >= late.knows_ms
        return {name: SimpleNamespace(topic_id=Uuid(1, 2), partitions=[]) for name in names if name != "late" or knows}

    monkeypatch.setattr(Topics, "_described", described)
    return late


@pytest.mark.parametrize(("knows_ms", "is_known"), [(REQUEST_MS - 1_000, True), (REQUEST_MS + 1_000, False)])
def test_a_topic_that_was_there_is_waited_for_as_long_as_a_request_may_take(cluster, brokers, knows_ms, is_known):
    brokers.knows_ms = knows_ms
    known = Topics(cluster).ids(["late", "other"], ["late"])
    assert known.keys() == ({"late", "other"} if is_known else {"other"})
    waited_ms = cluster.clock.monotonic_s() * 1e3
    assert min(knows_ms, REQUEST_MS) <= waited_ms <= min(knows_ms, REQUEST_MS) + 100


def test_a_topic_that_nobody_was_told_of_is_not_waited_for(cluster, brokers):
    brokers.knows_ms = REQUEST_MS
    assert Topics(cluster).ids(["late", "other"], []).keys() == {"other"}
    assert cluster.clock.monotonic_s() == 0


def test_a_new_topic_without_a_leader_is_waited_for_and_then_named(cluster, brokers):
    brokers.knows_ms = 10 * REQUEST_MS
    with pytest.raises(ServiceUnavailable, match=r"topic late is not there yet, or has no leader"):
        Topics(cluster)._wait_for("late")
    assert REQUEST_MS <= cluster.clock.monotonic_s() * 1e3 <= REQUEST_MS + 100


@pytest.mark.parametrize(("ready_ms", "is_found"), [(REQUEST_MS - 1_000, True), (REQUEST_MS + 1_000, False)])
@pytest.mark.parametrize("says", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH, None])
def test_a_leader_that_is_not_ready_is_asked_again_as_long_as_a_request_may_take(
    cluster, monkeypatch, ready_ms, is_found, says
):
    """A broker names it before it is ready; or the client says -1, without an error."""

    def answer():
        if cluster.clock.monotonic_s() * 1e3 >= ready_ms:
            return SimpleNamespace(offset=7)
        if says is None:
            return SimpleNamespace(offset=-1)
        raise KafkaException(KafkaError(says))

    renewed = []

    def renew(_):
        renewed.append(cluster.clock.monotonic_s())

    monkeypatch.setattr(Cluster, "answers", lambda *_: [(TopicPartition("orders", 0), answer)])
    monkeypatch.setattr(Cluster, "renew_admin", renew)  # the old client goes on asking the leader that it knows
    if is_found:
        assert cluster.ends([("orders", 0)], is_committed=True) == {("orders", 0): 7}
    else:
        with pytest.raises(ServiceUnavailable, match="orders"):
            cluster.ends([("orders", 0)], is_committed=True)
    assert cluster.clock.monotonic_s() * 1e3 <= REQUEST_MS + 1_000
    assert 10 < len(renewed) < 100


def test_an_open_transaction_of_others_is_waited_for_shortly_and_warned_of_when_it_outlasts_any_of_ours(
    cluster, monkeypatch, caplog
):
    """What comes next is tried out first meanwhile, so nothing is taken back."""
    caplog.set_level(logging.INFO, logger="databus.kafka")
    stable = {False: 9, True: 5}
    monkeypatch.setattr(
        Cluster, "ends", lambda _, partitions, is_committed: dict.fromkeys(partitions, stable[is_committed])
    )
    monkeypatch.setattr(Topics, "partitions_of", lambda _, names: [(name, 0) for name in names])
    undecided = Undecided(cluster)
    levels = []
    for advance_ms in (0, 1_000, TRANSACTION_MS, 1_000):
        cluster.clock.advance_ms(advance_ms)
        assert undecided.is_in(["orders"])
        levels.append([record.levelname for record in caplog.records])
    assert levels == [["INFO"], ["INFO"], ["INFO", "WARNING"], ["INFO", "WARNING"]]
    stable[True] = 9
    assert not undecided.is_in(["orders"])
