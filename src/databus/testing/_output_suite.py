"""The conformance suite of outputs: what every output must do, by the delivery level that it declares.

    class MyHarness:                        # see OutputHarness
        ...

    @pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
    def test_conforms(check, tmp_path):
        check(MyHarness(tmp_path))

A check writes a made-up log of changes, cut in one way, then again in another, as after a crash, and reads the target.
"""

import datetime as dt
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from databus.core import ControlKind
from databus.pipeline import ChangeBatch, Delivery
from databus.plugins import FindsKeys
from databus.schema import Column, TableSchema
from databus.testing._change_log import ORDERS, STOCK, ChangeLog, Image, mirror_of, random_log
from databus.testing._ledger_suite import LEDGER_CHECKS
from databus.testing._output_harness import OutputHarness, assert_holds
from databus.testing._staged_writes import opened, write_batch

_SEED: Final = 1


def _write(harness: OutputHarness, batches: Sequence[ChangeBatch]) -> Delivery:
    output = opened(harness.make())
    try:
        for batch in batches:
            write_batch(output, batch)
    finally:
        output.close()
        output.close()
    return output.delivery


def check_whole_log(harness: OutputHarness) -> None:
    """One batch and many hold the same."""
    log = random_log(11)
    delivery = _write(harness, list(log.batches(range(0, len(log.entries), 7))))
    assert_holds(harness, log, (ORDERS, STOCK), delivery)


def check_repeats(harness: OutputHarness) -> None:
    """After a crash the changes since some checkpoint come again, cut at other places."""
    rng = random.Random(_SEED)
    log = random_log(_SEED)
    size = len(log.entries)
    done = 0
    delivery = Delivery.AT_LEAST_ONCE
    while done < size:
        start = max(0, done - rng.randrange(40))
        end = min(size, done + rng.randrange(1, 60))
        cuts = sorted({start, end, *(rng.randrange(start, end) for _ in range(3))})
        delivery = _write(harness, [log.batch(a, b) for a, b in itertools.pairwise(cuts)])
        done = end
    assert_holds(harness, log, (ORDERS, STOCK), delivery)


def check_restart_from_nothing(harness: OutputHarness) -> None:
    """A pipeline that lost its checkpoint writes all again; another time in one piece."""
    log = random_log(5)
    _write(harness, list(log.batches(range(0, len(log.entries), 31))))
    delivery = _write(harness, list(log.batches(range(0, len(log.entries), 50))))
    delivery = _write(harness, list(log.batches(())))
    assert_holds(harness, log, (ORDERS, STOCK), delivery)


def check_parts_of_a_transaction(harness: OutputHarness) -> None:
    """A transaction larger than a batch comes in parts; each may come again."""
    log = ChangeLog().begin()
    for i in range(50):
        log.insert(ORDERS, {"id": i % 20, "note": str(i), "total": None}) if i < 20 else log.update(
            ORDERS,
            {"id": i % 20, "note": str(i - 20), "total": None},
            {"id": i % 20, "note": str(i), "total": None},
        )
    _write(harness, [log.batch(0, 10), log.batch(10, 24)])
    delivery = _write(harness, [log.batch(10, 40), log.batch(24, len(log.entries))])
    assert_holds(harness, log, (ORDERS,), delivery)


def check_key_changes(harness: OutputHarness) -> None:
    """Two rows swap their keys inside a transaction; a chain of keys moves up; a row returns to its first key."""
    log = ChangeLog().begin()
    rows = [{"id": i, "note": f"row {i}", "total": Decimal(i)} for i in range(6)]
    for row in rows:
        log.insert(ORDERS, row)
    log.begin()
    log.update(ORDERS, rows[0], {**rows[0], "id": 100})
    log.update(ORDERS, rows[1], {**rows[1], "id": 0})
    log.update(ORDERS, {**rows[0], "id": 100}, {**rows[0], "id": 1})
    log.begin()
    for i in (5, 4, 3):
        log.update(ORDERS, rows[i], {**rows[i], "id": i + 1})
    log.begin()
    log.update(ORDERS, rows[2], {**rows[2], "id": 50})
    log.update(ORDERS, {**rows[2], "id": 50}, rows[2])
    cuts = [6, 8, 9, 10, 13]
    _write(harness, list(log.batches(cuts))[:3])
    delivery = _write(harness, list(log.batches([7])))
    assert_holds(harness, log, (ORDERS,), delivery)


def check_snapshots(harness: OutputHarness) -> None:
    """A complete snapshot takes what is older than its begin and was not seen; a narrowed one takes nothing."""
    log = ChangeLog().begin()
    rows = [{"id": i, "note": "logged", "total": None} for i in range(8)]
    for row in rows:
        log.insert(ORDERS, row)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [{**row, "note": "read"} for row in rows[:2]])
    log.begin()
    log.insert(ORDERS, {"id": 20, "note": "while it runs", "total": None})
    log.delete(ORDERS, {**rows[0], "note": "read"})
    log.snapshot(ORDERS, [{**row, "note": "read"} for row in rows[4:6]])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=2)
    log.snapshot(ORDERS, [{**rows[1], "note": "again"}])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=2, begin=list(begin.pair), complete=False)
    log.begin()
    log.insert(ORDERS, {"id": 30, "note": "after", "total": None})
    for cuts in ([3, 9, 12], range(len(log.entries))):
        delivery = _write(harness, list(log.batches(cuts)))
    assert_holds(harness, log, (ORDERS,), delivery)


def check_truncate_and_drop(harness: OutputHarness) -> None:
    """They take the rows before them, and none after."""
    log = ChangeLog().begin()
    log.insert(ORDERS, {"id": 1, "note": "goes", "total": None})
    log.insert(STOCK, {"Shelf no": "a", "price": Decimal(1), 'the "count"': 1, "raw": None})
    log.control(ControlKind.TRUNCATE, ORDERS)
    log.insert(ORDERS, {"id": 2, "note": "stays", "total": None})
    log.begin().control(ControlKind.DROP, STOCK)
    log.begin().insert(STOCK, {"Shelf no": "b", "price": Decimal(2), 'the "count"': 1, "raw": None})
    for cuts in ([2], [3, 4], ()):
        delivery = _write(harness, list(log.batches(cuts)))
    assert_holds(harness, log, (ORDERS, STOCK), delivery)


def wider_orders(*more: Column, drop: Sequence[str] = (), types: Mapping[str, str] | None = None) -> TableSchema:
    """`ORDERS` with other columns."""
    kinds = types or {}
    kept = tuple(Column(c.name, kinds.get(c.name, c.type), c.nullable) for c in ORDERS.columns if c.name not in drop)
    return TableSchema(ORDERS.source, (*kept, *more), ORDERS.key)


def check_added_columns(harness: OutputHarness) -> None:
    """A column with a literal default has that value in the rows before it; without one, null."""
    log = ChangeLog().begin()
    log.insert(ORDERS, {"id": 1, "note": "old", "total": None})
    log.insert(ORDERS, {"id": 2, "note": "old", "total": None})
    nulls = wider_orders(Column("city", "string"))
    log.begin().schema(nulls, 2, fill={"city": None})
    log.begin().insert(nulls, {"id": 3, "note": "new", "total": None, "city": None})
    filled = wider_orders(Column("city", "string"), Column("rate", "decimal(6,3)"), Column("big", "uint64"))
    fill = {"rate": "1.250", "big": 2**64 - 1}
    log.begin().schema(filled, 2, fill=fill)
    row = {"id": 4, "note": "new", "total": None, "city": "x", "rate": Decimal("2.5"), "big": None}
    log.begin().insert(filled, row)
    for cuts in ([3, 5], [2, 4], range(len(log.entries))):
        delivery = _write(harness, list(log.batches(cuts)))
    assert_holds(harness, log, (filled,), delivery)


def check_widened_columns(harness: OutputHarness) -> None:
    """A column whose type becomes wider keeps its values."""
    narrow = TableSchema("main.n", (Column("id", "int32", nullable=False), Column("x", "decimal(5,1)")), ("id",))
    wide = TableSchema("main.n", (Column("id", "int64", nullable=False), Column("x", "decimal(12,3)")), ("id",))
    log = ChangeLog().begin()
    log.insert(narrow, {"id": -(2**31), "x": Decimal("9999.9")})
    log.begin().schema(wide, 1)
    log.begin().insert(wide, {"id": 2**63 - 1, "x": Decimal("0.001")})
    log.update(wide, {"id": -(2**31), "x": Decimal("9999.9")}, {"id": -(2**31), "x": None})
    for cuts in ([1, 2], [1]):
        delivery = _write(harness, list(log.batches(cuts)))
    assert_holds(harness, log, (wide,), delivery)


_UTC_MAX: Final = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
_EXTREMES: Final[Mapping[str, tuple[Any, ...]]] = {
    "bool": (True, False),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "float32": (math.inf, -math.inf, math.nan, -0.0, 2.0**-149),
    "float64": (math.inf, -math.inf, math.nan, -0.0, 5e-324, 1.7976931348623157e308),
    "decimal(38,0)": (Decimal("9" * 38), Decimal("-" + "9" * 38)),
    "decimal(38,38)": (Decimal("0." + "9" * 38), Decimal(0)),
    "decimal(1,0)": (Decimal(9), Decimal(-9)),
    "string": ("", "ü😀\x01\t\n\r\"'\\", "\ufeff", "x" * 70_000),
    "binary": (b"", bytes(range(256)), b"\xff" * 70_000),
    "date": (dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)),
    "timestamp": (dt.datetime(1, 1, 1), _UTC_MAX.replace(tzinfo=None)),  # noqa: DTZ001 - that is the type
    "timestamptz": (dt.datetime(1, 1, 1, tzinfo=dt.UTC), _UTC_MAX),
}
EVERYTHING: Final = TableSchema(
    "main.everything",
    (Column("id", "int64", nullable=False), *(Column(f"c {i}", kind) for i, kind in enumerate(_EXTREMES))),
    ("id",),
)


def check_values(harness: OutputHarness) -> None:
    """Every type's largest and smallest values, nulls, empty and long ones come back equal."""
    log = ChangeLog().begin()
    log.insert(EVERYTHING, {"id": 0})
    longest = max(len(values) for values in _EXTREMES.values())
    with_decimals = list(_EXTREMES.values())
    for n in range(longest):
        row = {f"c {i}": values[n % len(values)] for i, values in enumerate(with_decimals)}
        log.insert(EVERYTHING, {"id": n + 1, **row})
    delivery = _write(harness, [log.batch(0, 2)])
    delivery = _write(harness, [log.batch(1, len(log.entries))])
    assert_holds(harness, log, (EVERYTHING,), delivery)


def check_keys_of_every_type(harness: OutputHarness) -> None:
    """Each type can be a key, null included; an update finds its row and no other."""
    log, cuts, tables = ChangeLog(), [], []
    for i, (kind, values) in enumerate(_EXTREMES.items()):
        table = TableSchema(f"main.k{i}", (Column("k", kind), Column("n", "int32")), ("k",))
        keys = [value for value in values if not (isinstance(value, float) and math.isnan(value))]
        log.begin()
        for key in (*keys, None):
            log.insert(table, {"k": key, "n": 0})
        cuts.append(len(log.entries))
        log.begin()
        for key in (*keys, None):
            log.update(table, {"k": key, "n": 0}, {"k": key, "n": 1})
        cuts.append(len(log.entries))
        log.begin().delete(table, {"k": None, "n": 1})
        tables.append(table)
    delivery = _write(harness, list(log.batches(cuts)))
    assert_holds(harness, log, tables, delivery)


def check_nothing_new_changes_nothing(harness: OutputHarness) -> None:
    """A batch without rows, and one of a table that was never seen with a control only, are taken."""
    log = ChangeLog().begin()
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    log.begin().insert(ORDERS, {"id": 1, "note": None, "total": None})
    size = len(log.entries)
    empty = ChangeBatch(log.physical, log.position(size), log.position(size), ())
    delivery = _write(harness, [log.batch(0, 2), log.batch(2, size), empty])
    assert_holds(harness, log, (ORDERS,), delivery)


def check_finds_keys(harness: OutputHarness) -> None:
    """An output that can look for a key says what its target has of it."""
    log = ChangeLog().begin()
    rows = [{"id": i, "note": f"row {i}", "total": Decimal(i)} for i in range(4)]
    for row in rows:
        log.insert(ORDERS, row)
    log.begin()
    log.update(ORDERS, rows[0], {**rows[0], "note": "later"})
    log.update(ORDERS, rows[1], {**rows[1], "id": 9})
    log.delete(ORDERS, rows[2])
    _write(harness, list(log.batches([3])))
    output = harness.make()
    if not isinstance(output, FindsKeys):
        return
    images = [entry for entry in log.entries if isinstance(entry, Image)]
    about, expected = {image.pair for image in images}, mirror_of(log.entries, ORDERS.source)
    opened(output)
    try:
        for id_ in (0, 1, 2, 3, 9):
            pairs = output.find(log.physical, ORDERS.source, {"id": pa.scalar(id_, pa.int64())}, about)
            assert pairs is not None
            if harness.keeps == "mirror":
                assert [*pairs] == ([expected[id_,][1]] if (id_,) in expected else []), id_
            else:
                assert {image.pair for image in images if image.row["id"] == id_} <= {*pairs} <= about, id_
    finally:
        output.close()


OUTPUT_CHECKS: Final[tuple[Callable[[OutputHarness], None], ...]] = (
    check_whole_log,
    check_repeats,
    check_restart_from_nothing,
    check_parts_of_a_transaction,
    check_key_changes,
    check_snapshots,
    check_truncate_and_drop,
    check_added_columns,
    check_widened_columns,
    check_values,
    check_keys_of_every_type,
    check_nothing_new_changes_nothing,
    check_finds_keys,
    *LEDGER_CHECKS,
)
"""Every check there is."""
