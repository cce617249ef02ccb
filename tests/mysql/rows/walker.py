"""A slow, obvious reader of binlog files and of table definitions, for the tests of row images alone."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import decode, make_plan
from databus.testing.servers import Server

_TABLE_MAP = 19
_ROWS = {23: 1, 24: 2, 25: 3, 30: 1, 31: 2, 32: 3, 39: 4, 166: 1, 167: 2, 168: 3}
_WITH_EXTRA = (30, 31, 32, 39)
_TWO_BITMAPS = (2, 4)


@dataclass
class Map:
    """A table map and the rows events that use it: kind, and where the images are in `buffer`."""

    database: str
    table: str
    types: list[int]
    metas: list[int]
    nullable: list[bool]
    events: list[tuple[int, int, int]] = field(default_factory=list)


def packed(data: bytes, at: int) -> tuple[int, int]:
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(data[at], 0)
    value = int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else data[at]
    return value, at + 1 + width


def unpacked_meta(kind: int, meta: bytes) -> tuple[int, int, int]:
    """Type, meta, and the bytes of meta used, with ENUM, SET and CHAR told apart."""
    if kind in (4, 5, 249, 250, 251, 252, 255, 242, 245, 17, 18, 19, 140):
        return kind, meta[0], 1
    if kind == 254:
        if (meta[0] & 0x30) != 0x30:
            return meta[0] | 0x30, meta[1] | ((meta[0] & 0x30) ^ 0x30) << 4, 2
        return meta[0], meta[1], 2
    if kind == 246:
        return kind, meta[0] << 8 | meta[1], 2
    if kind in (15, 16, 253, 141):
        return kind, meta[0] | meta[1] << 8, 2
    return kind, 0, 0


def read_map(body: bytes) -> tuple[int, Map]:
    number = int.from_bytes(body[:6], "little")
    at = 8
    database = body[at + 1 : at + 1 + body[at]].decode()
    at += body[at] + 2
    table = body[at + 1 : at + 1 + body[at]].decode()
    at += body[at] + 2
    count, at = packed(body, at)
    kinds = body[at : at + count]
    size, at = packed(body, at + count)
    meta, at = body[at : at + size], at + size
    types, metas, used = [], [], 0
    for kind in kinds:
        real, value, width = unpacked_meta(kind, meta[used : used + 2])
        types.append(real)
        metas.append(value)
        used += width
    nullable = [bool(body[at + i // 8] >> i % 8 & 1) for i in range(count)]
    return number, Map(database, table, types, metas, nullable)


def walk(data: bytes) -> Iterator[Map]:
    """Each table map of a binlog file with its rows events; checksums are expected and not looked at."""
    at, maps = 4, {}
    while at < len(data):
        _, kind, _, size, _, _ = struct.unpack_from("<IBIIIH", data, at)
        body, end = at + 19, at + size - 4
        if kind == _TABLE_MAP:
            number, found = read_map(data[body:end])
            maps[number] = found
            yield found
        elif kind in _ROWS:
            number = int.from_bytes(data[body : body + 6], "little")
            start = body + 8
            if kind in _WITH_EXTRA:
                start += int.from_bytes(data[start : start + 2], "little")
            columns, start = packed(data, start)
            start += (columns + 7) // 8 * (2 if _ROWS[kind] in _TWO_BITMAPS else 1)
            maps[number].events.append((_ROWS[kind], start, end))
        at += size


def place(offset: int) -> str:
    return f"binlog.000001 at {offset}"


def read_log(server: Server, since: tuple[str, int]) -> tuple[bytes, list[Map]]:
    """All table maps in the server's last binlog file since a position in it."""
    file, position = since
    path = next(path for path in server.binlogs() if path.name == file)
    data = Path(path).read_bytes()
    head = data[: 4 + int.from_bytes(data[13:17], "little")]
    cut = head + data[position:]
    return cut, list(walk(cut))


def define(server: Server, table_map: Map) -> TableDefinition:
    """The definition of a table: words from information_schema, types and metas from the map."""
    rows = server.query(
        "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, DATA_TYPE"
        " FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        table_map.database,
        table_map.table,
    )
    columns = []
    for (name, said, nullable, charset, data_type), kind, meta in zip(
        rows, table_map.types, table_map.metas, strict=True
    ):
        words = said.decode() if isinstance(said, bytes) else said
        if kind in (FieldType.TIME, FieldType.DATETIME, FieldType.TIMESTAMP) and "(" in words:
            meta = int(words[words.index("(") + 1 : words.index(")")])  # noqa: PLW2901 - the map has none for old forms
        members = read_members(words) if kind in (FieldType.ENUM, FieldType.SET) else ()
        is_text = kind in (15, 253, 254, 252, 140, 141) and data_type not in ("uuid", "inet4", "inet6")
        columns.append(
            ColumnDefinition(
                name,
                FieldType(kind),
                meta,
                words,
                is_unsigned="unsigned" in words or "zerofill" in words,
                is_nullable=nullable == "YES",
                charset=charset or ("binary" if is_text else None),
                members=members,
            )
        )
    return TableDefinition(table_map.database, table_map.table, tuple(columns), (rows[0][0],))


def read_members(words: str) -> tuple[str, ...]:
    """The members in `enum('a','b''c')`."""
    inner = words[words.index("(") + 1 : words.rindex(")")]
    return tuple(part.replace("''", "'").replace("\\\\", "\\") for part in split_quoted(inner))


def split_quoted(text: str) -> list[str]:
    parts, at = [], 0
    while at < len(text):
        end = at + 1
        while not (text[end] == "'" and text[end + 1 : end + 2] != "'"):
            end += 2 if text[end] == "'" else 1
        parts.append(text[at + 1 : end])
        at = end + 2
    return parts


def decode_all(server: Server, since: tuple[str, int], table: str, **policies: object) -> tuple[list[int], pa.Table]:
    """The change types and images of a table's rows events since a position, decoded."""
    data, maps = read_log(server, since)
    buffer = np.frombuffer(data, dtype=np.uint8).copy()
    changes: list[int] = []
    tables = []
    for found in maps:
        if found.table != table or not found.events:
            continue
        definition = define(server, found)
        plan = make_plan(definition, found.types, found.metas, found.nullable, **policies)  # type: ignore[arg-type]
        kinds, starts, ends = (np.array(part) for part in zip(*found.events, strict=True))
        for part in decode(plan, buffer, kinds.astype(np.int8), starts.astype(np.int64), ends.astype(np.int64), place):
            changes += part.change_types.tolist()
            tables.append(pa.table(part.arrays, names=list(plan.table.names)))
            for array in part.arrays:
                array.validate(full=True)
    return changes, pa.concat_tables(tables)
