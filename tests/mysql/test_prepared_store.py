"""The file of prepared XA transactions: what it holds after a restart, a crash, a log that was cut back."""

from pathlib import Path

import pytest

from databus.core import CorruptData, LimitExceeded
from databus.sources.mysql import _prepared_store
from databus.sources.mysql._prepared_store import PreparedStore


def event(number: int, size: int = 100) -> bytes:
    """An event of a rows kind as it stands in a log."""
    head = b"\0\0\0\0" + bytes([30]) + b"\0\0\0\0" + (19 + size).to_bytes(4, "little") + b"\0" * 6
    return head + bytes([number]) * size


def opened(folder: Path, scn: int = 0, selection: str = "all", bytes_max: int = 1 << 30) -> PreparedStore:
    return PreparedStore("t", folder, scn=scn, timeline=0, selection=selection, bytes_max=bytes_max)


def prepare(store: PreparedStore, xid: str, scn: int, *events: bytes, is_whole: bool = True) -> None:
    store.begin()
    for each in events:
        store.add(each)
    store.prepare(xid, scn, is_whole=is_whole)


def committed(store: PreparedStore, xid: str, scn: int) -> bytes | None:
    pieces = store.commit(xid, scn)
    return None if pieces is None else b"".join(pieces)


def test_what_is_open_at_the_end_of_the_log_is_there_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    prepare(store, "a", 10, event(1), event(2, 3_000_000))
    prepare(store, "b", 11, event(3))
    prepare(store, "none", 12)
    assert committed(store, "b", 13) == event(3)
    prepare(store, "later", 20, event(4))
    store.sync(20)
    store.close()
    store = opened(tmp_path, 15)
    assert committed(store, "a", 30) == event(1) + event(2, 3_000_000)
    assert committed(store, "none", 31) == b""
    assert committed(store, "b", 32) is None
    assert committed(store, "later", 33) is None


def test_what_was_committed_is_there_again_where_the_log_was_cut_back(tmp_path: Path) -> None:
    store = opened(tmp_path)
    prepare(store, "a", 10, event(1))
    store.sync(11)
    assert committed(store, "a", 12) == event(1)
    prepare(store, "a", 13, event(2))
    store.sync(14)
    store.close()
    store = opened(tmp_path, 11)
    assert committed(store, "a", 12) == event(1)
    prepare(store, "a", 13, event(2))
    assert committed(store, "a", 15) == event(2)


@pytest.mark.parametrize("lost", [1, 50, 130])
def test_what_a_crash_cut_off_is_dropped(tmp_path: Path, lost: int) -> None:
    store = opened(tmp_path)
    prepare(store, "a", 10, event(1))
    prepare(store, "b", 11, event(2))
    store.sync(11)
    store.close()
    path = tmp_path / "prepared"
    path.write_bytes(path.read_bytes()[:-lost])
    store = opened(tmp_path, 10)
    prepare(store, "b", 11, event(3))
    store.sync(11)
    store.close()
    store = opened(tmp_path, 11)
    assert committed(store, "a", 20) == event(1)
    assert committed(store, "b", 21) == event(3)


def test_a_damaged_transaction_is_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    prepare(store, "a", 10, event(1))
    store.sync(11)
    store.close()
    path = tmp_path / "prepared"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptData, match="remove the file"):
        committed(opened(tmp_path, 11), "a", 20)


def test_what_was_left_out_counts_again_where_the_selection_changes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    prepare(store, "whole", 10, event(1))
    prepare(store, "part", 11, event(2), is_whole=False)
    store.sync(11)
    store.close()
    store = opened(tmp_path, 11, "more")
    assert committed(store, "whole", 20) == event(1)
    assert committed(store, "part", 21) is None


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prepared_store, "_GARBAGE_BYTES_MAX", 10_000)
    store = opened(tmp_path)
    prepare(store, "kept", 1, event(9))
    for number in range(2, 2_000, 2):
        prepare(store, "a", number, event(number % 200))
        store.sync(number)
        assert committed(store, "a", number + 1) == event(number % 200)
        store.durable(number + 1)
    assert (tmp_path / "prepared").stat().st_size < 30_000
    assert committed(store, "kept", 3_000) == event(9)
    store.durable(3_000)
    assert (tmp_path / "prepared").stat().st_size < 100
    store.close()


def test_more_than_may_be_prepared_stops(tmp_path: Path) -> None:
    store = opened(tmp_path, bytes_max=1_000)
    prepare(store, "a", 10, event(1, 600))
    with pytest.raises(LimitExceeded, match="prepared_bytes_max"):
        prepare(store, "b", 11, event(1, 600))


def test_only_what_is_open_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prepared_store, "_OPEN_MAX", 3)
    store = opened(tmp_path)
    for number in range(0, 40, 4):
        for xid in "ab":
            prepare(store, xid, number + 1, event(number))
        for xid in "ab":
            assert committed(store, xid, number + 2) == event(number)
    for xid in "abc":
        prepare(store, xid, 50, event(1))
    with pytest.raises(LimitExceeded, match="XA RECOVER"):
        prepare(store, "d", 51, event(1))
