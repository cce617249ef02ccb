"""A source that is still starting: what is asked of it is waited for or noted, and said."""

import threading
from collections.abc import Iterator

import pytest

from databus.relay import Relay
from databus.relay._capture_state import State
from tests.commands import databus, failed
from tests.relay.support import WAIT_S, Database, ScriptedSource, config_of, get, order, post, until


class SlowSource(ScriptedSource):
    """Starts when it may."""

    may_start = threading.Event()

    def start(self, resume):
        assert self.may_start.wait(WAIT_S * 3)
        super().start(resume)


@pytest.fixture
def relay(tmp_path, monkeypatch) -> Iterator[Relay]:
    monkeypatch.setattr("databus.relay._relay._SETTLE_S_MAX", 0.0)
    SlowSource.may_start.clear()
    database = Database(groups=[order(1)])

    def opened(name, _):
        return SlowSource(name, database)

    with Relay(config_of(tmp_path, {"shop": database}), open_source=opened) as relay:
        relay.database = database
        try:
            yield relay
        finally:
            SlowSource.may_start.set()


def test_a_pause_of_a_source_that_is_starting_is_pending_and_says_so(relay):
    (answer,) = post(relay, "/controlSources/pause").json
    assert (answer["status"], answer["pausePending"]) == ("initializing", True)
    assert answer["message"].endswith("; to pause as soon as it has started")
    assert "to pause as soon as it has started" in get(relay, "/admin/ready", sources="shop").body.decode()
    SlowSource.may_start.set()
    capture = relay.captures["shop"]
    capture.wait_until_settled(WAIT_S)
    assert capture.status.state is State.PAUSED
    (answer,) = get(relay, "/controlSources/status").json
    assert (answer["status"], answer["pausePending"], answer["message"]) == ("paused", False, "")


def test_a_snapshot_waits_for_a_source_that_is_starting(relay):
    until(lambda: relay.captures["shop"].status.message.startswith("starting "), "starting")
    said = failed(databus("snapshot", "shop", "main.orders", "--relay", relay.url, "--wait-s", "0.1"), 75)
    assert "shop: waiting for the source to start: starting script shop after SCN 0" in said
    assert "nothing was asked for: the source is still starting after 0.1 s" in said
    assert post(relay, "/controlSources/snapshot", tables="main.orders").status == 503
    assert relay.database.asked == []
    threading.Timer(0.5, SlowSource.may_start.set).start()
    done = databus("snapshot", "shop", "main.orders", "--relay", relay.url)
    assert (done.returncode, relay.database.asked) == (0, ["main.orders"])
