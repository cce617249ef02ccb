"""The value oracle: random tables over all types, random transactions with DDL between them, snapshot and log together.

What a mirror makes of it must equal the server's own SELECT, value by value, on every server. The seed is printed; give
it as DATABUS_SEED to see the same again.
"""

import random
import struct
from pathlib import Path
from typing import Any

import pymysql
import pytest

from databus.schema import user_schema
from databus.testing.servers import Server
from tests.mysql.following import Copy, Follower, config_of
from tests.mysql.rows import test_types_on_servers as types

_COMMON = [*types.INTEGERS, *types.DECIMALS, *types.FLOATS, *types.TIMES, *types.TEXTS, *types.BYTES]
_COLUMNS = 14
_ROWS = 60
# what a column may become without a value changing, and literal defaults for columns that are added
_WIDER = {"TINYINT": "INT", "SMALLINT": "BIGINT", "MEDIUMINT": "BIGINT", "INT": "BIGINT", "TINYTEXT": "MEDIUMTEXT"}
_DEFAULTS = [
    ("INT", "7"), ("DECIMAL(12,2)", "3.50"), ("VARCHAR(20)", "'gr\xfcn'"), ("DATETIME(3)", "'2020-02-29 01:02:03.456'"),
    ("DOUBLE", "1.5"), ("BIGINT UNSIGNED", "18446744073709551615"), ("DATE", "'1999-12-31'"), ("BIT(5)", "b'101'"),
]  # fmt: skip


class Oracle:
    """A table of random columns, and statements on it. `words`: by column, its type as it was written."""

    def __init__(self, server: Server, database: str, name: str, dice: random.Random) -> None:
        choices = [*_COMMON, *(types.MARIADB if "mariadb" in server.kind else [])]
        self.name = name
        self.words: dict[str, str] = {}
        self.values: dict[str, list[str]] = {}
        self._dice = dice
        self._count = 0
        for words, values in dice.sample(choices, _COLUMNS):
            self._note(self._new_name(), words, values)
        key = dice.choice(["id INT", "id BIGINT UNSIGNED", "id VARCHAR(12) CHARACTER SET latin1", "id DECIMAL(20,0)"])
        columns = ", ".join(f"{column} {_nullable(words)}" for column, words in self.words.items())
        self.create = f"CREATE TABLE {database}.{name} ({key} PRIMARY KEY, {columns}) DEFAULT CHARSET utf8mb4"

    def _new_name(self) -> str:
        self._count += 1
        return f"c{self._count}"

    def _note(self, column: str, words: str, values: list[str]) -> None:
        self.words[column], self.values[column] = words, values

    def insert(self, key: int) -> str:
        """REPLACE of a row with random values."""
        values = ", ".join(self._dice.choice(self.values[column]) for column in self.words)
        return f"REPLACE INTO {self.name} (id, {', '.join(self.words)}) VALUES ({key}, {values})"

    def change(self) -> str:
        """A statement on some rows."""
        key, column = self._dice.randrange(_ROWS * 2), self._dice.choice(list(self.words))
        return self._dice.choice(
            [
                self.insert(key),
                f"UPDATE {self.name} SET {column} = {self._dice.choice(self.values[column])} WHERE id % 7 = {key % 7}",
                f"UPDATE IGNORE {self.name} SET id = {key + _ROWS} WHERE id = {key}",
                f"DELETE FROM {self.name} WHERE id = {key}",
            ]
        )

    def alter(self) -> str:
        """A change of the table, of class 1, 2 or 3."""
        column = self._dice.choice(list(self.words))
        words, values = self.words[column], self.values[column]
        match self._dice.randrange(6):
            case 0:
                kind, default = self._dice.choice(_DEFAULTS)
                new = self._new_name()
                self._note(new, kind, [default, "NULL"])
                return f"ALTER TABLE {self.name} ADD COLUMN {new} {kind} DEFAULT {default}"
            case 1:
                kind, values = self._dice.choice(_COMMON)
                new = self._new_name()
                self._note(new, kind, values)
                return f"ALTER TABLE {self.name} ADD COLUMN {new} {_nullable(kind)} FIRST"
            case 2 if len(self.words) > 3:
                del self.words[column], self.values[column]
                return f"ALTER TABLE {self.name} DROP COLUMN {column}"
            case 3 if words in _WIDER:
                self.words[column] = _WIDER[words]
                return f"ALTER TABLE {self.name} MODIFY {column} {_WIDER[words]} NULL"
            case 4:
                new = self._new_name()
                del self.words[column], self.values[column]
                self._note(new, words, values)
                return f"ALTER TABLE {self.name} CHANGE {column} {new} {_nullable(words)}"
            case _:
                return f"ALTER TABLE {self.name} ADD INDEX i{self._dice.randrange(1 << 30)} (id)"

    def compare(self, server: Server, database: str, copy: Copy, follower: Follower) -> None:
        """Every value of the copy against the server's own SELECT of it."""
        expressions = ", ".join(types.selected(words).format(column) for column, words in self.words.items())
        session = server.connect(charset="utf8mb4", database=database, init_command="SET time_zone = '+00:00'")
        with session, session.cursor() as cursor:
            cursor.execute(f"SELECT CAST(id AS CHAR), {expressions} FROM {self.name}")
            theirs = {str(_text(row[0])): row[1:] for row in cursor.fetchall()}
        source = f"{database}.{self.name}"
        ours = {str(key[0]): row for key, (_, row) in copy.tables.get(source, {}).items()}
        assert sorted(ours) == sorted(theirs)
        assert follower.source is not None
        assert follower.source._tables is not None
        schema = user_schema(follower.source._tables.in_force[source])
        for key, wanted in theirs.items():
            for (column, words), want in zip(self.words.items(), wanted, strict=True):
                value, place = ours[key][column], f"{source}.{column} {words} of row {key}"
                if isinstance(want, float):
                    assert struct.pack("<d", value) == struct.pack("<d", want), place
                else:
                    assert types.in_words(words, value, schema.field(column).type) == _text(want), place


def _nullable(words: str) -> str:
    return words if "NULL" in words else f"{words} NULL"


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _play(server: Server, database: str, folder: Path, seed: int, transactions: int) -> None:
    dice = random.Random(seed)
    tables = [Oracle(server, database, name, dice) for name in ("one", "two")]
    server.run(f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)", *(table.create for table in tables))
    options = {"charset": "utf8mb4", "database": database, "autocommit": False}
    with server.connect(**options, init_command="SET time_zone = '+00:00', sql_mode = ''") as session:
        cursor = session.cursor()
        for table in tables:
            for key in range(_ROWS):
                cursor.execute(table.insert(key))
        session.commit()
        follower = Follower(config_of(database, server, chunk_rows_max=16), folder)
        try:
            for number in range(transactions):
                follower.step()
                for _ in range(dice.choice([1, 2, 10])):
                    try:
                        cursor.execute(dice.choice(tables).change())
                    except pymysql.err.DataError:
                        continue  # a value that a server does not take
                session.rollback() if dice.random() < 0.1 else session.commit()
                if number % 6 == 5:
                    cursor.execute(dice.choice(tables).alter())
                if dice.random() < 0.05:
                    follower.kill()
            follower.catch_up(server, database)
            copy = follower.copy()
            for table in tables:
                table.compare(server, database, copy, follower)
        finally:
            follower.kill()


def test_snapshot_and_log_make_what_the_server_holds(server: Server, database: str, tmp_path: Path, seed: int) -> None:
    _play(server, database, tmp_path, seed, 30)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(50))
def test_the_same_for_long(server: Server, database: str, tmp_path: Path, seed: int, number: int) -> None:
    _play(server, database, tmp_path, seed + number, 200)
