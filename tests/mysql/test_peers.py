"""Two relays of one server, and a consumer of both: whichever is killed, what it has done is what is there."""

import random
import threading
import time
from contextlib import ExitStack

import pymysql
import pytest

from databus.client import Client, ClientConfig, Consumer, FileCheckpoints, FollowConfig, windows
from databus.core import ControlKind, DatabusError
from databus.link import RelayClient
from databus.testing import RelayProcess
from tests.client.conftest import wait_for
from tests.mysql.following import FAMILIES
from tests.mysql.test_accidents_relay import options_of

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("kind", FAMILIES, indirect=True)]
ROUNDS = pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.soak)])
QUICK = FollowConfig(backoff_first_ms=5, backoff_ms_max=50, reread_after_ms=200)


class Copy:
    """What a consumer makes of windows: of a transaction that comes in parts all or nothing."""

    def __init__(self):
        self.tables = {}
        self.parts = []
        self.position = None
        self.restarts = 0
        self.snapshots = 0

    def take(self, window):
        if window.restarts:
            self.restarts += 1
            self.parts.clear()
        self.parts.append(window)
        if window.continues:
            return
        for part in self.parts:
            self.apply(part.control, part.rows())
        self.parts.clear()
        self.position = window.position

    def apply(self, control, rows):
        if control is not None and control.kind == ControlKind.SNAPSHOT_BEGIN:
            self.snapshots += 1
            self.tables[control.source] = {}
        for row in rows:
            table = self.tables.setdefault(row.source, {})
            if row.before is not None:
                table.pop(tuple(row.before[name] for name in row.table.key), None)
            if row.after is not None:
                table[row.key] = row.after

    def differences(self, server, database):
        found = {}
        with server.connect(database=database, cursorclass=pymysql.cursors.DictCursor) as connection:
            for table in ("a", "b"):
                with connection.cursor() as cursor:
                    cursor.execute(f"SELECT * FROM {table}")
                    there = list(cursor)
                mine = list(self.tables.get(f"shop/{database}.{table}", {}).values())
                sort = lambda rows: sorted(repr(sorted(row.items())) for row in rows)  # noqa: E731
                if sort(there) != sort(mine):
                    found[table] = len(there), len(mine)
        return found

    def mark(self, database):
        return self.tables.get(f"shop/{database}.mark", {}).get((1,), {}).get("n")


class CopyConsumer(Consumer):
    """The same by callbacks: a transaction counts when it has ended."""

    def __init__(self, copy):
        self.copy = copy
        self.control, self.rows = None, []

    def on_start_window(self, window):
        self.control, self.rows = None, []

    def on_control(self, control):
        self.control = control

    def on_data_events(self, changes):
        self.rows += changes.rows()

    def on_end_window(self, window):
        self.copy.apply(self.control, self.rows)
        self.copy.position = window.position


@pytest.fixture
def peers(server, database, tmp_path):
    config = options_of(database, server)
    with ExitStack() as stack:
        relays = [stack.enter_context(RelayProcess(tmp_path / name, {"shop": config})) for name in ("a", "b")]
        for relay in relays:
            wait_for(RelayClient(relay.url).sources, "its first table")
        yield relays


def kill_some(peers, serving, database, busy, dice, rounds):
    """Kill the relay that serves, at a random moment: while tables are read, and inside large transactions."""
    for number in range(rounds):
        relay = next((each for each in peers if each.url == serving()), peers[0])
        if number % 2 == 0:
            try:
                RelayClient(relay.url).request_snapshot("shop", [f"{database}.a", f"{database}.b"])
            except DatabusError:  # it is only just starting
                continue
        busy.wait_for(dice.randint(1, 8))
        time.sleep(dice.random() * 0.3)  # the moment is what is random
        relay.kill()
        time.sleep(dice.random() * 0.8)
        relay.start()


def arrived(copy, server, database):
    number = time.monotonic_ns()
    server.run(f"REPLACE INTO {database}.mark VALUES (1, {number})")
    wait_for(lambda: copy.mark(database) == number and not copy.position.snapshots, "the end of all", 90)
    assert copy.differences(server, database) == {}


@ROUNDS
def test_windows_go_on_at_the_other_relay_whichever_is_killed(server, database, busy, peers, seed, rounds):
    copy, dice = Copy(), random.Random(seed)
    failure = []
    with windows([each.url for each in peers], config=QUICK) as following:

        def follow():
            try:
                for window in following:
                    copy.take(window)
            except BaseException as error:  # noqa: BLE001 - looked at below
                failure.append(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()

        def serving():
            endpoint = following._lanes[0].reader._relay._peers.now
            return f"http://{endpoint.host}:{endpoint.port}"

        with busy:
            kill_some(peers, serving, database, busy, dice, rounds)
        assert failure == []
        arrived(copy, server, database)
    assert copy.snapshots > 2


def test_a_checkpoint_of_any_window_goes_on_at_the_other_relay(server, database, busy, peers, seed):
    """Each window of one is the last; what is behind it comes from the other."""
    copy, dice, at, checkpoint = Copy(), random.Random(seed), 0, None
    with busy:
        busy.wait_for(10)
        for _ in range(8):
            count = dice.randint(1, 12)
            with windows(peers[at].url, checkpoint=checkpoint, config=QUICK) as following:
                for window in following:
                    copy.take(window)
                    checkpoint = window.checkpoint
                    if (count := count - 1) <= 0:
                        break
            at = 1 - at
    with windows([each.url for each in peers], checkpoint=checkpoint, config=QUICK) as following:
        threading.Thread(target=lambda: [copy.take(each) for each in following], daemon=True).start()
        arrived(copy, server, database)


@ROUNDS
def test_callbacks_go_on_at_the_other_relay_whichever_is_killed(server, database, busy, peers, seed, rounds, tmp_path):
    copy, dice = Copy(), random.Random(seed)
    config = ClientConfig(follow=QUICK, checkpoint_ms=50)
    client = Client(
        [each.url for each in peers],
        CopyConsumer(copy),
        checkpoints=FileCheckpoints(tmp_path / "place"),
        config=config,
    )
    with client:
        client.start()
        wait_for(lambda: client._loop._sources, "the start")

        def serving():
            lane = client._loop._sources["shop"].lane
            endpoint = client._loop._relay._peers.now if lane is None else lane.reader._relay._peers.now
            return f"http://{endpoint.host}:{endpoint.port}"

        with busy:
            kill_some(peers, serving, database, busy, dice, rounds)
        arrived(copy, server, database)
