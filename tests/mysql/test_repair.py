"""What an operator does about an accident: `databus position` and `databus skip`, on the log of a stopped relay."""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.core import timeline_of
from databus.testing import RelayProcess
from databus.testing.servers import Server
from tests import commands
from tests.mysql.following import ARRIVE_S_MAX, FAMILIES, Copy, create
from tests.mysql.test_accidents_relay import options_of, wait_until_identical, wait_until_published


def databus(*arguments: object, code: int = 0, stdin: str = "") -> str:
    found = commands.databus(*arguments, stdin=stdin)
    assert found.returncode == code, found.stderr + found.stdout
    assert "Traceback" not in found.stderr
    return found.stdout + found.stderr


def status_of(relay: RelayProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"{relay.url}/controlSources/status", timeout=60) as answer:  # noqa: S310 - our own relay
        (told,) = json.load(answer)
    return dict(told)


def wait_until_stopped(relay: RelayProcess) -> str:
    end = time.monotonic() + ARRIVE_S_MAX
    while (told := status_of(relay))["state"] != "SUSPENDED_ON_ERROR":
        assert time.monotonic() < end, told
        time.sleep(0.05)
    return str(told["message"])


def keys_of(copy: Copy, database: str) -> set[str]:
    return {row["k"] for _, row in copy.tables[f"{database}.b"].values()}


@pytest.fixture
def relay(server: Server, database: str, tmp_path: Path) -> Iterator[RelayProcess]:
    """A relay that has captured the tables so far."""
    create(server, database)
    made = RelayProcess(tmp_path, {"shop": options_of(database, server)})
    made.start()
    try:
        wait_until_identical(made, server, database)
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("kind", FAMILIES)
def test_skipping_the_transaction_that_capture_stopped_at(server, database, relay) -> None:
    config = relay.folder / "relay.yml"
    assert "owned by" in databus("skip", config, "shop", "--yes", code=2)
    server.run(f"INSERT INTO {database}.b VALUES ('before', 1, 1)", "SET SESSION sql_mode = ''")
    server.run(f"INSERT INTO {database}.a (id, at) VALUES (2000, '0000-00-00 00:00:00'), (2001, NULL)")
    server.run("SET SESSION sql_mode = DEFAULT", f"INSERT INTO {database}.b VALUES ('after', 1, 1)")
    assert "0000-00-00" in wait_until_stopped(relay)
    relay.stop()
    shown = json.loads(databus("position", "show", config, "shop", "--json"))
    assert shown["position"]["file"] == server.position()[0]
    assert "Aborted" in databus("skip", config, "shop", stdin="n\n", code=1)
    said = databus("skip", config, "shop", "--yes")
    relay.start()
    copy, _ = wait_until_published(relay, lambda copy, _: sorted({"before", "after"} - keys_of(copy, database)))
    gaps = [each for each in copy.controls if each["kind"] == "gap"]
    assert {gap["source"] for gap in gaps} == {f"{database}.{name}" for name in ("a", "b", "mark")}
    assert all(gap["reason"].removeprefix("skipped: ") in said for gap in gaps)
    assert not [key for key in copy.tables[f"{database}.a"] if key[0] >= 2000]
    server.run(f"DELETE FROM {database}.a WHERE id >= 2000")
    wait_until_identical(relay, server, database)


@pytest.mark.parametrize("kind", FAMILIES)
def test_going_on_at_the_end_of_a_log_that_was_reset(server, database, relay) -> None:
    config = relay.folder / "relay.yml"
    relay.stop()
    server.reset_logs()
    server.run(f"DELETE FROM {database}.a WHERE id < 40", f"DROP TABLE {database}.b")
    relay.start()
    assert "RESET MASTER" in wait_until_stopped(relay)
    relay.stop()
    said = databus("position", "set", config, "shop", "latest", "--resnapshot", "--yes")
    assert "timeline 1" in said
    relay.start()
    copy, groups = wait_until_identical(relay, server, database)
    assert timeline_of(groups[-1].commit.scn) == 1
    assert copy.kinds(f"{database}.b") == ["gap", "drop"]
    assert copy.kinds(f"{database}.a") == ["gap"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_going_on_at_a_named_place(server, database, relay) -> None:
    config = relay.folder / "relay.yml"
    relay.stop()
    server.run(f"INSERT INTO {database}.b VALUES ('lost', 1, 1)")
    file, offset = server.position()
    gtids = server.gtids()
    server.run(f"INSERT INTO {database}.b VALUES ('kept', 1, 1)")
    assert "has no file" in databus("position", "set", config, "shop", "binlog.999999:4", "--yes", code=2)
    assert "none of earliest" in databus("position", "set", config, "shop", "there", "--yes", code=2)
    assert "latest" in databus("position", "set", config, "shop", f"{file}:{offset}", "--resnapshot", "--yes", code=2)
    place = f"{file}:{offset}" if "maria" in server.kind else f"gtid:{gtids}"
    databus("position", "set", config, "shop", place, "--yes")
    relay.start()
    copy, _ = wait_until_published(relay, lambda copy, _: sorted({"kept"} - keys_of(copy, database)))
    assert "lost" not in keys_of(copy, database)
    assert copy.kinds(f"{database}.b") == ["gap"]
