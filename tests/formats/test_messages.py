"""Messages of each format say what its product's own documentation says, value by value.

The judge is `json` of the standard library, and for each format a slow twin that makes the values of one row at a time.
"""

import base64
import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given

from databus.core import UnrepresentableValue
from databus.formats import (
    BigIntegers,
    DebeziumForm,
    DecimalForm,
    UnsignedForm,
    canal_messages,
    change_lines,
    cloudevents_debezium_messages,
    cloudevents_messages,
    debezium_messages,
    maxwell_messages,
    own_messages,
)
from databus.formats._twos_complement import decimals_from, twos_complement
from databus.schema import Column, TableSchema, frame_schema, key_bytes
from tests.formats.made import made
from tests.formats.test_changes import frame

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - it has no zone


def loads(value):
    return json.loads(value, parse_float=Decimal)


def us_of(value):
    return (value.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)


def number(value):
    """A float as JSON's reader gives it."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return Decimal(repr(value))


def moment(value, words):
    digits = {"datetime": 0, "timestamp": 0, "datetime(3)": 3}.get(words, 6)
    text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return text if digits == 6 else text[: 19 + (digits + 1 if digits else 0)]


def clock(us, words):
    seconds, rest = divmod(abs(us), 1_000_000)
    text = f"{'-' if us < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text if words == "time" else f"{text}.{rest:06}"


def maxwell_value(column, value):  # noqa: PLR0911 - one for each type
    if value is None:
        return None
    match column.type, column.db_type:
        case "int64", "time" | "time(6)":
            return clock(value, column.db_type)
        case "string", "set('a','b')":
            return value.split(",") if value else []
        case "string", "json":
            return loads(value)
        case "timestamp" | "timestamptz", words:
            return moment(value, words)
        case "date", _:
            return value.isoformat()
        case "binary", _:
            return base64.b64encode(value).decode()
        case "float32" | "float64", _:
            return number(value)
    return value


def canal_value(column, value):
    if value is None or column.type == "string":
        return value
    if column.type == "bool":
        return str(int(value))
    if column.type == "binary":
        return value.decode("latin-1")
    if column.type.startswith("float"):
        return str(number(value)) if not math.isfinite(value) else json.dumps(value)
    if column.type.startswith("decimal"):
        return format(value, "f")
    return str(maxwell_value(column, value))


def debezium_value(column, value, form):  # noqa: PLR0911 - as above
    if value is None:
        return None
    exact = column.type.startswith("decimal") and form.decimals is DecimalForm.PRECISE
    if exact or (column.type == "uint64" and form.unsigned is UnsignedForm.PRECISE):
        scale = int(column.type[:-1].split(",")[1]) if exact else 0
        unscaled = int(f"{Decimal(value):f}".replace(".", "")) if scale else int(value)
        size = 1
        while not -(1 << 8 * size - 1) <= unscaled < 1 << 8 * size - 1:
            size += 1
        return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()
    match column.type, column.db_type:
        case "timestamp", "datetime" | "datetime(3)":
            return us_of(value) // 1000
        case "timestamp", _:
            return us_of(value)
        case "timestamptz", words:
            return moment(value, words).replace(" ", "T") + "Z"
        case "date", _:
            return value.toordinal() - dt.date(1970, 1, 1).toordinal()
        case "binary", _:
            return base64.b64encode(value).decode()
        case "float32" | "float64", _:
            return number(value)
    return format(value, "f") if column.type.startswith("decimal") else value


def row_of(table, row, value_of, *more):
    return None if row is None else {c.name: value_of(c, row[c.name], *more) for c in table.columns}


def changed(before, after):
    return {name: value for name, value in before.items() if repr(value) != repr(after[name])}  # -0.0 is not 0.0


@given(made())
def test_our_own_messages_are_the_lines_of_relay_and_files_to_the_byte(it):
    for form in BigIntegers:
        found = own_messages(it.table, it.batch, physical="p", big_integers=form)
        assert found.values.to_pylist() == [line.text.encode() for line in change_lines([("p/main.t", it.batch)], form)]
    assert found.rows.to_pylist() == list(range(it.batch.num_rows))
    keys = key_bytes([it.batch.column(n) for n in it.table.key]).to_pylist() if it.table.key else None
    assert found.keys.to_pylist() == (keys or [None] * it.batch.num_rows)


@given(made())
def test_maxwell_says_each_change_in_its_own_words(it):
    found = maxwell_messages(it.table, it.batch)
    wanted, keys = [], []
    for kind, before, after, bus in it.changes:
        data = row_of(it.table, after, maxwell_value)
        message = {
            "database": "main",
            "table": "t",
            "type": "bootstrap-insert" if kind == "snapshot" else kind,
            "ts": us_of(bus["_commit_timestamp"]) // 1_000_000,
            "xid": bus["_commit_version"],
            "xoffset": bus["_seq"],
            "gtid": bus["_txid"],
            "data": data,
        }
        old = changed(row_of(it.table, before, maxwell_value), data) if before else None
        wanted.append({**message, **({"old": old} if old else {})})
        key = {"database": "main", "table": "t"} | {f"pk.{n.lower()}": data[n] for n in it.table.key}
        keys.append(key if it.table.key else None)
    assert [loads(value) for value in found.values.to_pylist()] == wanted
    assert [key and loads(key) for key in found.keys.to_pylist()] == keys
    assert found.rows.to_pylist() == [bus["row"] for *_, bus in it.changes]


def test_maxwell_marks_the_last_row_of_a_transaction_where_it_is_known():
    found = maxwell_messages(
        TableSchema("main.t", (Column("v", "int8"),)), frame("int8", [1, 2]), commits=pa.array([False, True])
    )
    assert ["commit" in loads(value) for value in found.values.to_pylist()] == [False, True]
    assert b'"xoffset":1,"commit":true,"gtid"' in found.values[1].as_py()


@given(made())
def test_canal_says_each_value_as_text(it):
    found = canal_messages(it.table, it.batch, made_ms=1234)
    wanted = []
    for kind, before, after, bus in it.changes:
        data = row_of(it.table, after, canal_value)
        old = changed(row_of(it.table, before, canal_value), data) if before else None
        wanted.append(
            {
                "data": [data],
                "database": "main",
                "es": us_of(bus["_commit_timestamp"]) // 1000,
                "gtid": bus["_txid"],
                "id": bus["_commit_version"],
                "isDdl": False,
                "mysqlType": {c.name: c.db_type or c.type for c in it.table.columns},
                "old": [old] if old else None,
                "pkNames": list(it.table.key) or None,
                "sql": "",
                "table": "t",
                "ts": 1234,
                "type": "INSERT" if kind == "snapshot" else kind.upper(),
            }
        )
    said = [loads(value) for value in found.values.to_pylist()]
    assert all(set(each.pop("sqlType")) == set(it.table.names) for each in said)
    assert said == wanted
    assert found.keys.null_count == len(said)


FORMS = [
    DebeziumForm(unsigned=UnsignedForm.PRECISE),
    DebeziumForm(DecimalForm.STRING, UnsignedForm.PRECISE, with_schema=True),
    DebeziumForm(unsigned=UnsignedForm.PRECISE, tombstones=False),
]


def debezium_changes(it, form):
    """What Debezium would send: (operation or None for a tombstone, before, after, key, the other key, row)."""
    found = []
    for kind, before, after, bus in it.changes:
        old, new = (row_of(it.table, row, debezium_value, form) for row in (before, after))
        old_key, key = ({n: row[n] for n in it.table.key} if it.table.key and row else None for row in (old, new))
        buried = form.tombstones and key is not None
        row = bus["row"]
        if kind == "delete":
            found += [("d", new, None, key, None, row), *([(None, None, None, key, None, row)] if buried else [])]
        elif kind == "update" and old_key != key:
            found.append(("d", old, None, old_key, key, row))
            found += [(None, None, None, old_key, None, row)] if buried else []
            found.append(("c", None, new, key, old_key, row))
        else:
            found.append(({"insert": "c", "snapshot": "r", "update": "u"}[kind], old, new, key, None, row))
    return found


@given(made())
@pytest.mark.parametrize("form", FORMS, ids=["precise", "strings and schema", "no tombstones"])
def test_debezium_says_both_rows_and_buries_keys_that_are_gone(form, it):
    found = debezium_messages(it.table, it.batch, physical="p", made_us=5_000_001, form=form)
    said = []
    for value, key in zip(found.values.to_pylist(), found.keys.to_pylist(), strict=True):
        message, of = value and loads(value), key and loads(key)
        if form.with_schema:
            message, of = message and message["payload"], of and of["payload"]
        said.append((message, of))
    wanted = debezium_changes(it, form)
    assert [(m and m["op"], m and m["before"], m and m["after"], k) for m, k in said] == [each[:4] for each in wanted]
    assert found.rows.to_pylist() == [each[5] for each in wanted]
    for (message, _), each in zip(said, wanted, strict=True):
        if message is None:
            continue
        bus = next(bus for *_, bus in it.changes if bus["row"] == each[5])
        us = us_of(bus["_commit_timestamp"])
        times = {"ts_ms": us // 1000, "ts_us": us, "ts_ns": us * 1000}
        source = {**times, "connector": "databus", "name": "p", "db": "main", "table": "t", "gtid": bus["_txid"]}
        source["snapshot"] = "incremental" if bus["_snapshot"] else "false"
        source["sequence"] = f'["{bus["_commit_version"]}","{bus["_seq"]}"]'
        assert {**source, "version": message["source"]["version"]} == message["source"]
        assert [message[name] for name in ("ts_ms", "ts_us", "ts_ns")] == [5000, 5_000_001, 5_000_001_000]
    for name, op in (("__debezium.newkey", "d"), ("__debezium.oldkey", "c")):
        headers = found.headers[name].to_pylist() if name in found.headers else [None] * len(said)
        bare = [h and (loads(h)["payload"] if form.with_schema else loads(h)) for h in headers]
        assert bare == [each[4] if each[0] == op else None for each in wanted]


def test_a_schema_names_what_its_values_mean():
    table = TableSchema(
        "shop.t",
        (
            Column("id", "int64", nullable=False, db_type="bigint"),
            Column("total", "decimal(12,2)"),
            Column("kind", "string", db_type="enum('a','it''s')"),
            Column("at", "timestamp", db_type="datetime(3)"),
            Column("length", "int64", db_type="time"),
        ),
        ("id",),
    )
    schema = debezium_schema(table, DebeziumForm(with_schema=True))
    assert [field["field"] for field in schema["fields"]] == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns",
    ]  # fmt: skip
    row = {field.pop("field"): field for field in schema["fields"][1]["fields"]}
    assert row["id"] == {"type": "int64", "optional": False}
    assert row["total"]["name"] == "org.apache.kafka.connect.data.Decimal"
    assert row["total"]["parameters"] == {"scale": "2", "connect.decimal.precision": "12"}
    assert row["kind"]["parameters"] == {"allowed": "a,it's"}
    assert [row[n]["name"] for n in ("at", "length")] == ["io.debezium.time.Timestamp", "io.debezium.time.MicroTime"]
    assert (schema["name"], schema["fields"][0]["name"]) == ("p.shop.t.Envelope", "p.shop.t.Value")


def test_debezium_s_schema_calls_columns_that_come_as_text_strings():
    words = ("year", "date", "datetime(3)", "timestamp", "time", "decimal(5,2)", "bit(9)")
    columns = [Column(f"c{number}", "string", db_type=each) for number, each in enumerate(words)]
    table = TableSchema("shop.t", (Column("id", "int64", nullable=False), *columns), ("id",))
    schema = debezium_schema(table, DebeziumForm(with_schema=True))
    _, *others = schema["fields"][1]["fields"]
    assert [(each["type"], "name" in each) for each in others] == [("string", False)] * len(words)


def debezium_schema(table, form):
    values = {"id": 1}
    columns = [pa.array([values.get(c.name)], f.type) for c, f in zip(table.columns, frame_schema(table), strict=False)]
    bus = [[1], [7], [0], [dt.datetime(2026, 7, 1, tzinfo=dt.UTC)], ["a"], [False]]
    schema = frame_schema(table)
    arrays = [*columns, *[pa.array(c, f.type) for c, f in zip(bus, list(schema)[len(columns) :], strict=True)]]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return loads(debezium_messages(table, batch, physical="p", made_us=0, form=form).values[0].as_py())["schema"]


@given(made())
def test_cloudevents_have_their_attributes_around_our_line_or_debezium_s_images(it):
    own = cloudevents_messages(it.table, it.batch, physical="p q")
    lines = change_lines([("p q/main.t", it.batch)])
    for value, line in zip(own.values.to_pylist(), lines, strict=True):
        event = loads(value)
        assert event["data"] == loads(line.text)
        assert event["id"] == "/".join(map(str, line.pair))
        assert (event["specversion"], event["source"], event["subject"]) == ("1.0", "/databus/p%20q", "main.t")
        assert event["type"] == "databus.change"
        assert dt.datetime.fromisoformat(event["time"]) == dt.datetime.fromisoformat(
            loads(line.text)["_commit_timestamp"]
        )
        assert event["datacontenttype"] == "application/json"
    form = DebeziumForm(unsigned=UnsignedForm.PRECISE)
    found = cloudevents_debezium_messages(it.table, it.batch, physical="p", form=form)
    events = [value and loads(value) for value in found.values.to_pylist()]
    assert [e and (e["iodebeziumop"], e["data"]) for e in events] == [
        each[0] and (each[0], {"before": each[1], "after": each[2]}) for each in debezium_changes(it, form)
    ]
    ids = [event["id"] for event in events if event]
    assert len(ids) == len(set(ids))
    assert all(e["iodebeziumname"] == "p" and e["source"] == "/debezium/databus/p" for e in events if e)


def test_what_a_form_cannot_hold_is_refused_with_the_column_s_name():
    table = TableSchema("main.t", (Column("v", "uint64"),))
    with pytest.raises(UnrepresentableValue, match=r"main\.t\.v: holds 9223372036854775808, .*`precise`"):
        debezium_messages(table, frame("uint64", [1 << 63]), physical="p", made_us=0)
    at = dt.datetime(2026, 7, 1, 0, 0, 0, 1)  # noqa: DTZ001 - it has no zone
    table = TableSchema("main.t", (Column("v", "timestamp", db_type="datetime(3)"),))
    with pytest.raises(UnrepresentableValue, match=r"main\.t\.v: holds microseconds"):
        debezium_messages(table, frame("timestamp", [at]), physical="p", made_us=0)
    (value,) = maxwell_messages(table, frame("timestamp", [at])).values.to_pylist()
    assert b'"2026-07-01 00:00:00.000001"' in value  # no digit is cut off


@pytest.mark.parametrize(
    "number", [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, 10**38 - 1, 1 - 10**38]
)
def test_an_exact_number_has_the_fewest_bytes_that_hold_its_sign(number):
    values = pa.array([Decimal(number), None], pa.decimal128(38, 0))
    size = next(size for size in range(1, 18) if -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1)
    found = twos_complement(values)
    assert found.to_pylist() == [number.to_bytes(size, "big", signed=True), None]
    assert decimals_from(found, values.type).equals(values)


def test_an_update_needs_its_second_image_but_not_its_first():
    table = TableSchema("main.t", (Column("v", "int8"),))
    with pytest.raises(UnrepresentableValue, match=r"main\.t: the row before an update \(row 1 of the batch, SCN 7\)"):
        maxwell_messages(table, pa_concat(frame("int8", [1], kind=3), frame("int8", [1], kind=2)))
    (value,) = debezium_messages(table, frame("int8", [1], kind=3), physical="p", made_us=0).values.to_pylist()
    assert (loads(value)["op"], loads(value)["before"]) == ("u", None)


def pa_concat(*batches):
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
