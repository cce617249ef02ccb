"""What the servers' logs are made of in these tests: every way of changing rows, and much that is not captured."""

import re
from pathlib import Path
from typing import Any

import pymysql

from databus.testing.servers import Server

CAPTURED = "shop"


class _Session:
    """Runs statements; what a server's rules forbid (such as GTID consistency) is left out."""

    def __init__(self, server: Server) -> None:
        self._connection = server.connect()
        self._connection.autocommit(False)
        self._cursor = self._connection.cursor()

    def run(self, *statements: str) -> None:
        for sql in statements:
            try:
                self._cursor.execute(sql)
            except pymysql.MySQLError as error:
                if error.args[0] not in (1193, 1785, 1786, 1787, 1051, 3185):
                    raise

    def commit(self, *statements: str) -> None:
        self.run(*statements)
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


def write_history(server: Server) -> None:
    """Fill a server's log."""
    session = _Session(server)
    session.run(
        "CREATE DATABASE shop",
        "CREATE DATABASE other",
        "CREATE TABLE shop.t (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(50), e ENUM('a','b'), "
        "c CHAR(200) CHARACTER SET latin1, d DECIMAL(12,2), b LONGBLOB)",
        "CREATE TABLE shop.m (a INT) ENGINE=MyISAM",
        "CREATE TABLE other.x (id INT PRIMARY KEY, v TEXT)",
    )
    for i in range(30):
        session.commit(f"INSERT INTO shop.t (name, e, c, d, b) VALUES ('n{i}', 'a', 'x', 1.5, 'zz')")
        session.commit(f"INSERT INTO other.x VALUES ({i}, 'only other')")
    session.commit(
        "UPDATE shop.t SET name = 'u' WHERE id < 10",
        "DELETE FROM other.x WHERE id < 5",
        "DELETE FROM shop.t WHERE id = 5",
    )
    session.commit("INSERT INTO shop.m VALUES (1), (2)")
    session.commit("UPDATE shop.t, shop.m SET shop.t.name = 'both' WHERE shop.t.id = 7")
    _savepoints(session)
    session.run("ALTER TABLE shop.t ADD COLUMN z INT DEFAULT 5")
    session.commit("INSERT INTO shop.t (name) VALUES ('after')")
    session.commit("CREATE TABLE shop.copied AS SELECT * FROM shop.t LIMIT 3")
    session.run("FLUSH BINARY LOGS")
    _xa(session)
    session.commit("CREATE TEMPORARY TABLE shop.tmp (a INT)", "DROP TEMPORARY TABLE shop.tmp")
    session.commit("INSERT INTO shop.t (name, b) VALUES ('big', REPEAT('x', 300000))")
    for _ in range(3):
        session.run("INSERT INTO shop.t (name) SELECT name FROM shop.t")
    session.commit("DELETE FROM shop.t WHERE id > 100")
    session.run("TRUNCATE shop.m", "RENAME TABLE shop.t TO shop.t2", "GRANT SELECT ON shop.* TO CURRENT_USER")
    session.commit("INSERT INTO shop.t2 (name) VALUES ('renamed')")
    _compressed(session, server)
    session.close()
    server.run("FLUSH BINARY LOGS")


def _savepoints(session: _Session) -> None:
    session.run("INSERT INTO shop.t (name) VALUES ('s')", "SAVEPOINT a", "INSERT INTO shop.t (name) VALUES ('back')")
    session.commit("ROLLBACK TO a", "SAVEPOINT b", "INSERT INTO shop.t (name) VALUES ('kept')", "RELEASE SAVEPOINT b")


def _xa(session: _Session) -> None:
    session.run(
        "XA START 'a'", "INSERT INTO other.x VALUES (1000, 'q')", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'"
    )
    session.run(
        "XA START 'r'", "INSERT INTO other.x VALUES (1001, 'q')", "XA END 'r'", "XA PREPARE 'r'", "XA ROLLBACK 'r'"
    )
    session.run("XA START 'o'", "INSERT INTO shop.t (name) VALUES ('one')", "XA END 'o'", "XA COMMIT 'o' ONE PHASE")


def _compressed(session: _Session, server: Server) -> None:
    if server.kind.startswith("mariadb"):
        server.run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 20")
        session = _Session(server)
    session.run("SET SESSION binlog_transaction_compression = ON", "SET SESSION binlog_rows_query_log_events = ON")
    for _ in range(20):
        session.commit("INSERT INTO shop.t2 (name, c) VALUES ('small', REPEAT('y', 150))")
    session.run(
        "ALTER TABLE shop.t2 COMMENT "
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
    )
    session.commit("UPDATE shop.t2 SET c = REPEAT('w', 100)")
    session.run("SET SESSION binlog_transaction_compression = OFF")
    if server.kind == "mysql-8.0":
        session.run(
            "CREATE TABLE shop.j (id INT PRIMARY KEY, j JSON)", "SET SESSION binlog_row_value_options = PARTIAL_JSON"
        )
        session.commit(
            """INSERT INTO shop.j VALUES (1, '{"a": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "b": 2}')"""
        )
        session.commit("UPDATE shop.j SET j = JSON_SET(j, '$.b', 3)")
    if server.kind.startswith("mariadb"):
        server.run("SET GLOBAL log_bin_compress = OFF")


def files_of(server: Server, folder: Path) -> dict[str, bytes]:
    """The server's log files, as they are now."""
    return {path.name: path.read_bytes() for path in sorted(server.binlogs()) if re.search(r"\.\d+$", path.name)}


def scheme_of(kind: str, *, gtid: bool) -> Any:
    if not gtid:
        return "file-offset"
    return "domains" if kind.startswith("mariadb") else "gtid"


def flavor_of(kind: str) -> Any:
    return "mariadb" if kind.startswith("mariadb") else "mysql"
