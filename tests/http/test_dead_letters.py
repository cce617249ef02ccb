"""Changes that a target refuses, kept until somebody has mended what they were refused for."""

import functools
import json
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from databus.core import AccessDenied, ControlKind, InputError, LimitExceeded, UnrepresentableValue
from databus.flow import Bucket
from databus.pipeline import TableControl, load_pipeline, outputs_with_letters
from databus.schema import Column, TableSchema
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._output_suite import _EXTREMES as EXTREMES
from databus.testing._staged_writes import write_batch
from tests.commands import databus
from tests.http.dead_letters import Choosy, all_of, keeping, letters_of, log_of, notes_in, pair_of, replay
from tests.http.receiver import Receiver
from tests.http.support import opened
from tests.outputs.harnesses import order

EVENTS = TableSchema("main.events", (Column("id", "int64"), Column("note", "string")))


@pytest.fixture
def receiver():
    with Choosy() as found:
        yield found


def test_one_refused_change_among_many_is_a_letter_and_the_others_are_taken_in_order(receiver, tmp_path):
    log = log_of(*["x"] * 6, "bad", *["x"] * 13)
    with keeping(receiver, tmp_path) as output:
        write_batch(output, all_of(log))
        (letter,) = letters_of(output)
    assert (letter.id, letter.pair, letter.reason) == ("7", (7, 1), "status 422: no such note")
    assert [row["id"] for row in receiver.taken] == [*range(1, 7), *range(8, 21)]


def test_what_is_too_large_by_itself_is_a_letter_too(tmp_path):
    with Choosy(status=413) as receiver, keeping(receiver, tmp_path) as output:
        write_batch(output, all_of(log_of("x", "bad")))
        assert [each.pair for each in letters_of(output)] == [(2, 1)]


def moved():
    """Key 2 is refused, then becomes 9, and there is another 2."""
    log = log_of("x", "x", "x")
    log.begin().update(ORDERS, order(2), order(2, "bad"))
    log.begin().update(ORDERS, order(3), order(3, "y"))
    log.begin().update(ORDERS, order(2, "bad"), order(2, "fine"))
    log.begin().update(ORDERS, order(2, "fine"), order(9, "fine"))
    log.begin().update(ORDERS, order(9, "fine"), order(9, "z"))
    log.begin().insert(ORDERS, order(2, "new"))
    log.begin().delete(ORDERS, order(3, "y"))
    return log


@pytest.mark.parametrize("options", [{}, {"buckets": 3}, {"body": "object"}], ids=["one", "three", "object"])
@pytest.mark.parametrize("cuts", [[], [4, 5, 8, 11]], ids=["whole", "cut"])
def test_a_parked_key_keeps_its_order_and_so_does_the_key_that_it_becomes(receiver, tmp_path, options, cuts):
    log = moved()
    with keeping(receiver, tmp_path, **options) as output:
        for batch in log.batches(cuts):
            write_batch(output, batch)
        before = {(row["id"], row["note"]) for row in receiver.taken}
        receiver.refused = set()
        replay(output)
        assert output.letters.count() == 0
    of_nine = {(9, "fine"), (9, "z")} if "buckets" in options else set()  # which another task sends, alone
    assert before == {(1, "x"), (2, "x"), (3, "x"), (3, "y"), *of_nine}
    by_key = {}
    for row in receiver.taken:
        by_key.setdefault(row["id"], []).append(pair_of(row))
    assert all(pairs == sorted(pairs) for pairs in by_key.values())
    assert sum(map(len, by_key.values())) == len(log.entries)


def by_chance(chance):
    """A log of changes of a few keys, some refused, some of which change the key; and truncations."""
    log, held = ChangeLog(), {}
    for _ in range(60):
        log.begin()
        for _ in range(chance.randint(1, 3)):
            key, note = chance.randrange(6), chance.choice(["x", "y", "bad"])
            if chance.random() < 0.03:
                log.control(ControlKind.TRUNCATE, ORDERS)
                held.clear()
            elif key not in held:
                held[key] = order(key, note)
                log.insert(ORDERS, held[key])
            elif chance.random() < 0.3:
                log.delete(ORDERS, held.pop(key))
            else:
                to = chance.choice([key, *(set(range(6)) - set(held))])
                before = held.pop(key)
                held[to] = order(to, note)
                log.update(ORDERS, before, held[to])
    return log


@pytest.mark.parametrize("seed", range(4))
def test_order_per_key_holds_and_nothing_is_lost_whatever_is_refused_when(receiver, tmp_path, seed):
    """Batches come again, cut elsewhere, after attempts that ended half way; letters are replayed too early."""
    chance = random.Random(seed)
    log = by_chance(chance)
    options = {"buckets": chance.choice([1, 3]), "request_rows_max": chance.choice([2, 1_000])}
    with keeping(receiver, tmp_path, **options) as output:
        done = 0
        while done < len(log.entries):
            end = min(done + chance.randint(1, 25), len(log.entries))
            receiver.denied_at = len(receiver.seen) + chance.randint(1, 60)
            try:
                write_batch(output, log.batch(max(0, done - chance.choice([0, 0, 9])), end))
                done = end
            except AccessDenied:
                pass
            receiver.denied_at = None
            if chance.random() < 0.2:
                replay(output)
        receiver.refused = set()
        replay(output)
        assert output.letters.count() == 0
    truncations = [each.pair for each in log.entries if isinstance(each, TableControl)]
    lives = {}
    for row in receiver.taken:  # what a truncation has released comes, if ever, with a batch that comes again
        life = sum(each < pair_of(row) for each in truncations)
        lives.setdefault((row["id"], life), []).append(pair_of(row))
    assert all(pairs == sorted(pairs) for pairs in lives.values())
    wanted = {each.pair for each in log.entries if each.pair > max(truncations, default=(0, 0))}
    assert wanted <= {pair for pairs in lives.values() for pair in pairs}


def test_a_replay_brings_nothing_back_while_other_buckets_are_written(receiver, tmp_path):
    """The driver hears of the truncation when all of them are there; the target has heard of it by then."""
    log = log_of("bad")
    log.begin().insert(ORDERS, order(2, "bad"))
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(1, "new"))
    with keeping(receiver, tmp_path, buckets=1) as output:
        write_batch(output, log.batch(0, 1))
        with output.part_writer().open(Bucket("shop", "hook", "shop", 0, 1)) as first:
            first.write(log.batch(1, 4))
        receiver.refused = set()
        replay(output)
    assert [row["note"] for row in receiver.taken if "note" in row] == ["new"]


def test_an_update_is_one_message_again_when_it_is_replayed(receiver, tmp_path):
    with keeping(receiver, tmp_path, format="debezium") as output:
        write_batch(output, all_of(moved()))
        assert [each["before" if each["op"] == "d" else "after"]["id"] for each in receiver.taken] == [1, 2, 3, 3, 3]
        assert {each.id for each in letters_of(output)} == {"2", "9"}
        receiver.refused, seen = set(), len(receiver.changes)
        replay(output)
    again = receiver.changes[seen:]
    notes = [((each["before"] or {}).get("note"), (each["after"] or {}).get("note")) for each in again]
    assert notes == [("x", "bad"), ("bad", "fine"), ("fine", None), (None, "fine"), ("fine", "z"), (None, "new")]


@pytest.mark.parametrize("form", ["own", "maxwell"])
def test_a_refused_change_of_a_key_parks_both_keys(receiver, tmp_path, form):
    log = log_of("x", "x")
    log.begin().update(ORDERS, order(2), order(9, "bad"))
    log.begin().update(ORDERS, order(9, "bad"), order(9))
    log.begin().insert(ORDERS, order(2, "new"))
    with keeping(receiver, tmp_path, format=form) as output:
        write_batch(output, all_of(log))
        assert [each.id for each in letters_of(output)] == ["2", "9", "9", "9", "2"]
        seen = len(receiver.seen)
        receiver.refused = set()
        replay(output)
    assert len(receiver.seen[seen].changes) == (5 if form == "own" else 3)


@pytest.mark.parametrize("form", ["own", "debezium", "maxwell"])
def test_what_is_replayed_is_what_was_refused_whatever_its_types_and_its_key(tmp_path, form):
    log = ChangeLog()
    for number, (kind, values) in enumerate(EXTREMES.items()):
        table = TableSchema(f"main.t{number}", (Column("k", kind), Column("v", kind)), ("k",))
        keys = [each for each in values if each == each and (form == "own" or each != 2**64 - 1)]  # noqa: PLR0124 - NaN
        for key in keys:
            log.begin().insert(table, {"k": key, "v": key})
        log.begin().update(table, {"k": keys[0], "v": None}, {"k": keys[0], "v": keys[-1]})
    answers = [422]
    with Receiver(lambda _: answers[0]) as receiver, keeping(receiver, tmp_path, format=form) as output:
        write_batch(output, all_of(log))
        refused = receiver.seen[0].changes
        assert len({(each.id, each.pair) for each in letters_of(output)}) == output.letters.count() == len(log.entries)
        seen = len(receiver.changes)
        answers[0] = None
        replay(output)
        assert output.letters.count() == 0
    by_text = functools.partial(sorted, key=json.dumps)
    assert by_text(receiver.changes[seen:]) == by_text(refused)


def unnested():
    """What `unnest` makes of an update of a row with three objects: all rows have the pairs of its two."""
    log = ChangeLog().begin()
    for key in (1, 2, 3):
        log.update(ORDERS, order(key, "x"), order(key, "bad"))
    batch = all_of(log)
    (item,) = batch.items
    place = item.rows.schema.get_field_index("_seq")
    rows = item.rows.set_column(place, "_seq", pa.array([1, 2] * 3, pa.int64()))
    return replace(batch, items=(replace(item, rows=rows),))


@pytest.mark.parametrize("form", ["own", "debezium", "maxwell"])
def test_updates_that_share_their_pairs_are_updates_again_when_they_are_replayed(form, tmp_path):
    answers = [422]
    with Receiver(lambda _: answers[0]) as receiver, keeping(receiver, tmp_path, format=form) as output:
        write_batch(output, unnested())
        refused = receiver.seen[0].changes
        seen = len(receiver.changes)
        answers[0] = None
        replay(output)
        assert receiver.changes[seen:] == refused
        assert output.letters.count() == 0


def test_letters_that_are_refused_again_stay_and_what_follows_of_their_keys_stays_behind_them(receiver, tmp_path):
    log = log_of("bad", "bad")
    log.begin().update(ORDERS, order(1, "bad"), order(1, "y"))
    log.begin().update(ORDERS, order(2, "bad"), order(2, "worse"))
    with keeping(receiver, tmp_path) as output:
        for batch in log.batches([2]):
            write_batch(output, batch)
        seen = len(receiver.seen)
        replay(output)
        assert {note for request in receiver.seen[seen:] for note in notes_in(request)} == {"bad", None}
        assert [each.pair for each in letters_of(output)] == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (4, 2)]
        receiver.refused = {"worse"}
        replay(output)
        assert [each.pair for each in letters_of(output)] == [(4, 1), (4, 2)]


def test_a_batch_that_comes_again_makes_no_second_letter_however_it_is_cut(receiver, tmp_path):
    log = moved()
    with keeping(receiver, tmp_path) as output:
        for cuts in ([], [], [5, 9], [3, 6, 8]):
            for batch in log.batches(cuts):
                write_batch(output, batch)
        pairs = [each.pair for each in letters_of(output)]
    assert sorted(pairs) == sorted(set(pairs))


@pytest.mark.parametrize("kind", [ControlKind.TRUNCATE, ControlKind.DROP])
def test_a_truncation_releases_what_was_parked_before_it(receiver, tmp_path, kind):
    log = log_of("bad")
    log.begin().update(ORDERS, order(1, "bad"), order(1))
    log.begin().control(kind, ORDERS)
    log.begin().insert(ORDERS, order(1, "new"))
    with keeping(receiver, tmp_path) as output:
        for batch in log.batches([1]):
            write_batch(output, batch)
        assert letters_of(output) == []
    assert [row["note"] for row in receiver.taken] == ["new"]


def test_a_whole_snapshot_releases_what_was_parked_before_it_once_it_has_ended(receiver, tmp_path):
    log = log_of("bad")
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(2, "read")])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    with keeping(receiver, tmp_path) as output:
        for batch in log.batches([1]):
            write_batch(output, batch)
        assert letters_of(output) == []
    assert [row["note"] for row in receiver.taken] == ["read", "x", "new"]


def test_rows_of_a_table_without_a_key_are_letters_each_by_itself(receiver, tmp_path):
    log = ChangeLog()
    for note in ("x", "bad", "y", "bad", "z"):
        log.begin().insert(EVENTS, {"id": 1, "note": note})
    with keeping(receiver, tmp_path) as output:
        for _ in range(2):
            write_batch(output, all_of(log))
        assert [(each.id, each.pair) for each in letters_of(output)] == [("", (2, 1)), ("", (4, 1))]
    assert [row["note"] for row in receiver.taken] == ["x", "y", "z"]


def test_too_many_letters_stop_the_output_before_all_changes_were_tried(receiver, tmp_path):
    with keeping(receiver, tmp_path, dead_letters_max=3) as output:
        with pytest.raises(LimitExceeded, match=r"outputs\.hook: 4 rows were refused.*dead_letters_max=3"):
            write_batch(output, all_of(log_of(*["bad"] * 200)))
        assert output.letters.count() == 4
        assert len(receiver.seen) < 30
        replay(output)
        assert output.letters.count() == 4


@pytest.mark.parametrize(("status", "error"), [(401, AccessDenied), (405, Exception), (302, Exception)])
def test_what_is_not_refused_for_what_is_in_it_is_no_letter(tmp_path, status, error):
    with Choosy(status=status) as receiver, keeping(receiver, tmp_path) as output:
        with pytest.raises(error, match=f"status {status}"):
            write_batch(output, all_of(log_of("bad", "x")))
        assert output.letters.count() == 0
        assert len(receiver.seen) == 1


def test_a_control_that_is_refused_stops_the_output(tmp_path):
    log = log_of("x")
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    with Receiver(lambda request: 400 if b"_control" in request.body else None) as receiver:
        told = pytest.raises(UnrepresentableValue, match="the 1 changes from")
        with keeping(receiver, tmp_path, controls=True) as output, told:
            write_batch(output, all_of(log))
        assert receiver.seen[-2].changes[0]["id"] == 1


def test_the_commands_see_letters_of_a_web_hook(receiver, tmp_path):
    path = project(receiver, tmp_path)
    receiver.refused = {"bad", "worse"}
    with keeping(receiver, tmp_path) as output:
        write_batch(output, all_of(log_of("bad", "worse")))
    assert "shop/main.orders 2 at 2/1" in databus("dead-letters", "show", str(path), "hook").stdout
    receiver.refused = {"bad"}
    (found,) = outputs_with_letters(load_pipeline(path))
    assert found.replay() == (1, 1, {"status 422: no such note": 1})
    assert [file.count for file in found.files(["shop/main.orders"])] == [1]
    assert found.drop() == 1
    assert found.files() == []


def test_a_replay_says_how_many_of_how_many_were_refused_again_and_why(receiver, tmp_path):
    path = project(receiver, tmp_path)
    receiver.refused = {"bad", "worse"}
    with keeping(receiver, tmp_path) as output:
        write_batch(output, all_of(log_of("bad", "worse", "worse")))
    receiver.refused = {"worse"}
    done = databus("dead-letters", "replay", path, "hook")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "hook: 1 written, 2 of 3 refused again: status 422: no such note (2)",
        f"`databus dead-letters show {path} hook` shows what is left",
    ]
    done = databus("dead-letters", "replay", path, "hook", "--json")
    told = {"output": "hook", "written": 0, "refused": 2, "reasons": {"status 422: no such note": 2}}
    assert (done.returncode, json.loads(done.stdout)) == (1, told)
    receiver.refused = set()
    done = databus("dead-letters", "replay", path, "hook")
    assert (done.returncode, done.stdout) == (0, "hook: 2 written\n")


def test_letters_with_long_values_are_shown_cut_and_whole_as_json(receiver, tmp_path):
    path, note = project(receiver, tmp_path), "x" * 60_000
    receiver.refused = {note}
    with keeping(receiver, tmp_path) as output:
        write_batch(output, all_of(log_of(note)))
    shown = databus("dead-letters", "show", path, "hook").stdout
    assert len(shown) < 1_000
    assert f'"note":"{"x" * 200}... (60,000 characters; --json shows all)"' in shown
    assert json.loads(databus("dead-letters", "show", path, "hook", "--json").stdout)["row"]["note"] == note


def test_letters_are_replayed_after_the_key_that_the_output_names_has_another_name(receiver, tmp_path):
    """They have the columns of then."""
    log = ChangeLog().begin()
    log.insert(EVENTS, {"id": 1, "note": "bad"})
    log.begin().insert(EVENTS, {"id": 1, "note": "bad"})
    log.begin().insert(EVENTS, {"id": 2, "note": "x"})
    with keeping(receiver, tmp_path, key=["id"]) as output:
        for batch in log.batches([1]):
            write_batch(output, batch)
    with keeping(receiver, tmp_path, key=["number"]) as output:
        replay(output)
        assert [(each.id, each.pair) for each in letters_of(output)] == [("1", (1, 1)), ("1", (2, 1))]
        receiver.refused = set()
        replay(output)
        assert output.letters.count() == 0
    assert [row["id"] for row in receiver.taken] == [2, 1, 1]


def project(receiver, folder):
    hook = {"type": "http", "from": "shop", "url": receiver.url, "on_error": "dead_letter"}
    path = folder / "databus.yml"
    path.write_text(json.dumps({"name": "shop", "inputs": {"shop": {"type": "mock"}}, "outputs": {"hook": hook}}))
    return path


def test_letters_that_the_pipeline_forgets_during_a_replay_are_passed_over(receiver, tmp_path):
    with keeping(receiver, tmp_path) as output:
        for batch in log_of("bad", "bad").batches([1]):
            write_batch(output, batch)
    (hook,) = outputs_with_letters(load_pipeline(project(receiver, tmp_path)))
    _, second = hook.files()
    receiver.answer = lambda _: output.letters.keep(second, [])
    assert hook.replay() == (1, 0, {})
    assert hook.files() == []


@pytest.mark.parametrize("status", [204, 503, 422], ids=["taken", "tried again", "halved"])
def test_a_replay_ends_where_a_truncation_has_forgotten_its_letters(receiver, tmp_path, status):
    """It may be long, and the pipeline goes on meanwhile; a row from before the truncation must not come behind it."""
    log = log_of("bad", "bad", "bad")
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    rows_max = 3 if status == 422 else 1
    with keeping(receiver, tmp_path, controls=True, request_rows_max=rows_max, retry_ms_max=60_000) as output:
        write_batch(output, log.batch(0, 3))
        seen = len(receiver.seen)

        def answer(request):
            if b"_control" not in request.body and len(receiver.seen) == seen + 1:
                with keeping(receiver, tmp_path, controls=True) as pipeline:
                    write_batch(pipeline, log.batch(3, 4))
                return status, {}, ""
            return None

        receiver.answer = answer
        replay(output)
        assert output.letters.count() == 0
    first = [1, 2, 3] if status == 422 else [1]
    told = [change.get("id") for request in receiver.seen[seen:] for change in request.changes]
    assert told == [*first, None, None]  # by a task that is run twice


def test_what_a_letter_holds_is_no_command_to_a_terminal(tmp_path):
    """A target tells what it was sent in its answer, and a key is a text of the database's users."""
    told = "no \x1b]0;title\x07 \x9b2J\nmain.orders 7 at 1/1"
    table = TableSchema("main.notes", (Column("id", "string"),), ("id",))
    log = ChangeLog().begin()
    log.insert(table, {"id": told})
    with Receiver(lambda _: (422, {}, told)) as receiver, keeping(receiver, tmp_path) as output:
        write_batch(output, all_of(log))
        shown = databus("dead-letters", "show", str(project(receiver, tmp_path)), "hook").stdout
    assert len(shown.splitlines()) == 3
    assert all(each.isprintable() for each in shown.split("\n"))


def test_letters_that_are_left_stop_an_output_that_keeps_none_any_more(receiver, tmp_path):
    """Nothing parks their keys: newer changes would be sent, and a replay would send the older ones behind them."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "bad"))
    with keeping(receiver, tmp_path) as output:
        write_batch(output, log.batch(0, 1))
    with pytest.raises(InputError, match="1 dead letters are left"), opened(receiver, tmp_path):
        pass
    receiver.refused.clear()
    with keeping(receiver, tmp_path) as output:
        for file in output.letters.files():
            output.letters.keep(file, output.replay(output.letters.read(file)))
    with opened(receiver, tmp_path):
        assert [change["note"] for change in receiver.taken] == ["bad"]
