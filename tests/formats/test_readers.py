"""Messages of each format are read back as the rows that they were made of, but for what the format loses."""

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from databus.core import BUS_COLUMNS, UnrepresentableValue
from databus.formats import (
    BigIntegers,
    DebeziumForm,
    DecimalForm,
    UnsignedForm,
    canal_messages,
    canal_rows,
    cloudevents_debezium_messages,
    cloudevents_debezium_rows,
    cloudevents_messages,
    cloudevents_rows,
    control_line,
    debezium_messages,
    debezium_rows,
    maxwell_messages,
    maxwell_rows,
    own_messages,
    own_rows,
)
from databus.schema import Column, TableSchema
from tests.formats.made import made
from tests.formats.test_changes import frame

FORM = DebeziumForm(unsigned=UnsignedForm.PRECISE)


def rows(batch, *, without=(), cut=None):
    """Rows as plain objects, the exact value of each float kept, apart from some columns. cut: of the commit times."""
    found = []
    for row in batch.drop_columns([name for name in without if name in batch.schema.names]).to_pylist():
        at = row.get("_commit_timestamp")
        if cut is not None and at is not None:
            row["_commit_timestamp"] = at.replace(microsecond=at.microsecond // cut * cut)
        found.append({name: repr(value) for name, value in row.items()})
    return found


@given(made())
def test_our_own_messages_come_back_whole(it):
    for form in BigIntegers:
        read = own_rows(it.table, own_messages(it.table, it.batch, physical="p", big_integers=form).values)
        assert rows(read.rows) == rows(it.batch)
        assert [read.rows.schema.field(n).type for n in BUS_COLUMNS] == [
            it.batch.schema.field(n).type for n in BUS_COLUMNS
        ]
    assert (read.messages.to_pylist(), read.others.to_pylist()) == (list(range(it.batch.num_rows)), [])
    read = cloudevents_rows(it.table, cloudevents_messages(it.table, it.batch, physical="p").values)
    assert rows(read.rows) == rows(it.batch)


@given(made())
@pytest.mark.parametrize(
    "form",
    [FORM, DebeziumForm(DecimalForm.STRING, UnsignedForm.PRECISE, with_schema=True)],
    ids=["precise", "strings and schema"],
)
def test_debezium_s_messages_come_back_but_for_changed_keys(form, it):
    messages = debezium_messages(it.table, it.batch, physical="p", made_us=0, form=form)
    read = debezium_rows(it.table, messages.values, form=form)
    moved = {
        message
        for name in messages.headers
        for message in pc.indices_nonzero(messages.headers[name].is_valid()).to_pylist()
    }
    kept = [at not in moved for at in read.messages.to_pylist()]
    gone = {messages.rows[at].as_py() for at in moved}
    first_images = {at - 1 for at in gone}
    wanted = [at not in gone and at not in first_images for at in range(it.batch.num_rows)]
    assert rows(read.rows.filter(pa.array(kept, pa.bool_()))) == rows(it.batch.filter(pa.array(wanted, pa.bool_())))
    leaving = rows(
        read.rows.filter(pa.array([not each for each in kept], pa.bool_())), without=["_change_type", "_seq"]
    )
    arriving = rows(
        it.batch.filter(pa.array([not each for each in wanted], pa.bool_())), without=["_change_type", "_seq"]
    )
    assert leaving == arriving  # a delete of the first image and a create of the second
    assert read.others.to_pylist() == []


@given(made())
def test_events_around_debezium_s_images_come_back_without_transaction_ids(it):
    form = DebeziumForm(unsigned=UnsignedForm.PRECISE, tombstones=False)
    keyless = TableSchema(it.table.source, it.table.columns)
    read = cloudevents_debezium_rows(
        it.table, cloudevents_debezium_messages(keyless, it.batch, physical="p", form=form).values, form=form
    )
    assert rows(read.rows, without=["_txid"]) == rows(it.batch, without=["_txid"])


def documents(it):
    return [column.name for column in it.table.columns if column.db_type == "json"]


@given(made())
def test_maxwell_s_messages_come_back_with_times_of_whole_seconds(it):
    read = maxwell_rows(it.table, maxwell_messages(it.table, it.batch).values)
    assert rows(read.rows, without=documents(it)) == rows(it.batch, without=documents(it), cut=1_000_000)
    for name in documents(it):
        found, wanted = (batch.column(name).to_pylist() for batch in (read.rows, it.batch))
        for one, other in zip(found, wanted, strict=True):
            # null among the documents is null in Maxwell's words
            assert one is None or json.loads(one) == json.loads(other)
            assert one is not None or other in (None, "null")


@given(made())
def test_canal_s_messages_come_back_without_seq_and_snapshot(it):
    read = canal_rows(it.table, canal_messages(it.table, it.batch, made_ms=0).values)
    lost = ["_seq", "_snapshot"]
    assert rows(read.rows, without=lost) == rows(it.batch, without=lost, cut=1000)
    assert read.rows.column("_seq").null_count == read.rows.num_rows


TABLE = TableSchema("main.t", (Column("id", "int32", nullable=False), Column("v", "string")), ("id",))


def array(*messages):
    return pa.array([None if each is None else json.dumps(each).encode() for each in messages], pa.binary())


def test_what_is_no_row_is_named_and_a_tombstone_is_passed_over():
    alter = {"type": "table-alter", "database": "main", "table": "t", "ts": 1, "sql": "ALTER TABLE t"}
    insert = {"type": "insert", "database": "main", "table": "t", "ts": 1, "data": {"id": 1}}
    read = maxwell_rows(TABLE, array(None, alter, insert))
    assert (read.messages.to_pylist(), read.others.to_pylist()) == ([2], [1])
    assert read.rows.column("v").to_pylist() == [None]
    ddl = {"type": "ALTER", "isDdl": True, "database": "main", "table": "t", "data": None, "id": 1, "es": 1}
    assert canal_rows(TABLE, array(ddl)).others.to_pylist() == [0]
    assert debezium_rows(
        TABLE, array({"ts_ms": 1}, {"op": "t", "source": {"db": "main", "table": "t"}})
    ).others.to_pylist() == [0, 1]
    control = control_line("p/main.t", {"kind": "truncate"}, (1, 1)).encode()
    assert own_rows(TABLE, pa.array([control])).others.to_pylist() == [0]


def test_one_message_of_canal_may_have_several_rows():
    message = {"type": "UPDATE", "isDdl": False, "database": "main", "table": "t", "id": 1, "es": 1, "gtid": None}
    message |= {"data": [{"id": "1", "v": "a"}, {"id": "2", "v": "b"}], "old": [{"v": None}, {"id": "3"}]}
    found = canal_rows(TABLE, array(message, {**message, "old": None}))
    assert [(row["id"], row["v"], row["_change_type"]) for row in found.rows.to_pylist()[:4]] == [
        (1, None, 2), (1, "a", 3), (3, "b", 2), (2, "b", 3),
    ]  # fmt: skip
    assert found.messages.to_pylist() == [0] * 4 + [1] * 4
    with pytest.raises(UnrepresentableValue, match="message 1: `old` has 1 rows and `data` 2"):
        canal_rows(TABLE, array(None, {**message, "old": [{"id": "3"}]}))


def test_a_value_that_was_null_is_told_from_one_that_did_not_change():
    table = TableSchema("main.t", (Column("gtid", "string"), Column('a"old', "string"), Column("old", "string")))
    data = {"gtid": "x", 'a"old': "y", "old": "z"}
    message = {"type": "update", "database": "main", "table": "t", "ts": 1, "gtid": None, "data": data}
    found = maxwell_rows(
        table,
        array(
            {**message, "old": {'a"old': None}}, {**message, "old": {"gtid": None}}, {**message, "old": {"old": None}}
        ),
    )
    firsts = [{n: row[n] for n in data} for row in found.rows.to_pylist() if row["_change_type"] == 2]
    assert firsts == [{**data, 'a"old': None}, {**data, "gtid": None}, {**data, "old": None}]


@pytest.mark.parametrize("text", ['"text"', '{"a": [1, 2.50, "b,\\"c\u00fc"]}', "true", "1", "[]"])
def test_a_document_of_any_kind_stays_one_through_maxwell_s_words(text):
    table = TableSchema("main.t", (Column("v", "string", db_type="json"),))
    read = maxwell_rows(table, maxwell_messages(table, frame("string", [text, None])).values)
    assert read.rows.column("v").to_pylist() == [text, None]


SOURCE = {"db": "main", "table": "t", "ts_ms": 1}
MISTAKES = [
    (debezium_rows, {"op": "c", "source": SOURCE, "after": None}, "message 1 has no `after`"),
    (
        debezium_rows,
        {"op": "c", "source": {**SOURCE, "table": "u"}, "after": {"id": 1}},
        "message 1 is of main.u, not of main.t",
    ),
    (debezium_rows, {"op": "c", "source": SOURCE, "after": {"id": 1 << 31}}, "message 1: after: Value 2147483648"),
    (debezium_rows, {"op": "c", "source": SOURCE, "after": {"v": "a"}}, r"main\.t\.id: message 1 has no value"),
    (
        debezium_rows,
        {"op": "c", "source": SOURCE, "after": {"id": 1, "v": "__debezium_unavailable_value"}},
        "unavailable",
    ),
    (
        maxwell_rows,
        {"type": "insert", "database": "main", "table": "t", "ts": 1, "data": {"id": True}},
        "message 1: data: True",
    ),
    (
        canal_rows,
        {"type": "INSERT", "database": "main", "table": "t", "data": [{"id": "x"}]},
        r"main\.t\.id: not a int32",
    ),
    (own_rows, {"_source": "p/main.u", "_change_type": "insert"}, "message 1 is of p/main.u"),
]


@pytest.mark.parametrize(("read", "message", "said"), MISTAKES)
def test_a_message_that_is_wrong_is_named(read, message, said):
    with pytest.raises(UnrepresentableValue, match=said):
        read(TABLE, array(None, message))


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"op":"c"}{', b"\xff", b'{"op": 1e}', b"[" * 5000, b"{}{}"]
)
@pytest.mark.parametrize(
    "read", [own_rows, debezium_rows, maxwell_rows, canal_rows, cloudevents_rows, cloudevents_debezium_rows]
)
def test_what_is_not_json_is_refused_with_its_number(read, text):
    with pytest.raises(UnrepresentableValue, match="message 0: not"):
        read(TABLE, pa.array([text, b"{}"]))


@pytest.mark.parametrize("text", [b"a\xffb", b"\\ud800", b"\xed\xa0\x80"], ids=["no UTF-8", "half escaped", "half"])
@pytest.mark.parametrize("read", [own_rows, debezium_rows, maxwell_rows, canal_rows])
def test_text_that_is_none_is_refused_and_its_message_named(read, text):
    """A reader of the log could not make text of it, nor get past it."""
    number = b'"1"' if read is canal_rows else b"1"
    row = b'"id":' + number + b',"v":"' + text + b'"'
    envelopes = {
        own_rows: b'{%s,"_source":"p/main.t","_change_type":"insert"}',
        debezium_rows: b'{"op":"c","after":{%s},"source":{"db":"main","table":"t"}}',
        maxwell_rows: b'{"type":"insert","database":"main","table":"t","ts":1,"data":{%s}}',
        canal_rows: b'{"type":"INSERT","database":"main","table":"t","data":[{%s}]}',
    }
    with pytest.raises(UnrepresentableValue, match="message 1: "):
        read(TABLE, pa.array([b"{}", envelopes[read] % row]))


def in_schema(schema):
    source = {"db": "main", "schema": schema, "table": "t"}
    event = {f"iodebezium{name}": value for name, value in {**source, "op": "c"}.items()}
    time = {"time": "2026-07-01T12:00:00Z"}
    return {
        debezium_rows: array({"op": "c", "source": source, "after": {"id": 1, "v": schema}}),
        cloudevents_debezium_rows: array({**event, **time, "data": {"after": {"id": 1, "v": schema}}}),
    }


@pytest.mark.parametrize("read", [debezium_rows, cloudevents_debezium_rows])
def test_tables_of_one_name_in_two_schemas_of_a_database_are_two_tables(read):
    """As PostgreSQL, SQL Server and Oracle have them."""
    sales = replace(TABLE, source="main.sales.t")
    assert read(sales, in_schema("sales")[read]).rows.column("v").to_pylist() == ["sales"]
    for table in (sales, TABLE):
        with pytest.raises(UnrepresentableValue, match=r"message 0 is of main\.audit\.t, not of"):
            read(table, in_schema("audit")[read])


def test_messages_read_one_by_one_give_the_same_rows_as_in_bulk():
    batch = frame("float64", [1.5, None, -0.0, 1e300])
    table = TableSchema("main.t", (Column("v", "float64"),))
    values = debezium_messages(table, batch, physical="p", made_us=0).values.to_pylist()
    pretty = pa.array([json.dumps(json.loads(value), indent=1).encode() + b"\n" for value in values])
    assert rows(debezium_rows(table, pretty).rows) == rows(debezium_rows(table, pa.array(values)).rows) == rows(batch)


@pytest.mark.parametrize(
    ("kind", "number"), [("float64", "1e400"), ("float64", "-1e309"), ("float64", "1" + "0" * 400), ("float32", "1e39")]
)
@pytest.mark.parametrize("read", [own_rows, debezium_rows])
def test_a_number_that_is_too_large_is_refused_and_not_infinite(read, kind, number):
    table = TableSchema("main.t", (Column("id", "int32", nullable=False), Column("v", kind)), ("id",))
    message = {
        own_rows: '{"id":1,"v":%s,"_source":"p/main.t","_change_type":"insert"}',
        debezium_rows: '{"op":"c","after":{"id":1,"v":%s},"source":{"db":"main","table":"t"}}',
    }[read]
    with pytest.raises(UnrepresentableValue, match=r"message 0: .* is beyond a "):
        read(table, pa.array([(message % number).encode()]))
    largest = "3.4028235e38" if kind == "float32" else "1.7976931348623157e308"
    for text, value in ((largest, float(largest)), ('"-Infinity"', float("-inf"))):
        found = read(table, pa.array([(message % text).encode()])).rows.column("v")
        assert found.equals(pa.array([value], found.type))


def with_schema(field, after, **schema):
    """A message with its schema beside it, as Connect's converter writes it."""
    key = {"field": "id", "type": "int32", "optional": False}
    image = {"type": "struct", "fields": [key, {"field": "v", "optional": True, **schema}], "field": field}
    payload = {field: {"id": 1, "v": after}, "source": {"db": "main", "table": "t"}, "op": "c"}
    return json.dumps(
        {"schema": {"type": "struct", "fields": [image]}, "payload": payload}, separators=(",", ":")
    ).encode()


DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
CONNECT_S = {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}
DEBEZIUM_S = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
NANOSECONDS = {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}
AT = dt.datetime(2026, 7, 1, 12)  # noqa: DTZ001 - columns of such points in time have no zone
AT_MS = 1_782_907_200_000
WITH_SCHEMA = DebeziumForm(with_schema=True)


@pytest.mark.parametrize(
    ("column", "messages", "wanted"),
    [
        (
            Column("v", "decimal(12,4)"),
            [("AfQ=", {**DECIMAL, "parameters": {"scale": each}}) for each in ("2", "4", "0", "2")],
            ["5.0000", "0.0500", "500.0000", "5.0000"],
        ),
        (Column("v", "timestamp"), [(AT_MS, CONNECT_S), (AT_MS * 1000, DEBEZIUM_S)], [AT, AT]),
        (Column("v", "timestamp", db_type="datetime(3)"), [(AT_MS, CONNECT_S), (AT_MS * 1000, DEBEZIUM_S)], [AT, AT]),
        (Column("v", "date"), [(1, {"type": "int32", "name": "io.debezium.time.Date"})], [dt.date(1970, 1, 2)]),
    ],
    ids=["decimals of another scale", "times in other units", "times by other digits", "dates"],
)
def test_values_are_read_as_their_messages_say_that_they_were_written(column, messages, wanted):
    """A column that was changed, or a connector's modes, are not to make other values of them."""
    table = TableSchema("main.t", (Column("id", "int32", nullable=False), column), ("id",))
    values = pa.array([with_schema("after", value, **schema) for value, schema in messages])
    found = debezium_rows(table, values, form=WITH_SCHEMA).rows.column("v").to_pylist()
    assert [str(each) if isinstance(each, Decimal) else each for each in found] == wanted


@pytest.mark.parametrize(
    ("column", "value", "schema"),
    [
        (Column("v", "binary"), "deadbeef", {"type": "string"}),  # `binary.handling.mode: hex`
        (Column("v", "string"), "AfQ=", {**DECIMAL, "parameters": {"scale": "2"}}),
        (Column("v", "decimal(4,0)"), "1234", {"type": "string"}),  # `decimal.handling.mode: string`
        (Column("v", "decimal(4,0)"), "AfQ=", {**DECIMAL, "parameters": {"scale": "3"}}),
        (Column("v", "int64"), "1234", {**DECIMAL, "parameters": {"scale": "0"}}),
        (Column("v", "timestamp"), AT_MS, NANOSECONDS),
        (Column("v", "int64", db_type="time(3)"), 1, {"type": "int32", "name": "io.debezium.time.Time"}),
        (Column("v", "date"), 1, {"type": "int32"}),
    ],
)
def test_what_was_written_as_something_else_than_it_would_be_read_as_is_refused(column, value, schema):
    table = TableSchema("main.t", (Column("id", "int32", nullable=False), column), ("id",))
    with pytest.raises(UnrepresentableValue, match=r"v was written as|not a decimal"):
        debezium_rows(table, pa.array([with_schema("after", value, **schema)]), form=WITH_SCHEMA)


def test_messages_that_say_their_schema_behind_the_payload_or_not_at_all_are_read_too():
    table = TableSchema("main.t", (Column("id", "int32", nullable=False), Column("v", "decimal(12,4)")), ("id",))
    message = json.loads(with_schema("after", "AfQ=", **DECIMAL, parameters={"scale": "2"}))
    backwards = {name: message[name] for name in ("payload", "schema")}
    found = debezium_rows(table, array(backwards, message, {**message, "schema": None}), form=WITH_SCHEMA)
    assert [str(each) for each in found.rows.column("v").to_pylist()] == ["5.0000", "5.0000", "0.0500"]
