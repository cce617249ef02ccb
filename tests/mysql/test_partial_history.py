"""A history that begins in the middle of a log, where the log names no columns: it does not guess what it lacks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from databus.core import ConfigError, SourceChanged, UnsupportedFeature
from databus.sources import parse_source
from databus.sources.mysql import MysqlSource
from databus.testing._source_suite import Tape
from databus.testing.servers import Server
from tests.mysql.following import config_of, create
from tests.mysql.test_files import copied, read, source_of
from tests.mysql.test_unlogged_ddl import told

E_ACUTE = "h\N{LATIN SMALL LETTER E WITH ACUTE}"


@pytest.fixture
def unnamed(server: Server) -> Any:
    """The shared server, with a log that names no columns."""
    if server.kind == "mysql-5.7":
        yield server
        return
    server.run(f"SET GLOBAL binlog_row_metadata = '{'NO_LOG' if server.flavor == 'mariadb' else 'MINIMAL'}'")
    yield server
    server.run("SET GLOBAL binlog_row_metadata = 'FULL'")


def logged(server: Server, folder: Path, *statements: str) -> Path:
    """The log file that holds these statements and nothing else."""
    server.run("FLUSH BINARY LOGS")
    file = server.position()[0]
    server.run(*statements)
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(next(each for each in server.binlogs() if each.name == file), folder / file))


def definitions_of(server: Server, database: str, path: Path) -> str:
    source = MysqlSource("live", config_of(database, server, snapshot="never"))
    connected = source._hosts.connected()
    keeper = source._keeper(connected.facts, None)
    keeper.use(keeper.read_catalogue(connected.connection))
    path.write_text(json.dumps([each.to_json() for each in keeper.definitions() if each.database == database]))
    source.close()
    return str(path)


def test_create_table_if_not_exists_does_not_say_what_the_table_is(unnamed, database, tmp_path) -> None:
    unnamed.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, n INT UNSIGNED)")
    definitions = definitions_of(unnamed, database, tmp_path / "definitions.json")
    path = logged(
        unnamed,
        tmp_path / "logs",
        f"CREATE TABLE IF NOT EXISTS {database}.t (id INT PRIMARY KEY, n INT)",
        f"INSERT INTO {database}.t VALUES (1, 4000000000)",
    )
    with pytest.raises(SourceChanged, match=r"nothing says what the columns of .*\.t are.*`definitions`"):
        read(source_of(path, database), Tape(), tmp_path / "first")
    tape = Tape()
    read(source_of(path, database, definitions=definitions), tape, tmp_path / "second")
    assert copied(tape).differences(unnamed, database) == []


def test_the_default_character_set_of_an_older_database_is_an_option(unnamed, database, tmp_path) -> None:
    unnamed.run(f"ALTER DATABASE {database} CHARACTER SET latin1")
    path = logged(
        unnamed,
        tmp_path / "logs",
        f"CREATE TABLE {database}.n (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.n VALUES (1)",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO {database}.t VALUES (1, '{E_ACUTE}')",
    )
    tape = Tape()
    with pytest.raises(SourceChanged, match="database_charsets"):
        read(source_of(path, database, database_charsets={}), tape, tmp_path / "first")
    assert len(told(tape, f"{database}.n")) == 1  # what depends on nothing came
    tape = Tape()
    read(source_of(path, database, database_charsets={database: "latin1"}), tape, tmp_path / "second")
    assert copied(tape).differences(unnamed, database) == []
    with pytest.raises(ConfigError, match=r"database_charsets.*klingon"):
        parse_source({"type": "binlog", "path": "x", "database_charsets": {"d": "klingon"}}, "sources.old")


@pytest.mark.parametrize("kind", ["mariadb-10.11", "mysql-5.7"])
def test_explicit_defaults_for_timestamp_is_in_the_log_or_an_option(plain_server, kind, tmp_path) -> None:
    server: Server = plain_server(kind)
    server.run("DROP DATABASE IF EXISTS stamps", "CREATE DATABASE stamps")
    if server.flavor == "mariadb":
        server.run("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    with server.connect(database="stamps", autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SET explicit_defaults_for_timestamp = OFF")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a TIMESTAMP NULL, b TIMESTAMP DEFAULT '2001-01-01')")
        cursor.execute("INSERT INTO t (id) VALUES (2)")
    path = tmp_path / server.position()[0]
    shutil.copy(next(each for each in server.binlogs() if each.name == path.name), path)
    server.run("DROP DATABASE stamps")
    options: dict[str, Any] = {}
    if server.flavor == "mariadb":
        server.run("SET GLOBAL binlog_row_metadata = 'FULL'")
        with pytest.raises(SourceChanged, match="explicit_defaults_for_timestamp, which the log does not say"):
            read(source_of(path, "stamps"), Tape(), tmp_path / "first")
        options = {"explicit_defaults_for_timestamp": False}
    tape = Tape()
    read(source_of(path, "stamps", **options), tape, tmp_path / "second")
    (table,) = [rows.table for group in tape.groups for rows in group.rows]
    assert [column.nullable for column in table.columns] == [False, True, False]


@pytest.mark.parametrize("kind", ["mariadb-10.11", "mysql-5.7"])
def test_whether_the_case_of_names_counts_is_an_option(new_server: Callable[..., Server], kind, tmp_path) -> None:
    server = new_server(kind, row_metadata=None, lines=["lower_case_table_names=1"])
    server.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
    path = logged(
        server,
        tmp_path / "logs",
        "CREATE TABLE shop.Orders (id INT PRIMARY KEY)",
        "ALTER TABLE shop.ORDERS ADD COLUMN n INT UNSIGNED",
        "INSERT INTO shop.oRDERS VALUES (1, 4000000000)",
    )
    with pytest.raises((SourceChanged, UnsupportedFeature), match="lower_case_table_names"):
        read(source_of(path, "shop"), Tape(), tmp_path / "first")
    tape = Tape()
    read(source_of(path, "shop", lower_case_table_names=1), tape, tmp_path / "second")
    assert copied(tape).differences(server, "shop") == []


def test_a_server_is_asked_for_tables_that_were_made_before_the_start(unnamed, database, follow) -> None:
    create(unnamed, database)
    unnamed.run(
        f"ALTER DATABASE {database} CHARACTER SET latin1",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, n INT UNSIGNED, v VARCHAR(9))",
    )
    file, offset = unnamed.position()
    unnamed.run(
        f"CREATE TABLE IF NOT EXISTS {database}.t (id INT PRIMARY KEY, n INT, v VARCHAR(9))",
        f"CREATE TABLE {database}.later (id INT PRIMARY KEY, v VARCHAR(9))",
        f"INSERT INTO {database}.t VALUES (1, 4000000000, '{E_ACUTE}')",
        f"INSERT INTO {database}.later VALUES (1, '{E_ACUTE}')",
    )
    follower = follow(database, unnamed, start=f"{file}:{offset}")
    follower.catch_up(unnamed, database)
    for name in ("t", "later"):
        rows = [row for _, row in follower.copy().tables[f"{database}.{name}"].values()]
        assert [tuple(row.values()) for row in rows] == unnamed.query(f"SELECT * FROM {database}.{name}")
