"""The ends of a log, without a log: any history of appending, fsyncing and cutting back."""

from hypothesis import given
from hypothesis import strategies as st

from databus.log._ends import Appended, Ends
from databus.log._segment import ORIGIN, End
from databus.wire import Commit, EncodedGroup

APPENDING = st.tuples(st.just("append"), st.booleans(), st.booleans(), st.integers(0, 3))
STEPS = st.lists(APPENDING | st.just(("begin",)) | st.just(("sync",)) | st.just(("cut",)))


class Histories:
    """Runs a history, and remembers what the ends must agree with."""

    def __init__(self) -> None:
        self.ends = Ends(End(1, 0, -1, ORIGIN, 0), {})
        self.snapshots: list[int] = []  # offsets behind groups of snapshots
        self.begun: Appended | None = None
        self.durable = 0

    def append(self, continues: bool, snapshot: bool, fingerprint: int) -> None:
        tail = self.ends.tail
        scn, seq = tail.commit.scn + (not tail.commit.continues), tail.commit.seq + 1
        offset = tail.offset + 10
        commit = Commit(scn, seq, f"tx-{scn}", {}, 0, continues=continues)
        schemas = ((7, fingerprint),) if fingerprint else ()
        group = EncodedGroup(
            buffers=(),
            bytes_total=10,
            commit_bytes=4,
            rows=1,
            first=(scn, seq),
            commit=commit,
            needs_sync=snapshot,
            schemas=schemas,
        )
        self.ends.check_next("shop", group)
        self.ends.append(End(1, offset, offset - 4, commit, 0), group)
        if snapshot:
            self.snapshots.append(offset)

    def begin(self) -> None:
        self.begun = self.ends.appended()

    def sync(self) -> None:
        if self.begun is not None:
            self.ends.synced(self.begun)
            self.durable, self.begun = max(self.durable, self.begun.tail.offset), None

    def cut(self) -> None:
        self.begun = None  # one at a time holds the lock of both
        self.ends.cut_back()
        offset = self.durable = self.ends.committed.offset
        self.snapshots = [each for each in self.snapshots if each <= offset]


@given(STEPS)
def test_readers_see_whole_transactions_only_and_snapshots_only_once_they_are_durable(steps):
    history = Histories()
    for name, *args in steps:
        before = history.ends.published
        getattr(history, name)(*args)
        ends = history.ends
        assert before.place <= ends.published.place <= ends.committed.place <= ends.tail.place
        assert ends.durable.place <= ends.committed.place
        assert not any(end.commit.continues for end in (ends.published, ends.committed, ends.durable))
        assert not [each for each in history.snapshots if history.durable < each <= ends.published.offset]
        if not [each for each in history.snapshots if each > history.durable]:
            assert ends.published == ends.committed


@given(STEPS)
def test_cutting_back_leaves_the_schemas_of_the_last_whole_transaction(steps):
    history = Histories()
    whole: dict[int, int] = {}
    for name, *args in steps:
        getattr(history, name)(*args)
        if history.ends.tail is history.ends.committed:
            whole = {key: value for key, value in history.ends.forces.in_force.items() if value}
    history.cut()
    assert {key: value for key, value in history.ends.forces.in_force.items() if value} == whole
