"""Batches that a thread of their own reads: the same ones, few ahead, and none once nobody wants more."""

import threading

import pyarrow as pa
import pytest

from databus.pipeline.outputs._read_ahead import read_ahead


def batches(count, then=None):
    for number in range(count):
        yield pa.record_batch({"id": [number]})
    if then is not None:
        raise then


def ids(found):
    return [each.column("id")[0].as_py() for each in found]


def test_they_come_whole_and_in_order():
    assert ids(read_ahead(batches(100))) == [*range(100)]
    assert ids(read_ahead(())) == []


def test_an_error_comes_where_the_batch_would_be():
    found = []
    with pytest.raises(OSError, match="gone"):
        found.extend(read_ahead(batches(1, OSError("gone"))))
    one = read_ahead(batches(1, OSError("gone")))
    assert next(one).num_rows == 1


def test_who_leaves_early_leaves_no_thread_behind():
    before = {*threading.enumerate()}
    reading = read_ahead(batches(1_000))
    next(reading)
    (thread,) = {*threading.enumerate()} - before
    reading.close()
    thread.join(10)
    assert not thread.is_alive()
