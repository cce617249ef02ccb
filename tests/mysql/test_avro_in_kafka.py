"""Values of a real server, captured, written to Kafka in Avro, read by fastavro, and compared with the server's SELECT.

Nothing of databus reads here: the schema is the one that the registry gives, and what a Debezium type means is
written down once more, from Debezium's documentation.
"""

import calendar
import decimal
import io
import json
import struct
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from databus.core import SourceCheckpoint
from databus.flow import ChangeBatch, TableRows
from databus.flow._decode import to_user_rows
from databus.testing._staged_writes import write_batch
from databus.testing.servers import Server
from databus.wire import Group
from tests.kafka.support import messages_in, new_prefix, output_of
from tests.kafka_source.support import Topics
from tests.mysql.following import Follower
from tests.relay.support import Database, scripted

MICROSECONDS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {c})"
DAYS = "TO_DAYS({c}) - TO_DAYS('1970-01-01')"
TEXT, NUMBER, BYTES = "HEX(CONVERT({c} USING utf8mb4))", "CAST({c} AS CHAR)", "HEX({c})"
LONG = f"'{'é' * 300}'"
# words of a column; what the server says of it; values
TYPES: list[tuple[str, str, list[str]]] = [
    ("ENUM('a','it''s','é,1','b ')", TEXT, ["'a'", "2", "'é,1'", "'nothing of these'", "NULL"]),
    ("SET('a','b','é')", TEXT, ["''", "'é,a'", "7", "'b'", "NULL"]),
    ("BIT(1)", "{c} + 0", ["b'0'", "b'1'", "NULL"]),
    ("BIT(7)", "{c} + 0", ["b'1010101'", "b'0'"]),
    ("BIT(33)", "{c} + 0", [f"b'1{'0' * 31}1'", "1"]),
    ("BIT(64)", "{c} + 0", ["18446744073709551615", "9223372036854775808", "0"]),
    ("TINYINT UNSIGNED", NUMBER, ["255", "0"]),
    ("SMALLINT UNSIGNED", NUMBER, ["65535", "0"]),
    ("INT UNSIGNED", NUMBER, ["4294967295", "0"]),
    ("BIGINT UNSIGNED", NUMBER, ["18446744073709551615", "9223372036854775808", "0", "NULL"]),
    ("BIGINT", NUMBER, ["-9223372036854775808", "9223372036854775807"]),
    ("YEAR", NUMBER, ["0", "1901", "2155"]),
    ("TIME", NUMBER, ["'-838:59:59'", "'838:59:59'", "'-00:00:01'", "'25:00:00'", "NULL"]),
    ("TIME(6)", NUMBER, ["'-838:59:58.999999'", "'-00:00:00.000001'", "'24:00:00.5'", "'838:59:58.999999'"]),
    ("DATE", DAYS, ["'0000-00-00'", "'2020-00-10'", "'0001-01-01'", "'9999-12-31'", "'1969-12-31'", "NULL"]),
    ("DATETIME", MICROSECONDS, ["'0000-00-00'", "'1000-01-01'", "'9999-12-31 23:59:59'", "'1969-12-31 23:59:59'"]),
    ("DATETIME(3)", MICROSECONDS, ["'1969-12-31 23:59:59.999'", "'2020-00-10 01:02:03'", "'2026-10-25 02:30:00.001'"]),
    ("DATETIME(6)", MICROSECONDS, ["'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'", "NULL"]),
    ("TIMESTAMP NULL", MICROSECONDS, ["0", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "NULL"]),
    ("TIMESTAMP(6) NULL", MICROSECONDS, ["'2026-10-25 02:30:00.000001'", "'1999-12-31 23:59:59.5'"]),
    ("DECIMAL(5,2)", NUMBER, ["-999.99", "0", "-0.01", "NULL"]),
    ("DECIMAL(38,30)", NUMBER, [f"-{'9' * 8}.{'9' * 30}", f"0.{'0' * 29}1"]),
    ("DECIMAL(38,0)", NUMBER, ["9" * 38, f"-{'9' * 38}", "-128", "127", "128", "-129", "255", "-32768"]),
    ("DECIMAL(65,30)", NUMBER, [f"-{'9' * 35}.{'9' * 30}", "0", f"0.{'0' * 29}1"]),
    ("FLOAT", "{c} * 1e0", ["0.1", "-3.402823466e38", "1e-45"]),
    ("DOUBLE", "{c}", ["0.1", "-1.7976931348623157e308", "5e-324", "123456789.12345678"]),
    ("JSON", TEXT, ['\'{"b": 1.0, "a": [1e2, null, "é"]}\'', "'[]'", "'\"\"'", "'null'", "NULL"]),
    ("VARBINARY(10)", BYTES, ["x'00ff'", "x''", "NULL"]),
    ("BLOB", BYTES, ["REPEAT(x'00ff', 500)", "x''"]),
    ("VARCHAR(300) CHARACTER SET latin1", TEXT, [LONG, "'a '", "''", "NULL"]),
    ("VARCHAR(300) CHARACTER SET utf8mb4", TEXT, [LONG, "'\N{PILE OF POO}'"]),
    ("CHAR(5)", TEXT, ["'é  '", "''"]),
]
"""Zero dates and those without a day are null here, and `DAYS` and `MICROSECONDS` say so too."""
ROWS = 8
Plain = dict[str, Any]


def number_of_time(text: str) -> int:
    """Microseconds of what a server prints of a TIME."""
    hours, minutes, seconds = text.lstrip("-").split(":")
    size = int(hours) * 3_600_000_000 + int(minutes) * 60_000_000 + int(decimal.Decimal(seconds) * 1_000_000)
    return -size if text.startswith("-") else size


def said_by(server: Server, database: str) -> dict[int, list[Any]]:
    """What the server says of each row's columns, as `as_said` puts it."""
    selected = ", ".join(says.format(c=f"c{number}") for number, (_, says, _) in enumerate(TYPES))
    with server.connect(database=database, charset="utf8mb4") as session, session.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        cursor.execute(f"SELECT id, {selected} FROM t")
        return {row[0]: [as_said(*each) for each in zip(TYPES, row[1:], strict=True)] for row in cursor.fetchall()}


def as_said(kind: tuple[str, str, list[str]], value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    words, says, _ = kind
    if value is None:
        return None
    if says == TEXT:
        return bytes.fromhex(value).decode()
    if says == BYTES:
        return bytes.fromhex(value)
    if words in ("TIME", "TIME(6)"):
        return number_of_time(value)
    if words.startswith("DECIMAL"):
        return decimal.Decimal(value)
    if words == "FLOAT":
        return struct.unpack("f", struct.pack("f", float(value)))[0]
    return float(value) if words == "DOUBLE" else int(value)


def own(words: str, value: Any, schema: Any) -> Any:
    """What our own schema's value means, as the server says it."""
    del schema
    if words.startswith("DECIMAL(65"):  # text, with exactly its digits
        return None if value is None else decimal.Decimal(value)
    return int(value) if isinstance(value, bool) else value


def debezium(words: str, value: Any, schema: Any) -> Any:
    """What a value of Debezium's types means, by the names that their schemas have."""
    name = schema.get("connect.name", "") if isinstance(schema, dict) else ""
    if value is None:
        return None
    if words.startswith("DECIMAL") and schema == "string":
        return decimal.Decimal(value)
    if name == "io.debezium.time.Timestamp":
        return value * 1000
    if name == "io.debezium.time.ZonedTimestamp":
        assert value.endswith("Z")
        whole, _, fraction = value.removesuffix("Z").partition(".")
        seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
        return seconds * 1_000_000 + int(fraction.ljust(6, "0"))
    known = {
        "", "io.debezium.time.Date", "io.debezium.time.MicroTimestamp", "io.debezium.time.MicroTime",
        "io.debezium.time.Year", "io.debezium.data.Enum", "io.debezium.data.EnumSet", "io.debezium.data.Json",
        "org.apache.kafka.connect.data.Decimal",
    }  # fmt: skip
    assert name in known
    return own(words, value, schema)


def without_times(schema: Any) -> Any:
    """The same where times are the numbers that are written: Python's own end before the year 1."""
    if isinstance(schema, list):
        return [without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: without_times(each) for name, each in schema.items()}
    return found if found.get("logicalType", "decimal") == "decimal" else {**found, "logicalType": "none"}


class Registered:
    """Schemas of a registry, by id, as its API gives them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._kept: dict[int, Any] = {}

    def read(self, value: bytes) -> tuple[Plain, Any]:
        """A message, and the schema that its writer used."""
        zero, number = struct.unpack(">bI", value[:5])
        assert zero == 0
        if number not in self._kept:
            with urllib.request.urlopen(f"{self._url}/schemas/ids/{number}", timeout=30) as answer:  # noqa: S310 - our own relay
                self._kept[number] = without_times(json.loads(json.load(answer)["schema"]))
        stream = io.BytesIO(value[5:])
        found = fastavro.schemaless_reader(stream, fastavro.parse_schema(self._kept[number]))
        assert stream.read() == b""
        return found, self._kept[number]  # type: ignore[return-value]  # fastavro may read any type, a record here


def columns_of(record: Any) -> dict[str, Any]:
    """The types of a record's fields, without null."""
    found = {}
    for field in record["fields"]:
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        (found[field["name"]],) = [each for each in kinds if each != "null"]
    return found


def last_of_own(registered: Registered, values: list[bytes]) -> dict[int, list[Any]]:
    """Rows by key, the last pair of each: `insert` and `update_postimage` put it, the others remove it."""
    rows: dict[int, list[Any]] = {}
    read = [registered.read(value) for value in values]
    for row, schema in sorted(read, key=lambda each: (each[0]["_commit_version"], each[0]["_seq"])):
        kinds = columns_of(schema)
        if row["_change_type"] in ("insert", "update_postimage"):
            rows[row["id"]] = [
                own(words, row[f"c{number}"], kinds[f"c{number}"]) for number, (words, _, _) in enumerate(TYPES)
            ]
        else:
            rows.pop(row["id"], None)
    return rows


def last_of_debezium(registered: Registered, values: list[bytes]) -> dict[int, list[Any]]:
    """The same of envelopes."""
    rows: dict[int, list[Any]] = {}
    read = [registered.read(value) for value in values]
    for event, schema in sorted(
        read, key=lambda each: [int(part) for part in json.loads(each[0]["source"]["sequence"])]
    ):
        (value,) = [each for each in schema["fields"][0]["type"] if each != "null"]
        kinds, after = columns_of(value), event["after"]
        if after is None:
            rows.pop(event["before"]["id"], None)
            continue
        rows[after["id"]] = [
            debezium(words, after[f"c{number}"], kinds[f"c{number}"]) for number, (words, _, _) in enumerate(TYPES)
        ]
    return rows


def fill(server: Server, database: str, begin: int) -> None:
    """Rows with all values of each type, from an id on."""
    with server.connect(database=database, charset="utf8mb4") as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for number in range(ROWS):
            values = ", ".join(kind[2][number % len(kind[2])] for kind in TYPES)
            cursor.execute(f"INSERT INTO t VALUES ({begin + number}, {values})")


def whole(groups: list[Group]) -> ChangeBatch:
    """All rows of the table, as tasks are given them."""
    items = tuple(
        TableRows(each.table, to_user_rows(each.table, pa.Table.from_batches([each.batch])))
        for group in groups
        for each in group.rows
        if each.table.source.endswith(".t")
    )
    log, last = str(uuid.uuid5(uuid.NAMESPACE_OID, "log")), groups[-1].commit
    end = SourceCheckpoint("", last.scn, None, last.txid, last.commit_us, log)
    return ChangeBatch("shop", SourceCheckpoint(log=log), end, items, position=last.position)


@pytest.fixture
def written(
    server: Server, database: str, follow: Callable[..., Follower], kafka: Any, tmp_path: Any
) -> Iterator[Callable[..., tuple[Registered, list[bytes]]]]:
    """Rows that were there, rows that came, updates of all of them and deletes, written in a format."""
    columns = ", ".join(f"c{number} {words}" for number, (words, _, _) in enumerate(TYPES))
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4",
    )
    fill(server, database, 0)
    follower = follow(database, server, zero_dates="null", tables=[f"{database}.t", f"{database}.mark"])
    follower.catch_up(server, database)
    fill(server, database, 100)
    server.run(
        f"UPDATE {database}.t SET id = id + 1000 WHERE id % 100 < 3",
        f"DELETE FROM {database}.t WHERE id % 100 = 7",
    )
    follower.catch_up(server, database)
    with scripted(tmp_path / "registry", {"none": Database()}) as relay:
        url = f"{relay.url}/registry"

        def write(**options: Any) -> tuple[Registered, list[bytes]]:
            prefix = new_prefix()
            Topics(kafka).create(f"{prefix}.t", partitions=3)
            output = output_of(kafka, tmp_path, prefix, registry={"url": url}, **options)
            output.open()
            write_batch(output, whole(follower.tape.groups))
            output.close()
            found = [each.value() for part in messages_in(kafka, f"{prefix}.t") for each in part]
            return Registered(url), [value for value in found if value is not None]

        yield write


def differences(found: dict[int, list[Any]], said: dict[int, list[Any]]) -> list[tuple[str, int, Any, Any]]:
    assert found.keys() == said.keys()
    return [
        (words, key, found[key][number], said[key][number])
        for key in sorted(said)
        for number, (words, _, _) in enumerate(TYPES)
        if (found[key][number], str(found[key][number])) != (said[key][number], str(said[key][number]))
    ]


def test_our_own_avro_says_what_the_server_says(server: Server, database: str, written: Any) -> None:
    found = last_of_own(*written(format="avro"))
    assert differences(found, said_by(server, database)) == []
    assert len(found) == 2 * ROWS - 2


@pytest.mark.parametrize("decimals", ["precise", "string"])
def test_debezium_s_avro_says_what_the_server_says(server: Server, database: str, written: Any, decimals: str) -> None:
    found = last_of_debezium(*written(format="debezium_avro", debezium={"decimals": decimals, "unsigned": "precise"}))
    assert differences(found, said_by(server, database)) == []
