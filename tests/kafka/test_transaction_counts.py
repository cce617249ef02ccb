"""Places of changes in their transactions, counted by columns, against one change after the other; no broker."""

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from databus.core import ChangeType
from databus.flow import KeyChoice, TableRows
from databus.formats import COLLECTION_ORDER, TOTAL_ORDER
from databus.places import Position
from databus.schema import Column, TableSchema
from databus.sinks.kafka import BucketId, Encoding
from databus.sinks.kafka._positions import Positions, Record, known_at
from databus.sinks.kafka._transactions import PlacedChanges, TransactionCounts
from databus.testing._change_log import ORDERS, ChangeLog, random_log
from tests.outputs.harnesses import order

ENCODING = Encoding(KeyChoice(), format="debezium")


def placed_one_by_one(entries):
    """By pair and image, the place in the transaction and among its table's; and each transaction's counts."""
    places, counts, before = {}, {}, None
    for entry in entries:
        mine = counts.setdefault(entry.pair[0], Counter())
        key = [entry.row[name] for name in entry.table.key]
        if not (entry.kind is ChangeType.UPDATE_POSTIMAGE and before == key):
            mine[entry.table.source] += 1
        before = key if entry.kind is ChangeType.UPDATE_PREIMAGE else None
        places[entry.pair] = mine.total(), mine[entry.table.source]
    return places, {scn: dict(each) for scn, each in counts.items()}


def cut_anywhere(log, dice):
    """But not between the two images of an update."""
    cuts = {dice.randrange(len(log.entries)) for _ in range(12)}
    return [
        0,
        *sorted(at for at in cuts if at and log.entries[at - 1].kind is not ChangeType.UPDATE_PREIMAGE),
        len(log.entries),
    ]


def places_in(batch):
    found = {}
    for item in batch.items:
        rows = item.rows.select(["_commit_version", "_seq", TOTAL_ORDER, COLLECTION_ORDER]).to_pylist()
        found |= {(row["_commit_version"], row["_seq"]): (row[TOTAL_ORDER], row[COLLECTION_ORDER]) for row in rows}
    return found


def told(marks):
    """Marks as plain tuples."""
    found = []
    for at, name in enumerate(marks.ids.to_pylist()):
        part = slice(marks.starts[at], marks.starts[at + 1])
        tables = dict(zip(marks.tables[part].to_pylist(), marks.table_counts[part].tolist(), strict=True))
        found.append(("END", name, tables, marks.counts[at]) if marks.is_end[at] else ("BEGIN", name))
        assert marks.is_end[at] or tables == {}
    return found


def _at(pair, _):
    return pair


def as_kept(counts, at):
    """As a bucket's position holds it, and another process reads it."""
    kept, bucket = Positions(None, "control"), BucketId("p", "o", "s", 0)
    kept._note(bucket.key, Record(Position(at), 3, counts).value)
    return kept._known[bucket]


@pytest.mark.parametrize("seed", range(40))
def test_places_and_counts_are_those_of_one_change_after_the_other(seed):
    """Each batch reaches back before the place from which it is counted, as one that comes again does."""
    log, dice = random_log(seed, 30), random.Random(seed)
    cuts = cut_anywhere(log, dice)
    position, found, marks = None, {}, []
    for begin, end in itertools.pairwise(cuts):
        start = dice.choice([at for at in cuts if at <= begin])
        changes, batch = PlacedChanges.of(log.batch(start, end), ENCODING.begins_change)
        after, known = known_at(position, None)
        counted = changes.counted(after, known, batch.end.pair)
        found |= places_in(counted.placed(batch).above(partial(_at, after)))
        marks += [] if counted.marks is None else told(counted.marks)
        position = as_kept(counted.after, batch.end)
    places, counts = placed_one_by_one(log.entries)
    assert found == places
    wanted = [
        mark
        for scn, each in counts.items()
        for mark in (("BEGIN", f"t{scn}"), ("END", f"t{scn}", each, sum(each.values())))
    ]
    assert marks == wanted


def test_rows_of_one_pair_have_places_of_their_own_in_their_order():
    """As a filter makes them of one change (`unnest`); both images of what stays of an update are one."""
    log = ChangeLog().begin()
    log.update(ORDERS, order(1), order(1, "new"))
    (item,) = log.batch(0, 2).items
    rows = item.rows.take([0, 0, 1, 1])
    rows = rows.set_column(0, "id", [[7, 1, 1, 8]])
    labels = ["delete", "update_preimage", "update_postimage", "insert"]
    rows = rows.set_column(rows.column_names.index("_change_type"), "_change_type", [labels])
    batch = replace(log.batch(0, 2), items=(TableRows(ORDERS, rows),))
    changes, _ = PlacedChanges.of(batch, ENCODING.begins_change)
    assert changes.counted((-1, -1), TransactionCounts(), batch.end.pair).total.tolist() == [1, 2, 2, 3]


def test_changes_without_a_transaction_have_no_place():
    log = ChangeLog().begin()
    for number in range(3):
        log.insert(ORDERS, order(number))
    (item,) = log.batch(0, 3).items
    rows = item.rows.set_column(item.rows.column_names.index("_txid"), "_txid", [["t1", None, "t1"]])
    batch = replace(log.batch(0, 3), items=(TableRows(ORDERS, rows),))
    changes, _ = PlacedChanges.of(batch, ENCODING.begins_change)
    assert changes.counted((-1, -1), TransactionCounts(), batch.end.pair).total.tolist() == [1, 0, 2]


def test_a_key_that_changes_its_zeros_sign_alone_is_two_messages_with_two_places():
    """Both are in one bucket, since they are one key there; Debezium's text of them differs."""
    table = TableSchema("main.floats", (Column("at", "float64", nullable=False),), ("at",))
    log = ChangeLog().begin()
    log.update(table, {"at": 0.0}, {"at": -0.0})
    log.update(table, {"at": 1.0}, {"at": 1.0})
    changes, batch = PlacedChanges.of(log.batch(0, 4), ENCODING.begins_change)
    (item,) = changes.counted((-1, -1), TransactionCounts(), batch.end.pair).placed(batch).items
    (chunk,) = ENCODING.chunks("shop", item, "topic")
    found = [json.loads(value) for value in chunk.values if value is not None]
    assert [(each["op"], each["transaction"]["total_order"]) for each in found] == [("d", 1), ("c", 2), ("u", 3)]
