"""Tables that wait to be read: the queue survives kills, cuts of the log, and the loss of its file is known."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from databus.core import ServiceUnavailable
from databus.sources.mysql._unread_tables import KEY, Asked, Unread


def position(unread):
    entry = unread.position_entry()
    return {} if entry is None else {KEY: json.loads(json.dumps(entry))}


def taken(unread):
    return [unread.take() for _ in range(len(unread))]


def test_they_come_in_the_order_of_asking_and_once(tmp_path):
    unread = Unread(tmp_path)
    unread.add([Asked("a"), Asked("b"), Asked("a")])
    unread.add([Asked("c", "id > 1"), Asked("b"), Asked("a", "id > 1")])
    assert unread.names == ["a", "b", "c", "a"]
    assert taken(unread) == [Asked("a"), Asked("b"), Asked("c", "id > 1"), Asked("a", "id > 1")]
    assert position(unread) == {}
    unread.add([Asked("b")])  # it has begun since, and is wanted again
    assert taken(unread) == [Asked("b")]


@pytest.mark.parametrize("loss", ["missing", "damaged", "another"])
def test_a_lost_file_is_not_an_empty_queue(tmp_path, loss):
    unread = Unread(tmp_path)
    unread.add([Asked("a"), Asked("b")])
    before = position(unread)
    (path,) = tmp_path.iterdir()
    if loss == "missing":
        path.unlink()
    elif loss == "damaged":
        path.write_text(path.read_text()[:-9])
    else:
        Unread(tmp_path).add([Asked(each) for each in "cdef"])
    again = Unread(tmp_path)
    assert not again.load(before)
    assert again.load({})
    assert len(again) == 0


def test_without_a_folder_a_restart_knows_that_it_does_not_know():
    unread = Unread(None)
    unread.add([Asked("a")])
    assert not Unread(None).load(position(unread))


def test_what_cannot_be_written_does_not_wait(tmp_path):
    (tmp_path / "unread.json.tmp").mkdir()  # where it is written
    unread = Unread(tmp_path)
    with pytest.raises(ServiceUnavailable, match=r"unread\.json"):
        unread.add([Asked("a")])
    assert len(unread) == 0


def test_the_file_does_not_keep_what_no_cut_can_bring_back(tmp_path):
    unread = Unread(tmp_path)
    for each in range(1000):
        unread.add([Asked(f"db.table_{each}")])
        unread.durable(position(unread))
        unread.take()
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 300


class Cuts(RuleBasedStateMachine):
    """Wherever between its durable end and its end a log is cut, exactly what waited there waits again."""

    @initialize()
    def begin(self):
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory()
        self.unread = Unread(Path(self.folder.name))
        self.history = [({}, [])]  # since the durable end: positions, and what waited there
        self.count = 0

    def note(self):
        waiting = [each for number, each in self.unread._kept if number >= self.unread._first]
        self.history.append((position(self.unread), waiting))

    @rule(names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4), where=st.sampled_from([None, "x"]))
    def ask(self, names, where):
        self.unread.add([Asked(each, where) for each in names])
        self.note()

    @precondition(lambda self: len(self.unread))
    @rule()
    def take(self):
        self.unread.take()
        self.note()

    @rule()
    def clear(self):
        self.unread.clear()
        self.note()

    @rule(data=st.data())
    def durable(self, data):
        at = data.draw(st.integers(0, len(self.history) - 1))
        self.history = self.history[at:]
        self.unread.durable(self.history[0][0])

    @rule(data=st.data())
    def killed(self, data):
        at = data.draw(st.integers(0, len(self.history) - 1))
        there, waiting = self.history[at]
        self.unread = Unread(self.unread._path.parent)
        assert self.unread.load(there)
        assert self.unread.names == [each.source for each in waiting]
        self.history = [(there, waiting)]

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestCuts = Cuts.TestCase
TestCuts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
