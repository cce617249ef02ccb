"""Any history of appends, cut-backs, kills, power losses, reopenings and retention, against a list in memory."""

import os
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from databus.core import BUS_SEQ_MIN, PositionPurged, SourceCheckpoint
from databus.log import LogConfig
from databus.log._log import Log
from databus.log._mark import MarkFile
from databus.testing import FakeClock
from databus.wire import Commit, Group
from tests.log.make import IDENTITY, ORDERS, STOCK, group, pairs_of, read, us_of

CONFIG = LogConfig(
    segment_bytes_max=10 << 10,
    index_bytes_every=700,
    retention_bytes_max=30 << 10,
    fsync_interval_ms=60_000,
    fsync_bytes=1 << 30,
    free_bytes_min=0,
)
TABLES = st.sampled_from([(ORDERS,), (STOCK,), (ORDERS, STOCK)])


class DrivenLog(Log):
    """A log whose own thread does nothing: fsyncs and retention come when the machine says so, and at no other moment.

    That thread fsyncs soon after a snapshot's rows, and then applies retention, between two calls of a rule as well:
    what a rule has just been given a cursor for may be gone then. That is right, and no history that can be repeated.
    """

    def _run(self) -> None:
        pass


def open_log(folder: Path) -> Log:
    return DrivenLog.open(folder, physical="shop", identity=IDENTITY, config=CONFIG, clock=FakeClock())


class LogMachine(RuleBasedStateMachine):
    """`groups`: of each whole group in the log its rows, its pair at the end, and the latest commit time up to it."""

    @initialize()
    def begin(self):
        self.top = Path(tempfile.mkdtemp(prefix="databus-machine-"))
        self.folder = self.top / "0"
        self.log = open_log(self.folder)
        self.groups = []  # (rows, pair, max commit time)
        self.parts = []  # of the transaction that is not whole yet
        self.durable = 0  # how many of `groups` are certainly on the disk

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.top)

    def last(self):
        return (self.parts or self.groups or [([], (0, 0), 0)])[-1]

    def appended(self, each, rows):
        _, _, max_us = self.last()
        entry = rows, each.commit.pair, max(max_us, each.commit.commit_us)
        self.parts.append(entry)
        if not each.commit.continues:
            self.groups += self.parts
            self.parts = []

    def append(self, each):
        segments = self.log.head().segments
        committed = len(self.groups)
        self.log.append(each)
        if self.log.head().segments != segments and self.log._view.segments[-1].number > 1:
            self.durable = committed
        rows = [
            (rows.table.source, row["_commit_version"], row["_seq"], row.get("note"))
            for rows in each.rows
            for row in rows.batch.to_pylist()
        ]
        self.appended(each, rows)

    @rule(count=st.integers(1, 12), tables=TABLES, seconds=st.integers(0, 50), skip=st.integers(1, 3), data=st.data())
    def transaction(self, count, tables, seconds, skip, data):
        if self.parts:
            scn, seq = self.last()[1]
            first_seq = seq + 1
        else:
            scn, first_seq = self.last()[1][0] + skip, 1
        continues = data.draw(st.integers(0, 2), label="continues") == 0
        self.append(
            group(scn, count=count, tables=tables, first_seq=first_seq, continues=continues, commit_us=us_of(seconds))
        )

    @rule(parts=st.integers(2, 30))
    def many_parts(self, parts):
        if self.parts:
            return
        scn = self.last()[1][0] + 1
        for part in range(parts):
            self.append(group(scn, count=8, first_seq=1 + part * 8, continues=True))

    @precondition(lambda self: not self.parts)
    @rule(seconds=st.integers(0, 50))
    def progress(self, seconds):
        scn, _seq = self.last()[1]
        self.append(Group(Commit(scn + 1, 0, f"tx-{scn + 1}", {"cut": scn + 1}, us_of(seconds))))

    @precondition(lambda self: not self.parts and self.groups)
    @rule()
    def chunk(self):
        scn, seq = self.last()[1]
        self.append(group(scn, count=2, first_seq=max(seq + 1, BUS_SEQ_MIN), snapshot=True))

    @rule()
    def sync(self):
        self.log.sync()
        self.durable = len(self.groups)

    @rule()
    def cut_back(self):
        self.log.cut_back()
        if self.parts:
            self.durable = len(self.groups)
        self.parts = []

    @rule()
    def retain(self):
        self.log.retain()

    @rule()
    def reopen(self):
        self.log.close()
        self.log = open_log(self.folder)
        self.parts = []
        self.durable = len(self.groups)

    def copy(self):
        """The files as a kill leaves them; the log then goes on there."""
        copy = self.top / str(int(self.folder.name) + 1)
        shutil.copytree(self.folder, copy)
        self.log.close()
        shutil.rmtree(self.folder)
        self.folder = copy

    @rule()
    def kill(self):
        self.copy()
        self.log = open_log(self.folder)
        self.parts = []
        self.durable = len(self.groups)

    @rule(seed=st.integers(0, 1 << 30))
    def power_loss(self, seed):
        """Behind the durable mark, the newest segment is cut anywhere, and some of it was never written."""
        chance = random.Random(seed)
        self.copy()
        newest = max(self.folder.glob("*.seg"))
        mark = MarkFile(self.folder).read()
        size = newest.stat().st_size
        kept = self.log._view.segments[-1].first_offset
        if mark is not None and mark.segment == int(newest.stem):
            kept = mark.offset
        with newest.open("r+b") as file:
            file.truncate(chance.randint(kept, size))
            if chance.random() < 0.5 and file.seek(0, os.SEEK_END) > kept:
                at = chance.randrange(kept, file.tell())
                file.seek(at)
                file.write(bytes(chance.randint(1, 300)))
        self.log = open_log(self.folder)
        self.parts = []
        resume = self.log.resume()
        count = next(
            (i + 1 for i, each in reversed([*enumerate(self.groups)]) if each[1] <= (resume.scn, resume.seq)), 0
        )
        assert count >= self.durable, "something durable is gone"
        self.groups = self.groups[:count]
        self.durable = count

    @rule(data=st.data(), txid=st.booleans(), wants_exact=st.booleans(), bytes_max=st.integers(1, 20_000))
    def read_from_a_position(self, data, txid, wants_exact, bytes_max):
        self.sync()
        everything = [row for rows, _, _ in self.groups for row in rows]
        if not everything:
            return
        _, scn, seq, _ = data.draw(st.sampled_from(everything), label="row")
        exact = wants_exact or seq >= BUS_SEQ_MIN
        position = SourceCheckpoint(
            scn=scn, seq=seq if exact else None, log=self.log.uuid if exact else None, txid=f"tx-{scn}" if txid else ""
        )
        wanted = [row for row in everything if row[1:3] > position.pair]
        try:
            cursor = self.log.locate(position)
        except PositionPurged:
            assert position.pair < self.log.head().oldest.pair
            return
        got = [row for row in pairs_of(read(cursor, bytes_max)) if row[1:3] > position.pair]
        assert got == wanted

    @rule(seconds=st.integers(0, 51))
    def read_from_a_time(self, seconds):
        self.sync()
        try:
            cursor = self.log.at_time(us_of(seconds))
        except PositionPurged:
            assert self.log.head().oldest.scn > 0
            return
        wanted = [row for rows, _, max_us in self.groups if max_us >= us_of(seconds) for row in rows]
        assert pairs_of(read(cursor)) == wanted

    @rule(source=st.sampled_from(["main.orders", "main.stock"]))
    def read_one_source(self, source):
        self.sync()
        ids = self.log.schemas.ids()
        if source not in ids:
            return
        got = read(self.log.earliest(), sources=frozenset({ids[source]}))
        everything = pairs_of(read(self.log.earliest()))
        assert pairs_of(got) == [row for row in everything if row[0] == source]
        assert len(got) == len(read(self.log.earliest()))

    @rule(partitions=st.integers(1, 4), rows_max=st.integers(1, 60))
    def measured_ranges_follow_each_other(self, partitions, rows_max):
        self.sync()
        reader, planner = self.log.earliest(), self.log.earliest()
        while (measure := planner.measure(rows_max=rows_max, partitions=partitions)).groups:
            got = []
            for end in (*measure.splits, measure.end):
                start = self.log.locate(reader.position) if reader.position.scn else reader
                got += read(start, to=end.pair)
                reader = start
                assert reader.position == end
            assert sum(len(frame.batch) for each in got for frame in each.rows) == measure.rows
            assert len(got) == measure.groups
        assert planner.is_at_end

    @invariant()
    def the_published_end_is_that_of_the_last_whole_group(self):
        if not hasattr(self, "log"):
            return
        resume = self.log.resume()
        assert (resume.scn, resume.seq) == (self.groups[-1][1] if self.groups else (0, 0))
        assert self.log.head().is_inside_transaction == bool(self.parts)


LogMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLogMachine = LogMachine.TestCase
