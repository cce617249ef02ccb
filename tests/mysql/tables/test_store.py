"""The store of a history: what was appended is there after any crash, and nothing that came later."""

import random
from pathlib import Path

import pytest

from databus.core import CorruptData, LimitExceeded, SourceChanged
from databus.sources.mysql.binlog import Query
from databus.sources.mysql.tables import Catalogue, HistoryStore, ServerKind, TableHistory, _history_file

MYSQL = ServerKind("mysql", (8, 0, 31))


def _history(**options: int) -> TableHistory:
    return TableHistory(MYSQL, lambda *_: True, **options)


def _begun(folder: Path, tables: int = 1) -> tuple[TableHistory, HistoryStore]:
    history, store = _history(), HistoryStore(folder)
    history.begin(Catalogue(databases={"d": "utf8mb4"}))
    for number in range(tables):
        history.apply(Query(f"CREATE TABLE t{number} (id INT PRIMARY KEY, name VARCHAR(20), at DATETIME(6))", "d"))
    store.begin(10, history)
    return history, store


def _run(history: TableHistory, store: HistoryStore, scn: int, sql: str) -> None:
    history.apply(Query(sql, "d"))
    store.append(scn, history.take_changes())


def _at(folder: Path, scn: int) -> TableHistory:
    history, store = _history(), HistoryStore(folder)
    store.load(scn, history)
    store.close()
    return history


def _columns(history: TableHistory, table: str) -> list[str]:
    definition = history.definition("d", table)
    return [] if definition is None else [column.name for column in definition.columns]


def test_a_history_is_loaded_as_of_any_scn_and_forgets_what_came_later(tmp_path: Path) -> None:
    history, store = _begun(tmp_path)
    _run(history, store, 11, "ALTER TABLE t0 ADD a INT")
    _run(history, store, 13, "ALTER TABLE t0 ADD b INT")
    _run(history, store, 15, "DROP TABLE t0")
    store.close()
    assert _columns(_at(tmp_path, 20), "t0") == []
    assert _columns(_at(tmp_path, 14), "t0") == ["id", "name", "at", "a", "b"]
    assert _columns(_at(tmp_path, 20), "t0") == ["id", "name", "at", "a", "b"]  # the drop is captured again
    assert _columns(_at(tmp_path, 10), "t0") == ["id", "name", "at"]


def test_a_write_that_a_crash_cut_off_is_as_if_it_never_began(tmp_path: Path) -> None:
    history, store = _begun(tmp_path)
    _run(history, store, 11, "ALTER TABLE t0 ADD a INT")
    before = store.path.stat().st_size
    _run(history, store, 12, "RENAME TABLE t0 TO t1")
    store.close()
    whole = store.path.read_bytes()
    for size in range(before, len(whole)):
        store.path.write_bytes(whole[:size])
        found = _at(tmp_path, 99)
        assert _columns(found, "t0") == ["id", "name", "at", "a"]
        assert _columns(found, "t1") == []
    store.path.write_bytes(whole)
    assert _columns(_at(tmp_path, 99), "t1") == ["id", "name", "at", "a"]


def test_damage_is_named_with_file_and_place(tmp_path: Path) -> None:
    history, store = _begun(tmp_path, tables=20)
    _run(history, store, 11, "ALTER TABLE t0 ADD a INT")
    store.close()
    whole = bytearray(store.path.read_bytes())
    generator = random.Random(7)
    for _ in range(200):
        damaged = bytearray(whole)
        at = generator.randrange(20, len(whole) // 2)
        damaged[at] ^= 1 << generator.randrange(8)
        store.path.write_bytes(damaged)
        with pytest.raises(CorruptData, match="history"):
            _at(tmp_path, 99)


def test_a_missing_history_and_one_that_begins_later_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SourceChanged, match=r"missing.*[Rr]estore"):
        _at(tmp_path, 5)
    _begun(tmp_path)[1].close()
    with pytest.raises(SourceChanged, match="begins at SCN 10, and is needed from SCN 9"):
        _at(tmp_path, 9)


def test_compaction_bounds_the_file_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_history_file, "_TAIL_BYTES_MIN", 20_000)
    history, store = _begun(tmp_path, tables=3)
    sizes, compactions = [], 0
    for scn in range(11, 700):
        _run(history, store, scn, f"ALTER TABLE t{scn % 3} ADD c{scn} INT{f', DROP c{scn - 3}' if scn > 13 else ''}")
        compactions += store.compact(durable_scn=scn - 5)
        sizes.append(store.bytes)
    assert compactions > 5
    assert max(sizes) < 30_000
    store.close()
    loaded = _at(tmp_path, 700)
    for name in ("t0", "t1", "t2"):
        assert loaded.definition("d", name) == history.definition("d", name)
    assert _columns(_at(tmp_path, 694), "t0")[-1] == "c693"


def test_everything_that_a_history_knows_comes_back(tmp_path: Path) -> None:
    history, store = _begun(tmp_path)
    _run(history, store, 11, "CREATE DATABASE e CHARACTER SET latin1")
    _run(history, store, 12, "CREATE VIEW v AS SELECT 1")
    _run(history, store, 13, "CREATE TABLE u (a ENUM('x\ty','é'), b INT DEFAULT 5, UNIQUE k (b), KEY (a))")
    store.close()
    loaded = _at(tmp_path, 99)
    assert loaded.everything() == history.everything()
    assert loaded.is_other("d", "v")
    (created,) = loaded.apply(Query("CREATE TABLE e.t (a TEXT)", "d"))
    assert created.after.columns[0].charset == "latin1"  # type: ignore[union-attr]


def test_more_tables_than_allowed_are_an_error_that_names_the_bound(tmp_path: Path) -> None:
    history = _history(tables_max=3)
    history.begin(Catalogue())
    with pytest.raises(LimitExceeded, match="history_tables_max"):
        for number in range(5):
            history.apply(Query(f"CREATE TABLE t{number} (a INT)", "d"))


def test_thousands_of_tables_are_loaded_without_reading_them(tmp_path: Path) -> None:
    history, store = _history(), HistoryStore(tmp_path)
    history.begin(Catalogue(databases={"d": "utf8mb4"}))
    columns = ", ".join(f"column_{number} VARCHAR(100) DEFAULT 'something'" for number in range(30))
    history.apply(Query(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})", "d"))
    for number in range(3_000):
        history.apply(Query(f"CREATE TABLE t{number} LIKE t", "d"))
    store.begin(1, history)
    store.close()
    loaded = _at(tmp_path, 1)
    assert len(loaded) == 3_001
    assert len(_columns(loaded, "t2999")) == 31
