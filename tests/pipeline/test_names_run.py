"""Tables with signs in their names, of several databases, come into copies of their own, and changes follow."""

import json
import sqlite3
from contextlib import closing

import pytest

from databus.core import source_name
from databus.pipeline import compare, load_pipeline, run
from databus.sinks import read_delta

pytestmark = pytest.mark.usefixtures("relay_in_thread")

FILE = """
name: names
sources:
  a: {type: sqlite, path: a.db, set_wal: true}
  b: {type: sqlite, path: b.db, set_wal: true}
inputs:
  some: {type: databus, tables: [a/main.x, b/main.y, 'b/main.`p,q/r`', a/main.d.e]}
  short: {type: databus, tables: [main.x, y]}
outputs:
  copy: {type: delta, from: some, mode: mirror, path: 'copy/{physical}/{db}.{table}'}
  lines: {type: files, from: short, format: json, path: 'lines/{physical}/{table}'}
"""
TABLES = {"a": ("x", "d.e", "e"), "b": ("y", "p,q/r", "p")}


def _change(folder, statement):
    for physical, names in TABLES.items():
        with closing(sqlite3.connect(folder / f"{physical}.db")) as database:
            for name in names:
                database.execute(statement.format(name), (name,) * statement.count("?"))
            database.commit()


def _once(path, session):
    events = []
    code = run(path, once=True, session=session, on_event=events.append)
    assert code == 0, [str(each.get("message")) for each in events if each.get("message")]


def test_exact_names_of_several_physical_sources_are_read_whatever_their_signs(engine, tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(FILE)
    _change(tmp_path, 'CREATE TABLE "{}" (id INTEGER PRIMARY KEY, own TEXT)')
    _change(tmp_path, 'INSERT INTO "{}" VALUES (1, ?)')
    _once(path, engine)
    _change(tmp_path, 'INSERT INTO "{}" VALUES (2, ?)')
    _once(path, engine)

    copies = {f"{each.parent.parent.name}/{each.parent.name}" for each in (tmp_path / "copy").glob("*/*/_delta_log")}
    assert copies == {"a/main.x", "a/main.d.e", "b/main.y", "b/main.p=2Cq=2Fr"}
    for folder, name in (("a/main.x", "x"), ("a/main.d.e", "d.e"), ("b/main.y", "y"), ("b/main.p=2Cq=2Fr", "p,q/r")):
        assert sorted(read_delta(tmp_path / "copy" / folder, ["id", "own"]).to_pylist(), key=lambda row: row["id"]) == [
            {"id": 1, "own": name},
            {"id": 2, "own": name},
        ]
    found = compare(load_pipeline(path), "copy", wait_ms_max=5_000)
    assert found.is_identical, found.details()

    written = [json.loads(line) for each in (tmp_path / "lines").glob("*/*/*.json*") for line in each.open()]
    assert {row["_source"] for row in written} == {"a/main.x", f"b/{source_name('main', 'y')}"}
    assert {(row["own"], row["id"]) for row in written if "own" in row} == {
        (name, id_) for name in "xy" for id_ in (1, 2)
    }
