"""Topics change under the source: new ones are found, and what was lost is a gap, never silence."""

import os
import signal

import pytest

from databus.core import PositionPurged, ServiceUnavailable, TransientError
from databus.relay._missing_tables import MissingTables
from databus.sources import offered
from databus.sources._capabilities import Checkable
from tests.kafka_source.support import Follower, Topics, patiently


def test_new_topics_and_partitions_are_read_from_their_first_message_while_running_and_after_a_stop(topics: Topics):
    first = topics.create(f"{topics.prefix}.a")
    topics.write(first, [b"0"])
    with Follower(topics.config(f"{topics.prefix}.*", start="latest")) as follower:
        follower.until(lambda: bool(follower.tape.groups))  # the position alone
        topics.widen(first, 2)
        topics.write(first, [b"1"], partition=1)
        second = topics.create(f"{topics.prefix}.b")
        topics.write(second, [b"2"])
        follower.until(lambda: len(follower.rows()) == 2)
        follower.kill()
        third = topics.create(f"{topics.prefix}.c")
        topics.write(third, [b"3"])
        topics.widen(second, 3)
        topics.write(second, [b"4"], partition=2)
        follower.until(lambda: len(follower.rows()) == 4)
    assert sorted(follower.values()) == [b"1", b"2", b"3", b"4"]
    assert follower.gaps() == []


@pytest.mark.parametrize("is_running", [False, True])
def test_messages_that_left_a_topic_unread_stop_the_source_or_are_a_gap(topics: Topics, is_running: bool):
    name = topics.create(partitions=2)
    topics.write(name, [b"0", b"1"])
    with Follower(topics.config(name)) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
        if not is_running:
            follower.kill()
        topics.write(name, [b"2"], partition=1)
        follower.until(lambda: not is_running or len(follower.rows()) == 3)
        follower.kill()
        topics.write(name, [b"x"] * 10)
        topics.purge(name, 0, 7)
        with pytest.raises(PositionPurged, match=f"offsets 2 to 6 of {name}, partition 0.*on_gap: continue"):
            follower.start()
        follower.config = topics.config(name, on_gap="continue")
        follower.until(lambda: len(follower.rows()) == 8)
    assert [row["offset"] for row in follower.rows() if row["partition"] == 0] == [0, 1, 7, 8, 9, 10, 11]
    assert len(follower.gaps()) == 1


@pytest.mark.parametrize("is_running", [False, True])
def test_a_topic_that_was_created_again_is_read_from_its_first_message_behind_a_gap(topics: Topics, is_running: bool):
    name = topics.create()
    topics.write(name, [b"old"] * 5)
    with Follower(topics.config(name, on_gap="continue")) as follower:
        follower.until(lambda: len(follower.rows()) == 5)
        if not is_running:
            follower.kill()
        topics.delete(name)
        topics.create(name)
        topics.write(name, [f"{i}".encode() for i in range(9)])  # more than the topic before had
        follower.until(lambda: bool(follower.gaps()) and b"8" in follower.values())
        follower.until(lambda: follower.values()[-9:] == [f"{i}".encode() for i in range(9)])
    assert "created again" in follower.gaps()[0]
    stopping = Follower(topics.config(name))
    stopping.tape.groups = [group for group in follower.tape.groups if group.rows][:1]
    with stopping, pytest.raises(PositionPurged, match="created again"):
        stopping.start()


def test_a_topic_that_is_deleted_is_a_gap_and_the_others_go_on(topics: Topics):
    names = [topics.create(), topics.create()]
    for name in names:
        topics.write(name, [b"0"])
    with Follower(topics.config(*names, on_gap="continue")) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
        topics.delete(names[0])
        follower.until(lambda: bool(follower.gaps()))
        topics.write(names[1], [b"1"])
        follower.until(lambda: len(follower.rows()) == 3)
    assert "is gone" in follower.gaps()[0]


@pytest.mark.parametrize("narrower", [{"topics": ["{kept}"]}, {"exclude": ["kafka.{left}"]}], ids=["topics", "exclude"])
def test_a_topic_that_is_not_selected_any_more_is_no_gap(topics: Topics, narrower: dict[str, list[str]]):
    kept, left = topics.create(), topics.create()
    for name in (kept, left):
        topics.write(name, [b"1"])
    with Follower(topics.config(kept, left)) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
        follower.kill()
        said = {name: [each.format(kept=kept, left=left) for each in value] for name, value in narrower.items()}
        follower.config = topics.config(*said.pop("topics", [kept, left]), **said)
        topics.write(kept, [b"2"])
        topics.write(left, [b"not read"])
        follower.until(lambda: len(follower.rows()) == 3)
        assert follower.values(f"kafka.{kept}") == [b"1", b"2"]
        assert follower.gaps() == []
        assert [*follower.tape.groups[-1].commit.position["topics"]] == [kept]


def test_a_broker_that_does_not_answer_is_waited_for_and_nothing_is_lost(other_kafka):
    topics = Topics(other_kafka)
    name = topics.create()
    topics.write(name, [b"0"])
    quick = {"bootstrap.servers": other_kafka.bootstrap, "socket.timeout.ms": 1_000, "reconnect.backoff.max.ms": 200}
    with Follower(topics.config(name, request_ms=1_000, kafka=quick)) as follower:
        patiently(follower, lambda: len(follower.rows()) == 1)
        os.kill(other_kafka.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ServiceUnavailable, match=other_kafka.bootstrap):
                follower.until(lambda: False)
            with pytest.raises(TransientError):
                follower.start()
        finally:
            os.kill(other_kafka.pid, signal.SIGCONT)
        topics.write(name, [b"1"])
        patiently(follower, lambda: len(follower.rows()) == 2)
    assert follower.values() == [b"0", b"1"]
    assert follower.gaps() == []


def test_check_source_says_what_topics_finds(topics: Topics):
    name = topics.create(partitions=3)
    check = offered(Checkable, topics.config(name), "events").check
    found = check(topics.config(name, f"{topics.prefix}.none"))
    assert [each.severity for each in found] == ["error", "info"], found
    assert f"{topics.prefix}.none" in found[0].what
    assert "3 partitions" in found[1].what
    nowhere = topics.config(name, kafka={"bootstrap.servers": "127.0.0.1:1"}, request_ms=5_000)
    (found,) = check(nowhere)
    assert found.name == "connect"
    assert "Connection refused" in found.what
    assert "see `bootstrap.servers` under `kafka`" in found.what


def test_a_topic_that_is_not_there_is_a_topic_and_no_table(topics: Topics):
    name = topics.create()
    config = topics.config(name, f"{topics.prefix}.none")
    assert MissingTables(config).sentences([f"kafka.{name}"]) == {f"no topic fits {topics.prefix}.none yet": "topics"}
    assert list(MissingTables(topics.config(f"{topics.prefix}.none")).sentences([]).values()) == ["topics"]
