"""Every character of every character set, in CHAR, VARCHAR, TEXT, ENUM and SET, from snapshot and log, is SELECT's.

Definitions come from the catalogue, from DDL in the log, and from table maps that name everything.
"""

from collections.abc import Iterator

import pymysql
import pytest

from databus.testing.servers import Server
from tests.mysql.following import Copy, Follower

MEMBER_CHARACTERS = 200  # servers take 255
MEMBERS_MAX = 60  # a SET takes 64
MEMBER_BYTES_MAX = 15_000  # of a column: MySQL 5.7 keeps 64 KiB of a table, in hexadecimal digits
UNICODE = {"utf8", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # which is no text: docs/mysql-types.md
BMP = [chr(point) for point in range(0x10000) if not 0xD800 <= point <= 0xDFFF]
ASTRAL = [chr(point) for point in range(0x10000, 0x110000, 0x1FD)]


def characters_of(cursor: "pymysql.cursors.Cursor", charset: str, step: int) -> list[str]:
    """Those of all characters that the server itself brings into that character set and back. step: of Unicode's; of
    other large sets, at most five.
    """
    cursor.execute(
        f"SELECT c FROM characters WHERE CONVERT(CONVERT(c USING {charset}) USING utf8mb4) = c"
        f" AND (CONVERT(c USING {charset}) <> '?' OR c = '?') ORDER BY c"
    )
    found = [str(row[0]) for row in cursor.fetchall() if row[0] not in (",", REPLACEMENT)]
    return found[:: step if charset in UNICODE else min(step, 5) if len(found) > 1_000 else 1]


def members_of(characters: list[str], bytes_max: int) -> Iterator[list[str]]:
    """All characters, in texts for members, each table's in a list. bytes_max: of a character."""
    of_table = min(MEMBERS_MAX, MEMBER_BYTES_MAX // (bytes_max * MEMBER_CHARACTERS))
    inner = ["".join(characters[at : at + MEMBER_CHARACTERS]) for at in range(0, len(characters), MEMBER_CHARACTERS)]
    for at in range(0, len(inner), of_table):
        yield inner[at : at + of_table]


def make_tables(server: Server, database: str, name: str, step: int) -> dict[str, int]:
    """Tables of every character set, each with its number of members; of every member a row."""
    made: dict[str, int] = {}
    with server.connect(database=database, charset="utf8mb4") as session, session.cursor() as cursor:
        cursor.execute("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")
        charsets = {str(name): int(size) for name, size in cursor.fetchall() if name != "binary"}
        for charset, bytes_max in charsets.items():
            characters = characters_of(cursor, charset, step)
            for number, members in enumerate(members_of(characters, bytes_max)):
                table = f"{name}_{charset}_{number}"
                words = f"CHARACTER SET {charset} COLLATE {charset}_bin"
                # MySQL 5.7 tears members apart that two columns have in common
                enum, of_set = (",".join(session.escape(f"{a}{each}{a}") for each in members) for a in "es")
                width = MEMBER_CHARACTERS + 2
                cursor.execute(
                    f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, e ENUM({enum}) {words}, s SET({of_set}) "
                    f"{words}, c CHAR({width}) {words}, v VARCHAR({width}) {words}, x TEXT {words})"
                )
                made[table] = len(members)
    fill(server, database, made)
    return made


def fill(server: Server, database: str, tables: dict[str, int]) -> None:
    for table, members in tables.items():
        rows = ",".join(f"({i}, 0, {i + 1}, {1 << i})" for i in range(members))
        every = f"({members}, 0, 1, {(1 << min(members, 5)) - 1})"
        server.run(
            f"INSERT INTO {database}.{table} (id, n, e, s) VALUES {rows}, {every}",
            f"UPDATE {database}.{table} SET c = e, v = e, x = e",
        )


def touch(server: Server, database: str, tables: dict[str, int]) -> None:
    server.run(*(f"UPDATE {database}.{table} SET n = n + 1" for table in tables))


def set_metadata(server: Server, mode: str) -> None:
    if server.kind != "mysql-5.7":
        server.run(f"SET GLOBAL binlog_row_metadata = {mode}")


@pytest.fixture
def little_metadata(server: Server) -> Iterator[None]:
    """The server's own default: table maps name neither columns nor members."""
    set_metadata(server, "NO_LOG" if "mariadb" in server.kind else "MINIMAL")
    yield
    set_metadata(server, server.row_metadata or "FULL")


@pytest.fixture
def characters(server: Server, database: str) -> str:
    """A database with a table of all characters, and the mark of a follower."""
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.characters (c VARCHAR(1) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)",
    )
    with server.connect(database=database, charset="utf8mb4") as session, session.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        rows = ",".join(f"({session.escape(character)})" for character in [*BMP, *ASTRAL])
        cursor.execute(f"INSERT INTO characters VALUES {rows}")
    return database


def check(follower: Follower, server: Server, database: str) -> Copy:
    """Catch up; what a copy holds is what the server says."""
    follower.catch_up(server, database)
    copy = follower.copy()
    found = copy.differences(server, database)
    assert [each[:2_000] for each in found if not each.startswith("characters:")] == []
    return copy


@pytest.mark.usefixtures("little_metadata")
@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.soak)])
def test_every_character_of_every_column_is_what_select_says(server, characters: str, follow, step: int) -> None:
    database = characters
    before = make_tables(server, database, "before", step)
    follower: Follower = follow(database, server, exclude=["*.characters"])
    check(follower, server, database)
    touch(server, database, before)
    after = make_tables(server, database, "after", step)
    check(follower, server, database)
    set_metadata(server, "FULL")
    touch(server, database, {**before, **after})
    copy = check(follower, server, database)
    assert copy.kinds() == []
