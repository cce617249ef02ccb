"""Which states stay, and that a table whose files were arranged otherwise is a new state."""

from dataclasses import replace

import pyarrow.parquet as pq
from deltalake import DeltaTable

from databus.bootstrap import KeepSection, _config
from databus.bootstrap._keep import forgotten
from databus.core import SourceCheckpoint
from databus.pipeline import load_pipeline
from databus.stores import HeadNote, NoteFolder, StateNote, _notes
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_service import TABLES, Copy, assert_equal, churn, follow

HOUR_US = 3_600_000_000
NOW_US = 1_000_000 * HOUR_US
HEAD = HeadNote(SourceCheckpoint(scn=10_000), (0, 0))


def state(number, age_hours, **more):
    return StateNote(SourceCheckpoint(scn=number), 1 << 40, {}, noted_us=int(NOW_US - age_hours * HOUR_US), **more)


def ages_left(ages, keep, **more):
    states = [state(number, age, **more) for number, age in enumerate(ages)]
    gone = forgotten(states, HEAD, keep, NOW_US)
    return [age for age, each in zip(ages, states, strict=True) if each not in gone]


def test_all_of_the_last_hour_stay_then_one_an_hour_then_one_a_day():
    ages = [200, 60, 50, 30.5, 29.9, 5.7, 5.2, 5.1, 2, 0]
    assert ages_left(ages, KeepSection(hours=6, days=3)) == [60, 30.5, 5.7, 2, 0]
    assert ages_left(ages, KeepSection(hours=1, days=0)) == [0]
    months = [24 * 31 * age for age in (13, 5.2, 5.1, 4.5, 0)]
    assert ages_left(months, KeepSection(months=6))[-1] == 0
    assert len(ages_left(months, KeepSection(months=6))) == 3


def test_the_newest_that_may_be_served_stays_however_old_it_is():
    states = [state(1, 900), state(2, 800), state(3, 1, incomplete=frozenset({"main.t"}))]
    assert forgotten(states, HEAD, KeepSection(hours=1, days=0), NOW_US) == states[:1]


def test_files_that_somebody_has_arranged_otherwise_are_a_new_state(tmp_path):
    """Whose numbers lie above those of the state before, so that nobody takes one for the other."""
    with Shop(tmp_path, f"{TABLES} INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');").running() as shop:
        churn(shop, 1, 10)
        shop.fill()
        churn(shop, 10, 20)
        shop.forget()
        before = shop.states()[-1]
        folder = str(shop.folder / "lake/state/shop/main.orders")
        DeltaTable(folder).optimize.z_order(["id"])
        assert shop.note() is None, "it looks from time to time"
        shop._noting.relook_s = 0
        noted = shop.note()
        assert noted.position == before.position
        assert noted.base > before.end
        new = Copy()
        follow(shop, new)
        assert_equal(shop, new)


def test_upkeep_leaves_what_a_state_names_and_removes_the_rest(tmp_path, monkeypatch):
    """Also what somebody has joined in between; a state that is forgotten keeps its files for a while."""
    with Shop(tmp_path, f"{TABLES} INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');").captured_by_a_relay() as shop:
        folder = shop.folder / "lake/state/shop/main.orders"
        churn(shop, 1, 10)
        shop.fill()
        for number in range(10, 14):
            churn(shop, number, number + 1)
            shop.fill()
        DeltaTable(str(folder)).optimize.compact(target_size=1 << 30)
        states = shop.states()
        named = {name for each in states for name, _ in each.tables["main.orders"].files}
        stray = folder / f"rows-{'0' * 32}.parquet"
        stray.write_bytes(b"")
        target_of(shop)._remove_left()
        assert not stray.exists()
        assert {name for name in named if not (folder / name).exists()} == set()
        notes = NoteFolder(shop.config.root, PHYSICAL)
        notes.forget(states[:-1])
        target_of(shop)._remove_left()
        assert {name for name in named if not (folder / name).exists()} == set()
        monkeypatch.setattr(_notes, "_ANSWER_S", -1)
        notes.forget(())
        target_of(shop)._remove_left()
        left = {path.name for path in folder.glob("*.parquet")}
        live = {each.rpartition("/")[2] for each in DeltaTable(str(folder)).file_uris()}
        assert left == live | {name for name, _ in states[-1].tables["main.orders"].files}
        assert named - left


def target_of(shop):
    pipeline = load_pipeline(shop.config.pipeline_path).config
    node = pipeline.nodes["outputs.state"]
    output = node.plugin(node.config, pipeline.context_of("state"))
    target = output._copy(PHYSICAL, "main.orders").target
    target.upkeep = replace(target.upkeep, vacuum_hours=0)  # as if all had been written long ago
    return target


def test_rows_of_a_state_are_in_key_order_in_row_groups_of_a_bounded_size(tmp_path, monkeypatch):
    """Of keys of text too, which are in buckets."""
    tables = "CREATE TABLE named (name TEXT PRIMARY KEY, n); CREATE TABLE orders (id INTEGER PRIMARY KEY, n INTEGER);"
    monkeypatch.setattr(_config, "BATCH_ROWS", 1_000)
    with Shop(tmp_path, tables).captured_by_a_relay() as shop:
        for part in (range(0, 4_000, 2), range(1, 4_000, 2)):
            names = ", ".join(f"('{hash(('n', number))}', {number})" for number in part)
            ids = ", ".join(f"({number}, 1)" for number in part)
            shop.execute(f"INSERT INTO named VALUES {names}", f"INSERT INTO orders VALUES {ids}")
            shop.fill()
        state = shop.states()[-1]
        for source, key in (("main.named", "name"), ("main.orders", "id")):
            assert state.tables[source].rows == 4_000
            for name, _ in state.tables[source].files:
                file = pq.ParquetFile(shop.folder / "lake/state/shop" / source / name)
                groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
                assert max(groups) <= 1_000
                keys = file.read().column(key).to_pylist()
                assert keys == sorted(keys)
