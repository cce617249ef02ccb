"""Who changes a source says in which state they saw it, and why; both stand in the audit log."""

import json

import pytest

from databus.core import StateDiffers
from databus.link import RelayClient
from tests.relay.support import Database, post, scripted, state_of, until


def test_a_source_that_is_in_another_state_by_now_is_left_as_it_is(tmp_path):
    with scripted(tmp_path, {"shop": Database()}) as relay:
        until(lambda: state_of(relay)["status"] == "running")
        client = RelayClient(relay.url, name="dashboard: ann")
        assert client.pause(["shop"], reason="maintenance", if_seen="running")[0]["status"] == "paused"
        with pytest.raises(StateDiffers, match="shop was running when you looked, and is paused now"):
            client.pause(["shop"], if_seen="running")
        assert post(relay, "/controlSources/unpause", if_seen="running").status == 412
        assert state_of(relay)["status"] == "paused"
    entries = [json.loads(line) for line in (tmp_path / "relay" / "audit.jsonl").read_text().splitlines()]
    assert [(each["who"]["client"], each["result"][:12]) for each in entries] == [
        ("dashboard: ann", "done"), ("dashboard: ann", "StateDiffers"), ("localhost", "StateDiffers"),
    ]  # fmt: skip
    assert entries[0]["asked"] == {"sources": ["shop"], "reason": "maintenance"}
