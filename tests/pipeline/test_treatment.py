"""A project treated as people treat theirs, in any order: each run ends equal to the source, or stops with the way out.

State, lake, tables, ledgers, filters, names and the database itself are removed, changed, replaced and restored from
copies. The truth is what the database answers to SELECT once a run has ended without an error.
"""

import json
import os
import random
import re
import shutil
import sqlite3

import pytest

from databus.pipeline import load_pipeline, rebuild, run
from databus.testing.shop import SqliteWorkload, connect, create_shop
from tests.pipeline.projects import HEAD, Project

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

KEYS = {"orders": "id", "customers": "id", "stock": "product_id"}
FILE = """
filters: {{{name}: {{type: sql, from: shop, table: main.orders, where: total_cents > {least}}}}}
outputs:
  copy: {{type: delta, from: shop, mode: mirror, path: lake/copy, lane: {lane}}}
  history: {{type: delta, from: shop, mode: history, path: lake/history, lane: {lane}}}
  large: {{type: delta, from: {name}, mode: mirror, path: lake/large}}
"""
OUTPUTS = ("copy", "history", "large")
RUNS_MAX = 8  # until a run succeeds: an output after the other may say what it wants


class Treated:
    """A project, and what was done to it."""

    def __init__(self, folder, seed, session):
        self.dice = random.Random(seed)
        self.session = session
        self.tables = ["orders", "stock"]
        self.filter, self.least, self.lane = "large", 20_000, "both"
        self.project = Project(folder, "", seed=seed, orders=20)
        self.folder = folder
        self.done = []
        self.may_have_dead = False  # rows in a history whose deletes it did not get, as its table was not chosen
        self._write()

    def _write(self):
        chosen = ", ".join(f"shop/main.{name}" for name in sorted(self.tables))
        head = HEAD.replace("shop/main.*", chosen)
        self.project.write(FILE.format(name=self.filter, least=self.least, lane=self.lane), head=head)

    # What people do

    def works(self):
        self.project.work(self.dice.randint(1, 15))

    def runs(self):
        self.settle()

    def removes_the_state(self):
        shutil.rmtree(self.project.state, ignore_errors=True)

    def removes_all_state(self):
        shutil.rmtree(self.folder / ".databus", ignore_errors=True)

    def removes_a_lake(self):
        shutil.rmtree(self._lake(), ignore_errors=True)

    def removes_a_table(self):
        shutil.rmtree(self._lake() / "orders", ignore_errors=True)

    def removes_a_ledger(self):
        for path in self._lake().glob("*.ledger.json"):
            path.unlink()

    def copies_a_lake(self):
        self._copy(self._lake())

    def restores_a_lake(self):
        self._restore(self._lake())

    def restores_a_table(self):
        lake = self._lake()
        if (self._kept(lake) / "orders").exists():
            shutil.rmtree(lake / "orders", ignore_errors=True)
            shutil.copytree(self._kept(lake) / "orders", lake / "orders")

    def renames_the_filter(self):
        self.filter = self.dice.choice(["large", "big", "huge"])
        self._write()

    def changes_the_filter(self):
        self.least = self.dice.choice([10_000, 20_000, 30_000])
        self._write()

    def changes_the_lane(self):
        self.lane = self.dice.choice(["both", "null"])
        self._write()

    def chooses_tables(self):
        self.tables = ["orders", *self.dice.sample(["customers", "stock"], self.dice.randint(0, 2))]
        self.may_have_dead = True
        self._write()

    def copies_the_database(self):
        kept = sqlite3.connect(self.folder / "kept.db")
        self.project._db.backup(kept)
        kept.close()

    def restores_the_database(self):
        if (self.folder / "kept.db").exists():
            self._put_database(lambda path: shutil.copy(self.folder / "kept.db", path))

    def replaces_the_database(self):
        seed = self.dice.randrange(1 << 30)
        self._put_database(lambda path: create_shop(path, customers=10, products=5, orders=15, seed=seed))

    def _put_database(self, put):
        project = self.project
        project._db.close()
        for name in ("shop.db", "shop.db-wal", "shop.db-shm"):
            (self.folder / name).unlink(missing_ok=True)
        put(project.database)
        project._db = connect(project.database)
        project.workload = SqliteWorkload(project._db, random.Random(self.dice.randrange(1 << 60)))  # not as before

    def _lake(self):
        return self.folder / "lake" / self.dice.choice(OUTPUTS)

    def _kept(self, lake):
        return self.folder / "kept" / lake.name

    def _copy(self, lake):
        if lake.exists():
            shutil.rmtree(self._kept(lake), ignore_errors=True)
            shutil.copytree(lake, self._kept(lake))

    def _restore(self, lake):
        if self._kept(lake).exists():
            shutil.rmtree(lake, ignore_errors=True)
            shutil.copytree(self._kept(lake), lake)

    # What must hold

    def settle(self):
        """Run until all is well, doing what the errors say."""
        for _ in range(RUNS_MAX):
            events = []
            code = run(self.project.path, once=True, session=self.session, on_event=events.append)
            if code == 0 and not self._incomplete():
                self.check()
                return
            if code == 0:
                with self.project.running(self.session) as running:
                    running.wait_for(lambda: not self._incomplete(), "the end of the snapshots")
            else:
                self._follow_advice(events)
        raise AssertionError(f"it does not come to an end: {events}")

    def _incomplete(self):
        found = (json.loads(path.read_text()) for path in (self.folder / "lake").glob("*/*.ledger.json"))
        return [name for each in found for position in each["positions"].values() for name in position["seeds"]]

    def _follow_advice(self, events):
        said = [
            str(each["message"]) for each in events if each["event"] in ("failed", "source") and each.get("message")
        ]
        assert said, events
        for message in said:
            advised = re.search(r"`databus rebuild FILE (\w+)(?: ([\w./]+))?`|rebuild FILE (\w+) TABLE", message)
            if advised:
                output, table = advised[1] or advised[3], advised[2]
                self.done.append(f"rebuild {output} {table}")
                rebuild(load_pipeline(self.project.path), output, [table] if table else (), confirm=lambda _: True)
            else:
                assert "folder away and start it again" in message, message
                self.done.append("remove .databus")
                shutil.rmtree(self.folder / ".databus", ignore_errors=True)

    def check(self):
        project = self.project
        for table in self.tables:
            columns = [row[1] for row in project._db.execute(f"PRAGMA table_info({table})")]
            rows = project.select(f"SELECT {', '.join(columns)} FROM {table}")
            if rows:
                assert project.copied(f"lake/copy/{table}", *columns) == rows
            self._check_history(table, KEYS[table])
        large = project.select(f"SELECT id, total_cents FROM orders WHERE total_cents > {self.least}")
        if large:
            assert project.copied("lake/large/orders", "id", "total_cents") == large

    def _check_history(self, table, key):
        wanted = {value for (value,) in self.project._db.execute(f"SELECT {key} FROM {table}")}
        if not wanted:
            return
        rows = sorted(self.project.copied(f"lake/history/{table}", "_commit_version", "_seq", "_change_type", key))
        assert len(rows) == len({row[:2] for row in rows})
        alive = {}
        for _, _, change, value in rows:
            alive[value] = change in ("insert", "update_postimage")
        found = {value for value, is_alive in alive.items() if is_alive}
        assert found >= wanted if self.may_have_dead else found == wanted


STEPS = {
    "works": 6,
    "runs": 6,
    "removes_the_state": 1,
    "removes_all_state": 1,
    "removes_a_lake": 1,
    "removes_a_table": 1,
    "removes_a_ledger": 1,
    "copies_a_lake": 2,
    "restores_a_lake": 1,
    "restores_a_table": 1,
    "renames_the_filter": 1,
    "changes_the_filter": 1,
    "changes_the_lane": 1,
    "chooses_tables": 1,
    "copies_the_database": 1,
    "restores_the_database": 1,
    "replaces_the_database": 1,
}


def treat(folder, seed, session, steps):
    treated = Treated(folder, seed, session)
    treated.settle()
    try:
        for _ in range(steps):
            step = treated.dice.choices(list(STEPS), STEPS.values())[0]
            treated.done.append(step)
            getattr(treated, step)()
        treated.works()
        treated.settle()
    finally:
        print(f"seed {seed}:", *treated.done, sep="\n  ")  # noqa: T201 - shown when a test fails
        treated.project._db.close()


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number < 4 else pytest.mark.nightly) for number in range(25)]
)
def test_however_a_project_is_treated_its_copies_are_right_or_it_says_what_to_do(spark, tmp_path, seed, number):
    treat(tmp_path, seed, spark, 8)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_many_projects_are_treated(spark, tmp_path, seed):
    for number in range(int(os.environ.get("CYCLES", "500"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        treat(folder, seed + number, spark, 8)
        shutil.rmtree(folder)
