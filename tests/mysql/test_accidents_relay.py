"""A whole relay on a real server: killed at its crash points and at random moments, and on a disk that is full."""

import errno
import json
import os
import random
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from databus.core import CRASH_POINTS, ControlKind, ServiceUnavailable, TransientError
from databus.disk import _files
from databus.link import RelayClient
from databus.log import _log as log_module
from databus.relay import Relay, State, parse_relay
from databus.testing import RelayProcess
from databus.testing.servers import Server
from databus.wire import Commit, Control, Group, Rows
from tests.mysql.following import ARRIVE_S_MAX, FAMILIES, Copy, Load, config_of, create

POINTS = [name for name in CRASH_POINTS if name.startswith(("mysql.", "log.append", "capture."))]
ALWAYS_PASSED = [name for name in POINTS if name.startswith(("log.append", "capture.", "mysql.history"))]
"""Points that a relay comes to as soon as rows and a DDL come, however slow the machine is."""


def options_of(database: str, *servers: Server, **more: Any) -> dict[str, Any]:
    """As a relay's configuration file has them."""
    config = config_of(database, *servers, **more).model_dump(exclude_unset=True)
    return {**config, "password": servers[0].capture_password}


def copy_of(url: str) -> tuple[Copy, list[Group]]:
    """What a mirror makes of all that the relay has published."""
    client, copy, found = RelayClient(url), Copy(), []
    head = client.head("shop")
    with client.stream("shop", "beginning", to=head.published.pair) as stream:
        for groups in stream:
            for group in groups:
                commit = Commit.from_header(group.commit)
                rows = tuple(Rows(client.table_of(each.header.fingerprint), each.batch) for each in group.rows)
                control = None
                if group.control is not None:
                    header, body = group.control.header, group.control.control
                    table = client.table_of(header.fingerprint)
                    control = Control(ControlKind(body["kind"]), table, header.first_scn, header.first_seq, body)
                found.append(Group(commit, rows, control))
                copy.take(found[-1])
    client.close()
    return copy, found


def wait_until_identical(relay: RelayProcess, server: Server, database: str) -> tuple[Copy, list[Group]]:
    """Nobody writes any more: wait until all that there is has been published, as long as something still comes."""

    def missing(copy: Copy, groups: list[Group]) -> list[str]:
        is_read = bool(groups) and not groups[-1].commit.snapshots
        return copy.differences(server, database) or ([] if is_read else ["tables are still being read"])

    return wait_until_published(relay, missing)


def wait_until_published(
    relay: RelayProcess, missing: Callable[[Copy, list[Group]], list[str]]
) -> tuple[Copy, list[Group]]:
    """Wait until nothing is missing in what has been published, as long as something still comes. It is read only where
    there is more of it, so that whoever waits does not keep the relay from working.
    """
    last, lines, told, end = None, ["nothing was read"], "", time.monotonic() + ARRIVE_S_MAX
    while time.monotonic() < end:
        try:
            published = RelayClient(relay.url).head("shop").published
            if published.pair != last:
                copy, groups = copy_of(relay.url)
                lines = missing(copy, groups)
                if not lines:
                    return copy, groups
                last, end = published.pair, time.monotonic() + ARRIVE_S_MAX
                told = f"{len(groups)} groups up to {groups[-1].commit if groups else 'nothing'}"
        except TransientError as error:
            told = str(error)
        time.sleep(0.1)
    lines = ["nothing has come for so long, and what is wanted is missing:", *lines, told, str(_state(relay))]
    raise AssertionError("\n".join([*lines, relay.log_end()]))


def _state(relay: RelayProcess) -> Mapping[str, Any]:
    """What the capture says of itself; nothing while it does not answer."""
    try:
        with urllib.request.urlopen(f"{relay.url}/controlSources/status", timeout=5) as answer:  # noqa: S310 - our own
            return dict(json.load(answer)[0])
    except OSError:
        return {}


def _wait_until_running(relay: RelayProcess) -> None:
    """Wait until it captures, or has died before."""
    end = time.monotonic() + ARRIVE_S_MAX
    while relay.is_running and _state(relay).get("state") != "RUNNING":
        assert time.monotonic() < end, f"{_state(relay)}\n{relay.log_end()}"
        time.sleep(0.02)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", FAMILIES)
def test_relay_killed_at_crash_points_and_random_moments(server, database, tmp_path, seed) -> None:
    dice = random.Random(seed)
    create(server, database)
    relay = RelayProcess(tmp_path, {"shop": options_of(database, server)}, log={"segment_bytes_max": 1 << 20})
    points = dice.sample(POINTS, 4)
    if not any(point.startswith("mysql.") for point in points):
        points[0] = dice.choice([point for point in POINTS if point.startswith("mysql.")])
    points.append(dice.choice(ALWAYS_PASSED))  # there it must die; at the others a random moment may come first
    told = f"seed {seed}, {points}"
    try:
        with Load(server, database, seed) as load:
            for number, point in enumerate(points):
                is_last = number == len(points) - 1
                relay.env = {"DATABUS_CRASH_AT": f"{point}:{1 if is_last else dice.randint(1, 4)}"}
                with suppress(ServiceUnavailable):  # it died before it answered
                    relay.start()
                    _wait_until_running(relay)
                    end = time.monotonic() + (ARRIVE_S_MAX if is_last else dice.uniform(0, 2))
                    with load.paused():
                        server.run(f"ALTER TABLE {database}.b ADD COLUMN c{number} INT DEFAULT {number}")
                        server.run(f"ALTER TABLE {database}.a MODIFY price DECIMAL({12 - number},2)")
                    while time.monotonic() < end and relay.is_running:
                        time.sleep(0.02)
                    assert not is_last or not relay.is_running, f"{told}: it lived on"
                    relay.kill()
            relay.env = {}
            relay.start()
            load.wait_for(10)
            load.stop()
            copy, groups = wait_until_identical(relay, server, database)
        pairs = [group.commit.pair for group in groups]
        assert pairs == sorted(pairs), told
        seqs: dict[int, set[int]] = {}
        for group in groups:
            for rows in group.rows:
                for row in rows.batch.select(["_commit_version", "_seq", "_snapshot"]).to_pylist():
                    if not row["_snapshot"]:
                        assert row["_seq"] not in seqs.setdefault(row["_commit_version"], set()), told
                        seqs[row["_commit_version"]].add(row["_seq"])
        assert all(found == set(range(1, len(found) + 1)) for found in seqs.values()), told
        assert len([kind for kind in copy.kinds(f"{database}.b") if kind == "schema"]) <= len(points), told
    finally:
        relay.stop()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_switch_of_primaries_under_a_relay(kind, new_server, tmp_path, seed) -> None:
    primary, replica = new_server(kind), new_server(kind)
    primary.run("CREATE DATABASE shop")
    create(primary, "shop")
    replica.replicate_from(primary)
    replica.catch_up(primary)
    with (
        RelayProcess(tmp_path, {"shop": options_of("shop", primary, replica)}) as relay,
        Load(primary, "shop", seed) as load,
    ):
        load.wait_for(20)
        with load.paused():
            replica.catch_up(primary)
            replica.promote()
            primary.kill()
            load.server = replica
        load.wait_for(20)
        load.stop()
        copy, groups = wait_until_identical(relay, replica, "shop")
    assert "gap" not in copy.kinds()
    assert len({group.commit.scn >> 55 for group in groups}) == 1


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    """A disk that is full while `is_full` says so."""
    disk = {"is_full": False}
    really = _files.write_all

    def write(fd: int, buffers: Any, offset: int) -> None:
        if disk["is_full"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(fd, buffers, offset)

    monkeypatch.setattr(log_module, "write_all", write)
    yield disk
    disk["is_full"] = False


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_full_disk_of_the_relay_loses_nothing(server, database, tmp_path, seed, full_disk) -> None:
    create(server, database)
    value = {"listen": "127.0.0.1:0", "folder": "relay", "sources": {"shop": options_of(database, server)}}
    with Relay(parse_relay(value, folder=tmp_path)) as relay, Load(server, database, seed) as load:
        capture = relay.captures["shop"]
        assert capture.wait_until_settled(60)
        for _ in range(2):
            load.wait_for(10)
            full_disk["is_full"] = True
            end = time.monotonic() + ARRIVE_S_MAX
            while capture.status.error != "DiskFull":
                assert time.monotonic() < end, capture.describe()
                time.sleep(0.01)  # capture tells of what it has captured, not of what stops it
            load.wait_for(30)
            full_disk["is_full"] = False
            capture.unpause()
        load.stop()
        end = time.monotonic() + ARRIVE_S_MAX
        while differences := copy_of(relay.url)[0].differences(server, database):
            assert time.monotonic() < end, differences
            time.sleep(0.1)
        end = time.monotonic() + ARRIVE_S_MAX
        while capture.status.state is not State.RUNNING:  # noted a moment after what it has written is published
            assert time.monotonic() < end, capture.describe()
            time.sleep(0.01)
