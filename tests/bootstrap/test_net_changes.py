"""What a range of changes comes to, compared with the two states that it lies between."""

import random

import pytest

from databus.bootstrap import _net_changes as module
from databus.bootstrap import _shares
from databus.core import ChangeType, ControlKind
from databus.flow import TableControl, TableRows
from databus.schema import Column, TableSchema
from databus.testing._change_log import ChangeLog, mirror_of, rows_table

NAMES = ("a", "b", "c")


def table_of(names):
    columns = [Column("id", "int64", nullable=False), *(Column(name, "int32") for name in names)]
    return TableSchema("main.t", tuple(columns), ("id",))


def history(dice, changes):
    """A log with columns that come, go and get other names."""
    log, table, rows = ChangeLog(), table_of(["a"]), {}
    for _ in range(changes):
        log.begin()
        key, word = dice.randrange(8), dice.random()
        if word < 0.08:
            table, rows = altered(log, table, rows, dice)
            continue
        new = {"id": key, **{name: dice.choice((None, 1, 2)) for name in table.names[1:]}}
        if key not in rows:
            log.insert(table, new)
        elif word < 0.3:
            log.delete(table, rows.pop(key))
            continue
        elif word < 0.4 and (free := set(range(8)) - rows.keys()):
            new["id"] = min(free)
            log.update(table, rows.pop(key), new)
        else:
            log.update(table, rows[key], new)
        rows[new["id"]] = new
    return log, table


def altered(log, table, rows, dice):
    names = list(table.names[1:])
    free = [name for name in NAMES if name not in names]
    kind = dice.choice(("add", "rename", "drop"))
    if kind == "add" and free:
        names.append(free[0])
        body, rows = {"fill": {free[0]: 5}}, {key: {**row, free[0]: 5} for key, row in rows.items()}
    elif kind == "rename" and free and names:
        old, names[0] = names[0], free[0]
        body = {"renamed": {old: free[0]}}
        rows = {
            key: {free[0] if name == old else name: each for name, each in row.items()} for key, row in rows.items()
        }
    elif kind == "drop" and len(names) > 1:
        gone, body = names.pop(), {}
        rows = {key: {name: each for name, each in row.items() if name != gone} for key, row in rows.items()}
    else:
        return table, rows
    previous, table = table, table_of(names)
    log.schema(table, 2, previous=f"{previous.fingerprint:016x}", **body)
    return table, rows


def items_of(entries):
    for each in entries:
        yield each if isinstance(each, TableControl) else TableRows(each.table, rows_table(each.table, [each]))


def state_of(entries):
    return {key: row for (key,), (row, _) in mirror_of(entries, "main.t").items()}


@pytest.mark.parametrize("share_rows", [4, 1 << 20])
def test_what_changes_come_to_makes_the_later_state_of_the_earlier_one(share_rows, monkeypatch):
    """Over columns that are added, renamed and dropped, in one piece and dealt over files."""
    monkeypatch.setattr(module, "SHARE_ROWS", share_rows)
    monkeypatch.setattr(_shares, "HELD_BYTES_MAX", share_rows)
    for seed in range(20):
        dice = random.Random(seed)
        log, table = history(dice, 40)
        cut = dice.randrange(len(log.entries))
        while cut and log.entries[cut - 1].kind is ChangeType.UPDATE_PREIMAGE:  # not between two images
            cut -= 1
        within = log.entries[cut:]
        controls = [each for each in within if isinstance(each, TableControl) and each.kind is ControlKind.SCHEMA]
        state = state_of([*log.entries[:cut], *controls])  # in the columns of the end
        unknown = {key for key, row in state.items() if row.keys() != set(table.names)}
        for part in module.net_changes(lambda within=within: items_of(within), table, len(within)):
            for row in part.to_pylist():
                if row["_change_type"] in ("delete", "update_preimage"):
                    held = state.pop(row["id"])
                    assert row["id"] in unknown or held == {name: row[name] for name in table.names}
                else:
                    assert row["id"] not in state
                    state[row["id"]] = {name: row[name] for name in table.names}
        assert state == state_of(log.entries), seed
