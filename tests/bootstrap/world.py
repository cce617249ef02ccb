"""Random histories, the two stores that they fill, and consumers that are given answers: all in memory.

`mirror_of` of `databus.testing` is the twin: what a consumer has that was given everything, one image at a time.
"""

import json
import random
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from databus.bootstrap import (
    AnswerRequest,
    EveryChange,
    KeptPast,
    StateAnswer,
    Stores,
    answered,
    cut_off,
    every_change,
    plan,
    standing_at,
)
from databus.client import Splitter
from databus.core import (
    BUS_SEQ_MIN,
    ChangeType,
    ControlKind,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
)
from databus.filters import FrameFilter, StreamFilter
from databus.flow import TableControl, user_rows_schema
from databus.log import SchemaVersion
from databus.schema import Column, TableSchema, sink_schema
from databus.stores import (
    HeadNote,
    KnownSchemas,
    LoggedControl,
    LogSelection,
    RowGroup,
    StateNote,
    StateTable,
    controls_above,
    merged_rows,
)
from databus.testing._change_log import ChangeLog, Image, mirror_of, rows_table
from databus.wire import FrameParser, answer_log, answer_name

KEYS = range(6)
PHYSICAL = "shop"
NEEDED = {  # as row groups are left out by their bounds
    LogSelection.ALL: lambda _: True,
    LogSelection.CONTROLS: lambda each: isinstance(each, TableControl),
    LogSelection.REMOVALS: lambda each: (
        isinstance(each, TableControl) or each.kind.label in ("delete", "update_preimage")
    ),
}
NOW_NS = 1 << 60  # what the bus numbers by the clock lies far below


def table_of(name, columns):
    key = () if name == "k" else ("id",)
    kinds = [Column(each, "int64", nullable=each != "id") for each in columns]
    return TableSchema(f"main.{name}", tuple(kinds), key)


@dataclass
class World:
    """A source, its log, and stores of it. index: how much of the log is in the log store."""

    seed: int
    log: ChangeLog = field(default_factory=ChangeLog)
    tables: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    ever: dict = field(default_factory=dict)  # definitions by fingerprint, in order
    states: list = field(default_factory=list)
    contents: dict = field(default_factory=dict)  # of states, by name and source
    low: int = 0
    low_pair: tuple = (0, 0)
    cut: dict | None = None
    _as_stored: dict = field(default_factory=dict)

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.narrowed = "stk"[self.seed % 3] if self.seed % 4 == 0 else None  # a table that is captured with a WHERE
        for name in ("s", "t", "k"):
            self.create(name, first=True)
            self.snapshot(name)

    # the source

    def create(self, name, *, first=False):
        columns = ["id", "a", "b"] if name != "k" else ["a"]
        is_told = first or self.rng.random() < 0.5  # MySQL's log shows a table that comes back by its rows alone
        self.tables[name] = self._defined(table_of(name, columns))
        self.rows[name] = {}
        if is_told and not first:
            self.log.begin().schema(self.tables[name], 1, previous=None)

    def _defined(self, table):
        self.ever.setdefault(table.fingerprint, table)
        return table

    def value(self):
        return self.rng.choice((None, 0, 1, 2, 3))

    def transaction(self):
        self.log.begin()
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self.change(self.rng.choice(sorted(self.tables)))

    def change(self, name):
        rng, table, rows = self.rng, self.tables[name], self.rows[name]
        new = {each: self.value() for each in table.names}
        if name == "k":
            rows[len(rows)] = new
            self.log.insert(table, new)
            return
        if not rows or rng.random() < 0.3:
            free = [each for each in KEYS if each not in rows]
            if free:
                new["id"] = rng.choice(free)
                rows[new["id"]] = new
                self.log.insert(table, new)
            return
        old = rows.pop(rng.choice(sorted(rows)))
        if rng.random() < 0.3:
            self.log.delete(table, old)
            return
        free = [each for each in KEYS if each not in rows and each != old["id"]]
        new["id"] = rng.choice(free) if free and rng.random() < 0.4 else old["id"]
        rows[new["id"]] = new
        self.log.update(table, old, new)

    def ddl(self):
        rng, name = self.rng, self.rng.choice("st")
        if name not in self.tables:
            self.create(name)
            return
        table = self.tables[name]
        kind = rng.choice(("add", "add", "class3", "rename", "drop column", "truncate", "drop"))
        own = [each for each in table.names if each != "id"]
        free = [each for each in "abxy" if each not in own]
        previous, body = f"{table.fingerprint:016x}", {}
        self.rows[name] = {at: dict(row) for at, row in self.rows[name].items()}  # images stay what they were
        self.log.begin()
        if kind == "truncate":
            self.rows[name].clear()
            self.log.control(ControlKind.TRUNCATE, table)
            return
        if kind == "drop":
            self.log.control(ControlKind.DROP, table)
            del self.tables[name], self.rows[name]
            return
        columns, number = list(table.names), 1
        if kind in ("add", "class3") and free:
            column, value = rng.choice(free), self.value()
            columns.append(column)
            number = 2 if kind == "add" else 3
            body = {"fill": {column: value}} if kind == "add" else {}
            for row in self.rows[name].values():
                row[column] = value if kind == "add" else row["id"] * 10
        elif kind == "rename" and free and own:
            before, after = rng.choice(own), rng.choice(free)
            columns = [after if each == before else each for each in columns]
            body = {"renamed": {before: after}}
            self.rows[name] = {
                at: {after if each == before else each: value for each, value in row.items()}
                for at, row in self.rows[name].items()
            }
        elif kind == "drop column" and len(own) > 1:
            gone = rng.choice(own)
            columns.remove(gone)
            for row in self.rows[name].values():
                del row[gone]
        else:
            self.change(name)
            return
        self.tables[name] = self._defined(table_of(name, columns))
        self.log.schema(self.tables[name], number, previous=previous, **body)
        if number == 3:
            self.snapshot(name)

    def snapshot(self, name):
        """Of a table; changes of others, and states, may come between its parts."""
        table = self.tables[name]
        self.let_time_pass()
        begin = self.log.bus_control(ControlKind.SNAPSHOT_BEGIN, table, generation=len(self.log.entries) + 1)
        for part in (0, 1):
            rows = [row for at, row in self.rows[name].items() if at % 2 == part]
            self.log.snapshot(table, [dict(row) for row in rows])
            self.let_time_pass()
            if self.rng.random() < 0.4:
                self.note()
        body = {"generation": begin.body["generation"], "begin": list(begin.pair)}
        body |= {"complete": name != self.narrowed, "as_configured": True}
        self.log.bus_control(ControlKind.SNAPSHOT_END, table, **body)

    def let_time_pass(self):
        """The bus numbers what it makes by a clock, which mostly leaves room for the numbers of a state."""
        self.log._bus += self.rng.choice((0, 1000, 1000))

    def gap(self):
        name = self.rng.choice(sorted(self.tables))
        self.log.begin()
        if name not in ("k", self.narrowed):  # of these a reading tells nobody what is gone
            self.rows[name] = dict(list(self.rows[name].items())[1:])
        self.log.bus_control(ControlKind.GAP, self.tables[name], resnapshot=True)
        if self.rng.random() < 0.5:
            self.note()
        self.snapshot(name)

    # the stores

    def controls(self, source):
        controls = [
            LoggedControl(source, each.kind, each.pair, self._json(each), each.table)
            for each in self.log.entries
            if isinstance(each, TableControl) and each.table.source == source
        ]
        return controls_above(HeadNote(SourceCheckpoint(), self.low_pair, cut=self.cut), source, controls)

    @staticmethod
    def _json(control):
        more = {"table": control.table.to_json()} if control.kind is ControlKind.SCHEMA else {}
        return json.loads(json.dumps({**control.body, **more}))

    def pieces(self, wanted, after, until):
        groups = []
        for source, want in wanted.items():
            mine = [each for each in self.log.entries[self.low :] if each.table.source == source]
            for start in range(0, len(mine), 4):
                part = mine[start : start + 4]
                first, last = part[0].pair, part[-1].pair
                if not any(map(NEEDED[want], part)):
                    continue
                groups.append(RowGroup(source, first, last, lambda part=part: self._stored(part)))
        return merged_rows(groups, after, until)

    def _stored(self, entries):
        parts = []
        for each in entries:
            known = self._as_stored.get(id(each))
            if known is None:
                known = self._as_stored[id(each)] = self._entry(each)
            parts.append(known)
        return pa.concat_tables(parts, promote_options="permissive")

    @staticmethod
    def _entry(each):
        if isinstance(each, Image):
            return rows_table(each.table, [each])
        schema = user_rows_schema(each.table).append(pa.field("_control", pa.string()))
        body = {**each.body, "table": each.table.to_json()}
        told = {"_change_type": each.kind.value, "_commit_version": each.pair[0], "_seq": each.pair[1]}
        return pa.Table.from_pylist([{**told, "_control": json.dumps(body)}], schema=schema)

    def position(self, index):
        found = self.log.position(index)
        entries = self.log.entries[:index]
        gone = [each.table.source for each in entries if isinstance(each, TableControl) and each.kind == "drop"]
        snapshots = {name: each for name, each in found.snapshots.items() if name not in gone}
        return replace(found, uuid="u", snapshots=snapshots)

    def note(self):
        index = len(self.log.entries)
        position = self.position(index)
        earlier = [each for each in self.states if each.position.scn == position.scn]
        base = max(BUS_SEQ_MIN, position.pair[1] + 1, *(each.end + 1 for each in earlier), 0)
        tables, incomplete = {}, set()
        known = sorted({each.table.source for each in self.log.entries})
        contents = {}
        before = self.states[-1].tables if self.states else {}
        low = self.low_pair
        for source in known:
            standing = standing_at(self.controls(source), position.pair)
            if standing.is_incomplete:
                incomplete.add(source)
            table = [each for each in self.log.entries if each.table.source == source][-1].table
            if not table.key or standing.is_gone(partial(self.first_after, source), position.pair):
                continue
            held = mirror_of(self.log.entries, source)
            rows = list(held.items())
            self.rng.shuffle(rows)
            made = [{**row, "_commit_version": pair[0], "_seq": pair[1]} for _, (row, pair) in rows]
            bus = [pa.field("_commit_version", pa.int64()), pa.field("_seq", pa.int64())]
            schema = pa.schema([*sink_schema(table), *bus])
            contents[source] = pa.Table.from_pylist(made, schema=schema)
            horizon = max(low, before[source].horizon if source in before else (0, 0))
            files = (("f", len(rows)),)
            tables[source] = StateTable(files, table, horizon, is_narrowed=standing.is_narrowed)
        state = StateNote(position, base, tables, frozenset(incomplete), tuple(known))
        self.states.append(state)
        self.contents[state.name] = contents

    def first_after(self, source, pair):
        """Of what there is of a table, the first pair above one."""
        return next((each.pair for each in self.log.entries if each.table.source == source and each.pair > pair), None)

    def cut_log(self):
        """The log store's old end goes, as a service lets it go."""
        until = self.rng.choice(self.log.entries[: len(self.log.entries) * 2 // 3]).pair
        controls = {source: self.controls(source) for source in sorted({e.table.source for e in self.log.entries})}
        head, schemas = self.kept().head, self.stores().schemas
        head = cut_off(head, self.states, until, 0, controls, self.first_after, schemas)
        self.low_pair, self.cut = head.low, head.cut
        self.low = sum(each.pair <= head.low for each in self.log.entries)

    def expire(self):
        if len(self.states) > 1:
            self.states.pop(self.rng.randrange(len(self.states) - 1))

    def known(self):
        """All definitions; of each table the one in force last."""
        return sorted(self.ever.values(), key=lambda each: each in self.tables.values())

    def kept(self):
        position = self.position(len(self.log.entries))
        versions = [SchemaVersion(1 + "stk".index(each.source[-1]), n, each) for n, each in enumerate(self.known())]
        head = HeadNote(position, self.low_pair, tuple(versions), cut=self.cut)
        return KeptPast(self.states, head, self.controls, NOW_NS)

    def stores(self, state=None):
        def batches(source, table, skip, above, wanted):
            rows = self.contents[state.name][source]
            for start in range(0, rows.num_rows, 2):
                part = rows.slice(start, 2)
                pairs = zip(part.column("_commit_version").to_pylist(), part.column("_seq").to_pylist(), strict=True)
                left = part.slice(max(skip - start, 0))
                if left.num_rows and (above is None or max(pairs) > above):
                    yield start + part.num_rows - left.num_rows, left.to_batches()[0]

        schemas = KnownSchemas(PHYSICAL, self.kept().head.definitions)
        return Stores(schemas, self.controls, self.pieces, batches)


@dataclass
class Consumer:
    """Has what a follower has that began with the log, up to a position; goes on by answers."""

    world: World
    ask: AnswerRequest
    index: int | None
    entries: list = field(default_factory=list)

    def __post_init__(self):
        self.position = None
        self.kinds = set()
        self.made = {}  # definitions behind the filter
        self.in_force = {}  # by source, the definition that it was told
        self.unread = set()  # what it asks the relay to read
        if self.index is not None:
            self.position = self.world.position(self.index)
            own = {name: each for name, each in self.position.snapshots.items() if name in self.ask.sources}
            self.position = replace(self.position, snapshots=own)
            prefix = self.world.log.entries[: self.index]
            for source in sorted(self.ask.sources):
                if source == "main.k":
                    self.entries += [each for each in prefix if each.table.source == source]
                    continue
                last = next((e for e in reversed(prefix) if e.table.source == source), None)
                table = None if last is None else last.table
                is_there = not (isinstance(last, TableControl) and last.kind is ControlKind.DROP)
                if table is not None and is_there and self.fits(table):  # what comes after a drop says what it is
                    self.in_force[source] = self.behind(table)
                for row, pair in mirror_of(prefix, source).values():
                    if passes(self.ask, table, row):
                        sent = projected(self.ask, table, row)
                        self.entries.append(Image(self.behind(table), pair, ChangeType.INSERT, sent))
        self.pairs = [(0, -1)]

    def ask_once(self, kept, cut=None):
        """One request; `cut`: after how many groups the connection breaks. Whether an end was reached."""
        found = plan(self.position, self.ask, kept)
        if isinstance(found, EveryChange):
            self.kinds.add("every")
            log = kept.head.position.log
            parts = every_change(found.start, found.end, self.ask, self.world.stores(), 0)
        else:
            assert isinstance(found, StateAnswer)
            self.kinds |= {str(each) for each in found.kinds.values()}
            assert not found.state.incomplete & {*found.kinds}, "what lacks a snapshot is served as complete"
            log = answer_log(str(found.name))
            parts = answered(found, self.ask, self.world.stores(found.state), 0)
        start = self.position or SourceCheckpoint()
        splitter = Splitter(PHYSICAL, start, self.table_of)
        splitter.connected("u", log)
        parser = FrameParser("answer")
        for number, content in enumerate(parts):
            if cut is not None and number >= cut:
                return False
            view = memoryview(content)
            while view:
                space = parser.space()
                count = min(len(space), len(view))
                space[:count] = view[:count]
                view = view[count:]
                for group in parser.received(count):
                    for window in splitter.split(group):
                        self.take(window)
        parser.finish()
        return True

    def table_of(self, fingerprint):
        if fingerprint in self.world.ever:
            return self.world.ever[fingerprint]
        if fingerprint not in self.made:
            self.made |= {each.fingerprint: each for each in map(self.behind, self.world.ever.values())}
        return self.made[fingerprint]

    def frames(self):
        return FrameFilter(self.ask.filter, PHYSICAL, self.world.stores().schemas)

    def fits(self, table):
        return bool(self.frames().after(table))

    def behind(self, table):
        return next(iter(self.frames().after(table)), table)

    def take(self, window):
        found = []
        if window.control is not None:
            control = window.control
            found.append(TableControl(control.table, control.kind, control.pair, control.body))
            if control.kind in (ControlKind.SCHEMA, ControlKind.DROP):
                self.in_force.pop(control.table.source, None)
            if control.kind is ControlKind.SCHEMA:
                self.in_force[control.table.source] = control.table
            if control.body.get("exact") is False:  # older rows were judged by other values: a reader has them read
                self.unread.add(control.table.source)
        for changes in window.changes():
            known = self.in_force.setdefault(changes.table.source, changes.table)
            assert known == changes.table, "rows in a definition that no control told"
            for row in changes.batch.to_pylist():
                pair = row.pop("_commit_version"), row.pop("_seq")
                kind = ChangeType(row.pop("_change_type"))
                values = {name: row[name] for name in changes.table.names}
                found.append(Image(changes.table, pair, kind, values, row["_snapshot"]))
        found.sort(key=lambda each: each.pair)
        pairs = [each.pair for each in found]
        assert all(one < other for one, other in zip([self.pairs[-1], *pairs], pairs, strict=False)), "pairs fall"
        self.pairs += pairs
        self.entries += found
        self.position = window.position

    @property
    def is_inside(self):
        return self.position is not None and answer_name(self.position.log) is not None

    def rows(self, source):
        # a twin that forgets pairs: what it is given comes in order
        held = mirror_of(self.entries, source)
        return {key: row for key, (row, _) in held.items()}


def passes(ask, table, row):
    rules, _ = ask.filter.about(f"{PHYSICAL}/{table.source}")
    for rule in rules:
        if rule.where == "a >= 2" and not (row.get("a") is not None and row["a"] >= 2):
            return False
        if rule.where == "a IS NULL" and row.get("a") is not None:
            return False
    return True


def projected(ask, table, row):
    names = ask.projection(table.source)
    return {name: value for name, value in row.items() if names is None or name in (*table.key, *names)}


def ask_of(rng):
    sources = rng.choice((("main.s",), ("main.s", "main.t"), ("main.s", "main.t", "main.k"), ("main.t", "main.k")))
    where = rng.choice((None, None, "a >= 2", "a IS NULL"))
    columns = rng.choice((None, None, ["a"]))
    filters = {f"{PHYSICAL}/main.s": {"where": where, "columns": columns}} if where or columns else None
    return AnswerRequest(PHYSICAL, frozenset(sources), sources, StreamFilter.parse(filters=filters))


EXPECTED = (ServiceUnavailable, PositionPurged)
