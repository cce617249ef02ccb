"""A mirror made of the relay's JSON lines, and the server's own answer to hold it against.

Nothing here imports databus: lines are read by `http.client` and applied as docs/wire-format.md says, keys are those of
the tables that the generator makes, and the truth is what the server answers to SELECT.
"""

import base64
import http.client
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode, urlsplit

import pymysql

Row = dict[str, Any]
Pair = tuple[int, int]

_BUS = ("_change_type", "_commit_version", "_seq", "_commit_timestamp", "_txid", "_snapshot", "_source")
_SNAPSHOT_SEQ_MIN = 1 << 40
_READ_S_MAX = 60


def get(url: str) -> bytes:
    """The body of an answer. Raises `ConnectionError` where it is no 200."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=_READ_S_MAX)
    try:
        connection.request("GET", f"{address.path}?{address.query}")
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise ConnectionError(f"{answer.status}: {body.decode(errors='replace')[:2000]}")
    return body


def lines(url: str, after: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """What the relay has behind a position (from its beginning without one): one long poll, every line parsed."""
    start = {"start": "earliest"} if after is None else {"from": json.dumps(after)}
    query = urlencode({"output": "json", "wait_ms": 500, **start})
    for each in get(f"{url}/stream?{query}").splitlines():
        yield json.loads(each)


class Mirror:
    """Tables by key: the last pair wins. A table without a key (`keys` says ()) is a bag of rows."""

    def __init__(self, keys: Mapping[str, Sequence[str]]) -> None:
        self.keys = dict(keys)
        self.tables: dict[str, dict[tuple[Any, ...], tuple[Pair, Row]]] = {}
        self.position: dict[str, Any] | None = None
        self.rows = 0
        self.controls: list[dict[str, Any]] = []
        self._pair: Pair = (0, 0)
        self._tick = 0
        self._read: set[int] = set()  # rows of bags that were read, not logged
        self._being_read: set[str] = set()

    def read(self, url: str) -> None:
        """Apply what the relay has by now. Raises `ConnectionError` where it answers an error."""
        taken: list[dict[str, Any]] = []
        for line in lines(url, self.position):
            if "_position" in line:
                for each in taken:
                    self._apply(each)
                taken.clear()
                self.position = line["_position"]
            else:
                taken.append(line)

    def _apply(self, line: Row) -> None:
        table = str(line["_source"]).partition(".")[2]
        pair = (int(line["_commit_version"]), int(line["_seq"]))
        if pair[1] < _SNAPSHOT_SEQ_MIN:
            assert pair > self._pair, f"{pair} came after {self._pair}: {line}"
            self._pair = pair
        held = self.tables.setdefault(table, {})
        if "_control" in line:
            self._control(table, held, line["_control"], pair)
            return
        self.rows += 1
        row = {name: value for name, value in line.items() if name not in _BUS}
        is_there = line["_change_type"] in ("insert", "update_postimage")
        assert is_there or line["_change_type"] in ("delete", "update_preimage"), line
        columns = self.keys[table]
        if not columns:
            self._bag(table, held, row, pair, is_there=is_there)
            if line["_snapshot"]:
                self._read.add(self._tick)
            return
        key = tuple(row[name] for name in columns)
        if is_there:
            held[key] = (pair, row)
        else:
            held.pop(key, None)

    def _bag(self, table: str, held: dict[Any, tuple[Pair, Row]], row: Row, pair: Pair, *, is_there: bool) -> None:
        """As docs/mysql.md says it for tables without a key."""
        if is_there:
            self._tick += 1
            held[(self._tick,)] = (pair, row)
            return
        equal = [(place, key) for key, (place, other) in held.items() if other == row]
        if equal:
            del held[max(equal)[1]]
        else:
            assert table in self._being_read, f"a row went that never came: {row}"

    def _control(self, table: str, held: dict[Any, tuple[Pair, Row]], control: Row, pair: Pair) -> None:
        self.controls.append({**control, "pair": pair})
        match control["kind"]:
            case "drop":
                self.tables.pop(table, None)
            case "truncate":
                held.clear()
            case "schema" if control["class"] == 3:
                held.clear()
            case "schema":
                names = [column["name"] for column in control["table"]["columns"]]
                for key, (place, old) in list(held.items()):
                    row = {control["renamed"].get(name, name): value for name, value in old.items()}
                    if place < pair:
                        row |= control["fill"]
                    held[key] = (place, {name: row.get(name) for name in names})
            case "snapshot_end" if control["complete"]:
                self._being_read.discard(table)
                begin = tuple(control["begin"])
                is_bag = not self.keys[table]
                for key, (place, _) in list(held.items()):
                    if place < begin or (is_bag and key[0] not in self._read):
                        del held[key]
            case "snapshot_begin":
                self._being_read.add(table)
            case "snapshot_end":
                self._being_read.discard(table)
            case _:
                raise AssertionError(f"no such control was expected: {control}")

    def holds(self, table: str, name: str, value: Any) -> bool:
        """Whether some row of the table has this value."""
        return any(row.get(name) == value for _, row in self.tables.get(table, {}).values())

    def differences(self, connection: "pymysql.Connection[Any]", database: str) -> list[str]:
        """In what this is not what the server answers; empty if in nothing."""
        found = []
        there = _rows(connection, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", database)
        names = {str(name) for (name,) in there}
        found += [f"{name} is not on the server" for name, held in self.tables.items() if name not in names and held]
        for name in sorted(names):
            wanted = _sorted(_select(connection, database, name))
            kinds = _kinds(connection, database, name)
            ours = _sorted([_ours(row, kinds) for _, row in self.tables.get(name, {}).values()])
            if ours != wanted:
                missing = [row for row in wanted if row not in ours][:3]
                more = [row for row in ours if row not in wanted][:3]
                found.append(f"{name}: the server has {len(wanted)} rows, the mirror {len(ours)}; "
                             f"missing {missing}, more {more}")  # fmt: skip
        return found


def _rows(connection: "pymysql.Connection[Any]", sql: str, *args: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _kinds(connection: "pymysql.Connection[Any]", database: str, table: str) -> dict[str, str]:
    sql = "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return {str(name): _text(kind).lower() for name, kind in _rows(connection, sql, database, table)}


def _select(connection: "pymysql.Connection[Any]", database: str, table: str) -> list[Row]:
    """Every value as text that the server makes of it."""
    kinds = _kinds(connection, database, table)
    expressions = []
    for name, kind in kinds.items():
        match kind:
            case "char" | "varchar" | "text" | "enum" | "set":
                expressions.append(f"HEX(CONVERT(`{name}` USING utf8mb4))")
            case "binary" | "varbinary" | "blob":
                expressions.append(f"HEX(`{name}`)")
            case "bit" | "year":
                expressions.append(f"CAST(`{name}` + 0 AS CHAR)")
            case _:
                expressions.append(f"CAST(`{name}` AS CHAR)")
    answered = _rows(connection, f"SELECT {', '.join(expressions)} FROM `{database}`.`{table}`")
    return [
        {
            name: None if value is None else _theirs(_text(value), kind)
            for (name, kind), value in zip(kinds.items(), row, strict=True)
        }
        for row in answered
    ]


def _theirs(value: str, kind: str) -> str:
    return _number(value, kind) if kind in ("decimal", "double") else value


def _number(value: Any, kind: str) -> str:
    return repr(float(value)) if kind == "double" else str(Decimal(str(value)).normalize())


def _ours(row: Row, kinds: Mapping[str, str]) -> Row:
    """A row of the relay's JSON in the same words; a column that the server does not have shows as it came."""
    return {name: None if value is None else _said(value, kinds.get(name, "")) for name, value in row.items()}


def _said(value: Any, kind: str) -> str:
    match kind:
        case "char" | "varchar" | "text" | "enum" | "set":
            return str(value).encode().hex().upper()
        case "binary" | "varbinary" | "blob":
            return base64.b64decode(value).hex().upper()
        case "decimal" | "double":
            return _number(value, kind)
        case "datetime" | "timestamp":
            return _moment(str(value))
        case _:
            return _duration(int(value)) if kind == "time" else str(value)


def _moment(value: str) -> str:
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d+))?Z?", value)
    assert match is not None, value
    return f"{match[1]} {match[2]}" + (f".{match[3].ljust(6, '0')}" if match[3] else ".000000")


def _duration(us: int) -> str:
    seconds, rest = divmod(abs(us), 1_000_000)
    sign = "-" if us < 0 else ""
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


def _sorted(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)
