"""Rows that the server refuses, kept until somebody has mended what they were refused for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from databus.core import ControlKind, LimitExceeded
from databus.disk import located
from databus.flow import DeadLetters
from databus.pipeline import OutputLetters, load_pipeline
from databus.schema import Column
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._output_suite import EVERYTHING
from databus.testing._staged_writes import write_batch
from tests.commands import databus
from tests.outputs.harnesses import order
from tests.search.support import output_of

NUMBERS = {"note": {"type": "integer"}}


@pytest.fixture
def opensearch(search_servers):
    found = search_servers("opensearch-2.19")
    found.ask("DELETE", "/_all")
    return found


def output(server, folder, **options):
    made = output_of(server, folder, mapping=NUMBERS, on_error="dead_letter", **options)
    made.open()
    return made


def project(server, folder: Path) -> Path:
    given = {"type": "opensearch", "from": "shop", "url": server.url, "mapping": NUMBERS, "on_error": "dead_letter"}
    nodes = {"inputs": {"shop": {"type": "mock"}}, "outputs": {"index": given}}
    path = folder / "databus.yml"
    path.write_text(json.dumps({"name": "shop", **nodes}))
    return path


def log_of(*notes):
    log = ChangeLog()
    for number, note in enumerate(notes, 1):
        log.begin().insert(ORDERS, order(number, note))
    return log


def notes(server):
    return {key: each["note"] for key, each in server.documents("orders").items()}


def test_a_refused_row_is_a_letter_and_is_written_once_what_it_was_refused_for_is_mended(server, tmp_path):
    """A batch that comes again makes no second letter, and a letter is forgotten when a newer row of it was taken."""
    log = log_of("1", "two", "three", "4")
    log.begin().update(ORDERS, order(3, "three"), order(3, "33"))
    made = output(server, tmp_path)
    for _ in range(2):
        write_batch(made, log.batch(0, 4))
    write_batch(made, log.batch(4, 6))
    made.close()
    assert notes(server) == {"1": "1", "3": "33", "4": "4"}
    letters = [letter for file in made.letters.files() for letter in made.letters.read(file).letters]
    assert sorted((letter.id, letter.pair) for letter in letters) == [("2", (2, 1))]
    assert all("status 400" in letter.reason and "note" in letter.reason for letter in letters)
    assert [made.replay(made.letters.read(file))[0].id for file in made.letters.files()] == ["2"]
    kind = "/_doc" if server.kind.startswith("elastic") else ""
    server.ask(
        "PUT", f"/orders/_mapping{kind}", {"properties": {"note": {"type": "integer", "ignore_malformed": True}}}
    )
    for file in made.letters.files():
        made.letters.keep(file, made.replay(made.letters.read(file)))
    assert made.letters.count() == 0
    assert notes(server) == {"1": "1", "2": "two", "3": "33", "4": "4"}


@pytest.mark.parametrize("left", [{"1": "2"}, {}], ids=["updated", "deleted"])
def test_a_letter_from_an_earlier_part_of_a_transaction_is_not_replayed_over_a_later_one(opensearch, tmp_path, left):
    """Rows of one transaction have one version, by which the server would take the letter for as new."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "one"))
    log.update(ORDERS, order(1, "one"), order(1, "2")) if left else log.delete(ORDERS, order(1, "one"))
    made = output(opensearch, tmp_path, buckets=1, request_ms_max=3_000)
    write_batch(made, log.batch(0, 1))
    assert made.letters.count() == 1
    write_batch(made, log.batch(1, len(log.entries)))
    opensearch.ask("PUT", "/orders/_mapping", {"properties": {"note": {"type": "integer", "ignore_malformed": True}}})
    for file in made.letters.files():
        made.replay(made.letters.read(file))
    made.close()
    assert notes(opensearch) == left


def test_a_letter_that_was_replayed_meanwhile_is_not_missed(tmp_path, monkeypatch):
    kept = DeadLetters(located(tmp_path))
    log = log_of("1")
    (rows,) = log.batch(0, 1).items
    kept.put("shop/main.orders", ORDERS, rows.rows, [("1", "refused")])
    (file,) = kept.files()
    monkeypatch.setattr(DeadLetters, "files", lambda *_: [file])  # as it was listed before
    (tmp_path / file.name).unlink()
    kept.release("shop/main.orders", (9, 9))


def test_the_command_lists_shows_replays_and_drops(opensearch, tmp_path):
    made = output(opensearch, tmp_path)
    write_batch(made, log_of("one", "two").batch(0, 2))
    made.close()
    path = str(project(opensearch, tmp_path))
    assert "index  shop/main.orders  2" in databus("dead-letters", "list", path).stdout
    shown = databus("dead-letters", "show", path, "index", "main.orders").stdout
    assert "shop/main.orders 2 at 2/1" in shown
    assert '"note":"two"' in shown
    assert "index: 0 written, 2 of 2 refused again: " in databus("dead-letters", "replay", path, "index").stdout
    misspelt = databus("dead-letters", "drop", path, "index", "main.ordres", "--yes")
    assert misspelt.stderr == "index: no dead letters of main.ordres; there are of shop/main.orders\n"
    assert "index  shop/main.orders  2" in databus("dead-letters", "list", path).stdout
    assert "2 dropped" in databus("dead-letters", "drop", path, "index", "--yes").stdout
    assert OutputLetters(load_pipeline(Path(path)), "index").files() == []


def test_a_truncation_forgets_letters_from_before_and_too_many_stop_the_output(opensearch, tmp_path):
    log = log_of("one", "two")
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(5, "five"))
    made = output(opensearch, tmp_path, dead_letters_max=1)
    with pytest.raises(LimitExceeded, match="dead_letters_max=1"):
        write_batch(made, log.batch(0, 2))
    write_batch(made, log.batch(0, 4))
    made.close()
    (file,) = made.letters.files()
    assert (file.source, file.first, file.count) == ("shop/main.orders", (4, 1), 1)


def test_letters_of_a_table_that_is_made_anew_are_forgotten_as_its_rows_come_again(opensearch, tmp_path):
    log = log_of("1", "two")
    made = output(opensearch, tmp_path)
    write_batch(made, log.batch(0, 2))
    assert made.letters.count() == 1
    made.remove([f"shop/{ORDERS.source}"])
    assert made.letters.count() == 0
    write_batch(made, log.batch(0, 2))
    made.close()
    assert made.letters.count() == 1
    assert notes(opensearch) == {"1": "1"}


def test_a_letter_holds_every_value_of_its_row(tmp_path):
    log = ChangeLog().begin()
    log.insert(EVERYTHING, {"id": 1, "c 8": 2**64 - 1, "c 15": b"\x00\n"})
    log.insert(EVERYTHING, {"id": 2})
    rows = log.batch(0, 2).items[0].rows
    letters = DeadLetters(located(tmp_path / "letters"))
    letters.put("shop/main.everything", EVERYTHING, rows, [("1", "no"), ("2", 'a "b"\n')])
    (file,) = letters.files()
    found = letters.read(file)
    assert found.table == EVERYTHING
    assert [letter.reason for letter in found.letters] == ["no", 'a "b"\n']
    first = json.loads(found.letters[0].row)
    assert (first["c 8"], first["_commit_version"], first["_seq"]) == (2**64 - 1, 1, 1)
    letters.keep(file, found.letters[1:])
    (left,) = letters.files()
    assert letters.read(left).letters == found.letters[1:]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r", "\n"])
def test_a_letter_may_hold_what_some_take_for_the_end_of_a_line(tmp_path, mark):
    log = log_of(f"a{mark}b", "two")
    rows = log.batch(0, 1).items[0].rows
    letters = DeadLetters(located(tmp_path / "letters"))
    letters.put("shop/main.orders", ORDERS, rows, [(f"1{mark}", f"no{mark}")])
    (found,) = letters.read(letters.files()[0]).letters
    assert (found.id, found.reason, json.loads(found.row)["note"]) == (f"1{mark}", f"no{mark}", f"a{mark}b")


@pytest.mark.parametrize("name", ["заказы" * 10, "订单" * 32, "o" * 64])
def test_a_table_with_a_long_name_has_letters(tmp_path, name):
    """Of 64 characters and more than 255 bytes, as MySQL has them and no file's name may have."""
    letters = DeadLetters(located(tmp_path / "letters"))
    log = log_of("one")
    (rows,) = log.batch(0, 1).items
    for table in (name, f"{name}.2"):
        source = f"shop/{'d' * 64}.{table}"
        letters.put(source, ORDERS, rows.rows, [("1", "no")])
        (file,) = letters.files(source.__eq__)
        assert (file.source, file.count) == (source, 1)
        assert letters.read(file).source == source
    assert letters.count() == 2
    letters.release(f"shop/{'d' * 64}.{name}", (9, 9))
    assert [file.source for file in letters.files()] == [f"shop/{'d' * 64}.{name}.2"]


def test_letters_are_seen_while_a_replay_takes_some_of_their_file(tmp_path):
    """A file is listed, and gone when it is read, for others of its letters stand in another one now."""
    letters = DeadLetters(located(tmp_path / "letters"))
    rows = log_of("one", "two").batch(0, 2).items[0].rows
    letters.put("shop/main.orders", ORDERS, rows, [("1", "no"), ("2", "no")])

    class Replayed(DeadLetters):
        """Between a list and the first look, the first letter is taken."""

        def find(self, file):
            (only,) = letters.files()
            if only.count == 2:
                letters.keep(only, letters.read(only).letters[1:])
            return super().find(file)

    found = Replayed(located(tmp_path / "letters")).by_source(lambda _: True)
    assert [letter.id for group in found["shop/main.orders"] for letter in group.letters] == ["2"]


@pytest.mark.parametrize("left", ["deleted", "updated"])
def test_a_letter_is_forgotten_once_a_newer_row_has_its_document(opensearch, tmp_path, left):
    """Else a replay would bring a deleted row back once the server has forgotten the delete."""
    log = log_of("one", "2", "three")
    log.begin()
    log.delete(ORDERS, order(1, "one")) if left == "deleted" else log.update(ORDERS, order(1, "one"), order(1, "1"))
    made = output(opensearch, tmp_path, buckets=1)
    write_batch(made, log.batch(0, 3))
    write_batch(made, log.batch(3, len(log.entries)))
    made.close()
    (file,) = made.letters.files()
    assert [letter.id for letter in made.letters.read(file).letters] == ["3"]


def test_letters_of_all_tables_of_a_batch_and_of_all_definitions_of_one_are_forgotten(opensearch, tmp_path):
    """They are looked for once, and one file may have letters that rows before and behind a new column overtake."""
    other = replace(ORDERS, source="main.other")
    wider = replace(ORDERS, columns=(*ORDERS.columns, Column("more", "string")))
    log = ChangeLog().begin()
    for table, key in ((ORDERS, 1), (ORDERS, 2), (ORDERS, 3), (other, 1)):
        log.insert(table, order(key, "one"))
    log.begin().update(ORDERS, order(1, "one"), order(1, "1"))
    log.update(other, order(1, "one"), order(1, "1"))
    log.begin().schema(wider, 2)
    log.begin().update(wider, {**order(2, "one"), "more": None}, {**order(2, "2"), "more": "new"})
    made = output(opensearch, tmp_path, buckets=1)
    write_batch(made, log.batch(0, 4))
    assert made.letters.count() == 4
    write_batch(made, log.batch(4, len(log.entries)))
    made.close()
    (file,) = made.letters.files()
    assert [letter.id for letter in made.letters.read(file).letters] == ["3"]
