"""Which topics an output takes for removed, by their ids alone; no server."""

from types import SimpleNamespace

import pytest
from confluent_kafka import Uuid

from databus.core import ControlKind, CorruptData, SourceCheckpoint
from databus.flow import Here, StagedBatch, StagedRows
from databus.places import Noted
from databus.sinks.kafka import Cluster
from databus.sinks.kafka._topics import Topics
from databus.testing._change_log import ORDERS, ChangeLog
from tests.kafka.support import output_of

NAME = "shop/main.orders"
NOWHERE = SimpleNamespace(bootstrap="127.0.0.1:9")


@pytest.fixture
def brokers(monkeypatch):
    """What they say of topics: an id by name."""
    ids = {}

    def described(_, names):
        return {name: SimpleNamespace(topic_id=ids[name]) for name in names if name in ids}

    monkeypatch.setattr(Topics, "_described", described)
    return ids


def output(folder, **options):
    return output_of(NOWHERE, folder, "t", request_ms_max=100, control_topic="c", **options)


def noted_by(output, item=None):
    """What it has noted once something of the table is written."""
    item = item or StagedRows(ORDERS, (), ((1, 1),), (1, 1), 1, None)
    batch = StagedBatch("shop", SourceCheckpoint(), SourceCheckpoint(scn=1), (item,))
    return output.commit(batch, Here()).marks.get(NAME)


def is_known(output, noted):
    """Whether it finds the topics that it has noted; raises what it says otherwise."""
    output._records = dict
    found = output.held({NAME: noted}).get(NAME)
    return output.config.may_lack or noted is None or (found.mark if found is not None else "") == noted.mark


def test_a_topic_of_brokers_that_get_ids_by_an_upgrade_is_the_one_from_before(tmp_path, brokers):
    brokers["t.orders"] = Uuid(0, 0)
    before = output(tmp_path)
    assert noted_by(before) is None
    brokers["t.orders"] = Uuid(1, 2)
    assert is_known(output(tmp_path), Noted((1, 1), ""))
    assert Topics(Cluster(())).ids(["t.orders"], []) == {"t.orders": str(Uuid(1, 2))}


def test_the_topic_of_a_table_that_was_dropped_may_be_removed(tmp_path, brokers):
    """Else the output would not start any more, and no snapshot of the table could help."""
    brokers["t.orders"] = Uuid(1, 2)
    log = ChangeLog()
    log.begin()
    now = output(tmp_path)
    for kind, is_missed in ((ControlKind.TRUNCATE, True), (ControlKind.DROP, False)):
        control = log.control(kind, ORDERS)
        place = noted_by(now, control) or Noted((1, 1), "")
        brokers.clear()
        if is_missed:
            with pytest.raises(CorruptData, match=r"t\.orders was removed"):
                is_known(output(tmp_path), place)
        else:
            assert is_known(output(tmp_path), place)
        brokers["t.orders"] = Uuid(1, 2)


@pytest.mark.parametrize("now", [{}, {"t.orders": Uuid(3, 4)}], ids=["gone", "another"])
def test_who_says_once_to_go_on_without_a_topic_is_not_asked_again(tmp_path, brokers, now):
    """Also where the table rests, as most do where all topics were moved to another cluster."""
    noted = Noted((1, 1), f"t.orders/{Uuid(1, 2)}")
    brokers |= now
    with pytest.raises(CorruptData, match=r"t\.orders was removed"):
        is_known(output(tmp_path), noted)
    goes_on = output(tmp_path, on_gap="continue")
    assert is_known(goes_on, noted)
    known = noted_by(goes_on) or Noted((1, 1), "")
    assert is_known(output(tmp_path), known)
    brokers["t.orders"] = Uuid(5, 6)
    if now:  # whoever has it removed once more is asked once more
        with pytest.raises(CorruptData, match=r"t\.orders was removed"):
            is_known(output(tmp_path), known)


@pytest.mark.parametrize(
    ("options", "topic"),
    [
        ({"controls": "said.{table}"}, "said.orders"),
        ({"format": "debezium", "debezium": {"transaction_topic": "{physical}.ended"}}, "shop.ended"),
    ],
    ids=["controls", "transactions"],
)
def test_the_topics_of_controls_and_of_transactions_are_known_again_too(tmp_path, brokers, options, topic):
    brokers |= {"t.orders": Uuid(1, 2)}
    before = output(tmp_path, **options)
    place = noted_by(before)  # nothing was written to the other topic yet, so it may be made
    brokers[topic] = Uuid(3, 4)
    assert is_known(output(tmp_path, **options), place)
    place = noted_by(before)
    assert is_known(output(tmp_path, **options), place)
    for there in ({}, {topic: Uuid(5, 6)}):
        brokers.pop(topic, None)
        brokers |= there
        with pytest.raises(CorruptData, match=f"topic {topic} was removed"):
            is_known(output(tmp_path, **options), place)
        assert is_known(output(tmp_path, on_gap="continue", **options), place)
    assert is_known(output(tmp_path), place), "an output without it has no use for it"
