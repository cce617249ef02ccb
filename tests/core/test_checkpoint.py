"""Checkpoints are portable JSON, compare by pair, and refuse what is not one with the path of the mistake."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import SEQ_DONE, Checkpoint, MalformedRequest, SourceCheckpoint, make_scn, next_bus_seq, timeline_of
from databus.formats import BigIntegers, json_line

naturals = st.integers(0, 2**63 - 1)
positions = st.builds(
    SourceCheckpoint,
    uuid=st.text(max_size=40),
    scn=naturals,
    seq=st.none() | naturals,
    txid=st.text(max_size=80),
    ts_us=naturals,
    log=st.none() | st.text(min_size=1, max_size=40),
    snapshots=st.dictionaries(st.text(min_size=1, max_size=20), naturals, max_size=3),
)


@given(st.dictionaries(st.text(min_size=1, max_size=20), positions, max_size=3))
def test_a_checkpoint_read_back_is_the_same(sources):
    checkpoint = Checkpoint(sources)
    assert Checkpoint.from_json(checkpoint.dumps()) == checkpoint


@given(st.dictionaries(st.text(min_size=1, max_size=20), positions, max_size=3))
def test_a_checkpoint_whose_big_integers_were_written_as_text_is_the_same(sources):
    written = {name: json.loads(json_line(each.to_json(), BigIntegers.STRING)) for name, each in sources.items()}
    assert Checkpoint.from_json({"v": 1, "sources": written}) == Checkpoint(sources)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_checkpoint_or_a_malformed_request(value):
    text = json.dumps(value)
    if isinstance(value, dict) and value.get("v") == 1:
        return
    with pytest.raises(MalformedRequest, match=r"^checkpoint"):
        Checkpoint.from_json(text)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"v": 2, "sources": {}}, "checkpoint.v"),
        ({"v": 1, "sources": []}, "checkpoint.sources"),
        ({"v": 1, "sources": {"shop": {"txid": "a"}}}, "checkpoint.sources.shop: field 'scn' is missing"),
        ({"v": 1, "sources": {"shop": {"scn": -1}}}, "checkpoint.sources.shop.scn"),
        ({"v": 1, "sources": {"shop": {"scn": "9" * 19}}}, "checkpoint.sources.shop.scn"),
        ({"v": 1, "sources": {"shop": {"scn": "1e3"}}}, "checkpoint.sources.shop.scn"),
        ({"v": 1, "sources": {"shop": {"scn": True}}}, "checkpoint.sources.shop.scn"),
        ({"v": 1, "sources": {"shop": {"scn": 1, "sqe": 1}}}, "unknown field 'sqe'"),
        ({"v": 1, "sources": {"shop": {"scn": 1, "snapshots": {"t": "x"}}}}, "checkpoint.sources.shop.snapshots.t"),
    ],
)
def test_a_mistake_is_named_by_its_path(value, place):
    with pytest.raises(MalformedRequest) as caught:
        Checkpoint.from_json(value)
    assert place in str(caught.value)


def test_a_null_seq_stands_after_logged_rows_and_before_what_the_bus_adds():
    done = SourceCheckpoint(scn=5)
    assert (5, SEQ_DONE - 1) < done.pair < (5, next_bus_seq(0, 0)) < (6, 0)


@given(st.integers(0, 255), st.integers(0, 2**55 - 1))
def test_a_higher_timeline_is_later_than_any_ordinal(timeline, ordinal):
    scn = make_scn(timeline, ordinal)
    assert timeline_of(scn) == timeline
    assert timeline == 255 or scn < make_scn(timeline + 1, 0)


@given(st.lists(st.integers(0, 2**62), max_size=20))
def test_bus_seqs_increase_also_when_the_clock_goes_back(clock_readings):
    seq = 0
    for now_ns in clock_readings:
        following = next_bus_seq(seq, now_ns)
        assert following > max(seq, SEQ_DONE)
        seq = following
