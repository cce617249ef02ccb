"""A relay reads its file again: what has not changed goes on untouched, a file with a mistake changes nothing."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from databus.core import InputError, ServiceUnavailable, StreamCut, UnknownSource
from databus.link import FrameStream, RelayClient
from databus.relay import Relay, load_relay
from databus.testing import RelayProcess
from tests.commands import databus, failed
from tests.relay.support import get, post, published, until

QUICK = {"poll_ms": 20, "retry_ms_min": 1, "retry_ms_max": 50}


def mock(total: int, **options: Any) -> dict[str, Any]:
    return {"type": "mock", "transactions_total": total, "rows_per_transaction": 2, **options}


def write(folder: Path, sources: dict[str, Any], **options: Any) -> Path:
    file = folder / "relay.yml"
    whole = {"listen": "127.0.0.1:0", "folder": "relay", "capture": QUICK, "sources": sources, **options}
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    return file


def follow(url: str, physical: str) -> FrameStream:
    client = RelayClient(url)
    return client.stream(physical, client.position(physical, start="latest"), follow=True)


def next_scn(stream: FrameStream) -> int:
    return int(next(stream)[-1].commit.last_scn)


def test_sources_are_added_removed_and_changed_and_others_are_not_touched(tmp_path):
    still = {"type": "mock", "transactions_per_s": 50}
    sources = {"still": still, "grows": mock(3), "goes": mock(3)}
    with Relay(load_relay(write(tmp_path, sources))) as relay:
        for name in ("grows", "goes"):
            published(relay, name, 3)
        log = relay.captures["goes"].log.uuid
        untouched = relay.captures["still"]
        with follow(relay.url, "still") as same, follow(relay.url, "grows") as grows, follow(relay.url, "goes") as gone:
            write(tmp_path, {"still": still, "grows": mock(5), "new": mock(4)})
            told = post(relay, "/reload").json
            assert told == {
                "unchanged": ["still"],
                "changed": ["grows"],
                "added": ["new"],
                "removed": ["goes"],
                "kept": [],
            }
            published(relay, "new", 4)
            last = next_scn(grows)
            while last < 5:  # the stream stays open while its source goes on with other options
                last = next_scn(grows)
            with pytest.raises(StreamCut):
                list(gone)
            with pytest.raises(UnknownSource, match="goes"):
                follow(relay.url, "goes")
            assert relay.captures["still"] is untouched
            assert next_scn(same) < next_scn(same)
            assert untouched.counters.restarts == 0
        assert {each["physical"] for each in get(relay, "/sources", v=2).json} == {"still", "grows", "new"}
        assert set(get(relay, "/config").json["sources"]) == {"still", "grows", "new"}

        write(tmp_path, {"still": still, "goes": mock(6)})
        assert post(relay, "/reload").json["added"] == ["goes"]
        published(relay, "goes", 6)
        assert relay.captures["goes"].log.uuid == log, "its log was kept"


def test_a_file_whose_name_and_paths_are_relative_is_the_same_when_it_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as shop:
        shop.executescript("PRAGMA journal_mode = wal; CREATE TABLE t (id INTEGER PRIMARY KEY)")
    file = write(tmp_path, {"shop": {"type": "sqlite", "path": "shop.db"}})
    with Relay(load_relay(file.relative_to(tmp_path))) as relay:
        told = RelayClient(relay.url).reload()
    assert (told["unchanged"], told["changed"], told["kept"]) == (["shop"], [], [])


def test_a_file_with_a_mistake_changes_nothing_and_says_why(tmp_path, caplog):
    with Relay(load_relay(write(tmp_path, {"shop": mock(3)}))) as relay:
        published(relay, "shop", 3)
        capture = relay.captures["shop"]
        file = write(tmp_path, {"shop": mock(9), "other": {"type": "mok"}})
        refused = post(relay, "/reload")
        assert refused.status == 400
        assert 'did you mean "mock"?' in refused.json["message"]
        assert str(file) in refused.json["message"]
        assert "nothing has changed" in caplog.text
        with pytest.raises(InputError):
            RelayClient(relay.url).reload()
        file.write_text("sources: {shop: {")
        assert post(relay, "/reload").status == 400
        file.unlink()
        assert post(relay, "/reload").status == 400
        assert relay.captures == {"shop": capture}
        assert capture.log.head().published.scn == 3
        assert get(relay, "/reload").status == 405


def test_what_cannot_change_while_the_relay_runs_is_named_and_kept(tmp_path):
    with Relay(load_relay(write(tmp_path, {"shop": mock(3)}))) as relay:
        published(relay, "shop", 3)
        changed = {"shop": mock(4, ids={"main.events": 7})}
        write(tmp_path, changed, listen="127.0.0.1:1", log={"segment_bytes_max": 5000})
        told = post(relay, "/reload").json
        assert [line.partition(":")[0] for line in told["kept"]] == ["listen", "log", "sources.shop.ids"]
        assert "until the relay is started again" in told["kept"][0]
        assert get(relay, "/config").json["listen"] == "127.0.0.1:0"


def test_a_signal_and_a_command_have_a_process_read_its_file_again(tmp_path):
    with RelayProcess(tmp_path, {"shop": mock(3)}, capture=QUICK) as relay:
        file = tmp_path / "relay.yml"
        config = yaml.safe_load(file.read_text())
        config["sources"]["more"] = mock(4)
        file.write_text(yaml.safe_dump(config))
        os.kill(relay.pid, signal.SIGHUP)
        client = RelayClient(relay.url)
        until(lambda: set(client.physicals()) == {"shop", "more"}, "the signal is answered")
        del config["sources"]["shop"]
        config["sources"]["more"] = mock(5)
        file.write_text(yaml.safe_dump(config))
        said = databus("sources", "reload", "--relay", relay.url)
        assert said.stdout.splitlines() == ["more: starts again", "shop: has ended"]
        file.write_text("sources: {}")
        assert "sources: at least one is needed" in failed(databus("sources", "reload", "--relay", relay.url), 2)
        assert set(client.physicals()) == {"more"}
        assert relay.is_running


def test_a_reload_while_the_relay_stops_is_refused(tmp_path):
    with Relay(load_relay(write(tmp_path, {"shop": mock(3)}))) as relay:
        relay.stop()
        write(tmp_path, {"shop": mock(3), "more": mock(3)})
        with pytest.raises(ServiceUnavailable, match="the relay stops"):
            relay.reloads.reload("test")
        assert set(relay.captures) == {"shop"}
