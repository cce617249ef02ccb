"""Capture on a full disk: shown, nothing lost or out of order, and on with it when there is room."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from databus.disk import _files
from databus.log import _log as log_module
from databus.relay import State
from tests.relay.support import (
    Database,
    get,
    order,
    published,
    sale,
    scns,
    scripted,
    until,
    wait_for_state,
)

pytestmark = pytest.mark.usefixtures("writing")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """A disk that is full while `is_full` says so: writes to logs fail as the system makes them fail."""
    disk = {"is_full": False}
    really = _files.write_all

    def write(fd: int, buffers: Any, offset: int) -> None:
        if disk["is_full"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(fd, buffers, offset)

    monkeypatch.setattr(log_module, "write_all", write)
    return disk


def test_a_full_disk_is_shown_and_capture_goes_on_when_there_is_room(
    tmp_path: Path, full_disk: dict[str, bool]
) -> None:
    shop = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        full_disk["is_full"] = True
        shop.add(order(2), sale(3))
        status = wait_for_state(relay, State.ERROR_RETRY)
        assert (status["error"], status["restarts"]) == ("DiskFull", 0)
        assert "No space left" in status["message"]
        polls = shop.polls
        assert scns(get(relay, "/stream", output="frames")) == [1]
        until(lambda: relay.captures["shop"].counters.errors > 3)
        assert shop.polls == polls  # the group at hand is kept, the source not asked for another
        full_disk["is_full"] = False
        published(relay, "shop", 3)
        assert scns(get(relay, "/stream", output="frames")) == [1, 2, 3]
        wait_for_state(relay, State.RUNNING)
        assert len(shop.resumes) == 1


def test_a_relay_on_a_full_disk_stops_in_good_order(tmp_path: Path, full_disk: dict[str, bool]) -> None:
    shop = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        full_disk["is_full"] = True
        shop.add(order(2))
        wait_for_state(relay, State.ERROR_RETRY)
    full_disk["is_full"] = False
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 2)
        assert scns(get(relay, "/stream", output="frames")) == [1, 2]


def test_a_stop_on_a_full_disk_puts_nothing_in_the_stead_of_what_waits(
    tmp_path: Path, full_disk: dict[str, bool]
) -> None:
    shop = Database(groups=[order(1)])
    patient = {"capture": {"retry_ms_min": 30_000, "retry_ms_max": 30_000}}
    with scripted(tmp_path, {"shop": shop}, **patient) as relay:
        published(relay, "shop", 1)
        full_disk["is_full"] = True
        shop.add(order(2), order(3))
        wait_for_state(relay, State.ERROR_RETRY)
        full_disk["is_full"] = False  # so that what comes next would fit
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 3)
        assert scns(get(relay, "/stream", output="frames")) == [1, 2, 3]


def test_a_full_disk_keeps_the_order_of_all_that_waits(tmp_path: Path, full_disk: dict[str, bool]) -> None:
    shop = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 1)
        full_disk["is_full"] = True
        shop.add(*(order(n) for n in range(2, 9)))
        wait_for_state(relay, State.ERROR_RETRY)
        full_disk["is_full"] = False
        published(relay, "shop", 8)
        assert scns(get(relay, "/stream", output="frames")) == list(range(1, 9))
        assert len(shop.resumes) == 1


def test_too_little_room_on_the_disk_is_a_full_disk(tmp_path: Path) -> None:
    shop = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}, log={"free_bytes_min": 1 << 60}) as relay:
        status = wait_for_state(relay, State.ERROR_RETRY)
        assert f"free_bytes_min={1 << 60}" in status["message"]
