"""Files that are replaced: whatever a power cut leaves under the name is the old content or the new, whole."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from databus.client import FileCheckpoints
from databus.core import Checkpoint, ConfigError, DiskFull, ServiceUnavailable, SourceCheckpoint, make_scn
from databus.disk import located, make_folder, replace_file, replacing
from databus.sinks.delta._known import Known
from databus.sources.mysql._prepared_store import PreparedStore
from databus.sources.mysql._rolled_back_rows import LeftOut
from databus.sources.mysql._unread_tables import Asked, Unread
from databus.sources.mysql._xa_lookup import WantedTransaction
from databus.sources.mysql.binlog import TransactionOrigin
from databus.sources.mysql.tables import Catalogue, HistoryStore, ServerKind, TableHistory


def save_checkpoint(folder: Path) -> None:
    store = FileCheckpoints(folder / "consumer.json")
    store.open()
    store.save(Checkpoint({"shop": SourceCheckpoint("u", 17)}))
    store.close()


def begin_history(folder: Path) -> None:
    history = TableHistory(ServerKind("mysql", (8, 0, 31)), lambda *_: True)
    history.begin(Catalogue())
    store = HistoryStore(folder)
    store.begin(1, history)
    store.close()


def compact_prepared(folder: Path) -> None:
    store = PreparedStore("shop", folder, scn=0, timeline=1, selection="", bytes_max=1 << 30)
    store._compact()
    store.close()


def note_rolled_back(folder: Path) -> None:
    LeftOut(TransactionOrigin(None, "binlog.000001", 4, 1), "", [(1, 2)]).save(folder)


def note_wanted(folder: Path) -> None:
    WantedTransaction("X'31'", make_scn(1, 5)).save(folder)


def note_unread(folder: Path) -> None:
    Unread(folder).add([Asked("shop.orders")])


def note_tables(folder: Path) -> None:
    Known(located(folder / "tables.json")).add("shop/orders", located(folder / "orders"))


@pytest.mark.parametrize(
    "keep",
    [save_checkpoint, begin_history, compact_prepared, note_rolled_back, note_wanted, note_unread, note_tables],
)
def test_a_store_syncs_a_file_before_it_takes_the_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Callable[[Path], None]
) -> None:
    acts: list[tuple[str, Path]] = []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def renamed(real: Callable[..., None], source: str | Path, target: str | Path) -> None:
        acts.extend([("from", Path(source)), ("to", Path(target))])
        real(source, target)

    def synced(fd: int) -> None:
        acts.append(("sync", Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", lambda source, target: renamed(rename, source, target))
    monkeypatch.setattr(os, "replace", lambda source, target: renamed(replace, source, target))
    keep(tmp_path)
    at = [number for number, (what, _) in enumerate(acts) if what == "from"]
    assert at, "it replaces a file"
    for number in at:
        source, target = acts[number][1], acts[number + 1][1]
        assert ("sync", source) in acts[:number]
        assert ("sync", target.parent) in acts[number:]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    replace_file(path, [b"old"], durable=True)
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half of the new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_room_is_said_to_be_one_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    replace_file(path, [b"old"], durable=True)
    with pytest.raises(DiskFull, match="kept: No space left on device"), replacing(path):
        raise OSError(28, os.strerror(28))
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EMFILE, ServiceUnavailable), (errno.EROFS, ConfigError)]
)
def test_a_folder_that_cannot_be_made_now_is_told_from_one_that_never_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(kind, match=os.strerror(number)):
        make_folder(tmp_path / "new")
