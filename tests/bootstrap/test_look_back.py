"""Commands about the past of a table, compared with what the database answered to SELECT at that time."""

import datetime as dt
import itertools
import json
import time

import pytest
from typer.testing import CliRunner

from databus.cli._app import app
from databus.sinks import read_delta
from tests.bootstrap.filled import Shop
from tests.commands import databus, failed

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, total INTEGER);
CREATE TABLE notes (said TEXT);
"""
ORDERS = "shop/main.orders"
SELECT = "SELECT * FROM orders"


class Day(Shop):
    """Remembers what SELECT said, and when."""

    def __init__(self, folder):
        super().__init__(folder, TABLES)
        self.moments = []

    def remember(self):
        """Returns the number of the moment."""
        end = self.captured()
        time.sleep(0.002)  # a time of its own: what was committed in it is before it
        at = dt.datetime.now(dt.UTC).isoformat()
        time.sleep(0.002)
        self.moments.append((at, end.scn, dict_of(self.select(SELECT))))
        return len(self.moments) - 1

    def at(self, number):
        return self.moments[number][0]

    def said(self, *words):
        """What a command says, run in this process."""
        return CliRunner().invoke(app, [*map(str, words), "-f", str(self.config.path)])

    def run(self, verb, *words):
        said = self.said(verb, *words)
        assert said.exception is None, said.exception
        return [json.loads(line) for line in said.stdout.splitlines()]


def dict_of(rows):
    return {row[0]: row[1:] for row in rows}


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    with Day(tmp_path_factory.mktemp("day")).captured_by_a_relay() as day:
        day.remember()
        for number in range(1, 9):
            day.execute(f"INSERT INTO orders VALUES ({number}, 'order {number}', {number})")
        day.execute("INSERT INTO notes VALUES ('first')")
        day.fill()
        day.remember()
        day.execute("UPDATE orders SET total = 70 WHERE id = 7", "DELETE FROM orders WHERE id = 2")
        day.execute("UPDATE orders SET total = 71, name = 'x' WHERE id = 7", "INSERT INTO orders VALUES (20, 'n', 1)")
        day.execute("DELETE FROM orders WHERE id = 20", "UPDATE orders SET total = 3 WHERE id = 3")
        day.fill("log")
        day.remember()
        day.execute("UPDATE orders SET id = 70 WHERE id = 7")
        day.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
        day.execute("INSERT INTO orders VALUES (30, 'c', 1, 'Basel')", "UPDATE orders SET city = 'Chur' WHERE id = 1")
        day.fill()
        day.remember()
        day.execute("DELETE FROM orders WHERE id < 5")
        day.fill("log")
        day.remember()
        yield day


def test_history_tells_each_change_of_a_key_with_both_images_of_an_update(day):
    said = day.run("history", ORDERS, "--key", "id = 7")
    told = [(each["_change_type"], each["id"], each["total"]) for each in said if "_control" not in each]
    assert told == [
        ("insert", 7, 7),
        ("update_preimage", 7, 7),
        ("update_postimage", 7, 70),
        ("update_preimage", 7, 70),
        ("update_postimage", 7, 71),
        ("update_preimage", 7, 71),
        ("update_postimage", 70, 71),
    ]
    assert "schema" in [each["_control"]["kind"] for each in said if "_control" in each]
    later = day.run("history", ORDERS, "--key", "id = 7", "--since", day.at(2), "--until", day.moments[3][1])
    assert [each["id"] for each in later if "_control" not in each] == [7, 70]
    notes = day.run("history", "shop/main.notes", "--key", "said = 'first'")
    assert [each["said"] for each in notes if "_control" not in each] == ["first"]


def test_history_goes_into_a_delta_table_with_its_controls(day, tmp_path):
    said = day.said("history", ORDERS, "--into", tmp_path / "past")
    rows = read_delta(tmp_path / "past")
    assert said.stdout.strip().endswith(f"{rows.num_rows} rows")
    assert rows.num_rows == len(day.run("history", ORDERS))
    assert "snapshot_end" in rows.column("_change_type").to_pylist()
    assert "is not empty" in failed(databus("history", ORDERS, "--into", tmp_path / "past", cwd=day.folder), 2)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (1, 2), (3, 4), (2, 2)])
@pytest.mark.parametrize("by_scn", [False, True])
def test_diff_is_what_select_said_then_and_what_it_said_later(day, one, other, by_scn):
    names = [str(day.moments[number][1] if by_scn else day.at(number)) for number in (one, other)]
    before, after = (day.moments[number][2] for number in (one, other))
    found = day.run("diff", ORDERS, "--from", names[0], "--to", names[1])
    told = {}
    for each in found:
        values = tuple(each[name] for name in ("name", "total", "city") if name in each)
        told.setdefault(each["id"], []).append((each["_change_type"], values))
    want = {}
    for key in before.keys() | after.keys():
        if before.get(key) == after.get(key):
            continue
        labels = ("update_preimage", "update_postimage") if key in before and key in after else ("delete", "insert")
        want[key] = [(label, rows[key]) for label, rows in zip(labels, (before, after), strict=True) if key in rows]
    assert told == want


@pytest.mark.parametrize("by_scn", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_state_is_what_select_said_then(day, number, by_scn, tmp_path):
    """Before the first state, between two, and at one: over a change of its columns, a new snapshot and deletes."""
    said = day.said("state", ORDERS, "--at", day.moments[number][by_scn], "--into", tmp_path / "then")
    assert said.exception is None, said.exception
    rows = read_delta(tmp_path / "then").drop_columns(["_commit_version", "_seq"])
    assert f"{rows.num_rows} rows" in said.stdout
    assert dict_of([tuple(row.values()) for row in rows.to_pylist()]) == day.moments[number][2]


def test_mistakes_about_the_past_say_what_to_do(day):
    def refused(*words, code=2):
        error = day.said(*words).exception
        assert error.exit_code == code
        return str(error)

    assert "did you mean shop/main.orders" in refused("history", "shop/main.ordrs")
    assert "name the key" in refused("history", ORDERS, "--key", "total = 7")
    assert "no column 'n'" in refused("history", ORDERS, "--key", "n = 7")
    assert "has no key" in refused("diff", "shop/main.notes", "--from", "1d")
    assert "is before --from" in refused("diff", ORDERS, "--from", day.at(2), "--to", day.at(1))
    assert "has come to SCN" in refused("diff", ORDERS, "--from", "999999", code=75)
    assert "has no key" in refused("state", "shop/main.notes", "--at", "1", "--into", "x")
    assert "was not there" in refused("state", ORDERS, "--at", "2020-01-01T00:00Z", "--into", "x")
    assert "is not empty" in refused("state", ORDERS, "--at", day.at(1), "--into", day.folder)
    assert "neither a time" in refused("diff", ORDERS, "--from", "yesterday")


def test_diff_from_the_logs_begin_is_whole_or_names_the_command_that_is(day):
    """If the table was read before the first transaction, the log has all; else the snapshot has the rest."""
    answer = day.said("diff", ORDERS, "--from", "0", "--to", day.at(3))
    if answer.exception is not None:
        assert "databus state" in str(answer.exception)
        return
    rows = map(json.loads, answer.stdout.splitlines())
    assert {row["id"] for row in rows if row["_change_type"] == "insert"} == day.moments[3][2].keys()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_copy_that_is_killed_half_way_is_finished_by_the_same_command(day, tmp_path, monkeypatch, number):
    """And no other takes the folder for a table that is whole."""
    passes = itertools.count(1)

    class Died(Exception):
        pass

    def die(_):
        if next(passes) == number:
            raise Died

    words = ("state", ORDERS, "--at", day.at(2), "--into", tmp_path / "then")
    with monkeypatch.context() as patched:
        patched.setattr("databus.sinks.delta._table.crash_point", die)
        assert isinstance(day.said(*words).exception, Died)
    assert (tmp_path / "then" / "_unfinished_copy").exists()
    said = day.said(*words)
    assert said.exception is None, said.exception
    assert not (tmp_path / "then" / "_unfinished_copy").exists()
    rows = read_delta(tmp_path / "then").drop_columns(["_commit_version", "_seq"])
    assert dict_of([tuple(row.values()) for row in rows.to_pylist()]) == day.moments[2][2]
