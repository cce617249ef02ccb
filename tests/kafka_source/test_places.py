"""What became of topics is found by their ids and offsets; nothing that is gone is passed over without a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import SourceChanged
from databus.sources.kafka._places import Places, TopicPlace, TopicState


def places(**topics: tuple[str, tuple[int, ...]]) -> Places:
    return Places("c", {name: TopicPlace(*each) for name, each in topics.items()})


@pytest.mark.parametrize(
    ("state", "offsets", "reason"),
    [
        (TopicState("1", (0, 0), (9, 9)), (5, 7), None),
        (TopicState("1", (0, 0, 0), (9, 9, 4)), (5, 7, 0), None),  # a new partition, from its first message
        (TopicState("1", (6, 0), (9, 9)), (6, 7), "offsets 5 to 5 of a, partition 0, have left"),
        (TopicState("1", (0, 0), (9, 6)), (5, 6), "ends at offset 6, and had been read up to 7"),
        (TopicState("2", (3, 0), (99, 99)), (3, 0), "deleted and created again"),
        (TopicState("1", (0,), (9,)), (5, 7), None),  # a broker that does not know yet that there are two partitions
        (TopicState("", (0, 0), (9, 9)), (5, 7), None),  # a cluster that tells no ids
    ],
)
def test_a_topic_goes_on_where_it_can_and_says_what_is_gone(state, offsets, reason):
    found, losses = places(a=("1", (5, 7))).reconciled({"a": state})
    assert found.topics["a"] == TopicPlace(state.id, offsets)
    assert [reason in each.reason for each in losses] == ([] if reason is None else [True])


def test_a_topic_that_is_gone_is_told_and_a_new_one_begins_at_its_first_message():
    found, losses = places(a=("1", (5,))).reconciled({"b": TopicState("2", (3,), (9,))})
    assert found.topics == {"b": TopicPlace("2", (3,))}
    assert [each.topic for each in losses] == ["a"]


def test_a_topic_that_is_awaited_keeps_its_place():
    found, losses = places(a=("1", (5,))).reconciled({}, awaited=["a"])
    assert found.topics == {"a": TopicPlace("1", (5,))}
    assert losses == []


offsets = st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple)
topics = st.dictionaries(st.text(max_size=5), st.builds(TopicPlace, st.text(max_size=5), offsets), max_size=4)


@given(topics)
def test_a_position_says_what_it_was_made_of(held):
    assert Places.from_json(Places("c", held).to_json(), "p").topics == held


@pytest.mark.parametrize("position", [{}, {"topics": 1, "cluster": ""}, {"topics": {"a": {"id": "1"}}, "cluster": ""}])
def test_a_position_of_another_source_is_refused(position):
    with pytest.raises(SourceChanged, match="not a position in Kafka"):
        Places.from_json(position, "p")
