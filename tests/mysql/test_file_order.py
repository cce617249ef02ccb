"""A folder of log files: where a file, or the end of one, is missing, nothing behind it is captured, and it is said."""

import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from databus.core import CorruptData, FatalError, PositionPurged, SourceChanged
from databus.sources.mysql import BinlogSource
from databus.sources.mysql.binlog import FIRST_OFFSET
from databus.sources.mysql.binlog._file_ends import beyond, file_end, file_head, together
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from tests.mysql.following import Load, create
from tests.mysql.test_files import copied, read, source_of

CUTS_MAX = 40


def fill(server: Server, database: str, files: int) -> list[Path]:
    """So many files of changes of one table, each of transactions of one row and of several; the files."""
    server.run("FLUSH BINARY LOGS")
    first = server.position()[0]
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(30))")
    for file in range(files):
        for number in range(4):
            at = file * 100 + number * 10
            server.run(f"INSERT INTO {database}.t VALUES ({at}, 'one')")
            server.run(f"INSERT INTO {database}.t VALUES ({at + 1}, 'x'), ({at + 2}, 'y'), ({at + 3}, 'z')")
        server.run(f"UPDATE {database}.t SET v = 'changed' WHERE id >= {file * 100}")
        server.run("FLUSH BINARY LOGS")
    return [path for path in server.binlogs() if path.name >= first]


def copies(paths: list[Path], folder: Path) -> list[Path]:
    """The same files in a folder of their own."""
    folder.mkdir(parents=True)
    return [Path(shutil.copy(path, folder)) for path in paths]


def ids(tape: Tape, database: str) -> set[int]:
    return {key[0] for key in copied(tape).tables.get(f"{database}.t", {})}


def read_until_error(source: BinlogSource, tape: Tape, state: Path) -> FatalError | None:
    try:
        read(source, tape, state)
    except FatalError as error:
        return error
    return None


def boundaries(path: Path) -> list[int]:
    """Where its events begin."""
    content, found = path.read_bytes(), [FIRST_OFFSET]
    while found[-1] < len(content):
        found.append(found[-1] + int.from_bytes(content[found[-1] + 9 : found[-1] + 13], "little"))
    return found


def test_a_missing_file_is_named_and_nothing_behind_it_is_captured(
    server: Server, database: str, tmp_path: Path
) -> None:
    paths = copies(fill(server, database, 4), tmp_path / "logs")
    paths[1].unlink()
    tape = Tape()
    with pytest.raises(PositionPurged, match=rf"{paths[0].name}: the log goes on in the file {paths[1].name}"):
        read(source_of(paths[0].parent, database), tape, tmp_path / "state")
    assert max(ids(tape, database)) < 100
    shutil.copy(next(path for path in server.binlogs() if path.name == paths[1].name), paths[1])
    read(source_of(paths[0].parent, database), tape, tmp_path / "state")
    assert copied(tape).differences(server, database) == []


def test_wherever_a_file_is_cut_all_of_it_is_captured_or_the_next_one_is_not(
    server: Server, database: str, tmp_path: Path, seed: int
) -> None:
    """Also at the ends of events, inside transactions and between them."""
    paths = fill(server, database, 3)
    cuts = [0, 4, *boundaries(paths[1])[1:-1]]
    passed = 0
    for cut in sorted(random.Random(seed).sample(cuts[:-1], min(CUTS_MAX, len(cuts) - 1))) + cuts[-1:]:
        here = copies(paths, tmp_path / str(cut))
        here[1].write_bytes(here[1].read_bytes()[:cut])
        tape = Tape()
        error = read_until_error(source_of(here[0].parent, database), tape, tmp_path / f"state-{cut}")
        if error is None:
            assert copied(tape).differences(server, database) == [], cut
            passed += 1
        else:
            assert here[1].name in str(error)
            assert not any(at >= 200 for at in ids(tape, database)), cut
    assert passed == 1  # with all of its transactions, and without the name of the next file: the GTIDs prove it


def test_without_gtids_a_file_that_does_not_end_is_passed_only_by_order(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = new_server("mysql-8.0", gtid=False)
    server.run("CREATE DATABASE shop")
    paths = copies(fill(server, "shop", 2), tmp_path / "logs")
    paths[0].write_bytes(paths[0].read_bytes()[: boundaries(paths[0])[-2]])  # its transactions are all there
    tape = Tape()
    with pytest.raises(CorruptData, match=r"ends without naming the next file.*set `unfinished_files: pass`"):
        read(source_of(paths[0].parent, "shop"), tape, tmp_path / "state")
    assert max(ids(tape, "shop")) < 100
    read(source_of(paths[0].parent, "shop", unfinished_files="pass"), tape, tmp_path / "state")
    assert copied(tape).differences(server, "shop") == []


@pytest.fixture
def crashed(kind: str, new_server: Callable[..., Server], seed: int) -> Callable[..., Server]:
    """A server that was killed in the middle of its work, some times."""

    def make(**options: Any) -> Server:
        server = new_server(kind, **options)
        server.run("CREATE DATABASE shop")
        create(server, "shop")
        for number in range(3):
            load = Load(server, "shop", seed + number)
            with load:
                load.wait_for(15)
                server.kill()
                load.stop()
            server.start()
        server.run("FLUSH BINARY LOGS")
        return server

    return make


def test_the_files_of_a_server_that_crashed_hold_what_it_holds(crashed: Callable[..., Server], tmp_path: Path) -> None:
    server = crashed()
    paths = copies(server.binlogs(), tmp_path / "logs")
    ends = [file_end(path) for path in paths[:-1]]
    assert any(end is not None and not end.rotates_to and not end.is_stopped for end in ends)
    tape = Tape()
    read(source_of(paths[0].parent, "shop"), tape, tmp_path / "state")
    assert copied(tape).differences(server, "shop") == []


def test_files_of_another_history_are_not_taken_for_what_follows(
    server: Server, new_server: Callable[..., Server], kind: str, database: str, tmp_path: Path
) -> None:
    other = new_server(kind)
    other.run(f"CREATE DATABASE {database}")
    theirs = fill(other, database, 3)
    paths = copies(fill(server, database, 2), tmp_path / "logs")
    for number, path in enumerate(theirs[-2:]):
        shutil.copy(path, paths[0].with_name(paths[1 + number].name))
    tape = Tape()
    with pytest.raises((SourceChanged, PositionPurged), match=paths[0].name):
        read(source_of(paths[0].parent, database), tape, tmp_path / "state")
    assert max(ids(tape, database)) < 100


def test_what_a_file_ends_with_is_what_the_next_one_begins_with(
    server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the file is read: in blocks of any size, with room for few GTIDs at a time."""
    paths = fill(server, database, 3)
    for block_bytes, gtids in [(8 << 20, 1 << 16), (600, 3), (211, 1), (5000, 2)]:
        monkeypatch.setattr("databus.sources.mysql.binlog._file_ends._BLOCK_BYTES", block_bytes)
        monkeypatch.setattr("databus.sources.mysql.binlog._file_ends._GTIDS_A_WALK", gtids)
        for path, following in pairwise(paths):
            end, before = file_end(path), file_head(following).before
            assert end is not None
            assert end.before is not None
            assert before is not None
            assert end.rotates_to == following.name
            assert end.last
            whole = together(together(end.before, end.own), end.last)
            assert not beyond(whole, before)
            assert not beyond(before, whole)


def test_a_log_is_read_over_clean_shutdowns_and_rotations(
    kind: str, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """A server that was shut down says that, and does not name the next file."""
    server = new_server(kind)
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)", "INSERT INTO shop.t VALUES (1)")
    server.restart()
    server.run("INSERT INTO shop.t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (3)")
    server.restart()
    server.run("INSERT INTO shop.t VALUES (4)")
    paths = copies(server.binlogs(), tmp_path / "logs")
    tape = Tape()
    read(source_of(paths[0].parent, "shop"), tape, tmp_path / "state")
    assert copied(tape).differences(server, "shop") == []
    paths[1].unlink()
    with pytest.raises(PositionPurged, match="number 2"):
        read(source_of(paths[0].parent, "shop"), Tape(), tmp_path / "again")
