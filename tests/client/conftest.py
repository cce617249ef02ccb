"""A relay in this process, with mock sources, made when a test asks for one."""

import threading
import time
from contextlib import ExitStack

import pytest

from databus.client import Consumer
from databus.link import RelayClient
from databus.relay import Relay, parse_relay

WAIT_S = 60
FOUR = {f"main.t{i}": {"columns": {"id": "int64", "name": "string", "at": "timestamptz"}} for i in range(4)}


def mock(**options):
    return {"type": "mock", "schemas": FOUR, "rows_per_transaction": 8, "row_bytes": 100, **options}


@pytest.fixture
def relay_of(tmp_path):
    """`relay_of(shop=mock(...))` starts a relay; it is stopped at the end of the test."""
    with ExitStack() as stack:

        def start(folder="relay", log=None, serve=None, token_file=None, groups=None, **sources):
            value = {"listen": "127.0.0.1:0", "folder": folder, "sources": sources}
            given = {"log": log, "serve": serve, "token_file": token_file, "groups": groups}
            value |= {name: part for name, part in given.items() if part}
            relay = stack.enter_context(Relay(parse_relay(value, folder=tmp_path)))
            assert all(capture.wait_until_settled(WAIT_S) for capture in relay.captures.values())
            return relay

        yield start


def wait_for(condition, what, seconds=WAIT_S):
    """Wait until it holds; the bound is for a test that fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


_OF_A_CLIENT = ("databus-read-", "databus-partition-")


@pytest.fixture(autouse=True)
def readers():
    """The threads in which this test's clients read and call back; it leaves none, or the next one's would not be told
    from them.
    """
    before = set(threading.enumerate())

    def running():
        return [
            thread for thread in threading.enumerate() if thread.name.startswith(_OF_A_CLIENT) and thread not in before
        ]

    yield running
    wait_for(lambda: not running(), "the end of the readers")


def captured(relay, scn, physical="shop"):
    """Wait until the log holds everything up to `scn`."""
    client = RelayClient(relay.url)
    wait_for(lambda: client.head(physical).published.scn >= scn, f"SCN {scn} of {physical}")
    return client


class Collector(Consumer):
    """Keeps the SCNs of the windows that it was given, and takes back what is rolled back."""

    def __init__(self):
        self.scns: dict[str, list[int]] = {}
        self.rows = 0
        self.calls: list[str] = []
        self.errors: list[BaseException] = []
        self.rollbacks: list[int] = []
        self.fail = lambda _window: None
        self.bell = threading.Condition()

    def on_start_consumption(self):
        self.calls.append("start")

    def on_data_events(self, changes):
        self.rows += changes.batch.num_rows

    def on_end_window(self, window):
        result = self.fail(window)
        if result is not None:
            return result
        with self.bell:
            self.scns.setdefault(window.physical, []).append(window.scn)
            self.bell.notify_all()
        return None

    def on_rollback(self, physical, position):
        self.rollbacks.append(position.scn)
        self.scns[physical] = [scn for scn in self.scns.get(physical, []) if scn <= position.scn]

    def on_error(self, error, physical):
        self.errors.append(error)
        return super().on_error(error, physical)

    def on_stop_consumption(self):
        self.calls.append("stop")

    def wait(self, physical, scn, seconds=WAIT_S):
        """Until the window of `scn` has come."""

        def has_come():
            return self.scns.get(physical, [0])[-1] >= scn if self.scns.get(physical) else False

        with self.bell:
            assert self.bell.wait_for(has_come, seconds), f"{physical} has come to {self.scns.get(physical, [])[-3:]}"
