"""Keys that are parked stay so whatever else tells rows apart from then on: letters are called by the key of now."""

from dataclasses import replace

import pytest

from databus.schema import Column, TableSchema
from databus.testing._change_log import ChangeLog
from databus.testing._output_suite import _EXTREMES as EXTREMES
from databus.testing._staged_writes import write_batch
from tests.http.receiver import Receiver
from tests.http.support import opened

VISITS = TableSchema("main.visits", (Column("id", "int64"), Column("host", "string"), Column("note", "string")))


def keeping(receiver, folder, **options):
    return opened(receiver, folder, on_error="dead_letter", **options)


def visits(*rows, table=VISITS):
    log = ChangeLog()
    for number, host, note in rows:
        log.begin().insert(table, {"id": number, "host": host, "note": note})
    return log


@pytest.fixture
def receiver():
    with Receiver(lambda request: 422 if b"bad" in request.body else None) as found:
        yield found


@pytest.mark.parametrize(
    ("before", "after", "goes_out"),
    [(["id"], ["id", "host"], [(1, "b"), (2, "a")]), (["id", "host"], ["id"], [(2, "a")])],
    ids=["more columns", "fewer"],
)
def test_another_key_of_the_output_lets_no_change_pass_a_letter(receiver, tmp_path, before, after, goes_out):
    log = visits((1, "a", "bad"), (1, "a", "x"), (1, "b", "x"), (2, "a", "x"))
    with keeping(receiver, tmp_path, key=before) as output:
        write_batch(output, log.batch(0, 1))
    with keeping(receiver, tmp_path, key=after) as output:
        for _ in range(2):
            write_batch(output, log.batch(1, 4))
        count = output.letters.count()
    assert list(dict.fromkeys((row["id"], row["host"]) for row in receiver.changes if row["note"] == "x")) == goes_out
    assert count == 4 - len(goes_out)


def test_another_key_of_the_table_lets_no_change_pass_a_letter(receiver, tmp_path):
    """The change stands between two batches, then within one."""
    by_id, by_both = (replace(VISITS, key=key) for key in (("id",), ("id", "host")))
    log = visits((1, "a", "bad"), (3, "a", "bad"), table=by_id)
    log.begin().insert(by_both, {"id": 1, "host": "a", "note": "x"})
    log.begin().insert(by_both, {"id": 3, "host": "a", "note": "x"})
    with keeping(receiver, tmp_path) as output:
        for begin, end in ((0, 1), (1, 4)):
            write_batch(output, log.batch(begin, end))
        assert output.letters.count() == 4


def test_a_replay_keeps_the_order_of_letters_from_before_and_behind_a_change_of_the_key(receiver, tmp_path):
    log = visits((1, "a", "bad"), (1, "a", "x"))
    with keeping(receiver, tmp_path, key=["id"]) as output:
        write_batch(output, log.batch(0, 1))
    with keeping(receiver, tmp_path, key=["id", "host"]) as output:
        write_batch(output, log.batch(1, 2))
        for file in output.letters.files():
            output.letters.keep(file, output.replay(output.letters.read(file)))
        assert output.letters.count() == 2
    assert {row["note"] for row in receiver.changes} == {"bad"}


@pytest.mark.parametrize("kind", EXTREMES)
def test_a_letter_is_called_as_its_row_is_whatever_the_type_of_the_key(tmp_path, kind):
    table = TableSchema("main.k", (Column("n", "int32"), Column("k", kind)))
    log = ChangeLog()
    for _ in range(2):
        for number, key in enumerate((*EXTREMES[kind], None)):
            log.begin().insert(table, {"n": number, "k": key})
    half = len(log.entries) // 2
    answers = [422]
    with Receiver(lambda _: answers[0]) as receiver:
        with keeping(receiver, tmp_path, key=["n"]) as output:
            write_batch(output, log.batch(0, half))
        answers[0], seen = None, len(receiver.seen)
        with keeping(receiver, tmp_path, key=["k"]) as output:
            write_batch(output, log.batch(half, 2 * half))
            assert output.letters.count() == 2 * half
        assert receiver.seen[seen:] == []
