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

from databus.core import Checkpoint, ServiceUnavailable, SourceCheckpoint
from databus.pipeline._handle import Bringing, OutputHandle
from databus.tasks.kafka import positions_of
from databus.testing._staged_writes import write_buckets
from databus.testing.servers import Kafka, ServerMissing
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.kafka.test_kafka_accidents import as_other_process
from tests.outputs.harnesses import log_of

QUERY = "outputs/topics/shop@shop"
KNOWN_BY = ("process", "ledger", "nobody")
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
    output = output_of(server, folder, prefix, buckets=1, create_topics={"partitions": 1}, **options)
    handle = OutputHandle("topics", output, folder / ".databus")
    handle.bringing = {QUERY: Bringing("shop/*")}
    return handle


def write(handle, batch):
    handle.write_direct(QUERY, batch, partial(write_buckets, handle.output, batch))


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """A server that has lost the markers of three outputs' last transactions, of positions and of rows; and, by who
    knows of the commit, each one's folder and prefix.
    """
    log, prefixes = log_of(1, 2), {by: (tmp_path_factory.mktemp(by), new_prefix()) for by in KNOWN_BY}
    server = Kafka(tmp_path_factory.mktemp("server"))
    try:
        server.start()
        for by, (folder, prefix) in prefixes.items():
            handle = new_handle(server, folder, prefix)
            handle.open(QUERY)
            handle.begin(QUERY, Checkpoint({"shop": SourceCheckpoint()}), frozenset())
            batch = log.batch(0, 2)
            write(handle, batch)
            if by == "ledger":
                handle.advance(QUERY, Checkpoint({"shop": batch.end}))
            assert ids_in(server, prefix) == [1, 2]
            positions = positions_of(handle.output.direct_writer().cluster, f"{prefix}.control")
            positions._forget()  # it had not seen a marker that was never there
            if by != "process":
                positions.answers.__init__()
        as_other_process()
        server.stop()
        for _, prefix in prefixes.values():
            assert lose_marker(server, f"{prefix}.control")
            assert lose_marker(server, f"{prefix}.orders")
        server.start()
        yield server, prefixes
    except ServerMissing as missing:
        pytest.skip(str(missing))
    finally:
        server.close()


def ids_in(server, prefix):
    return [row["id"] for part in rows_in(server, f"{prefix}.orders") for row in part]


@pytest.mark.parametrize("known_by", ["process", "ledger"])
def test_where_it_is_known_that_the_commit_was_answered_the_output_goes_on(lost, known_by):
    server, prefixes = lost
    folder, prefix = prefixes[known_by]
    handle = new_handle(server, folder, prefix)
    handle.open(QUERY)
    write(handle, log_of(1, 2, 3).batch(0, 3))
    assert ids_in(server, prefix) == [1, 2, 3]


def test_where_nobody_knows_it_is_said_what_to_look_at_and_the_page_says_how_to_commit_it(lost, tmp_path):
    server, prefixes = lost
    folder, prefix = prefixes["nobody"]
    handle = new_handle(server, folder, prefix, request_ms_max=3_000, transaction_ms_max=1_000)
    with pytest.raises(ServiceUnavailable, match=f"databus/shop/topics/{QUERY}/0.*describe.*CompleteCommit` do not"):
        handle.open(QUERY)
    script, topic = tmp_path / "commit_again.py", f"{prefix}.control"
    script.write_text(re.search(r"```python\n(# commit_again.py.*?)```", PAGE.read_text(), re.DOTALL)[1])
    command = [sys.executable, str(script), server.bootstrap, topic, "0", f"databus/shop/topics/{QUERY}/0"]
    subprocess.run(command, check=True)
    handle.open(QUERY)
    write(handle, log_of(1, 2, 3).batch(0, 3))
    assert ids_in(server, prefix) == [1, 2, 3]
