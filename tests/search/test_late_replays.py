"""Replays that run beside a pipeline: what they have read is older than what is written meanwhile."""

import pytest

from databus.core import ControlKind
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.outputs.harnesses import order
from tests.search.support import output_of
from tests.search.test_dead_letters import NUMBERS
from tests.search.test_search_accidents import attempt, notes

TAKES_TEXTS = {"properties": {"note": {"type": "integer", "ignore_malformed": True}}}


@pytest.fixture
def made(server, tmp_path):
    output = output_of(server, tmp_path, mapping=NUMBERS, on_error="dead_letter", buckets=1)
    output.open()
    yield output
    output.close()


def mend(server):
    kind = "/_doc" if server.kind.startswith("elastic") else ""
    server.ask("PUT", f"/orders/_mapping{kind}", TAKES_TEXTS)


def letters_of(output):
    (file,) = output.letters.files()
    return output.letters.read(file)


@pytest.mark.parametrize("left", [{"1": "2"}, {}], ids=["updated", "deleted"])
def test_a_letter_of_an_early_part_is_not_put_over_a_later_one(server, made, left):
    """Both have one version; the letter was read before the later part was written."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "one"))
    log.update(ORDERS, order(1, "one"), order(1, "2")) if left else log.delete(ORDERS, order(1, "one"))
    write_batch(made, log.batch(0, 1))
    read = letters_of(made)
    write_batch(made, log.batch(1, len(log.entries)))
    mend(server)
    made.replay(read)
    assert notes(server) == left


@pytest.mark.parametrize("first", [{"1": "1"}, {}], ids=["updated", "deleted"])
def test_a_letter_of_a_later_part_stays_a_letter_where_nobody_can_tell_which_row_is_newer(server, made, first):
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "1")) if first else log.delete(ORDERS, order(1, "1"))
    log.insert(ORDERS, order(1, "two"))
    for begin in (0, 1):
        write_batch(made, log.batch(begin, begin + 1))
    mend(server)
    (left,) = made.replay(letters_of(made))
    assert "another row of its document" in left.reason
    assert notes(server) == first


def test_a_letter_that_was_replayed_already_is_no_letter_any_more(server, made):
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "one"))
    write_batch(made, log.batch(0, 1))
    mend(server)
    read = letters_of(made)
    assert made.replay(read) == made.replay(read) == []
    assert notes(server) == {"1": "one"}


@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("how", ["truncated", "truncated in its transaction", "read anew"])
def test_a_letter_does_not_come_back_where_its_table_is_emptied_while_it_is_replayed(server, tmp_path, how, deletes):
    """The index holds nothing of the letter's document, by whose version the letter would be refused."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "one"))
    cut = len(log.entries)
    if how == "read anew":
        begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
        log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=[*begin.pair], complete=True)
    else:
        (log if "its" in how else log.begin()).control(ControlKind.TRUNCATE, ORDERS)
    output = output_of(server, tmp_path, mapping=NUMBERS, on_error="dead_letter", buckets=1, deletes=deletes)
    output.open()
    write_batch(output, log.batch(0, cut))
    read = letters_of(output)
    write_batch(output, log.batch(cut, len(log.entries)))
    mend(server)
    output.replay(read)
    output.close()
    assert notes(server) == {}
    assert output.letters.count() == 0


def test_letters_are_forgotten_by_an_output_that_keeps_no_new_ones(server, made, tmp_path):
    """`on_error` was changed while there were some: a replay brought back what was truncated or deleted since."""
    log = ChangeLog().begin()
    for key in (1, 2):
        log.insert(ORDERS, order(key, "one"))
    log.begin().delete(ORDERS, order(1, "one"))
    cut = len(log.entries)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    write_batch(made, log.batch(0, 2))
    changed = output_of(server, tmp_path, mapping=NUMBERS, buckets=1)
    changed.open()
    write_batch(changed, log.batch(2, cut))
    assert [letter.id for letter in letters_of(changed).letters] == ["2"]
    write_batch(changed, log.batch(cut, len(log.entries)))
    changed.close()
    assert changed.letters.count() == 0


def test_a_letter_that_is_written_again_after_its_table_was_emptied_is_forgotten(server, made):
    """By a task that was given up; the server has forgotten by then which documents were deleted."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "one"))
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    with attempt(made) as late:
        for begin in (0, 1):
            write_batch(made, log.batch(begin, begin + 1))
        late.write(log.batch(0, 1))
    server.ask("PUT", "/orders/_settings", {"index.gc_deletes": "0s"})
    server.ask("POST", "/orders/_refresh")
    mend(server)
    assert made.replay(letters_of(made)) == []
    assert notes(server) == {}
