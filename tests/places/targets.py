"""Targets in memory: tables that commit rows and place together, topics in buckets, an index, a web hook."""

from dataclasses import replace
from itertools import count

from databus.core import ControlKind
from databus.places import Held, Position, seed_after
from tests.places.world import CLASS_3, ZERO, name_of

_new = count(1)
CONTROLS = {kind.value: kind for kind in ControlKind} | {CLASS_3: ControlKind.SCHEMA}


def made(way, entry):
    """What becomes of a row on its way: None where the filter takes it out."""
    way = int(way or 0)
    return None if way and (entry.value + way) % 3 == 0 else (way, entry.value)


def next_seed(seed, entry):
    """What an entry leaves of a table's seed."""
    if entry.kind not in CONTROLS:
        return seed
    body = {"generation": entry.generation, "complete": True, "class": 3}
    return seed_after(seed, CONTROLS[entry.kind], body)


def seeds_after(position, entries):
    """The seeds of the tables of a batch."""
    found = dict(position.seeds)
    for table, mine in entries.items():
        seed = found.pop(name_of(table), None)
        for entry in mine:
            seed = next_seed(seed, entry)
        if seed is not None:
            found[name_of(table)] = seed
    return found


def apply(rows, entry, way, seed):
    """rows: by key, (pair, value); a value of None is a tombstone."""
    if entry.kind in ("put", "read", "delete"):
        if entry.key in rows and rows[entry.key][0] > entry.pair:
            return
        rows[entry.key] = (entry.pair, None if entry.kind == "delete" else made(way, entry))
    elif entry.kind in ("truncate", "drop", CLASS_3):
        rows.clear()
    elif entry.kind == "snapshot_end" and seed == entry.generation:
        for key in [key for key, (pair, _) in rows.items() if pair < entry.begin]:
            del rows[key]


class Batch:
    """What an output is given. read: whether the batch has a table; moves_at: whether it is one of those of `at`."""

    def __init__(self, position, end, entries, read, there, *, moves_at):
        self.position, self.end, self.entries, self.read, self.there = position, end, entries, read, there
        self.moves_at = moves_at
        self.seeds = seeds_after(position, entries)

    def way(self, table):
        return self.position.ways.get(name_of(table), "")


class Delta:
    """Tables of their own, which commit one after another."""

    tells = keeps_ways = by_table = is_transactional = True
    may_repeat = False

    def __init__(self, *, is_mirror):
        self.is_mirror, self.tables, self.kept, self.base = is_mirror, {}, [], {}

    def switch_buckets(self, out, tick):
        pass

    def held(self, names):
        return {
            name: Held(each["place"], each["mark"], each["db"], each["way"], each["seed"])
            for name, each in self.tables.items()
            if name in names
        }

    def write(self, batch, out, tick):
        marks = {}
        for table, entries in batch.entries.items():
            name = name_of(table)
            before = self.tables.get(name)
            new = {"rows": {}, "list": (), "place": None, "mark": str(next(_new))} if before is None else dict(before)
            low = ZERO if new["place"] is None else new["place"].pair
            mine = [entry for entry in entries if entry.pair > low]
            if not mine and (before is None or low >= batch.end.pair):
                marks |= {} if before is None else {name: (low, new["mark"])}
                continue
            seed, rows, listed = batch.position.seeds.get(name), dict(new["rows"]), list(new["list"])
            for entry in mine:
                if self.is_mirror:
                    apply(rows, entry, batch.way(table), seed)
                elif entry.kind in ("put", "delete", "read"):
                    value = None if entry.kind == "delete" else made(batch.way(table), entry)
                    listed.append((entry.pair, entry.key, entry.kind, value))
                seed = next_seed(seed, entry)
            self.tables[name] = new | {
                "rows": rows, "list": tuple(listed), "place": replace(batch.end, snapshots={}), "db": batch.end.uuid,
                "way": batch.way(table), "seed": batch.seeds.get(name),
            }  # fmt: skip
            marks[name] = batch.end.pair, new["mark"]
            tick()
        self.kept = [*self.kept[-7:], (dict(self.tables), dict(self.base))]
        return marks

    def remove(self, name, tick):
        if self.tables.pop(name, None) is not None:
            tick()

    def messages(self, table):
        return [(*each, False) for each in self.tables.get(name_of(table), {"list": ()})["list"]]

    def content(self, table):
        return self.tables.get(name_of(table), {"rows": {}})["rows"]


class Kafka:
    """Topics by table, keys in buckets, each of which commits its messages and its record together."""

    tells = is_transactional = True
    keeps_ways = by_table = is_mirror = may_repeat = False

    def __init__(self):
        self.topics, self.records, self.marks, self.kept, self.base = {}, {}, {}, [], {}
        self.buckets = self.wanted_buckets = 2
        self.refused = 0
        self.letters = {}  # by (table, key): by pair, a message

    def switch_buckets(self, out, tick):
        """In one transaction, where all stand alike in the chosen tables; what differs of others is read anew."""
        if self.wanted_buckets == self.buckets:
            return
        if not self.records:
            self.buckets = self.wanted_buckets
        elif len(self.records) == self.buckets:
            records = [*self.records.values()]
            shared = Position.shared(records, out.choice)
            if shared is None:
                self.refused += 1
                return
            for name in shared.places:
                if len({record.done(name) for record in records}) > 1:
                    out.note_seed(name.rpartition(".")[2], shared.done(name))
                    out.rereads.add(name.rpartition(".")[2])
            self.records = dict.fromkeys(range(self.wanted_buckets), shared)
            self.buckets = self.wanted_buckets
            tick()

    def held(self, names):
        found = {}
        for name in names:
            word = Position.least_of([self.records.get(number) for number in range(self.buckets)], name)
            mark = self.marks.get(name, "")
            if word is not None:
                found[name] = Held(word[0], mark, word[0].uuid, "", word[1])
            elif mark:
                found[name] = Held(None, mark)
        return found

    def bucket_of(self, entry):
        return (len(entry.table) if entry.key is None else entry.key) % self.buckets

    def write(self, batch, out, tick):
        for number in range(self.buckets):
            own = self.records.get(number)
            own = None if own is None else own.introduced(batch.position, batch.there)
            sent, letters = [], []
            for table, entries in batch.entries.items():
                name = name_of(table)
                low = max(batch.position.done(name), (0, 0) if own is None else own.done(name))
                for entry in entries:
                    if entry.pair > low and self.bucket_of(entry) == number:
                        self._one(table, entry, batch.way(table), sent, letters, out)
            self._park(letters, tick)
            record = batch.position.written(own, batch.end, batch.read, batch.seeds, moves_at=batch.moves_at)
            self._send(sent)
            self.records[number] = Position.from_json(record.to_json(is_record=True), "record")
            tick()
        self.kept = [*self.kept[-7:], self._copy()]
        return {
            name_of(table): (batch.end.pair, self.marks[name_of(table)])
            for table in batch.entries
            if name_of(table) in self.marks
        }

    def _copy(self):
        topics = {table: tuple(messages) for table, messages in self.topics.items()}
        return topics, dict(self.records), dict(self.marks), dict(self.base), self.buckets

    def put_back(self, kept):
        topics, records, marks, base, self.buckets = kept
        self.topics = {table: list(messages) for table, messages in topics.items()}
        self.records, self.marks, self.base = dict(records), dict(marks), dict(base)

    def _send(self, sent, *, is_replay=False):
        for table, message in sent:
            self.topics.setdefault(table, []).append((*message, is_replay))
            self.marks.setdefault(name_of(table), str(next(_new)))

    def _one(self, table, entry, way, sent, letters, out):
        if entry.kind in ("truncate", "drop", "snapshot_end"):
            self._release(table, entry.begin or entry.pair, letters, out)
        if entry.kind not in ("put", "delete", "read"):
            return
        message = (entry.pair, entry.key, entry.kind, None if entry.kind == "delete" else made(way, entry))
        parked = [*self.letters.get((table, entry.key), {})]
        parked += [pair for name, key, pair, _ in letters if (name, key) == (table, entry.key)]
        if out.refuses(entry) or any(pair <= entry.pair for pair in parked):
            letters.append((table, entry.key, entry.pair, message))
        else:
            sent.append((table, message))

    def _release(self, table, below, letters, out):
        for key in [key for key in self.letters if key[0] == table]:
            self.letters[key] = {pair: message for pair, message in self.letters[key].items() if pair >= below}
        letters[:] = [letter for letter in letters if letter[0] != table or letter[2] >= below]
        out.released.append((table, below))

    def _park(self, letters, tick):
        for table, key, pair, message in letters:
            self.letters.setdefault((table, key), {})[pair] = message
        if letters:
            tick()

    def replay(self, tick):
        """Letters of a key in order, in one transaction each; then they are forgotten."""
        for (table, _), found in sorted(self.letters.items()):
            if found:
                self._send([(table, message) for _, message in sorted(found.items())], is_replay=True)
                tick()
                found.clear()
                tick()

    def messages(self, table):
        return self.topics.get(table, [])


class Http(Kafka):
    """Takes messages and tells nothing."""

    tells = is_transactional = False
    may_repeat = True

    def held(self, names):
        return {}

    def write(self, batch, out, tick):
        for table, entries in batch.entries.items():
            sent, letters, low = [], [], batch.position.done(name_of(table))
            for entry in entries:
                if entry.pair > low:
                    self._one(table, entry, batch.way(table), sent, letters, out)
            self._park(letters, tick)
            self._send(sent)
            tick()
        return {}


class Search:
    """Upserts by version, and a document for each table that says its place."""

    tells = keeps_ways = by_table = is_mirror = True
    is_transactional = may_repeat = False

    def __init__(self):
        self.index, self.documents, self.kept, self.base = {}, {}, [], {}

    def switch_buckets(self, out, tick):
        pass

    def held(self, names):
        found = {}
        for name in names:
            mark, document = self.index.get(name, ("",))[0], self.documents.get(name)
            if mark and document is not None and document["mark"] == mark:
                found[name] = Held(document["place"], mark, document["db"], document["way"], document["seed"])
            elif mark:
                found[name] = Held(None, mark)
        return found

    def write(self, batch, out, tick):
        marks = {}
        for table, entries in batch.entries.items():
            if not entries:
                continue
            name, way = name_of(table), batch.way(table)
            mark, rows = self.index.setdefault(name, (str(next(_new)), {}))
            before = self.documents.get(name)
            seed, low = batch.position.seeds.get(name), batch.position.done(name)
            new = [entry for entry in entries if entry.pair > low]
            for number, entry in enumerate(new):
                if entry.kind in ("put", "delete", "read"):
                    apply(rows, entry, way, None)
                    if number == len(new) // 2:
                        tick()
                else:  # by the driver, once the rows are there: what is older than theirs goes
                    below = entry.pair if entry.kind in ("truncate", "drop", CLASS_3) else None
                    if entry.kind == "snapshot_end" and seed == entry.generation:
                        below = entry.begin
                    for key in [key for key, (pair, _) in rows.items() if below and pair < below]:
                        del rows[key]
                seed = next_seed(seed, entry)
            tick()
            if before is None or before["place"].pair < batch.end.pair or before["mark"] != mark:
                self.documents[name] = {
                    "place": replace(batch.end, snapshots={}), "mark": mark, "db": batch.end.uuid, "way": way,
                    "seed": batch.seeds.get(name),
                }  # fmt: skip
            tick()
            marks[name] = batch.end.pair, mark
        index = {name: (mark, dict(rows)) for name, (mark, rows) in self.index.items()}
        self.kept = [*self.kept[-7:], (index, dict(self.documents), dict(self.base))]
        return marks

    def remove(self, name, tick):
        if self.documents.pop(name, None) is not None:
            tick()
        self.index.pop(name, None)
        tick()

    def content(self, table):
        return self.index.get(name_of(table), ("", {}))[1]
