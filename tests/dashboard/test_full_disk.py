"""A dashboard whose own disk is full: it goes on showing, says what it cannot keep, and does nothing unrecorded."""

import asyncio
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from databus.core import DatabusError, FatalError, ServiceUnavailable, StateDiffers
from databus.dashboard import Alerting, _numbers, part_of_file
from databus.dashboard._alert_rules import Is, Rule
from databus.dashboard._operations import Operation, Operations
from databus.dashboard._rights import Principal
from databus.relay import Audit, read_audit
from tests.dashboard.parts import Pipeline, wait_until
from tests.dashboard.running import Running, token_of

FAILED = Rule("Failed", "databus_output_state", Is.ABOVE, 0, "look at it", labels={"state": "failed"})
ANN = {"name": "ann", "rights": ["see", "rows", "control"]}


@dataclass
class Disk:
    """That of one folder: writes to its files fail while it is full, as the system makes them fail."""

    folder: Path
    is_full: bool = False
    left: int = 0
    """Bytes that still find room."""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(tmp_path / "dashboard")

    def refusing(name: str) -> None:
        really = getattr(os, name)

        def write(fd: int, content: Any, *more: Any) -> int:
            if not disk.is_full or disk.folder not in Path(f"/proc/self/fd/{fd}").readlink().parents:
                return int(really(fd, content, *more))
            if not disk.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = really(fd, content[: disk.left], *more)
            disk.left -= written
            return int(written)

        monkeypatch.setattr(os, name, write)

    for name in ("write", "pwrite", "pwritev", "writev"):
        refusing(name)
    yield disk
    disk.is_full = False


def test_a_full_disk_stops_nothing_is_shown_and_what_cannot_be_recorded_is_not_done(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(_numbers, "FINE_S", 3)  # else a point of a chart each ten seconds
    with (
        Pipeline(tmp_path / "shop") as shop,
        Running(disk.folder, [part_of_file(shop.file)], [ANN], alerting=Alerting((FAILED,))) as running,
    ):

        def api(path: str, body: Any = None, **more: Any) -> Any:
            return running.api(path, body, token=token_of("ann"), **more)[:2]

        def output(name: str) -> Any:
            return next(each for each in api("/status")[1]["outputs"] if each["output"] == name)

        def alert() -> Any:
            return next((each for each in api("/alerts")[1]["open"] if each["state"] == "firing"), None)

        running.wait_for_outputs(2, token_of("ann"))
        shop.published.take({"event": "failed", "query": shop._plans[0].name, "message": "x", "at_us": 1})
        found = wait_until(alert)

        disk.is_full = True
        for path in ("/outputs/shop/hook/pause", f"/alerts/{found['id']}/ack"):
            status, said = api(path, {"reason": "the disk is full"})
            assert (status, "No space left on device" in said["message"]) == (503, True), said
        assert output("hook")["state"] == "running"
        assert alert()["acked_by"] == ""
        assert not (shop.config.state / "audit.jsonl").exists(), "the pipeline was asked for nothing"
        shop.batch(rows=41, output="hook")
        wait_until(lambda: output("hook")["rows"] == 41)
        wait_until(lambda: any("history of charts" in each for each in api("/alerts")[1]["troubles"]))

        disk.is_full = False
        assert api("/outputs/shop/hook/pause", {"reason": "there is room"})[0] == 202
        assert api(f"/alerts/{found['id']}/ack", {"reason": "there is room"})[0] == 200
        wait_until(lambda: output("hook")["state"] == "paused" and not api("/alerts")[1]["troubles"])
        entries = [each for each in api("/audit")[1]["entries"] if each["where"] == "dashboard"]
        assert [(each["action"], each["result"]) for each in entries] == [
            ("alert ack", "done"),
            ("output pause", "done"),
        ]


def test_an_operation_whose_end_finds_no_room_is_one_that_has_begun(tmp_path, disk, monkeypatch):
    really = Audit.note

    def note(audit: Audit, *entry: Any) -> None:
        disk.is_full = True
        really(audit, *entry)

    token = token_of("ann")
    with (
        Pipeline(tmp_path / "shop") as shop,
        Running(disk.folder, [part_of_file(shop.file)], [ANN]) as running,
    ):
        running.wait_for_outputs(2, token)
        with monkeypatch.context() as patch:
            patch.setattr(Audit, "note", note)
            shop._control.__exit__(None, None, None)  # nobody else writes an entry
            assert running.api("/pipelines/shop/reload", {"reason": "x"}, token=token)[0] != 202
        entries = [each for each in running.api("/audit", token=token)[1]["entries"] if each["where"] == "dashboard"]
    assert [(each["action"], each["result"]) for each in entries] == [("pipeline reload", "begun")]


def test_a_request_that_was_refused_and_changed_nothing_is_done_later_by_its_key(disk):
    disk.folder.mkdir()
    done = []

    async def act() -> str:
        done.append("once")
        return "done"

    async def stale() -> str:
        raise StateDiffers("copy is paused now")

    async def broken() -> str:
        raise FatalError("in the middle of it")

    def busy() -> Any:
        raise ServiceUnavailable("too much is under way")

    async def history() -> None:
        operations = Operations(Audit(disk.folder))

        async def ask(begin: Any, key: str = "k") -> Any:
            principal = Principal("ann", frozenset(), frozenset({"*"}))
            return await operations.do(Operation("output pause", "copy", principal, "::1", None, {}), begin, key)

        disk.is_full = True
        with pytest.raises(DatabusError, match="No space left"):
            await ask(act)
        disk.is_full = False
        for refused, error in ((busy, ServiceUnavailable), (stale, StateDiffers)):
            with pytest.raises(error):
                await ask(refused)
        assert [(await ask(act)).result, (await ask(act)).result, done] == ["done", "done", ["once"]]
        with pytest.raises(FatalError):
            await ask(broken, "other")
        assert str((await ask(act, "other")).error) == "in the middle of it", "it may have done something"
        operations.close()

    asyncio.run(history())


@pytest.mark.parametrize("left", [1, 40])
def test_an_entry_that_was_cut_off_costs_no_other(disk, left):
    disk.folder.mkdir()
    audit = Audit(disk.folder)
    audit.note("first", {}, {}, "done")
    disk.is_full, disk.left = True, left
    audit.note("lost", {}, {}, "done")
    disk.is_full = False
    audit.note("second", {}, {}, "done")
    assert [each["action"] for each in read_audit(disk.folder)] == ["first", "second"]
    lines = (disk.folder / "audit.jsonl").read_bytes().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[-1])["action"] == "second"
