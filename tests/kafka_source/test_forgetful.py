"""A topic that brokers do not know for a moment is there still: nothing of it is read twice, lost or called a gap."""

import pytest
from structlog.testing import capture_logs

from databus.core import PositionPurged, ServiceUnavailable
from databus.testing.servers import Kafka
from tests.kafka_source.forgetful import ForgetfulBroker
from tests.kafka_source.support import Follower, Topics


@pytest.mark.parametrize("on_gap", ["stop", "continue"])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_topic_that_a_broker_does_not_know_for_a_moment_goes_on_where_it_was(
    topics: Topics, kafka: Kafka, is_running: bool, on_gap: str
):
    name, other = topics.create(), topics.create()
    topics.write(name, [b"0", b"1"])
    with ForgetfulBroker(kafka.host, kafka.port) as broker:
        here = {"bootstrap.servers": broker.bootstrap, "topic.metadata.refresh.interval.ms": 100}
        with Follower(topics.config(name, other, kafka=here, on_gap=on_gap, gone_ms=60_000)) as follower:
            follower.until(lambda: len(follower.rows()) == 2)
            if not is_running:
                follower.kill()
            broker.forgotten, broker.told = frozenset([name]), 0
            topics.write(name, [b"2"])
            topics.write(other, [b"other"])
            follower.until(lambda: broker.told > 2 and follower.values(f"kafka.{other}") == [b"other"])
            broker.forgotten = frozenset()
            follower.until(lambda: b"2" in follower.values(f"kafka.{name}"))
            topics.write(name, [b"3"])
            follower.until(lambda: b"3" in follower.values(f"kafka.{name}"))
            assert follower.values(f"kafka.{name}") == [b"0", b"1", b"2", b"3"]
            assert follower.gaps() == []


def test_a_topic_that_stays_unknown_is_gone(topics: Topics, kafka: Kafka):
    name = topics.create()
    topics.write(name, [b"0"])
    with ForgetfulBroker(kafka.host, kafka.port) as broker:
        here = {"bootstrap.servers": broker.bootstrap}
        with Follower(topics.config(name, kafka=here)) as follower:
            follower.until(lambda: len(follower.rows()) == 1)
            follower.kill()
            broker.forgotten = frozenset([name])
            with pytest.raises(PositionPurged, match=f"{name} is gone"):
                follower.until(lambda: False)


@pytest.mark.parametrize("is_topic", [True, False], ids=["topic", "offsets"])
def test_a_new_log_does_not_begin_while_brokers_know_only_half_of_a_topic(topics: Topics, kafka: Kafka, is_topic: bool):
    """The topic's history would be read later, as that of a topic that is new, though `start` says `latest`."""
    name = topics.create()
    topics.write(name, [b"history"])
    with ForgetfulBroker(kafka.host, kafka.port) as broker:

        def forget() -> None:
            if is_topic:
                broker.forgotten = frozenset([name])
            else:
                broker.without_offsets = frozenset([name])

        here = {"bootstrap.servers": broker.bootstrap}
        with Follower(topics.config(name, kafka=here, start="latest")) as follower:
            with pytest.raises(ServiceUnavailable, match=f"does not know {name}"):
                follower.start(before=forget)
            assert broker.told > 0
            broker.forgotten = broker.without_offsets = frozenset()
            follower.poll()
            topics.write(name, [b"new"])
            follower.until(lambda: bool(follower.rows()))
            assert follower.values() == [b"new"]


def test_a_topic_that_is_not_known_when_a_log_begins_loses_no_message_and_is_told(topics: Topics, kafka: Kafka):
    """Whether it is made a moment later, or brokers only do not know it: nobody can tell these apart."""
    name, made_later = topics.create(), f"{topics.prefix}.later"
    topics.write(name, [b"0"])
    with ForgetfulBroker(kafka.host, kafka.port) as broker:
        broker.forgotten = frozenset([name])
        here = {"bootstrap.servers": broker.bootstrap, "topic.metadata.refresh.interval.ms": 100}
        with Follower(topics.config(name, made_later, kafka=here, start="latest")) as follower:
            with capture_logs() as logs:
                follower.start()
            assert [each["topics"] for each in logs if each["log_level"] == "warning"] == [name, made_later]
            follower.poll()
            topics.create(made_later)
            topics.write(made_later, [b"1"], timestamp=1_600_000_000_000)
            topics.write(name, [b"2"])
            broker.forgotten = frozenset()
            follower.until(lambda: len(follower.rows()) == 3)
            assert follower.values(f"kafka.{name}") == [b"0", b"2"]
            assert follower.values(f"kafka.{made_later}") == [b"1"]
            assert follower.gaps() == []


def test_offsets_of_a_partition_that_brokers_do_not_know_are_waited_for(topics: Topics):
    """Before, that partition was read from its first message, and nothing said so."""
    name = topics.create()
    topics.write(name, [b"0", b"1"])
    with Follower(topics.config(name, start={name: {0: 1, 1: 1}})) as follower:
        with pytest.raises(ServiceUnavailable, match=f"does not know {name}, partition 1"):
            follower.start()
        topics.widen(name, 2)
        topics.write(name, [b"2", b"3"], partition=1)
        follower.until(lambda: len(follower.rows()) == 2)
        assert sorted(follower.values()) == [b"1", b"3"]
