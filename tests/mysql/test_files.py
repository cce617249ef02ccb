"""Binary log files without a server."""

import json
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.core import ConfigError, CorruptData, PositionPurged, SourceChanged, UnknownSource, UnsupportedFeature
from databus.sources import parse_source
from databus.sources.mysql import BinlogConfig, BinlogSource
from databus.sources.mysql._source import MysqlSource
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from tests.mysql.following import Copy, config_of


def source_of(path: Path, database: str, **options: Any) -> BinlogSource:
    """The files at a path, which begin after `database` was made."""
    settings = {"group_bytes_max": 2048, "database_charsets": {database: "utf8mb4"}, **options}
    return BinlogSource("old", BinlogConfig(path=str(path), tables=[f"{database}.*"], **settings))


def read(source: BinlogSource, tape: Tape, folder: Path, *, groups_max: int | None = None) -> None:
    """Read until nothing more comes, or so many groups."""
    source.identify()
    source.tables()
    source.start(replace(tape.resume(), folder=folder))
    try:
        while groups_max is None or groups_max > 0:
            group = source.poll(0)
            if group is None:
                return
            tape.append(group)
            groups_max = None if groups_max is None else groups_max - 1
    finally:
        source.close()


def copied(tape: Tape) -> Copy:
    copy = Copy()
    for group in tape.groups:
        copy.take(group)
    return copy


@pytest.fixture
def logs(server: Server, database: str, tmp_path: Path) -> tuple[Path, Path]:
    """A folder with some log files of a server, in which tables were made and changed; and their definitions."""
    server.run("FLUSH BINARY LOGS")
    first = server.position()[0]
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(30), d DECIMAL(9,2))")
    for number in range(60):
        server.run(f"INSERT INTO {database}.t VALUES ({number}, REPEAT('x', {number % 30}), {number}.5)")
        if number % 25 == 24:
            server.run("FLUSH BINARY LOGS")
    server.run(
        f"UPDATE {database}.t SET v = CONCAT(v, '!') WHERE id % 2 = 0",
        f"ALTER TABLE {database}.t ADD COLUMN w INT DEFAULT 5",
        f"DELETE FROM {database}.t WHERE id < 7",
        f"INSERT INTO {database}.t VALUES (1000, 'last', 1, 2)",
    )
    folder = tmp_path / "logs"
    folder.mkdir()
    for path in server.binlogs():
        if path.name >= first and path.suffix != ".index":
            shutil.copy(path, folder / path.name)
    return folder, tmp_path / "state"


def test_files_give_what_the_server_holds(server: Server, database: str, logs: tuple[Path, Path]) -> None:
    tape = Tape()
    read(source_of(logs[0], database), tape, logs[1])
    assert copied(tape).differences(server, database) == []
    assert len({group.commit.position["file"] for group in tape.groups}) > 1
    again = Tape()
    while True:  # a new source for every few groups
        before = len(again.groups)
        read(source_of(logs[0], database), again, logs[1], groups_max=3)
        if len(again.groups) == before:
            break
    assert again.logged() == tape.logged()


def test_columns_of_files_come_as_text_from_the_beginning_of_a_log_on(
    server: Server, database: str, logs: tuple[Path, Path]
) -> None:
    folder, state = logs
    types, tape = {f"{database}.t": {"id": "string", "d": "string", "w": "string"}}, Tape()
    read(source_of(folder, database, types=types), tape, state)
    rows = [row for _, row in copied(tape).tables[f"{database}.t"].values()]
    there = server.query(f"SELECT CAST(id AS CHAR), v, CAST(d AS CHAR), CAST(w AS CHAR) FROM {database}.t")
    assert sorted((row["id"], row["v"], row["d"], row["w"]) for row in rows) == sorted(there)
    with pytest.raises(ConfigError, match=rf"columns of {database}\.t come otherwise"):
        read(source_of(folder, database), tape, state)


def test_groups_and_reads_of_any_size_hold_the_same(
    server: Server, database: str, logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.connect(database=database, autocommit=False) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE b (id INT PRIMARY KEY, v TEXT)")
        for number in range(40):  # one transaction of many groups, over two tables
            cursor.execute("REPLACE INTO b VALUES (%s, REPEAT('y', %s))", (number % 7, number * 150))
            cursor.execute("UPDATE t SET v = 'z', d = d + 1 WHERE id > %s", (number * 2,))
        session.commit()
    server.run("FLUSH BINARY LOGS")
    for path in server.binlogs():
        if path.name >= min(each.name for each in logs[0].iterdir()) and path.suffix != ".index":
            shutil.copy(path, logs[0] / path.name)
    found = []
    for group_bytes_max, read_bytes in [(1024, 4 << 20), (1024, 777), (4096, 4096), (4 << 20, 300), (4 << 20, 4 << 20)]:
        monkeypatch.setattr("databus.sources.mysql._file_source._READ_BYTES", read_bytes)
        tape, state = Tape(), logs[1] / f"{group_bytes_max}-{read_bytes}"
        read(source_of(logs[0], database, group_bytes_max=group_bytes_max), tape, state)
        found.append(tape)
    assert all(tape.logged() == found[0].logged() for tape in found)
    assert any(group.commit.continues for group in found[0].groups)
    assert copied(found[0]).differences(server, database) == []


def test_a_growing_folder_is_followed(server: Server, database: str, logs: tuple[Path, Path]) -> None:
    tape = Tape()
    files = sorted(logs[0].iterdir())
    later = {path: path.read_bytes() for path in files[1:]}
    for path in later:
        path.unlink()
    source = source_of(logs[0], database)
    source.identify()
    source.start(replace(tape.resume(), folder=logs[1]))

    def grow() -> None:
        for path, content in later.items():
            with path.open("wb") as file:
                for at in range(0, len(content), 1000):
                    file.write(content[at : at + 1000])
                    file.flush()
                    time.sleep(0.001)

    thread = threading.Thread(target=grow)
    thread.start()
    end = time.monotonic() + 60
    while 1000 not in [key[0] for key in copied(tape).tables.get(f"{database}.t", {})]:
        assert time.monotonic() < end, "the last row never comes"
        group = source.poll(50)
        if group is not None:
            tape.append(group)
    thread.join()
    source.close()
    assert copied(tape).differences(server, database) == []


def test_definitions_stand_in_for_names_that_the_log_does_not_have(plain_server: Any, tmp_path: Path) -> None:
    server: Server = plain_server("mysql-5.7")
    server.run("CREATE DATABASE IF NOT EXISTS unnamed", "DROP TABLE IF EXISTS unnamed.t")
    server.run("CREATE TABLE unnamed.t (id INT PRIMARY KEY, v VARCHAR(9)) CHARSET latin1", "FLUSH BINARY LOGS")
    file = server.position()[0]
    server.run("INSERT INTO unnamed.t VALUES (1, 'a'), (2, NULL)")
    path = tmp_path / file
    shutil.copy(next(each for each in server.binlogs() if each.name == file), path)
    with pytest.raises(
        SourceChanged,
        match=r"nothing says what the columns of unnamed\.t are.*\(first met in binlog\.\d+ at \d+ \(event at \d+\)\)",
    ):
        read(source_of(path, "unnamed"), Tape(), tmp_path / "first")
    source = MysqlSource("live", config_of("unnamed", server, snapshot="never"))
    keeper = source._keeper(source._hosts.connected().facts, None)
    keeper.use(keeper.read_catalogue(source._hosts.connected().connection))
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps([each.to_json() for each in keeper.definitions() if each.database == "unnamed"]))
    source.close()
    tape = Tape()
    read(source_of(path, "unnamed", definitions=str(definitions)), tape, tmp_path / "second")
    assert copied(tape).differences(server, "unnamed") == []
    server.run("DROP DATABASE unnamed")


def test_what_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no binary log files"):
        source_of(tmp_path, "db").identify()
    (tmp_path / "binlog.000001").write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(CorruptData, match=r"binlog\.000001: is no binary log"):
        source_of(tmp_path, "db").tables()
    (tmp_path / "other.000001").write_bytes(b"")
    with pytest.raises(ConfigError, match="files of several servers"):
        source_of(tmp_path, "db").identify()
    with pytest.raises(ConfigError, match=r"sources\.old\.on_class3"):
        parse_source({"type": "binlog", "path": "x", "on_class3": "resnapshot"}, "sources.old")


def test_files_that_are_gone_or_others_are_told_apart(database: str, logs: tuple[Path, Path], tmp_path: Path) -> None:
    tape = Tape()
    read(source_of(logs[0], database), tape, logs[1], groups_max=3)
    with pytest.raises(UnknownSource, match="hold no tables to read"):
        source_of(logs[0], database).request_snapshot([f"{database}.t"])
    here = logs[0] / tape.groups[-1].commit.position["file"]
    older = [path for path in sorted(logs[0].iterdir()) if path.name <= here.name]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in older:
        path.rename(moved / path.name)
    with pytest.raises(PositionPurged, match=here.name):
        read(source_of(logs[0], database), tape, logs[1])
    here.write_bytes((moved / here.name).read_bytes()[:150])
    with pytest.raises(SourceChanged, match="not the folder that we knew"):
        read(source_of(logs[0], database), tape, logs[1])


def test_a_cut_file_before_another_is_an_error_with_its_place(database: str, logs: tuple[Path, Path]) -> None:
    first = sorted(logs[0].iterdir())[0]
    first.write_bytes(first.read_bytes()[:-10])
    with pytest.raises(CorruptData, match=first.name):
        read(source_of(logs[0], database), Tape(), logs[1])


def test_ddl_that_needs_the_table_stops(server: Server, database: str, logs: tuple[Path, Path]) -> None:
    server.run("FLUSH BINARY LOGS")
    server.run(f"ALTER TABLE {database}.t MODIFY d FLOAT", f"UPDATE {database}.t SET d = 1")
    for path in server.binlogs():
        if (logs[0] / sorted(logs[0].iterdir())[0].name).name <= path.name:
            shutil.copy(path, logs[0] / path.name)
    with pytest.raises(UnsupportedFeature, match=r"the data of .* changed in a way that the log does not show"):
        read(source_of(logs[0], database), Tape(), logs[1])
