"""Queries that are renamed in the middle of a transaction: what is held back of it is put all the same."""

from functools import partial

import pytest

from databus.core import Checkpoint, LockHeld
from databus.pipeline._handle import Bringing, OutputHandle
from databus.tasks import Bucket
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_buckets
from tests.outputs.harnesses import order
from tests.search.support import output_of

OLD, NEW = "outputs/index/shop@shop", "outputs/index/store@shop"


def process(server, folder, name, buckets=2):
    output = output_of(server, folder, buckets=buckets)
    handle = OutputHandle("index", output, folder / ".databus")
    handle.bringing = {name: Bringing("shop/*")}
    handle.open(name)
    return handle


def write(handle, name, batch):
    handle.write_direct(name, batch, partial(write_buckets, handle.output, batch))
    handle.advance(name, Checkpoint({batch.physical: batch.end}))


def transaction():
    """The last row of key 1 comes in its second part of three."""
    log = ChangeLog().begin()
    log.insert(ORDERS, order(1, "first"))
    log.update(ORDERS, order(1, "first"), order(1, "second"))
    log.insert(ORDERS, order(2, "third"))
    return log


def test_rows_that_were_held_under_another_name_are_put_at_the_end_of_their_transaction(server, tmp_path):
    log = transaction()
    handle = process(server, tmp_path, OLD)
    write(handle, OLD, log.batch(0, 1))
    write(handle, OLD, log.batch(1, 3))
    handle.close()
    handle = process(server, tmp_path, NEW)
    write(handle, NEW, log.batch(3, 4))
    handle.close()
    assert {key: each["note"] for key, each in server.documents("orders").items()} == {"1": "second", "2": "third"}
    assert server.documents("databus-parts") == {}


def test_who_was_given_up_for_dead_before_the_query_was_renamed_is_kept_out(server, tmp_path):
    log = transaction()
    handle = process(server, tmp_path, OLD)
    write(handle, OLD, log.batch(0, 1))
    bucket = Bucket("shop", "index", OLD, 0, 2)
    with handle.direct.direct_writer().open(bucket) as late:
        late._fence.take()  # it has begun, and hangs
        write(process(server, tmp_path, NEW), NEW, log.batch(1, 4))
        with pytest.raises(LockHeld, match="another attempt"):
            late._put(log.batch(1, 3), log.batch(1, 3).items[0], {1})


@pytest.mark.parametrize("name", [OLD, NEW])
def test_who_was_given_up_for_dead_when_there_were_more_buckets_is_kept_out(server, tmp_path, name):
    log = transaction()
    handle = process(server, tmp_path, OLD, buckets=4)
    write(handle, OLD, log.batch(0, 1))
    bucket = Bucket("shop", "index", OLD, 3, 4)
    with handle.direct.direct_writer().open(bucket) as late:
        late._fence.take()  # it has begun, and hangs
        write(process(server, tmp_path, name), name, log.batch(1, 4))
        with pytest.raises(LockHeld, match="another attempt"):
            late._put(log.batch(1, 3), log.batch(1, 3).items[0], {1})
