"""Replays that run beside a pipeline: what they have read is older than what is written meanwhile."""

import pytest

from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.outputs.harnesses import order
from tests.search.support import output_of
from tests.search.test_dead_letters import NUMBERS
from tests.search.test_search_accidents import notes

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
