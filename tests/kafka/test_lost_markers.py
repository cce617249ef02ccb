"""Commits that were answered, and whose markers a broker has lost: readers of committed messages get past them again,
and nothing is missing or there twice.
"""

import re
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from databus.core import Checkpoint, ServiceUnavailable, SourceCheckpoint, UnrepresentableValue
from databus.pipeline.engine._handle import OutputHandle
from databus.places import Position
from databus.sinks.kafka import positions_of
from databus.sinks.kafka._session import KEPT
from databus.testing._change_log import ORDERS
from databus.testing._staged_writes import write_buckets
from tests.feeds import bring
from tests.kafka.dead_letters import BAD, LIMIT, set_topic
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import log_of, order

QUERY = "outputs/topics/shop@shop"
KNOWN_BY = ("process", "ledger", "nobody")
SESSIONS = ("kept", "new")
_CONTROL = 1 << 5  # of a batch's attributes
PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


def lose_marker(server, topic):
    """Cut the last marker off a stopped broker's file of a topic's first partition. Returns whether there was one; its
    coordinator has noted then that it is written.
    """
    path = server.folder / "data" / f"{topic}-0" / f"{0:020}.log"
    content, at = path.read_bytes(), 0
    while at < len(content):
        last, at = at, at + 12 + struct.unpack_from(">i", content, at + 8)[0]
    is_marker = bool(struct.unpack_from(">h", content, last + 21)[0] & _CONTROL)
    path.write_bytes(content[: last if is_marker else None])
    return is_marker


def new_handle(server, folder, prefix, **options):
    topics = {"partitions": 1, "config": {"max.message.bytes": LIMIT}}
    output = output_of(server, folder, prefix, buckets=1, create_topics=topics, **options)
    handle = OutputHandle("topics", output, folder / ".databus")
    bring(handle)
    return handle


def write(handle, batch):
    handle.write_direct(batch, partial(write_buckets, handle.output, batch))


def without_markers(server, folders, names):
    """Have a server lose the markers of some outputs' last transactions, of positions and of rows; returns each one's
    folder and prefix, by who knows of the commit or whose session goes on.
    """
    log, found = log_of(1, 2), {name: (folders.mktemp(name), new_prefix()) for name in names}
    for name, (folder, prefix) in found.items():
        handle = new_handle(server, folder, prefix)
        handle.open()
        handle.put("shop", Position(SourceCheckpoint(), handle.choice("shop")))
        batch = log.batch(0, 2)
        write(handle, batch)
        if name == "ledger":
            handle.advance(Checkpoint({"shop": batch.end}))
        assert ids_in(server, prefix) == [1, 2]
        positions = positions_of(handle.output.part_writer().cluster, f"{prefix}.control")
        positions._forget()  # it had not seen a marker that was never there
        if name in ("ledger", "nobody"):
            positions.answers.__init__()
        if name != "kept":  # another process goes on, which has no sessions of this one
            KEPT._sessions.popitem(last=True)
    server.stop()
    try:
        for name, (_, prefix) in found.items():
            assert lose_marker(server, f"{prefix}.orders")
            assert name == "new" or lose_marker(server, f"{prefix}.control")
    finally:
        server.start()
    return found


@pytest.fixture(scope="module")
def lost(other_kafka, tmp_path_factory):
    return without_markers(other_kafka, tmp_path_factory, SESSIONS)


@pytest.fixture(scope="module")
def lost_and_known(other_kafka, tmp_path_factory):
    return without_markers(other_kafka, tmp_path_factory, KNOWN_BY)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("databus.sinks.kafka._positions._PATIENCE_S", 0.2)
    monkeypatch.setattr("databus.sinks.kafka._lost_markers._OTHERS_S_MAX", 0.2)


def ids_in(server, prefix):
    return [row["id"] for part in rows_in(server, f"{prefix}.orders") for row in part]


def refused_log():
    log = log_of(1, 2)
    log.begin().insert(ORDERS, order(3, BAD))
    log.begin().insert(ORDERS, order(4))
    return log


@pytest.mark.parametrize("session", SESSIONS)
def test_a_row_that_is_refused_takes_back_nothing_that_was_committed(other_kafka, lost, session):
    """Its transaction is broken off, in a partition where the end of the one before is lost."""
    server, (folder, prefix) = other_kafka, lost[session]
    handle = new_handle(server, folder, prefix, on_error="dead_letter" if session == "kept" else "halt")
    if session == "new":
        handle.open()
        with pytest.raises(UnrepresentableValue, match=r"max\.message\.bytes"):
            write(handle, refused_log().batch(0, 4))
        set_topic(server, f"{prefix}.orders", **{"max.message.bytes": 1_000_000})
    write(handle, refused_log().batch(0, 4))
    assert ids_in(server, prefix) == ([1, 2, 4] if session == "kept" else [1, 2, 3, 4])


@pytest.mark.nightly
@pytest.mark.parametrize("known_by", ["process", "ledger"])
def test_where_it_is_known_that_the_commit_was_answered_the_output_goes_on(other_kafka, lost_and_known, known_by):
    server, (folder, prefix) = other_kafka, lost_and_known[known_by]
    handle = new_handle(server, folder, prefix)
    handle.open()
    write(handle, log_of(1, 2, 3).batch(0, 3))
    assert ids_in(server, prefix) == [1, 2, 3]


@pytest.mark.nightly
def test_where_nobody_knows_it_is_said_what_to_look_at_and_the_page_says_how_to_commit_it(
    other_kafka, lost_and_known, tmp_path
):
    server, (folder, prefix) = other_kafka, lost_and_known["nobody"]
    handle = new_handle(server, folder, prefix, request_ms_max=3_000, transaction_ms_max=1_000)
    with pytest.raises(ServiceUnavailable, match=r"databus/shop/topics/shop/0.*describe.*CompleteCommit` do not"):
        handle.open()
    script, topic = tmp_path / "commit_again.py", f"{prefix}.control"
    script.write_text(re.search(r"```python\n(# commit_again.py.*?)```", PAGE.read_text(), re.DOTALL)[1])
    command = [sys.executable, str(script), server.bootstrap, topic, "0", "databus/shop/topics/shop/0"]
    subprocess.run(command, check=True)
    handle.open()
    write(handle, log_of(1, 2, 3).batch(0, 3))
    assert ids_in(server, prefix) == [1, 2, 3]
