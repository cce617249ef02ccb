"""What was answered is there after any crash: torn ends are cut off, damage is named, kills lose nothing."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from databus.core import CRASH_POINTS, CorruptData, DiskFull, SystemClock
from databus.relay.groups import GroupKeeper, GroupLimits
from databus.relay.groups._journal import NAME, GroupJournal
from databus.relay.groups._names import NAME as NAMES
from databus.relay.groups._names import Listed, NameState, read_names, write_names
from databus.testing import RelayProcess
from tests.relay.groups.test_groups_http import BERT, Member
from tests.relay.support import get

BATCHES = [[{"group": "a", "n": n}, {"group": "b", "n": n}] for n in range(4)]
POINTS = [name for name in CRASH_POINTS if name.startswith("groups.")]


def written(folder: Path) -> bytes:
    journal = GroupJournal(folder)
    journal.read()
    journal.rewrite(BATCHES[0])
    for batch in BATCHES[1:]:
        journal.append(batch)
    journal.close()
    return (folder / NAME).read_bytes()


def read(folder: Path) -> list[dict[str, Any]]:
    journal = GroupJournal(folder)
    try:
        return journal.read()
    finally:
        journal.close()


def test_whatever_a_crash_leaves_of_the_last_batch_is_cut_off_and_written_over(tmp_path):
    content = written(tmp_path)
    last = content.rstrip(b"\n").rindex(b"\n") + 1
    whole = [record for batch in BATCHES[:-1] for record in batch]
    for kept in (last, last + 1, last + 9, last + 20, len(content) - 2):
        for behind in (b"", b"\0" * 40, b"\n\0\n"):
            (tmp_path / NAME).write_bytes(content[:kept] + behind)
            assert read(tmp_path) == whole
    journal = GroupJournal(tmp_path)
    journal.read()
    journal.append(BATCHES[3])
    journal.close()
    assert read(tmp_path) == [*whole, *BATCHES[3]]


def test_damage_before_a_good_batch_is_named_with_its_place_and_what_to_do(tmp_path):
    content = bytearray(written(tmp_path))
    first = content.index(b"\n") + 1
    content[first + 30] ^= 1
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(CorruptData, match=f"byte {first} .*Move it away"):
        read(tmp_path)


def test_the_names_are_old_or_new_and_damage_is_named(tmp_path):
    assert read_names(tmp_path) == {}
    names = {"a": Listed(NameState.KEPT, 4), "b": Listed(NameState.BEGINS, start={"time": "2026-07-01"})}
    write_names(tmp_path, names)
    assert read_names(tmp_path) == names
    (tmp_path / NAMES).write_bytes((tmp_path / NAMES).read_bytes()[:-1])
    with pytest.raises(CorruptData, match="Move it away"):
        read_names(tmp_path)


@pytest.mark.parametrize(
    "batch",
    [
        '[{"group": "a", "partitions": {}}]',
        '[{"grup": "a"}]',
        '[{"group": "a", "head": {"filters": 1}}]',
        '["a"]',
        "[" * 100_000,
    ],
)
def test_whatever_the_journal_says_the_relay_starts_and_groups_alone_are_refused(tmp_path, batch):
    journal = GroupJournal(tmp_path)
    journal.rewrite([])
    journal.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"%08x %s\n" % (crc32c(batch.encode()), batch.encode()))
    keeper = GroupKeeper(tmp_path, GroupLimits(), SystemClock())
    keeper.open()
    with pytest.raises(CorruptData, match=r"cannot be followed .*Move it away"):
        _ = keeper.machine
    keeper.close()


def relay_of(folder: Path) -> RelayProcess:
    options = {"groups": {"lease_ms": 300}}
    return RelayProcess(folder, {"shop": {"type": "mock", "transactions_total": 3}}, **options)


def save_until_dead(member: Member) -> tuple[int, int]:
    """The last SCN whose save was answered, and the last that was asked for; -1 before the group was answered."""
    answered = asked = -1
    with suppress(OSError, ConnectionError):
        member.call(start="beginning")
        answered = 0
        for scn in range(1, 10_000):
            asked = scn
            assert member.call(holds={"0": member.saved("0", scn)}).status == 200
            answered = scn
    return answered, asked


def check_after(url: str, member: Member, answered: int, asked: int) -> None:
    """The group stands where it was answered to stand, or one save further, and goes on with a higher fence."""
    before = int(member.holds["0"]["fence"]) if member.holds else 0
    other = Member(url, BERT, start="beginning")
    while "0" not in other.places:
        answer = other.call(wait_ms=200)
        assert answer.status == 200, answer.json
    assert answered <= other.places["0"]["sources"]["shop"]["scn"] <= max(asked, 0)
    assert other.holds["0"]["fence"] > before


@pytest.mark.parametrize("point", POINTS)
def test_what_was_answered_survives_a_kill_at_every_place(tmp_path, point):
    relay = relay_of(tmp_path)
    relay.env = {"DATABUS_CRASH_AT": f"{point}:1" if "rename" in point else f"{point}:4"}
    relay.start()
    member = Member(relay.url)
    answered, asked = save_until_dead(member)
    assert relay.wait_until_dead() == -signal.SIGKILL
    relay.env = {}
    with relay:
        check_after(relay.url, member, answered, asked)


def test_what_was_answered_survives_a_kill_at_any_time(tmp_path):
    relay = relay_of(tmp_path)
    relay.start()
    member = Member(relay.url)
    threading.Timer(0.3, os.kill, (relay.pid, signal.SIGKILL)).start()
    answered, asked = save_until_dead(member)
    relay.wait_until_dead()
    assert answered > 0
    with relay:
        check_after(relay.url, member, answered, asked)
    content = bytearray((tmp_path / "relay" / NAME).read_bytes())
    content[content.index(b"\n") + 20] ^= 1
    (tmp_path / "relay" / NAME).write_bytes(content)
    with relay:  # streams without a name go on
        answer = Member(relay.url).call()
        assert (answer.status, answer.json["error"]) == (500, "CorruptData")
        assert get(relay.url, "/position").status == 200
        assert "databus_group_partitions" not in get(relay.url, "/metrics").body.decode().replace("databus_groups", "")
    (tmp_path / "relay" / NAME).unlink()
    with relay:
        answer = Member(relay.url).call()
        assert (answer.json["error"], answer.json["reason"]) == ("GroupStateLost", "lost")
        assert get(relay.url, "/groups").json["lost"] == ["billing"]


def test_a_disk_that_is_full_refuses_and_goes_on_when_there_is_room(tmp_path, monkeypatch):
    journal = GroupJournal(tmp_path)
    journal.read()
    journal.rewrite(BATCHES[0])
    with monkeypatch.context() as full:

        def refuse(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        full.setattr("databus.relay.groups._journal.write_all", refuse)
        with pytest.raises(DiskFull):
            journal.append(BATCHES[1])
    assert journal.wants_rewriting
    journal.rewrite([*BATCHES[0], *BATCHES[1]])
    journal.append(BATCHES[2])
    journal.close()
    assert read(tmp_path) == [record for batch in BATCHES[:3] for record in batch]
