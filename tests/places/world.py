"""A source without I/O: transactions, DDL and snapshots in one log, which may be purged, or be replaced by another."""

from bisect import bisect_right
from collections import defaultdict
from operator import attrgetter
from typing import Any, NamedTuple

from databus.core import SEQ_DONE, PositionForeign, SourceCheckpoint

ZERO = (0, SEQ_DONE)
KEYS = range(6)
CLASS_3 = "class 3"
"""A change of a table's schema that changes every value, and logs no row."""


class Entry(NamedTuple):
    """What stands in the log: a row's image, or a control."""

    pair: tuple[int, int]
    table: str
    kind: str
    key: Any
    value: Any
    generation: int
    begin: Any


def name_of(table):
    return f"shop/main.{table}"


class Source:
    """history: every entry that there ever was. log: those that can be read. floor: nothing at or below it can be."""

    def __init__(self, dice, tables):
        self.dice, self.db, self.log_id, self.logs = dice, 1, 1, 1
        self.rows = {table: {} for table in tables}
        self.history, self.log, self.floor = [], [], ZERO
        self.scn, self.bus, self.generations, self.values = 0, SEQ_DONE, 0, 0
        self.asked, self.open = [], {}
        self._by_table = defaultdict(list)  # the log

    # what a relay says: see `LogView`
    @property
    def uuid(self):
        return str(self.db)

    wants_all = True

    def beginning(self):
        is_whole = self.floor == ZERO
        return self.place(ZERO if is_whole else self.end)

    def lacks(self, place):
        if place.uuid not in ("", self.uuid):
            raise PositionForeign("another database")
        return place.pair < self.floor

    def place(self, pair, snapshots=()):
        scn, seq = pair
        is_done = seq == SEQ_DONE
        return SourceCheckpoint(self.uuid, scn, None if is_done else seq, f"t{scn}", 0, self.log_of(), dict(snapshots))

    def log_of(self):
        return str(self.log_id)

    @property
    def end(self):
        last = max(self.log[-1].pair if self.log else self.floor, self.floor)
        return (last[0], SEQ_DONE) if last[1] < SEQ_DONE else last

    def _add(self, pair, table, kind, key=None, value=None, generation=0, begin=None):
        entry = Entry(pair, table, kind, key, value, generation, begin)
        self.history.append(entry)
        self.log.append(entry)
        self._by_table[table].append(entry)

    def _bus_pair(self):
        self.bus += 1
        return self.scn, self.bus

    def ask(self, table):
        if table not in self.asked:
            self.asked.append(table)

    def step(self):
        """One thing happens."""
        dice = self.dice
        if (self.asked or self.open) and dice.random() < 0.45:
            return self.snapshot()
        if dice.random() < 0.05:
            return self._ddl(dice.choice([*self.rows]))
        if dice.random() < 0.03 and len(self.rows) < 6:
            self.rows[f"n{len(self.rows)}"] = {}
        self.scn += 1
        for seq in range(1, 1 + (dice.randint(6, 9) if dice.random() < 0.08 else dice.randint(1, 3))):
            self._change((self.scn, seq))
        return None

    def _change(self, pair):
        table, key = self.dice.choice([*self.rows]), self.dice.choice(KEYS)
        if key in self.rows[table] and self.dice.random() < 0.3:
            del self.rows[table][key]
            return self._add(pair, table, "delete", key)
        self.values += 1
        self.rows[table][key] = self.values
        return self._add(pair, table, "put", key, self.values)

    def _ddl(self, table):
        kind = self.dice.choice(["truncate", "drop", CLASS_3])
        self.scn += 1
        self._add((self.scn, 1), table, kind)
        if kind == CLASS_3:
            self.rows[table] = {key: value + 100_000 for key, value in self.rows[table].items()}
            self.open.pop(table, None)
            self.ask(table)  # the relay does this by itself
            return
        self.rows[table].clear()
        if kind == "drop":
            self.open.pop(table, None)
            if table in self.asked:
                self.asked.remove(table)

    def snapshot(self):
        """A piece of one: its begin, some rows, or its end."""
        if self.asked and (not self.open or self.dice.random() < 0.5):
            table = self.asked.pop(0)
            self.generations += 1
            pair = self._bus_pair()
            self.open[table] = [self.generations, pair, [[*KEYS][:3], [*KEYS][3:]]]
            return self._add(pair, table, "snapshot_begin", generation=self.generations, begin=pair)
        table = self.dice.choice([*self.open])
        generation, begin, left = self.open[table]
        if not left:
            del self.open[table]
            return self._add(self._bus_pair(), table, "snapshot_end", generation=generation, begin=begin)
        for key in left.pop(0):
            if key in self.rows[table]:
                self._add(self._bus_pair(), table, "read", key, self.rows[table][key], generation)
        return None

    def read(self, low, high, table):
        assert low >= self.floor or low >= high, f"{table}: {low} was purged up to {self.floor}"
        mine, pair = self._by_table[table], attrgetter("pair")
        return mine[bisect_right(mine, low, key=pair) : bisect_right(mine, high, key=pair)]

    def cut(self, low, count, tables, high):
        """A place at most so many entries behind low: between transactions, unless one alone is larger."""
        mine = sorted(each.pair for table in tables for each in self.read(low, high, table))
        if len(mine) <= count:
            return high
        last, after = mine[count - 1], mine[count]
        if last[1] > SEQ_DONE:
            return last
        if after[0] != last[0] or after[1] > SEQ_DONE:
            return last[0], SEQ_DONE
        before = (last[0] - 1, SEQ_DONE)
        best = max([before, *(pair for pair in mine[:count] if pair[0] == before[0] and pair[1] > SEQ_DONE)])
        return best if any(pair <= best for pair in mine[:count]) else last

    def whole(self, pair):
        return (pair[0], SEQ_DONE) if pair[1] < SEQ_DONE else pair

    def purge(self, to):
        self.floor = max(self.floor, to)
        self._keep([entry for entry in self.log if entry.pair > self.floor])

    def _keep(self, log):
        self.log = log
        self._by_table.clear()
        for entry in log:
            self._by_table[entry.table].append(entry)

    def replace_log(self, floor):
        """By another relay's: what the bus made is not in it, nor what was asked of the first."""
        self.logs += 1
        self.log_id, self.floor = self.logs, floor
        self._keep([entry for entry in self.history if entry.pair > floor and entry.pair[1] <= SEQ_DONE])
        lost = {*self.open, *self.asked}
        self.open, self.asked = {}, []
        changed = {entry.table for entry in self.log if entry.kind == CLASS_3}
        for table in sorted(lost | changed):
            if table in changed:
                self.ask(table)


class LogView:
    """The source as `reconcile` sees it."""

    def __init__(self, source):
        self._source = source
        self.uuid, self.log, self.wants_all = source.uuid, source.log_of(), True
        self.beginning, self.lacks = source.beginning, source.lacks

    def joining(self, at):
        return min(self.beginning(), at or self.beginning(), key=lambda place: place.pair)
