"""A relay that cannot start leaves nothing behind: no server, no capture, no lock; and says why."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from databus.core import ConfigError, LockHeld
from databus.relay import Relay
from databus.relay import _relay as relay_module
from databus.relay._capture import Capture
from tests.relay.support import (
    WAIT_S,
    Database,
    ScriptedSource,
    config_of,
    get,
    order,
    published,
    sale,
    scripted,
    until,
)


def relay_of(folder: Path, listen: str = "127.0.0.1:0") -> Relay:
    shop = Database(groups=[order(1)])
    config = config_of(folder, {"shop": shop}, listen=listen)
    return Relay(config, open_source=lambda name, _: ScriptedSource(name, shop))


def ours() -> list[str]:
    names = ("capture-", "relay-", "write-", "databus-log-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


def after(attribute: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The same, and then it fails: as where memory, threads or files run out right then."""

    def failing(*args: Any, **options: Any) -> Any:
        attribute(*args, **options)
        raise error

    return failing


@pytest.mark.parametrize("step", ["replace_file", "start", "wait_until_settled"])
def test_a_start_that_fails_half_way_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    where: Any = relay_module if step == "replace_file" else Capture
    with monkeypatch.context() as patch:
        patch.setattr(where, step, after(getattr(where, step), OSError("no more of it")))
        relay = relay_of(tmp_path)
        with pytest.raises(OSError, match="no more of it"):
            relay.start()
        port = int(relay.url.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=WAIT_S):
            pass
    until(lambda: not ours(), "the end of its threads")
    assert not (tmp_path / "relay" / "relay.json").exists()
    with relay_of(tmp_path) as again:
        assert get(again, "/sources").status == 200


def test_a_relay_says_ready_only_where_it_captures(tmp_path: Path) -> None:
    refused = Database(groups=[], errors=[LockHeld("shop: owned by another relay")])
    config = config_of(tmp_path, {"shop": refused})
    with capture_logs() as logs, Relay(config, open_source=lambda name, _: ScriptedSource(name, refused)):
        said = {each["event"]: each for each in logs}
    assert "relay ready" not in said
    why = said["relay answers, but does not capture"]["not_captured"]
    assert "owned by another relay" in why["shop"]


def test_a_folder_that_cannot_be_made_is_a_configuration_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "relay").write_text("a file")
    relay = relay_of(tmp_path)
    with pytest.raises(ConfigError, match=r"relay: "):
        relay.start()
    assert relay._server.loop.is_closed()
    assert not ours()


def test_a_server_that_ends_for_any_reason_before_it_is_bound_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from databus.relay import _server

    monkeypatch.setattr(_server.web.AppRunner, "setup", after(lambda *_: None, RuntimeError("no loop")))
    with pytest.raises(RuntimeError, match="no loop"):
        relay_of(tmp_path).start()
    assert not ours()


def test_ids_are_kept_over_restarts_and_may_be_forced(tmp_path: Path) -> None:
    sources = {"shop": {"type": "mock", "ids": {"main.stock": 40}}}
    for _ in range(2):
        with scripted(tmp_path, {"shop": Database(groups=[sale(1)])}, sources=sources) as relay:
            published(relay, "shop", 1)
            assert {each["name"]: each["id"] for each in get(relay, "/sources").json} == {
                "shop/main.orders": 1,
                "shop/main.stock": 40,
            }
