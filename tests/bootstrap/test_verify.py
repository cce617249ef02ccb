"""Whether states are what the log makes of them: with every kind of change, and after somebody has touched them."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from databus.bootstrap import TablePast, verified
from databus.cli._app import app
from databus.disk import LocalLocation
from databus.stores import NoteFolder, file_of
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_service import TABLES, churn
from tests.bootstrap.world import World

ORDERS = "shop/main.orders"


@pytest.fixture
def shop(tmp_path):
    with Shop(
        tmp_path, TABLES + "CREATE TABLE named (name TEXT PRIMARY KEY, n INTEGER);"
    ).captured_by_a_relay() as shop:
        shop.fill()
        churn(shop, 1, 15)
        shop.execute("INSERT INTO named VALUES ('a', 1), ('b', 2)")
        shop.fill()
        churn(shop, 15, 30)
        shop.execute("UPDATE named SET n = 3 WHERE name = 'a'", "DELETE FROM named WHERE name = 'b'")
        shop.fill()
        yield shop


def said(shop, *words):
    return CliRunner().invoke(app, ["bootstrap", "verify", *words, "-f", str(shop.config.path)])


def test_states_that_nobody_touched_are_right_over_changes_of_columns_and_snapshots(shop):
    shop.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
    shop.execute("INSERT INTO orders VALUES (900, 'o', 1, 'Basel')")
    shop.fill()
    shop.execute("ALTER TABLE orders ADD COLUMN zip TEXT")
    shop.execute("DELETE FROM orders WHERE id < 10", "UPDATE orders SET total = 9 WHERE id > 20")
    shop.fill()
    found = said(shop)
    assert found.exit_code == 0, found.stdout
    lines = found.stdout.splitlines()
    assert len([line for line in lines if line.endswith("rows, right")]) == len(lines) > 10


def rewritten(shop, change):
    """Have a file of the newest state of orders hold other rows, as many."""
    name, _ = max(shop.states()[-1].tables["main.orders"].files, key=lambda file: file[1])
    path = shop.folder / "lake/state/shop/main.orders" / name
    rows = pq.read_table(path)
    pq.write_table(change(rows), path)
    notes, digest = NoteFolder(shop.config.root, PHYSICAL), file_of(LocalLocation(path)).digest
    for note in shop.states():  # as if it had been written so
        table = note.tables.get("main.orders")
        if table is not None and name in table.digests:
            notes.remove(note)
            table = replace(table, digests={**table.digests, name: digest})
            notes.add(replace(note, tables={**note.tables, "main.orders": table}))


def other_total(rows):
    totals = rows.column("total").to_pylist()
    at = rows.schema.get_field_index("total")
    return rows.set_column(at, rows.schema.field(at), pa.array([*totals[:-1], (totals[-1] or 0) + 1], pa.int64()))


@pytest.mark.parametrize("change", [other_total, lambda rows: pa.concat_tables([rows.slice(1), rows.slice(1, 1)])])
def test_a_row_that_is_another_is_found_in_its_bucket(shop, change):
    rewritten(shop, change)
    found = said(shop, ORDERS)
    assert found.exit_code == 1
    assert "WRONG: is not what the log makes of the state before. bucket" in found.stdout.splitlines()[-1]
    assert "WRONG" not in "".join(found.stdout.splitlines()[:-1])


def test_a_file_that_is_gone_is_named_and_the_rest_is_compared(shop):
    (name, _) = shop.states()[1].tables["main.orders"].files[0]
    (shop.folder / "lake/state/shop/main.orders" / name).unlink()
    (past,) = [each for each in TablePast.all(shop.config) if each.name == ORDERS]
    found = list(verified(past))
    missed = [each for each in found if name in each.reason]
    assert missed
    assert not any(each.is_equal for each in missed)


def past_of(world, source):
    """A table of a random world, as if it were in stores."""
    world.states = [replace(each, noted_us=at) for at, each in enumerate(world.states)]
    by_table = {id(state.tables[source]): state for state in world.states if source in state.tables}

    def batches(name, table, skip, above, wanted):
        return world.stores(by_table[id(table)]).batches(name, table, skip, above, wanted)

    def count(name, after, until):
        return sum(after < each.pair <= until for each in world.log.entries if each.table.source == name)

    stores = replace(world.stores(), batches=batches)
    look = SimpleNamespace(kept=world.kept(), stores=stores, schemas=stores.schemas, log=SimpleNamespace(count=count))
    return TablePast(None, "shop", source, look)


def test_states_of_random_histories_are_right_and_one_that_lacks_a_change_is_not():
    """With every kind of change and DDL, snapshots, gaps, and logs that were cut."""
    counts = Counter()
    for seed in range(12):
        world = World(seed)
        steps = [world.transaction, world.transaction, world.note, world.ddl, world.gap, world.cut_log]
        for _ in range(25):
            world.rng.choice(steps[:3] if world.rng.random() < 0.6 else steps)()
        for source in ("main.s", "main.t"):
            found = list(verified(past_of(world, source)))
            assert False not in [each.is_equal for each in found], (seed, source, found)
            counts.update(each.is_equal for each in found)
            if found and found[-1].is_equal and found[-1].rows:
                state = [each for each in world.states if source in each.tables and source not in each.incomplete][-1]
                rows = world.contents[state.name][source]
                world.contents[state.name][source] = pa.concat_tables([rows.slice(1), rows.slice(1, 1)]).slice(
                    0, rows.num_rows
                )
                counts["WRONG"] += list(verified(past_of(world, source)))[-1].is_equal is False
                counts["spoilt"] += 1
    assert counts[True] > 20, counts
    assert counts["WRONG"] == counts["spoilt"] > 5, counts
