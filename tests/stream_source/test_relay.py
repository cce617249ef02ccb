"""A followed file behind a relay that is killed again and again, while the file grows and is rotated."""

import json
import threading
import time

import pytest

from databus.core import ServiceUnavailable
from databus.link import RelayClient
from databus.testing import RelayProcess
from tests.stream_source.support import numbered, numbers


def lines_of(relay):
    """All lines that have been published, in order, with their places."""
    client = RelayClient(relay.url)
    try:
        head = client.head("app")
        rows = []
        with client.stream("app", "beginning", to=head.published.pair) as stream:
            for groups in stream:
                rows += [row for group in groups for each in group.rows for row in each.batch.to_pylist()]
    finally:
        client.close()
    return rows


def waited_for(relay, count):
    deadline = time.monotonic() + 60
    rows = []
    while len(rows) < count:
        assert time.monotonic() < deadline, f"{len(rows)} of {count} lines came"
        try:
            rows = lines_of(relay)
        except ServiceUnavailable:
            continue
    return rows


@pytest.mark.parametrize("rotation", ["rename", "none"])
def test_no_line_is_lost_or_repeated_by_a_relay_that_is_killed(tmp_path, rotation):
    path, parts, size = tmp_path / "app.log", 12, 500
    options = {"type": "stream", "path": str(path), "poll_ms": 1, "rotate_wait_ms": 50, "group_bytes_max": 2048}
    over = threading.Event()

    def write():
        for part in range(parts):
            for begin in range(part * size, (part + 1) * size, 20):
                with path.open("a") as file:
                    text = numbered(begin, begin + 20)
                    file.write(text[:30])
                    file.flush()
                    file.write(text[30:])
                over.wait(0.005)
            if rotation == "rename" and part % 3 == 2 and part < parts - 1:
                path.rename(path.with_name(f"app.log.{part}"))
        over.set()

    path.touch()
    relay = RelayProcess(tmp_path / "state", {"app": options})
    with relay:
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(4):
            over.wait(0.4)
            relay.kill()
            relay.start()
        writer.join()
        rows = waited_for(relay, parts * size)
    assert numbers(row["line"] for row in rows) == list(range(parts * size))
    assert len({(row["stream"], row["offset"]) for row in rows}) == parts * size
    assert json.loads(rows[-1]["line"]) == {"n": parts * size - 1}
