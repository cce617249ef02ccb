"""A relay's folder that was put back from a copy: the same log, shorter. What the server still has comes again with the
same numbers; what the bus had made itself does not.
"""

import shutil
from collections.abc import Iterator

import pytest

from databus.client import windows
from databus.core import Checkpoint, ControlKind, PositionPurged
from databus.link import FollowConfig, RelayClient
from databus.testing import RelayProcess
from databus.testing.servers import Server
from tests.mysql.following import FAMILIES
from tests.mysql.test_accidents_relay import options_of, wait_until_identical

ROWS = 2_000


@pytest.fixture
def relay(server: Server, database: str, tmp_path) -> Iterator[RelayProcess]:
    server.run(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO {database}.t VALUES {', '.join(f'({each}, 0)' for each in range(ROWS))}",
    )
    relay = RelayProcess(tmp_path, {"shop": options_of(database, server)})
    relay.start()
    wait_until_identical(relay, server, database)
    yield relay
    relay.kill()


def put_aside(relay: RelayProcess) -> None:
    relay.stop()
    shutil.copytree(relay.folder / "relay", relay.folder / "copy")
    relay.start()


def put_back(relay: RelayProcess) -> None:
    relay.kill()
    shutil.rmtree(relay.folder / "relay")
    (relay.folder / "copy").rename(relay.folder / "relay")
    relay.start()


def end_of(relay: RelayProcess) -> Checkpoint:
    with windows(relay.url, follow=False) as following:
        list(following)
        return following.checkpoint


@pytest.mark.timeout(90)
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_consumer_ahead_of_a_log_put_back_waits_and_misses_nothing(server, database, relay) -> None:
    put_aside(relay)
    server.run(f"UPDATE {database}.t SET v = 1 WHERE id < 10")
    wait_until_identical(relay, server, database)
    stands = end_of(relay)
    server.run(f"UPDATE {database}.t SET v = 2 WHERE id < 20")
    put_back(relay)
    wait_until_identical(relay, server, database)
    with windows(relay.url, checkpoint=stands, follow=False) as following:
        found = [row.values["v"] for window in following for row in window.rows() if row.after is not None]
    assert found == [2] * 20


@pytest.mark.timeout(90)
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_consumer_inside_a_snapshot_that_a_log_put_back_never_had_gets_another(server, database, relay) -> None:
    """The rest of that snapshot is nowhere: to go on would leave it out, so the table is read again."""
    put_aside(relay)
    stands = end_of(relay)
    RelayClient(relay.url).request_snapshot("shop", [f"{database}.t"])
    inside: Checkpoint | None = None
    with windows(relay.url, checkpoint=stands) as following:
        for window in following:
            if window.control is not None and window.control.kind is ControlKind.SNAPSHOT_BEGIN:
                inside = window.checkpoint
                break
    put_back(relay)
    server.run(f"UPDATE {database}.t SET v = 1 WHERE id < 10")
    wait_until_identical(relay, server, database)
    assert inside is not None
    with pytest.raises(PositionPurged, match=rf"{database}\.t.*put back"):
        RelayClient(relay.url).stream("shop", inside.sources["shop"])
    rows: dict[int, int] = {}
    with windows(relay.url, checkpoint=inside, config=FollowConfig(reread_after_ms=1)) as following:
        for window in following:
            rows |= {row.values["id"]: row.values["v"] for row in window.rows() if row.after is not None}
            if window.control is not None and window.control.kind is ControlKind.SNAPSHOT_END:
                break
    assert rows == {number: int(number < 10) for number in range(ROWS)}
