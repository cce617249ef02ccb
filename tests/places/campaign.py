"""Random edits of a pipeline's file, kills after each step that is durable, and accidents; over the rules of places.

Even seeds are quiet: nothing is missing anywhere after an edit, so nobody may stop but for a way that was changed, and
no snapshot may be asked for. Odd ones have accidents besides: a log that is purged or replaced, a target put back.
"""

import random
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace

from databus.core import SEQ_DONE, ControlKind, PositionForeign
from databus.filters import TableChoice
from databus.places import (
    ASKED,
    ChosenTables,
    ForeignTarget,
    LogPurged,
    MissingRows,
    Noted,
    PartOfTransaction,
    Position,
    Stopped,
    WayChanged,
    chosen_by,
    read_by,
    reconcile,
)
from tests.places.targets import Batch, Delta, Http, Kafka, Search
from tests.places.world import KEYS, ZERO, LogView, Source, name_of

QUIET = """
tables tables tables tables tables tables way on_change lane buckets rebuild replay ledger_lost ledger_lost ledger_old
foreign catch_up typed typed refused refused
""".split()  # noqa: SIM905 - a list would be of fifty lines
LOUD = """
tables tables tables tables tables tables way way on_change lane buckets rebuild replay ledger_lost ledger_lost
ledger_old target_old target_gone purge purge new_log foreign table_alone_old control_lost catch_up typed typed
refused refused
""".split()  # noqa: SIM905 - a list would be of fifty lines
KINDS = ["mirror", "history", "kafka", "search", "http"]
WHY = {
    ForeignTarget: "foreign", MissingRows: "gone", PartOfTransaction: "part", LogPurged: "purged", WayChanged: "way",
}  # fmt: skip


class Killed(Exception):
    """What ends a run."""


class Refused(Exception):
    """An output was given a row that it cannot take."""

    def __init__(self, out, table):
        self.out, self.table = out, table
        super().__init__(f"{out.name}: {table}")


class Wrong(Exception):
    """What the oracle says."""


class Output:
    def __init__(self, kind, name, dice):
        makers = {
            "mirror": lambda: Delta(is_mirror=True), "history": lambda: Delta(is_mirror=False), "kafka": Kafka,
            "http": Http, "search": Search,
        }  # fmt: skip
        self.kind, self.name, self.dice, self.target = kind, name, dice, makers[kind]()
        self.tables, self.wants_new, self.ways, self.catch_up = (
            {"a", "b"},
            False,
            {},
            dice.choice(["together", "apart"]),
        )
        self.on_change = dice.choice(["stop", "continue"])
        self.ledger, self.removing, self.ledgers = None, (), []
        self.ways_ever, self.way_since, self.released, self.seeds = {}, {}, [], []
        self.injected, self.lane, self.dead_letters = set(), 0, kind == "kafka" and dice.random() < 0.5
        self.restored = self.may_repeat = False
        self.blind = set()
        self.typed = set()  # tables behind typed filters
        self.bad = {}  # by table that the target does not take, or did not: between which pairs
        self.past = set()  # of which rows came that it does not take, though it takes what comes now
        self.rereads = set()

    @property
    def refused(self):
        """What it does not take as it is now, and what the run before met."""
        return self.past | {table for table, spans in self.bad.items() if spans[-1][1] is None}

    def cannot_take(self, entry):
        spans = self.bad.get(entry.table, ()) if entry.kind in ("put", "read", "delete") else ()
        return any(low < entry.pair and (high is None or entry.pair <= high) for low, high in spans)

    @property
    def choice(self):
        names = tuple(name_of(table) for table in sorted(self.refused))
        left = (TableChoice(exclude=names),) if names else ()
        if self.tables == "*":
            return ((TableChoice(("shop/*",)), *left),)
        return tuple((TableChoice((name_of(table),)), *left) for table in sorted(self.tables))

    @property
    def base(self):
        """By table: nothing at or below is owed, since the log had lost it, or the operator said so."""
        return self.target.base

    @property
    def position(self):
        return None if self.ledger is None else Position.from_json(self.ledger, "ledger")

    def names(self, table):
        """Whether the file does."""
        return self.tables == "*" or table in self.tables

    def wants(self, table):
        return self.names(table) and table not in self.refused

    def refuses(self, entry):
        return self.dead_letters and entry.value is not None and entry.value % 11 == 0

    def note_seed(self, table, pair):
        self.seeds.append((table, pair))
        self.base[table] = max(pair, self.base.get(table, ZERO))

    def put(self, position, tick=lambda: None):
        value = position.to_json()
        if value != self.ledger:
            self.ledger = value
            self.ledgers.append(value)
            tick()

    def rebuild(self, tables, tick):
        """Noted first, then the target, then the ledger."""
        if self.ledger is None:
            for table in tables:
                self.target.remove(name_of(table), tick)
                self._forget(table)
            return
        self.removing = tuple(sorted({*self.removing, *tables}))
        tick()
        self.remove_rest(tick)

    def remove_rest(self, tick):
        for table in self.removing:
            self.target.remove(name_of(table), tick)
            self._forget(table)
        self.ledger = self.position.without([name_of(table) for table in self.removing]).to_json()
        self.removing = ()
        self.ledgers.append(self.ledger)
        tick()

    def _forget(self, table):
        self.base.pop(table, None)
        self.ways_ever.pop(table, None)


class Engine:
    """Runs the outputs of one lane. tick: called after each step that is durable; may raise `Killed`."""

    def __init__(self, source, outs, tick):
        self.source, self.outs, self.tick = source, outs, tick
        self.positions = {}
        self.offset = ZERO

    def chosen(self, out):
        return {table for table in self.source.rows if out.wants(table)}

    def start(self):
        for out in self.outs:
            if out.ledger is not None and out.position.at is not None and out.position.at.uuid != self.source.uuid:
                raise ForeignTarget([])
            if out.removing:
                out.remove_rest(self.tick)
            out.target.switch_buckets(out, self.tick)
            self._begin(out)
        self.offset = min(self._start_of(out) for out in self.outs)

    def _start_of(self, out):
        position = self.positions[out.name]
        return (position.least(out.choice) if out.catch_up == "together" else position.at).pair

    def reconciled(self, out):
        """Where an output is to begin, and what its target says."""
        names = [name_of(table) for table in sorted(self.chosen(out))]
        there = [name_of(table) for table in self.source.rows]
        wanted = ChosenTables(
            out.choice, there, lambda name: str(out.ways[name.rpartition(".")[2]]), tells=out.target.tells,
            may_repeat=out.target.may_repeat, takes_other_ways=out.on_change == "continue",
        )  # fmt: skip
        known = () if out.position is None else out.position.known
        held = out.target.held({*names, *known})
        return reconcile(out.position, held, LogView(self.source), wanted), held

    def _begin(self, out):
        before, (position, held) = out.position or Position(), self.reconciled(out)
        refused = [name_of(table) for table in self.source.rows if out.names(table) and table in out.refused]
        position = position.refusing(refused) if refused else position
        for table in sorted(self.chosen(out)):
            name = name_of(table)
            word = held.get(name)
            known = max(before.done(name), word.place.pair if word is not None and word.place is not None else (0, 0))
            is_new = name not in before.seeds and (word is None or word.seed is None)
            if name in position.seeds and (is_new or position.done(name) > known):
                out.note_seed(table, position.done(name))
        self.positions[out.name] = position
        out.put(position, self.tick)
        for table in sorted(self.chosen(out)):  # again at each start: who was asked may have forgotten
            if isinstance(position.seeds.get(name_of(table)), str):
                self.source.ask(table)

    def batch(self, limit):
        """Returns whether there was anything."""
        moved = [self._catch_up(out, limit) for out in self.outs if out.catch_up == "apart"]
        wanted = set().union(*(self.chosen(out) for out in self.outs))
        end = self.source.cut(self.offset, limit, wanted, self.source.end)
        for out in self.outs:
            self._batch(out, end)
        is_further, self.offset = end > self.offset, end
        self.tick()
        return any(moved) or is_further

    def _batch(self, out, end):
        """First the tables that come as they are, then each that typed filters are about, in ranges of its own."""
        start, behind = self.offset, self.positions[out.name].behind(self.offset)
        tables = {table for table in self.chosen(out) if name_of(table) not in behind}
        typed = {table for table in tables & out.typed if self.source.read(start, end, table)}
        own = [name_of(table) for table in sorted(typed)]
        self.positions[out.name] = self.positions[out.name].holding(own)
        read = read_by(out.choice, {*behind, *own})
        self._write(out, start, end, tables - typed, read, moves_at=True)
        for table in sorted(typed):
            self._write_typed(out, table, start, end)
        position = self.positions[out.name].reached(self.source.place(end), read).normal()
        self.positions[out.name] = position
        out.put(position, self.tick)

    def _write_typed(self, out, table, start, end):
        """Up to the end of the batch, in parts where its schema changes; if its filters fail, it stays where it is."""
        name = name_of(table)
        while start < end:
            if out.catch_up == "apart" and out.dice.random() < 0.15:
                return
            to = self.source.cut(start, out.dice.randint(1, 4), {table}, end)
            self._write(out, start, to, {table}, [name].__contains__, moves_at=False)
            position = self.positions[out.name]
            if position.done(name) < to:
                position = position.moved(name, self.source.place(to))
            self.positions[out.name] = position.holding([name])
            start = to

    def _catch_up(self, out, limit):
        """A range of their own for those that are furthest behind, up to the next one's place, or to the others'."""
        position = self.positions[out.name]
        mine = {table: position.places.get(name_of(table)) for table in self.chosen(out)}
        behind = {table: place.pair for table, place in mine.items() if place and place.pair < position.at.pair}
        if not behind:
            return False
        start = min(behind.values())
        high = min([pair for pair in behind.values() if pair > start] + [position.at.pair])
        tables = {table for table, pair in behind.items() if pair == start}
        end = self.source.cut(start, limit, tables, high)
        names = {name_of(table) for table in tables}
        self._write(out, start, end, tables, names.__contains__, moves_at=False)
        position = self.positions[out.name]
        for name in sorted(names):
            position = position.moved(name, self.source.place(end))
        self.positions[out.name] = position
        out.put(position, self.tick)
        return True

    def _write(self, out, start, end, tables, reads, *, moves_at):
        position = self.positions[out.name]
        entries = {
            table: [each for each in self.source.read(start, end, table) if each.pair > position.done(name_of(table))]
            for table in sorted(tables)
        }
        for table, mine in entries.items():
            if any(map(out.cannot_take, mine)):
                raise Refused(out, table)
        batch = Batch(position, self.source.place(end), entries, reads, self._there(out), moves_at=moves_at)
        marks = {}
        if any(entries.values()) or out.dice.random() < 0.2:
            marks = out.target.write(batch, out, self.tick)
        noted = {name: Noted(*mark) for name, mark in marks.items()}
        self.positions[out.name] = replace(position.noting(noted, noted), seeds=batch.seeds)

    def _there(self, out):
        return [name_of(table) for table in self.source.rows]


class Campaign:
    def __init__(self, seed, kinds=KINDS):
        self.dice, self.is_quiet, self.counts = random.Random(seed), seed % 2 == 0, Counter()
        self.source = Source(self.dice, ["a", "b", "c", "d"])
        self.outs = [Output(self.dice.choice(kinds), name, self.dice) for name in ("one", "two")]
        for out in self.outs:
            out.tables = self._some_tables()
        self._fill_ways()

    def _some_tables(self):
        if self.dice.random() < 0.25:
            return "*"
        return {table for table in self.source.rows if self.dice.random() < 0.55} or {"a"}

    def _fill_ways(self):
        for out in self.outs:
            for table in [*self.source.rows, "n4", "n5", "n6"]:
                out.ways.setdefault(table, 0)

    def play(self, turns=14):
        for _ in range(turns):
            self._grow()
            self._fill_ways()
            for _ in range(self.dice.choice([0, 1, 1, 2])):
                self._edit()
            self._run()
        for out in self.outs:
            out.on_change = "continue"
        for _ in range(40):
            before, has_more = self.counts["runs"], any(out.past for out in self.outs)
            self._fill_ways()
            self._run(kill=0, to_end=True)
            if not has_more and self.counts["runs"] == before + len({out.lane or out.name for out in self.outs}):
                return self
        raise Wrong("never comes to rest")

    def _grow(self, most=14):
        for _ in range(self.dice.randint(0, most)):
            self.source.step()

    def _ticks(self, chance):
        left = [self.dice.randint(1, 25) if self.dice.random() < chance else None]

        def tick():
            if left[0] is not None:
                left[0] -= 1
                if left[0] <= 0:
                    raise Killed

        return tick

    def _run(self, kill=0.6, *, to_end=False):
        lanes = defaultdict(list)
        for out in self.outs:
            lanes[out.lane or out.name].append(out)
        for outs in lanes.values():
            self._run_lane(outs, self._ticks(kill), to_end=to_end)

    def _run_lane(self, outs, tick, *, to_end):
        engine = Engine(self.source, outs, tick)
        try:
            engine.start()
            for out in outs:
                for table in engine.chosen(out):
                    out.ways_ever.setdefault(table, set()).add(out.ways[table])
            self._go_on(engine, to_end=to_end)
            for out in outs:
                self._verify(out, is_end=to_end)
            self.counts["runs"] += 1
        except Killed:
            self.counts["kills"] += 1
        except Refused as refused:  # the query begins again without it
            self.counts["refused rows"] += 1
            refused.out.past.add(refused.table)
            refused.out.rereads.add(refused.table)
        except (Stopped, PositionForeign) as stop:
            why = WHY.get(type(stop), "foreign")
            self.counts[f"stop {why}"] += 1
            self._operate(outs, why, [name.rpartition(".")[2] for name in getattr(stop, "tables", ())])
        else:
            for out in outs:
                out.blind = {table for table in out.blind if not out.wants(table)}  # the others were seen
                out.past.clear()

    def _go_on(self, engine, *, to_end):
        for _ in range(400 if to_end else self.dice.randint(0, 6)):
            if not engine.batch(self.dice.randint(1, 8)) and not self.source.asked and not self.source.open:
                return
            if to_end:
                while self.source.asked or self.source.open:
                    self.source.snapshot()
            elif self.dice.random() < 0.5:
                self._grow(4)
                self._fill_ways()
        if to_end:
            raise Wrong(f"does not come to an end: {[(out.name, out.ledger) for out in engine.outs]}")

    # what somebody does who reads the message
    def _operate(self, outs, why, tables):
        if why == "foreign":
            self.source.db = 1
            return
        out = next(out for out in outs if self._fails(out))
        if why not in out.injected or (self.is_quiet and why != "way"):
            raise Wrong(f"{out.name} ({out.kind}) stopped without a reason: {why} {tables}")
        if why == "way" and (self.dice.random() < 0.5 or not hasattr(out.target, "remove")):
            out.on_change = "continue"
        elif hasattr(out.target, "remove"):
            with suppress(Killed):
                out.rebuild(tables or [table for table in self.source.rows if out.wants(table)], self._ticks(0.4))
        else:
            self._accept(out)

    def _fails(self, out):
        try:
            Engine(self.source, [out], lambda: None).reconciled(out)
        except Stopped:
            return True
        return False

    def _accept(self, out):
        """`on_gap: continue`, and a snapshot of all tables: for targets of which nothing can be removed."""
        source, names = self.source, [name_of(table) for table in self.source.rows if out.wants(table)]
        records = [*out.target.records.values()]
        known = [each for each in [out.position, *records] if each is not None and each.at is not None]
        pairs = [each.done(name) for each in known for name in names]
        pair = max([source.floor, *(each.at.pair for each in known), *pairs])
        pair = self.source.whole(pair)
        at = source.place(max(pair, source.end) if pair > source.end else pair)
        there = [name_of(table) for table in source.rows]
        before = (out.position or Position()).choosing(out.choice, there)
        places = {name: place for name, place in before.places.items() if name not in names}
        accepted = replace(before, at=at, places=places).reading(names)
        kept = {name: noted for name, noted in before.marks.items() if name not in names}
        for number, record in out.target.records.items():
            chosen = record.choosing(out.choice, there)
            places = {name: place for name, place in chosen.places.items() if name not in names}
            out.target.records[number] = replace(chosen, at=at, places=places).reading(names)
        held = out.target.held(names)
        marks = {name: Noted(word.place.pair, word.mark) for name, word in held.items() if word.place and word.mark}
        for table in source.rows:
            if out.wants(table):
                out.note_seed(table, at.pair)
        out.ledger = replace(accepted, marks={**kept, **marks}, ways={**before.ways}).to_json()

    # edits and accidents
    def _edit(self):
        out, what = self.dice.choice(self.outs), self.dice.choice(QUIET if self.is_quiet else LOUD)
        self.counts[what] += 1
        getattr(self, f"do_{what}")(out)

    def do_tables(self, out):
        out.tables = self._some_tables()

    def do_way(self, out):
        table = self.dice.choice([*self.source.rows])
        out.ways[table] = self.dice.choice([0, 1, 2])
        out.way_since[table] = self.source.end
        out.injected.add("way")

    def do_on_change(self, out):
        out.on_change = self.dice.choice(["stop", "continue"])

    def do_catch_up(self, out):
        out.catch_up = self.dice.choice(["together", "apart"])

    def do_typed(self, out):
        out.typed = {table for table in self.source.rows if self.dice.random() < 0.5}

    def do_refused(self, out):
        """Its schema changed, or an option: what can be taken is another set of tables."""
        for table in self.source.rows:
            spans = out.bad.get(table, [])
            is_refused = bool(spans) and spans[-1][1] is None
            if is_refused and self.dice.random() < 0.6:
                spans[-1] = spans[-1][0], self.source.end
            elif not is_refused and self.dice.random() < 0.2:
                out.bad[table] = [*spans, (self.source.end, None)]
        out.rereads |= out.refused

    def do_lane(self, _):
        lane = self.dice.choice([0, "lane"])
        for out in self.outs:
            out.lane = lane

    def do_buckets(self, out):
        if out.kind == "kafka":
            out.target.wanted_buckets = self.dice.choice([1, 2, 3])

    def do_rebuild(self, out):
        if not hasattr(out.target, "remove") or not out.ledger:
            return
        names = [name for name in out.position.known if self.dice.random() < 0.5]
        try:
            out.rebuild([name.rpartition(".")[2] for name in sorted(names)], self._ticks(0.5))
        except Killed:
            self.counts["killed rebuilding"] += 1

    def do_replay(self, out):
        if hasattr(out.target, "replay"):
            try:
                out.target.replay(self._ticks(0.4))
            except Killed:
                self.counts["killed replaying"] += 1

    def do_ledger_lost(self, out):
        if not out.blind and not out.removing:  # by two accidents, one would hide the other
            out.ledger, out.restored = None, True
            out.injected |= {"purged", "part"}

    def do_ledger_old(self, out):
        """That of yesterday."""
        if not out.ledger or not out.ledgers or out.removing:
            return
        old = self.dice.choice(out.ledgers[-6:])
        before = Position.from_json(old, "ledger")
        held = out.target.held({*before.known})
        rebuilt = any(name in held and held[name].mark != noted.mark for name, noted in before.marks.items())
        gone = any(name not in held for name in before.marks)
        if (self.is_quiet and rebuilt) or gone or not before.known <= out.position.known:
            return
        out.ledger = old
        out.injected |= {"purged", "part", "way", "gone"}
        out.restored = True

    def do_target_old(self, out):
        """All of it, with what it says: as of some batch before."""
        kept = out.target.kept[-8:]
        if not kept or out.removing or out.kind == "http":
            return
        old, base = self.dice.choice(kept), dict(out.base)
        if isinstance(out.target, Delta):
            out.target.tables, out.target.base = dict(old[0]), dict(old[1])
        elif isinstance(out.target, Search):
            out.target.index = {name: (mark, dict(rows)) for name, (mark, rows) in old[0].items()}
            out.target.documents, out.target.base = dict(old[1]), dict(old[2])
        else:
            out.target.put_back(old)
        out.injected |= {"gone", "purged", "part"}
        out.restored = True
        self._keep_base(out, base)

    def _keep_base(self, out, base):
        """What the ledger decided stays, where nothing is missing of what it knows."""
        marks = out.position.marks if out.ledger else {}
        for table, pair in base.items():
            noted, word = marks.get(name_of(table)), out.target.held([name_of(table)]).get(name_of(table))
            is_there = word and word.place and noted and word.place.pair >= noted.pair and word.mark == noted.mark
            if out.ledger and (noted is None or is_there):
                out.base[table] = pair

    def do_table_alone_old(self, out):
        if not isinstance(out.target, Delta) or not out.target.kept or out.removing:
            return
        old, base = self.dice.choice(out.target.kept[-8:]), dict(out.base)
        for name in sorted(old[0]):
            if name in out.target.tables and self.dice.random() < 0.5:
                out.target.tables[name] = old[0][name]
                table = name.rpartition(".")[2]
                out.base.pop(table, None)
                if table in old[1]:
                    out.base[table] = old[1][table]
        self._keep_base(out, base)
        out.injected |= {"gone", "purged", "part"}
        out.restored = True

    def do_target_gone(self, out):
        """A table, topic or index is removed; nobody told databus. Its ledger is there, else nobody could know."""
        if not out.ledger or out.removing or out.kind == "http" or not out.position.marks:
            return
        name = self.dice.choice([*out.position.marks])
        table = name.rpartition(".")[2]
        if isinstance(out.target, Delta):
            out.target.tables.pop(name, None)
        elif isinstance(out.target, Kafka):
            out.target.topics.pop(table, None)
            out.target.marks.pop(name, None)
        else:
            out.target.index.pop(name, None)
        out.injected.add("gone")
        out.blind = {*out.blind, table}

    def do_control_lost(self, out):
        """The control topic is gone; the ledger, which may be behind by a batch, is there."""
        if out.kind == "kafka" and out.ledger and not out.restored:
            out.target.records.clear()
            out.may_repeat = True
            out.injected |= {"purged", "part"}

    def do_purge(self, _):
        if self.source.log:
            self.source.purge(self.source.whole(self.dice.choice(self.source.log).pair))
            for out in self.outs:
                out.injected.add("purged")

    def do_new_log(self, _):
        source = self.source
        logged = [entry.pair for entry in source.log if entry.pair[1] < SEQ_DONE]
        if not logged or self.dice.random() < 0.3:
            return
        cut = source.whole(self.dice.choice(logged[len(logged) // 2 :])) if self.dice.random() < 0.5 else ZERO
        source.replace_log(max(source.floor, cut))
        for out in self.outs:
            out.injected |= {"part", "purged"}

    def do_foreign(self, _):
        """Another database under the same name: all who have something have to stop."""
        self.source.db = 2
        for out in self.outs:
            names = [name_of(table) for table in self.source.rows if out.wants(table)]
            held = out.target.held(names).values()
            if not ((out.ledger and out.position.at is not None) or any(word.db for word in held)):
                continue
            try:
                Engine(self.source, [out], lambda: None).reconciled(out)
            except (ForeignTarget, PositionForeign):
                continue
            except Stopped as stop:
                raise Wrong(f"{out.name}: {stop!r} was seen before that it is another database") from stop
            raise Wrong(f"{out.name}: has not seen that it is another database")
        self.source.db = 1

    # the oracle
    def _verify(self, out, *, is_end):
        position = out.position
        seeds = [seed for seed in out.seeds if seed[0] not in out.rereads]
        if self.is_quiet and seeds:
            raise Wrong(f"{out.name} ({out.kind}): a snapshot was asked for, and nothing was missing: {seeds}")
        if position is None:
            return
        for table in self.source.rows:
            name = name_of(table)
            place = position.place(name)
            if not out.wants(table):
                continue
            if place is None:
                raise Wrong(f"{out.name}: {table} was not taken")
            if is_end and (place.pair < self.source.end or name in position.seeds):
                raise Wrong(f"{out.name} ({out.kind}): {table} has not come to the end: {place}, {position.seeds}")
            verify = self._verify_mirror if out.target.is_mirror else self._verify_append
            verify(out, table, place.pair, position.seeds.get(name))
            self.counts["verified"] += 1
        if is_end and any(chosen_by(out.choice, name) for name in position.places):
            raise Wrong(f"{out.name}: there are exceptions left: {out.ledger}")

    def _verify_mirror(self, out, table, pair, seed):
        if seed or any(entry.pair > pair for entry in self.source.history if entry.table == table):
            return
        content, last = out.target.content(table), {}
        for entry in self.source.history:
            if entry.table == table and entry.kind in ("put", "delete"):
                last[entry.key] = entry.pair
        for key in KEYS:
            value, found = self.source.rows[table].get(key), content.get(key, (None, None))[1]
            ways = out.ways_ever.get(table, {0})
            if last.get(key, ZERO) > out.way_since.get(table, ZERO):
                ways = {out.ways[table]}
            right = {None if value is None or (way and (value + way) % 3 == 0) else (way, value) for way in ways}
            if found not in right:
                raise Wrong(f"{out.name} ({out.kind}): {table}[{key}] is {found}, and not {right}, at {pair}")

    def _verify_append(self, out, table, pair, seed):
        messages = out.target.messages(table)
        written, also = (
            [message[0] for message in messages if not message[4]],
            {message[0] for message in messages if message[4]},
        )
        for (name, _), letters in getattr(out.target, "letters", {}).items():
            also |= {*letters} if name == table else set()
        released = max((below for name, below in out.released if name == table), default=ZERO)
        base, there = out.base.get(table, ZERO), {*written, *also}
        for entry in self.source.history:
            if entry.table != table or entry.kind not in ("put", "delete") or not base < entry.pair <= pair:
                continue
            if entry.pair not in there and not (out.dead_letters and entry.pair < released):
                raise Wrong(f"{out.name} ({out.kind}): lost {entry} (base {base}, at {pair})")
        if out.target.is_transactional and not out.may_repeat:
            twice = [each for each, count in Counter(written).items() if count > 1]
            if twice:
                raise Wrong(f"{out.name} ({out.kind}): {table} has twice {twice}")
            keys = defaultdict(list)
            for at, key, *_, replayed in messages:
                if not replayed:
                    keys[key].append(at)
            if any(found != sorted(found) for found in keys.values()):
                raise Wrong(f"{out.name} ({out.kind}): {table} is out of order")
        if table in out.base and seed is None and pair >= base:
            self._verify_snapshot(out, table, pair, there, released)

    def _verify_snapshot(self, out, table, pair, there, released):
        mine = [entry for entry in self.source.history if entry.table == table and entry.pair <= pair]
        asked = [at for name, at in out.seeds if name == table]
        base = min(asked) if out.restored else asked[-1]  # a ledger or target of before may have taken back the last
        if all(each.pair in there for each in mine if each.kind in ("put", "delete")):
            return  # it was not needed, and whoever knew of it has forgotten
        mine = [each for each in mine if each.pair > base]
        if any(each.kind in ("truncate", "drop") for each in mine):
            return
        # What the bus put behind a transaction is not there in a log that has taken the place of the first.
        ends = (entry for entry in self.source.history if entry.table == table and entry.kind == "snapshot_end")
        for end in (each for each in ends if each.begin > base and each.pair[0] <= pair[0]):
            rows = [
                entry for entry in self.source.history if entry.table == table and entry.generation == end.generation
            ]
            rows = [row for row in rows if row.kind == "read"]
            if all(row.pair in there or (out.dead_letters and row.pair < released) for row in rows):
                return
        raise Wrong(f"{out.name} ({out.kind}): {table} was to be read anew, and was not: base {base}, at {pair}")


def failures(seeds, turns=14):
    """By seed, what is wrong; and how often things happened."""
    found, counts = {}, Counter()
    for seed in seeds:
        try:
            campaign = Campaign(seed)
            campaign.play(turns)
            counts += campaign.counts
        except (Wrong, AssertionError) as error:
            found[seed] = str(error)
    return found, counts


__all__ = ["ASKED", "Campaign", "ControlKind", "Wrong", "failures"]
