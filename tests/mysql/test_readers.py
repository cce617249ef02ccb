"""Other readers of the same log: the servers' own tools, and a Python library, give the rows that we give.

A random history over all common types goes into a log; each reader makes of it a list of (table, kind, images), with
the values in one form. What a reader is known not to tell exactly is named at the place where it is left out.
"""

import datetime as dt
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql
import pytest

from databus.testing._source_suite import Tape
from databus.testing.servers import Server, ServerMissing
from tests.mysql.rows import test_types_on_servers as types
from tests.mysql.test_files import read, source_of

Image = dict[str, Any]
Change = tuple[str, str, tuple[Image, ...]]

_COLUMNS = 16
_STATEMENTS = 90
_KINDS = {1: "insert", 2: "update", 4: "delete"}
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - readers give times without a zone
_JSON = (
    "JSON",
    [
        '\'{"b": 1, "a": [1.5, true, null]}\'',
        "'\"it\\'s\"'",
        "NULL",
        "'[]'",
        '\'{"k": "\\\\\\\\ \\\\" \N{SNOWMAN}"}\'',
        "'12345678901'",
        "JSON_ARRAY(REPEAT('x', 300), -7, 1e100)",
    ],
)


@dataclass(frozen=True)
class Column:
    """A column as it was declared."""

    words: str
    values: list[str]

    @property
    def base(self) -> str:
        """The type's first word."""
        return re.split(r"[( ]", self.words, maxsplit=1)[0]

    @property
    def members(self) -> list[str]:
        """Those of an ENUM or SET."""
        inner = self.words[self.words.index("(") + 1 : self.words.rindex(")")]
        return [each.replace("''", "'") for each in re.findall(r"'((?:[^']|'')*)'", inner)]

    @property
    def codec(self) -> str:
        """What its text is stored in."""
        named = re.search(r"CHARACTER SET (\w+)", self.words)
        return {"latin1": "cp1252", "koi8r": "koi8_r"}.get(named[1] if named else "", "utf-8")


@dataclass
class History:
    """What was written: the tables, and since where. ours: the changes as we read them."""

    tables: dict[str, dict[str, Column]]
    file: str
    ours: list[Change] = field(default_factory=list)


def write(server: Server, database: str, dice: random.Random, without: tuple[str, ...]) -> History:
    """A random history on three tables of random columns; none of a type that one of these expressions fits."""
    choices = [Column(*each) for each in (*types.INTEGERS, *types.DECIMALS, *types.FLOATS, *types.TIMES)]
    choices += [Column(*each) for each in (*types.TEXTS, *types.BYTES)]
    choices = [each for each in choices if not any(re.match(expression, each.words) for expression in without)]
    dice.shuffle(choices)
    tables: dict[str, dict[str, Column]] = {}
    server.run("FLUSH BINARY LOGS")
    history = History(tables, server.position()[0])
    for name in ("one", "two", "three"):
        mine = [choices.pop() for _ in range(_COLUMNS)] + ([] if "maria" in server.kind else [Column(*_JSON)])
        tables[name] = {"id": Column("INT", []), **{f"c{i}": column for i, column in enumerate(mine)}}
        columns = ", ".join(
            f"{n} {c.words}{'' if 'NULL' in c.words or n == 'id' else ' NULL'}" for n, c in tables[name].items()
        )
        server.run(f"CREATE TABLE {database}.{name} ({columns}, PRIMARY KEY (id)) DEFAULT CHARSET utf8mb4")
    setting = "SET time_zone = '+00:00', sql_mode = ''"
    options = {"charset": "utf8mb4", "database": database, "autocommit": False, "init_command": setting}
    with server.connect(**options) as session, session.cursor() as cursor:
        for _ in range(_STATEMENTS):
            name = dice.choice(list(tables))
            try:
                cursor.execute(_statement(name, tables[name], dice))
            except pymysql.err.DataError:
                continue  # a value that this server does not take
            if dice.random() < 0.4:
                session.commit()
        session.commit()
    server.run("FLUSH BINARY LOGS")
    return history


def _statement(name: str, columns: dict[str, Column], dice: random.Random) -> str:
    def value(column: str) -> str:
        return dice.choice(columns[column].values)

    names = [each for each in columns if each != "id"]
    match dice.randrange(6):
        case 0:
            return f"DELETE FROM {name} WHERE id % 11 = {dice.randrange(11)}"
        case 1 | 2:
            return f"UPDATE {name} SET {(c := dice.choice(names))} = {value(c)} WHERE id % 7 = {dice.randrange(7)}"
        case _:
            rows = [f"({dice.randrange(10**6)}, {', '.join(map(value, names))})" for _ in range(dice.randrange(1, 6))]
            return f"INSERT IGNORE INTO {name} VALUES {', '.join(rows)}"


# --- what we read ---


def read_ourselves(history: History, server: Server, database: str, folder: Path) -> None:
    """Fill in `history.ours` from copies of the log's files."""
    logs = folder / "logs"
    logs.mkdir()
    for path in server.binlogs():
        if path.name >= history.file:
            shutil.copy(path, logs / path.name)
    tape = Tape()
    read(source_of(logs, database), tape, folder / "state")
    found = []
    for group in tape.groups:
        for rows in group.rows:
            columns = history.tables[rows.table.source.partition(".")[2]]
            for row in rows.batch.to_pylist():
                image = {name: _own(column, row[name]) for name, column in columns.items()}
                pair = (row["_commit_version"], row["_seq"])
                found.append((pair, rows.table.source.partition(".")[2], row["_change_type"], image))
    found.sort(key=lambda each: each[0])
    at = 0
    while at < len(found):
        _, name, kind, image = found[at]
        size = 2 if kind == 2 else 1
        history.ours.append((name, _KINDS[kind], (image,) if size == 1 else (image, found[at + 1][3])))
        at += size


def _own(column: Column, value: Any) -> Any:  # noqa: PLR0911
    """One of our values in the form that all are compared in."""
    if value is None:
        return None
    match column.base:
        case "BIT" | "BOOL":
            return int(value)
        case "DECIMAL":
            return Decimal(value)
        case "DATE":
            return f"{value:%Y-%m-%d}".rjust(10, "0")
        case "DATETIME":
            return f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")
        case "TIMESTAMP":
            return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
        case "ENUM":
            return column.members.index(value) + 1 if value else 0
        case "SET":
            return sum(1 << column.members.index(each) for each in value.split(",") if each)
        case "BINARY":
            return value.rstrip(b"\0")  # as the log holds it
        case _:
            return value


# --- the servers' own tools ---

_OPENING = re.compile(rb"### (INSERT INTO|UPDATE|DELETE FROM) `([^`]+)`\.`([^`]+)`")
_VALUE = re.compile(rb"###   @(\d+)=(.*) /\* [^*]* meta=\d+ nullable=[01] is_null=[01] \*/", re.DOTALL)
_SAID = {b"INSERT INTO": "insert", b"UPDATE": "update", b"DELETE FROM": "delete"}


def told_by_tool(
    history: History, command: list[str], paths: list[Path], database: str, *, is_mariadb: bool
) -> list[Change]:
    """What `mysqlbinlog -vv` prints, in the form that all are compared in."""
    told: list[tuple[str, str, list[Image]]] = []
    done = subprocess.run(
        [*command, "--no-defaults", "-vv", "--base64-output=decode-rows", *map(str, paths)],
        capture_output=True,
        check=True,
    )
    columns: dict[str, Column] = {}
    for line in done.stdout.split(b"\n"):
        if opening := _OPENING.match(line):
            name = opening[3].decode()
            is_ours = opening[2].decode() == database
            columns = history.tables[name] if is_ours else {}
            if is_ours:
                told.append((name, _SAID[opening[1]], []))
        elif line in (b"### SET", b"### WHERE") and columns:
            told[-1][2].append({})
        elif columns and (value := _VALUE.fullmatch(line)):
            name = list(columns)[int(value[1]) - 1]
            told[-1][2][-1][name] = _printed(columns[name], value[2], is_mariadb=is_mariadb)
    return [(name, kind, tuple(images)) for name, kind, images in told]


def _printed(column: Column, said: bytes, *, is_mariadb: bool) -> Any:  # noqa: PLR0911
    if said == b"NULL":
        return None
    text = said.decode("latin-1")
    match column.base:
        case "FLOAT" | "DOUBLE":
            return float(text)
        case "DECIMAL":
            return Decimal(text)
        case "DATE":
            return text.strip("'").replace(":", "-")
        case "DATETIME":
            whole, _, fraction = text.strip("'").partition(".")
            return f"{whole}.{fraction:0<6}"
        case "TIMESTAMP":
            whole, _, fraction = text.partition(".")
            return int(whole) * 1_000_000 + int(f"{fraction:0<6}")
        case "TIME":
            return _microseconds(text.strip("'"))
        case "BIT":
            return int(text.removeprefix("b'").removesuffix("'"), 2)
        case "SET":  # byte by byte, and the lowest byte comes first
            bits = text.removeprefix("b'").removesuffix("'")
            return int.from_bytes(int(bits, 2).to_bytes(len(bits) // 8, "big"), "little")
        case _ if text.startswith("'"):
            raw = (_MARIADB_ESCAPE if is_mariadb else _MYSQL_ESCAPE).sub(_unescaped, said[1:-1])
            return raw if column in _BINARIES else raw.decode(column.codec)
        case "YEAR":
            return int(text) % 1900 and int(text)  # the year 0 is printed as 1900, which none is
        case _:  # an integer that is negative as a signed one is followed by what it is as an unsigned one
            numbers = [int(each) for each in re.findall(r"-?\d+", text)]
            return numbers[-1] if "UNSIGNED" in column.words else numbers[0]


_BINARIES = [Column(*each) for each in types.BYTES]
_MARIADB_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")  # a backslash is not escaped
_MYSQL_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_NAMED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"0": b"\0"}


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)]) if found[1] else _NAMED.get(found[2], found[2])


def _microseconds(text: str) -> int:
    hours, minutes, rest = text.removeprefix("-").split(":")
    size = (int(hours) * 3600 + int(minutes) * 60) * 1_000_000 + int(Decimal(rest) * 1_000_000)
    return -size if text.startswith("-") else size


def _as_printed(change: Change, columns: dict[str, Column]) -> Change:
    """Ours, as the tools print it: FLOAT with six digits, and a JSON text without its quotes."""
    name, kind, images = change

    def printed(column: str, value: Any) -> Any:
        if columns[column].base == "FLOAT" and value is not None:
            return float(f"{value:g}")
        if columns[column].base == "JSON" and str(value).startswith('"'):
            return json.loads(value)
        return value

    return name, kind, tuple({c: printed(c, value) for c, value in image.items()} for image in images)


MakeHistory = Callable[..., History]


@pytest.fixture
def make_history(server: Server, database: str, tmp_path: Path, seed: int) -> MakeHistory:
    """Write a history, and read it ourselves. without: types that the other reader cannot read."""

    def make(*without: str) -> History:
        found = write(server, database, random.Random(seed), without)
        read_ourselves(found, server, database, tmp_path)
        assert {kind for _, kind, _ in found.ours} == {"insert", "update", "delete"}
        return found

    return make


def _compare(history: History, ours: list[Change], theirs: list[Change]) -> None:
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        assert mine[:2] == other[:2], f"change {number}"
        for image, wanted in zip(mine[2], other[2], strict=True):
            for name, value in image.items():
                words = history.tables[mine[0]][name].words
                assert value == wanted.get(name), f"change {number}, {mine[0]}.{name} {words}"
    assert len(ours) == len(theirs)


def test_the_servers_own_tool_prints_the_rows_that_we_read(
    server: Server, database: str, make_history: MakeHistory, tmp_path: Path
) -> None:
    try:
        command = server.binlog_command()
    except ServerMissing as missing:
        pytest.skip(f"the tool that prints its logs: {missing}")
    is_mariadb = "mariadb" in server.kind
    # MySQL's tool knows nothing of GEOMETRY, and prints nothing of a row from such a column on
    history = make_history(*([] if is_mariadb else ["GEOMETRY", "POINT"]))
    ours = [_as_printed(change, history.tables[change[0]]) for change in history.ours]
    paths = sorted((tmp_path / "logs").iterdir())
    _compare(history, ours, told_by_tool(history, command, paths, database, is_mariadb=is_mariadb))


# --- the library mysql-replication ---


def told_by_library(library: Any, history: History, server: Server, database: str) -> list[Change]:
    """What the library gives, in the form that all are compared in."""
    events = {
        library.row_event.WriteRowsEvent: "insert",
        library.row_event.UpdateRowsEvent: "update",
        library.row_event.DeleteRowsEvent: "delete",
    }
    settings = {"host": server.host, "port": server.port, "user": server.user, "passwd": server.password}
    stream = library.BinLogStreamReader(
        connection_settings=settings,
        server_id=4321,
        only_events=list(events),
        only_schemas=[database],
        log_file=history.file,
        log_pos=4,
        resume_stream=True,
        blocking=False,
        is_mariadb=False,
    )
    told: list[Change] = []
    try:
        for event in stream:
            columns = history.tables[event.table]
            for row in event.rows:
                images = [row[each] for each in ("before_values", "after_values", "values") if each in row]
                made = tuple({name: _given(columns[name], image[name]) for name in columns} for image in images)
                told.append((event.table, events[type(event)], made))
    finally:
        stream.close()
    return told


def _given(column: Column, value: Any) -> Any:  # noqa: PLR0911
    if value is None:
        return None
    match column.base:
        case "BIT":
            return int(value, 2)
        case "DATE":
            return value.isoformat()
        case "DATETIME":
            return f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")
        case "TIMESTAMP":
            return (value - _EPOCH) // dt.timedelta(microseconds=1)
        case "TIME":
            return value // dt.timedelta(microseconds=1)
        case "YEAR":
            return value % 1900 and value  # the year 0 is given as 1900, which none is
        case "ENUM":
            return column.members.index(value) + 1 if value else 0
        case "SET":
            return sum(1 << column.members.index(each) for each in value)
        case "JSON":
            return _decoded(value)
        case _ if column in _BINARIES and isinstance(value, str):
            return value.encode("latin-1").rstrip(b"\0" if column.base == "BINARY" else b"")
        case _:
            return value


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_decoded(key): _decoded(each) for key, each in value.items()}
    return [_decoded(each) for each in value] if isinstance(value, list) else value


def _as_given(change: Change, columns: dict[str, Column]) -> Change:
    """Ours, with what the library does not tell: it gives JSON as objects, and None for a SET of nothing."""
    name, kind, images = change

    def given(column: str, value: Any) -> Any:
        if value is not None and columns[column].base == "JSON":
            return json.loads(value)
        return None if columns[column].base == "SET" and value == 0 else value

    return name, kind, tuple({c: given(c, value) for c, value in image.items()} for image in images)


@pytest.mark.parametrize("kind", ["mysql-8.0", "mariadb-10.11"])  # the others do not log names
def test_the_library_mysql_replication_gives_the_rows_that_we_read(
    server: Server, database: str, make_history: MakeHistory
) -> None:
    library = pytest.importorskip("pymysqlreplication", reason="it is one of the peers that `make bench` installs")
    # It takes the fraction of a negative TIME for what is missing from a second: -00:00:00.1 becomes -0.9 s. And it
    # loses the members of an ENUM that are not UTF-8 in the log.
    history = make_history(r"TIME\(", "ENUM.*CHARACTER SET")
    ours = [_as_given(change, history.tables[change[0]]) for change in history.ours]
    _compare(history, ours, told_by_library(library, history, server, database))
