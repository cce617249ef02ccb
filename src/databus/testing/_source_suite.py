"""The conformance suite of sources: what every `Source` promises, checked against a real one.

    class TestMySource(SourceSuite):
        @pytest.fixture
        def harness(self, tmp_path): ...   # yields a SourceHarness

Each check takes a fresh harness. The suite plays the capture loop and its log: it polls, keeps the groups, kills the
source by dropping it at any group, and starts another where a log would: at the last commit that does not continue.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol

from databus.core import BUS_COLUMNS, BUS_SEQ_MIN, ControlKind, PositionPurged, SourceChanged, UnknownSource
from databus.log import Resume
from databus.schema import TableSchema, frame_schema
from databus.sources import Source
from databus.wire import Commit, Group, OpenSnapshot, Registry, encode_group

BOUND_S: Final = 60.0
_LOG_ID: Final = "suite-log"


class SourceHarness(Protocol):
    """A database with at least one captured table, and sources on it."""

    def make(self) -> Source:
        """A new source on the same database, with small groups and chunks. The suite closes it."""
        ...

    def transact(self, number: int) -> None:
        """Commit one transaction of several changes of several kinds; `number` counts from 0 and makes it differ.

        One in three must be larger than a group. A source whose transactions come by themselves does nothing.
        """
        ...

    def another(self) -> Source:
        """A source on another database of the same kind, in which the same has happened."""
        ...

    @property
    def is_snapshottable(self) -> bool:
        """Whether `request_snapshot` reads rows."""
        ...

    @property
    def knows_its_history(self) -> bool:
        """Whether a database recognises positions of another one. A made-up source has nothing to recognise them by."""
        ...


def _makes_its_transactions(harness: SourceHarness) -> bool:
    """Whether the source itself groups changes to transactions, such as all that had queued: reading them again makes
    other transactions. A harness says so by an attribute `makes_its_transactions`.
    """
    return bool(getattr(harness, "makes_its_transactions", False))


class _Numbers:
    """A registry that numbers tables as they come, to encode groups as a log does."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def number_of(self, table: TableSchema) -> tuple[int, int]:
        return self._seen.setdefault(table.fingerprint, len(self._seen) + 1), 1


class Tape:
    """What a log would hold: groups in order, each checked as it comes."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._numbers: Registry = _Numbers()

    def append(self, group: Group) -> None:
        """Keep a group. Fails if it is not one that a log may hold here."""
        encode_group(group, self._numbers, 0)
        pairs = []
        for rows in group.rows:
            batch = rows.batch
            assert batch.num_rows > 0, "a frame of rows without rows"
            assert batch.schema.equals(frame_schema(rows.table)), f"{rows.table.source}: not the frame's schema"
            own = list(zip(batch["_commit_version"].to_pylist(), batch["_seq"].to_pylist(), strict=True))
            assert all(a < b for a, b in pairwise(own)), "rows are not in order"
            kinds = batch["_change_type"].to_pylist()
            assert kinds[0] != 3, "a frame begins with the second image of an update"
            assert kinds[-1] != 2, "an update is cut between its images"
            for at in (i for i, kind in enumerate(kinds) if kind == 2):
                assert kinds[at + 1] == 3, "the images of an update are not adjacent"
                assert own[at + 1] == (own[at][0], own[at][1] + 1), "the images of an update are not consecutive"
            pairs += own
        fingerprints = [rows.table.fingerprint for rows in group.rows]
        assert len(set(fingerprints)) == len(fingerprints), "two frames of the same source and schema in a group"
        if group.control is not None:
            assert group.control.body["kind"] == group.control.kind
            assert group.control.body["source"] == group.control.table.source
            assert all(group.control.pair < pair for pair in pairs), "a control is the first frame of its group"
            pairs.append(group.control.pair)
        assert len(set(pairs)) == len(pairs), "a pair stands twice"
        assert all(pair <= group.commit.pair for pair in pairs), "the commit ends before its rows"
        if self.groups:
            last = self.groups[-1].commit
            first = min(pairs, default=group.commit.pair)
            assert first > last.pair or (not pairs and first == last.pair), f"{first} comes after {last.pair}"
            if last.continues:
                assert group.commit.scn == last.scn, "another transaction before the one begun has ended"
                assert group.commit.txid == last.txid
        if group.commit.continues:
            assert {pair[0] for pair in pairs} == {group.commit.scn}, "a part shares its group with a transaction"
        self.groups.append(group)

    def resume(self) -> Resume:
        """Where a source would be started after a crash now; drops an unfinished transaction."""
        while self.groups and self.groups[-1].commit.continues:
            self.groups.pop()
        resume = resume_at(self.groups[-1].commit if self.groups else None)
        return replace(resume, schemas=self._in_force())

    def _in_force(self) -> dict[str, TableSchema]:
        """What the frames so far say of each table, as a log would."""
        tables: dict[str, TableSchema] = {}
        for group in self.groups:
            if group.control is not None:
                tables[group.control.table.source] = group.control.table
                if group.control.kind is ControlKind.DROP:
                    del tables[group.control.table.source]
            tables |= {rows.table.source: rows.table for rows in group.rows}
        return tables

    def logged(self) -> list[tuple[Any, ...]]:
        """Everything that is a function of the source, in order: rows and controls that are not of a snapshot."""
        items: list[tuple[Any, ...]] = []
        for group in self.groups:
            if group.snapshot:
                continue
            if group.control is not None:
                items.append((group.control.pair, group.control.kind, repr(dict(group.control.body))))
            for rows in group.rows:
                for row in rows.batch.to_pylist():
                    values = tuple(row.values())
                    items.append(((row["_commit_version"], row["_seq"]), rows.table.source, repr(values)))
        return sorted(items)

    def repeatable(self, harness: SourceHarness) -> list[tuple[Any, ...]]:
        """The part of `logged` that reading again must yield; no transactions where the source makes them itself."""
        if not _makes_its_transactions(harness):
            return self.logged()
        assert all(group.unrepeatable or group.snapshot for group in self.groups), "served before it is on the disk"
        return sorted(
            (rows.table.source, repr(tuple(row.values())))
            for group in self.groups
            if not group.snapshot
            for rows in group.rows
            for row in rows.batch.drop_columns(list(BUS_COLUMNS)).to_pylist()
        )


def resume_at(commit: Commit | None) -> Resume:
    """What a log that ends with this commit says to a source."""
    if commit is None:
        return Resume(log_id=_LOG_ID)
    return Resume(
        position=commit.position,
        scn=commit.scn,
        seq=commit.seq,
        txid=commit.txid,
        timeline=commit.scn >> 55,
        snapshots=commit.snapshots,
        log_id=_LOG_ID,
    )


def _started(source: Source, resume: Resume) -> Source:
    source.identify()
    source.tables()
    source.start(resume)
    return source


def _refused(action: Callable[[], object], *errors: type[Exception]) -> None:
    try:
        action()
    except errors:
        return
    raise AssertionError(f"expected {' or '.join(error.__name__ for error in errors)}, and nothing was raised")


def take(source: Source, tape: Tape, groups_max: int | None = None) -> None:
    """Poll into the tape until nothing waits, or so many groups."""
    limit = time.monotonic() + BOUND_S
    count = 0
    while (groups_max is None or count < groups_max) and (group := source.poll(20)) is not None:
        tape.append(group)
        count += 1
        assert time.monotonic() < limit, "the source never rests"


class SourceSuite:
    """The checks. Subclass it, and give it a fixture `harness`."""

    TRANSACTIONS = 12

    def _run(self, harness: SourceHarness, *, before: Callable[[Source, Tape], None] | None = None) -> Tape:
        tape, source = Tape(), _started(harness.make(), Resume(log_id=_LOG_ID))
        try:
            for number in range(self.TRANSACTIONS):
                harness.transact(number)
                if before is not None:
                    before(source, tape)
                if number % 3 == 0:
                    take(source, tape)
            take(source, tape)
        finally:
            source.close()
        return tape

    def test_identity_stays_and_tells_databases_apart(self, harness: SourceHarness) -> None:
        """Two sources on one database are the same physical source, two databases are not."""
        first, second, other = harness.make(), harness.make(), harness.another()
        try:
            assert first.identify() == second.identify()
            assert first.identify().uuid != other.identify().uuid
            assert first.identify().scheme
        finally:
            for source in (first, second, other):
                source.close()

    def test_groups_are_whole_ordered_and_encodable(self, harness: SourceHarness) -> None:
        """SCN and `_seq` increase; parts of a transaction stay together; nothing is empty that may not be."""
        tape = self._run(harness)
        assert any(group.rows for group in tape.groups), "nothing was captured"
        if not _makes_its_transactions(harness):
            assert any(group.commit.continues for group in tape.groups), "the harness made no transaction above a group"
        assert not tape.groups[-1].commit.continues
        scns = [group.commit.scn for group in tape.groups]
        assert scns == sorted(scns)

    def test_logged_rows_count_from_one_and_made_ones_from_far_above(self, harness: SourceHarness) -> None:
        """`_seq` of logged rows is an ordinal of the transaction; snapshot rows stand above 2^40 with their SCN."""
        tape = self._run(harness, before=_asks_once(harness))
        ordinals: dict[int, list[int]] = {}
        for group in tape.groups:
            for rows in group.rows:
                seqs = rows.batch["_seq"].to_pylist()
                if group.snapshot:
                    assert all(rows.batch["_snapshot"].to_pylist())
                    assert min(seqs) >= BUS_SEQ_MIN
                    assert set(rows.batch["_change_type"].to_pylist()) == {1}
                    assert set(rows.batch["_commit_version"].to_pylist()) == {group.commit.scn}
                else:
                    assert not any(rows.batch["_snapshot"].to_pylist())
                    for scn, seq in zip(rows.batch["_commit_version"].to_pylist(), seqs, strict=True):
                        ordinals.setdefault(scn, []).append(seq)
        for scn, seqs in ordinals.items():
            assert sorted(seqs) == list(range(1, len(seqs) + 1)), f"`_seq` of SCN {scn} has holes"

    def test_capture_resumes_identically_from_each_commit(self, harness: SourceHarness) -> None:
        """Killed after any group and started where the log ends, it yields the same again, snapshots excepted."""
        whole = self._run(harness)
        for kept in range(_first_published(whole), len(whole.groups)):
            tape = Tape()
            for group in whole.groups[:kept]:
                tape.append(group)
            resume = tape.resume()
            source = _started(harness.make(), resume)
            try:
                take(source, tape)
            finally:
                source.close()
            assert tape.repeatable(harness) == whole.repeatable(harness), f"differs when resumed after group {kept}"

    def test_killed_after_every_group_it_still_yields_everything(self, harness: SourceHarness) -> None:
        """A new source for each group, twenty times; then the rest."""
        whole, tape = self._run(harness), Tape()
        tape.groups = whole.groups[: _first_published(whole)]
        for _ in range(20):
            source = _started(harness.make(), tape.resume())
            try:
                take(source, tape, 2)
            finally:
                source.close()
        source = _started(harness.make(), tape.resume())
        take(source, tape)
        source.close()
        assert tape.repeatable(harness) == whole.repeatable(harness)

    def test_durable_loses_nothing_that_was_not_named(self, harness: SourceHarness) -> None:
        """After `durable` at each commit, a restarted source goes on from the last such commit."""
        acknowledged = Tape()

        def acknowledge(source: Source, tape: Tape) -> None:
            if tape.groups and not tape.groups[-1].commit.continues:
                source.durable(tape.groups[-1].commit.position)
                acknowledged.groups = list(tape.groups)

        whole = self._run(harness, before=acknowledge)
        source = _started(harness.make(), acknowledged.resume())
        try:
            take(source, acknowledged)
        finally:
            source.close()
        assert acknowledged.repeatable(harness) == whole.repeatable(harness)

    def test_a_snapshot_begins_reads_and_ends(self, harness: SourceHarness) -> None:
        """Controls frame the rows, name their generation, and the end names the begin's pair."""
        if not harness.is_snapshottable:
            return
        tape = self._run(harness, before=_asks_once(harness))
        begun: dict[str, tuple[int, tuple[int, int]]] = {}
        ended = 0
        for group in tape.groups:
            control = group.control
            if control is not None and control.kind is ControlKind.SNAPSHOT_BEGIN:
                begun[control.table.source] = (control.body["generation"], control.pair)
                assert group.commit.snapshots[control.table.source].generation == control.body["generation"]
            elif control is not None and control.kind is ControlKind.SNAPSHOT_END:
                generation, pair = begun.pop(control.table.source)
                assert (control.body["generation"], tuple(control.body["begin"])) == (generation, pair)
                assert control.table.source not in group.commit.snapshots
                ended += 1
            for rows in group.rows if group.snapshot else ():
                assert rows.table.source in begun, "rows of a snapshot that has not begun"
        assert ended
        assert not begun

    def test_a_snapshot_resumes_after_each_chunk(self, harness: SourceHarness) -> None:
        """Killed inside a snapshot, it goes on with it, or begins again with a higher generation; one of them ends."""
        if not harness.is_snapshottable:
            return
        whole = self._run(harness, before=_asks_once(harness))
        for at in (i for i, group in enumerate(whole.groups) if group.commit.snapshots):
            tape = Tape()
            tape.groups = list(whole.groups[: at + 1])
            opened = tape.groups[-1].commit.snapshots
            source = _started(harness.make(), tape.resume())
            take(source, tape)
            source.close()
            _check_ends(opened, tape.groups[at + 1 :])
            ends = [g.control.body for g in tape.groups[at + 1 :] if g.control and g.control.kind == "snapshot_end"]
            for name, snapshot in opened.items():
                generations = [body["generation"] for body in ends if body["source"] == name]
                assert max(generations, default=0) >= snapshot.generation, f"the snapshot of {name} never ends"

    def test_an_unknown_table_is_refused(self, harness: SourceHarness) -> None:
        """`request_snapshot` names what there is."""
        source = _started(harness.make(), Resume(log_id=_LOG_ID))
        try:
            _refused(lambda: source.request_snapshot(["main.no_such_table"]), UnknownSource)
        finally:
            source.close()

    def test_another_history_is_detected(self, harness: SourceHarness) -> None:
        """A position of another database, or one that this database never had, stops the source."""
        tape = self._run(harness)
        last = tape.groups[-1].commit
        foreign = replace(resume_at(last), scn=last.scn + 1000, txid="elsewhere", position={"nothing": "known"})
        sources = [(harness.make(), foreign)]
        if harness.knows_its_history:
            sources.append((harness.another(), resume_at(last)))
        for source, resume in sources:
            try:
                _refused(partial(_started, source, resume), SourceChanged, PositionPurged)
            finally:
                source.close()

    def test_tables_are_stable_and_frames_follow_them(self, harness: SourceHarness) -> None:
        """`tables` answers the same twice; each frame's columns are its table's, then the bus's."""
        source = _started(harness.make(), Resume(log_id=_LOG_ID))
        try:
            tables: Sequence[TableSchema] = source.tables()
            assert [table.fingerprint for table in source.tables()] == [table.fingerprint for table in tables]
        finally:
            source.close()
        for group in self._run(harness).groups:
            for rows in group.rows:
                assert rows.table.fingerprint in {table.fingerprint for table in tables}
                assert tuple(rows.batch.schema.names) == (*rows.table.names, *BUS_COLUMNS)

    def test_lag_and_close_are_always_answered(self, harness: SourceHarness) -> None:
        """Closing twice, or before anything was opened, does no harm."""
        source = harness.make()
        source.close()
        source.close()
        source = _started(harness.make(), Resume(log_id=_LOG_ID))
        lag = source.lag()
        assert lag.behind_ms is None or lag.behind_ms >= 0
        source.close()
        source.close()


def _check_ends(opened: Mapping[str, OpenSnapshot], groups: Sequence[Group]) -> None:
    """Each snapshot that ends is the last that began; one that begins again has a higher generation."""
    begun = {name: (snapshot.generation, snapshot.begin) for name, snapshot in opened.items()}
    for control in (group.control for group in groups if group.control is not None):
        name, body = control.table.source, control.body
        if control.kind is ControlKind.SNAPSHOT_BEGIN:
            assert body["generation"] > begun.get(name, (-1,))[0], "a snapshot began again with its generation"
            begun[name] = body["generation"], control.pair
        elif control.kind is ControlKind.SNAPSHOT_END:
            assert (body["generation"], tuple(body["begin"])) == begun[name], "another snapshot ended than began last"


def _first_published(tape: Tape) -> int:
    """How many groups it takes until a log has a position."""
    return next(i for i, group in enumerate(tape.groups, 1) if not group.commit.continues)


def _asks_once(harness: SourceHarness) -> Callable[[Source, Tape], None]:
    asked: list[str] = []

    def ask(source: Source, tape: Tape) -> None:
        names = [rows.table.source for group in tape.groups for rows in group.rows]
        if harness.is_snapshottable and names and not asked:
            asked.append(names[0])
            source.request_snapshot([names[0]])

    return ask
