"""One query for each output under random work, edits of the file, kills and filters that fail: each change is in each
target once, as a pipeline that reads the whole log at the end has it; and a mirror is what SELECT says.
"""

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from databus.core import FatalError
from databus.pipeline import run
from databus.pipeline.engine import Ledger
from databus.sinks import DeltaOutput, read_delta
from databus.sinks.delta._table import DeltaTarget
from databus.sinks.files._output import FilesOutput
from databus.sinks.stream import StreamOutput

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread"), pytest.mark.timeout(900)]

TURNS = 7
TABLES = [f"t{number}" for number in range(5)]
CHECK = """
import pathlib

def check_{table}(batch):
    if pathlib.Path({folder!r}, "bad-{table}").exists():
        raise ValueError("a row that the function does not take")
    return batch
"""
RUN = "run: {retry_ms_min: 10, retry_ms_max: 50, retries_max: 2, start_ms_max: 20000}\n"
STEPS = [
    (Ledger, "_save"),
    (DeltaTarget, "_transact"),
    (DeltaOutput, "commit"),
    (FilesOutput, "commit"),
    (StreamOutput, "write"),
]


class Killer:
    """Has nothing be durable any more from some step on, as if the process had been killed there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        for of, name in STEPS:
            patch.setattr(of, name, self._around(getattr(of, name)))

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise FatalError("killed")

    def _around(self, method: Any) -> Any:
        def stepped(*args: Any, **options: Any) -> Any:
            self.step()
            found = method(*args, **options)
            self.step()
            return found

        return stepped


class Play:
    def __init__(self, folder: Any, session: Any, patch: pytest.MonkeyPatch, seed: int) -> None:
        self.folder, self.session, self.dice = folder, session, random.Random(seed)
        self.killer = Killer(patch)
        self.db = sqlite3.connect(folder / "shop.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.tables = [*TABLES]
        self.columns = Counter[str]()
        for table in TABLES:
            self.db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, v INTEGER)")
        (folder / "check.py").write_text(
            "".join(CHECK.format(table=f"t{number}", folder=str(folder)) for number in range(9))
        )

    def work(self, most: int = 12) -> None:
        for _ in range(self.dice.randint(1, most)):
            if self.dice.random() < 0.06:
                table = self.dice.choice(self.tables)
                self.columns[table] += 1
                self.db.execute(f"ALTER TABLE {table} ADD COLUMN c{self.columns[table]} INTEGER")
            elif self.dice.random() < 0.04 and len(self.tables) < 8:
                self.tables.append(f"t{len(self.tables)}")
                self.db.execute(f"CREATE TABLE {self.tables[-1]} (id INTEGER PRIMARY KEY, v INTEGER)")
            self.db.execute("BEGIN IMMEDIATE")
            for _ in range(self.dice.randint(1, 6)):
                table, key = self.dice.choice(self.tables), self.dice.randint(1, 12)
                what = self.dice.choice(["REPLACE", "REPLACE", "UPDATE", "DELETE"])
                if what == "REPLACE":
                    self.db.execute(
                        f"INSERT OR REPLACE INTO {table} (id, v) VALUES (?, ?)", (key, self.dice.randint(0, 9))
                    )
                elif what == "UPDATE":
                    self.db.execute(f"UPDATE {table} SET v = v + 1 WHERE id = ?", (key,))
                else:
                    self.db.execute(f"DELETE FROM {table} WHERE id = ?", (key,))
            self.db.execute("COMMIT")

    def write(self, *, is_last: bool = False) -> None:
        """The pipeline's file, in some other way; all of its filters let all rows pass."""
        dice, number = self.dice, self.dice.randint(0, 99)
        chosen = [table for table in self.tables if is_last or dice.random() < 0.85] or ["t0"]
        inputs = {
            name: [table for table in chosen if hash_of(table, number) % 2 == place]
            for place, name in enumerate((f"a{number}", f"b{number}"))
        }
        if dice.random() < 0.3:
            inputs = {f"all{number}": chosen}
        filters: dict[str, Any] = {}
        outputs: dict[str, Any] = {}
        sources = [(name, tables) for name, tables in inputs.items() if tables]
        froms: list[str] = []
        for name, tables in sources:
            typed = {table: dice.choice(["sql", "python"]) for table in tables if dice.random() < 0.45}
            plain = [table for table in tables if table not in typed]
            if plain:
                filters[f"rest_{name}"] = {
                    "type": "route",
                    "from": name,
                    "tables": {"rest": [f"main.{table}" for table in plain]},
                }
                froms.append(f"rest_{name}.rest")
            for table, kind in typed.items():
                node = f"f{number}_{table}"
                about = (
                    {"where": "1 = 1"} if kind == "sql" else {"function": f"check.py:check_{table}", "keeps_rows": True}
                )
                filters[node] = {"type": kind, "from": name, "table": f"main.{table}", **about}
                froms.append(node)
        lane = {"lane": "one"} if dice.random() < 0.4 else {}
        common = {"from": froms, "on_change": "continue"}
        outputs["history"] = {"type": "delta", "mode": "history", "path": "history", **common, **lane}
        outputs["mirror"] = {"type": "delta", "mode": "mirror", "path": "mirror", **common, **lane}
        outputs["files"] = {"type": "files", "format": "json", "path": "files", **common}
        outputs["lines"] = {"type": "stream", "command": ["sh", "-c", "cat >> lines.jsonl"], **common}
        for output in outputs.values():
            if dice.random() < 0.3:
                output["catch_up"] = dice.choice(["together", "apart"])
        limit = dice.choice([{}, {"max_rows_per_trigger": 20}])
        text = {
            "inputs": {
                name: {"type": "databus", "tables": [f"main.{table}" for table in tables], **limit}
                for name, tables in sources
            },
            "filters": filters,
            "outputs": outputs,
        }
        sections = "".join(f"{name}: {json.dumps(value)}\n" for name, value in text.items())
        (self.folder / "databus.yml").write_text(
            f"name: shop\nsources: {{shop: {{type: sqlite, path: shop.db}}}}\n{RUN}{sections}"
        )

    def run(self, name: str = "databus.yml") -> tuple[int, list[Any]]:
        events: list[Any] = []
        return run(self.folder / name, once=True, session=self.session, on_event=events.append), events

    def turn(self) -> None:
        self.work()
        if self.dice.random() < 0.7:
            self.write()
        for table in self.tables:
            bad = self.folder / f"bad-{table}"
            bad.unlink(missing_ok=True)
            if self.dice.random() < 0.25:
                bad.touch()
        self.killer.left = self.dice.randint(0, 60) if self.dice.random() < 0.7 else None
        self.run()
        self.killer.left = None

    def end(self) -> None:
        for bad in self.folder.glob("bad-*"):
            bad.unlink()
        self.write(is_last=True)
        for _ in range(2):
            code, events = self.run()
            assert code == 0, [each.get("message") for each in events if each.get("message")]
            self.work(3)
        code, events = self.run()
        assert code == 0, events
        (self.folder / "truth.yml").write_text(
            "name: truth\nsources: {shop: {type: sqlite, path: shop.db}}\ninputs: {all: {type: databus}}\n"
            "outputs: {truth: {type: delta, from: all, mode: history, path: truth}}\n"
        )
        code, events = self.run("truth.yml")
        assert code == 0, events

    def verify(self) -> None:
        lines = [json.loads(line) for line in (self.folder / "lines.jsonl").open()]
        for table in self.tables:
            truth = self.changes("truth", table)
            assert max(truth.values(), default=1) == 1
            assert self.changes("history", table) == truth, f"history of {table}"
            written = [json.loads(line) for path in self.folder.glob(f"files/{table}/*.jsonl") for line in path.open()]
            assert Counter(map(change_of, written)) == truth, f"files of {table}"
            mine = [row for row in lines if row["_source"] == f"shop/main.{table}" and "_control" not in row]
            assert {*map(change_of, mine)} == {*truth}, f"lines of {table}"
            rows = self.db.execute(f"SELECT id, v FROM {table} ORDER BY id").fetchall()
            place = self.folder / "mirror" / table
            found = read_delta(place, ["id", "v"]).to_pylist() if place.exists() else []
            assert sorted((row["id"], row["v"]) for row in found) == rows, f"mirror of {table}"

    def changes(self, path: str, table: str) -> Counter[Any]:
        place = self.folder / path / table
        return Counter(map(change_of, read_delta(place).to_pylist())) if place.exists() else Counter()


def change_of(row: Any) -> tuple[Any, ...]:
    return row["_commit_version"], row["_seq"], row["_change_type"], row["id"], row["v"]


def hash_of(table: str, number: int) -> int:
    return random.Random(f"{table}{number}").randint(0, 99)


@pytest.mark.parametrize("number", range(1_000, 1_040))
def test_each_change_is_in_each_target_once(
    tmp_path: Any, spark: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    play = Play(tmp_path, spark, monkeypatch, number)
    with closing(play.db):
        play.work()
        play.write()
        for _ in range(TURNS):
            play.turn()
        play.end()
        play.verify()
