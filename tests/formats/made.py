"""Any table with any changes, as the formats' writers take them, and the same as plain Python objects."""

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from databus.core import ChangeType
from databus.schema import Column, TableSchema, forms_of, frame_schema
from tests.formats.test_changes import VALUES

MAXIMAL_US = 838 * 3_600_000_000 + 3_599_999_999
MILLISECONDS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)).map(  # noqa: DTZ001 - it has no zone
    lambda value: value.replace(microsecond=value.microsecond // 1000 * 1000)
)
WORDED = {
    ("int64", "time(6)"): st.integers(-MAXIMAL_US, MAXIMAL_US),
    ("int64", "time"): st.integers(-838 * 3600, 838 * 3600).map(lambda seconds: seconds * 1_000_000),
    ("timestamp", "datetime"): MILLISECONDS.map(lambda value: value.replace(microsecond=0)),
    ("timestamp", "datetime(3)"): MILLISECONDS,
    ("timestamp", "datetime(6)"): VALUES["timestamp"],
    ("timestamptz", "timestamp"): MILLISECONDS.map(lambda value: value.replace(microsecond=0, tzinfo=dt.UTC)),
    ("string", "set('a','b')"): st.sampled_from(["", "a", "b", "a,b"]),
    ("string", "enum('a','it''s')"): st.sampled_from(["", "a", "it's"]),
    ("string", "json"): st.sampled_from(['{"a": [1, 2.5, "b,\\"c"]}', "null", "1", '"text"', "[]", "true"]),
    ("int16", "year"): st.integers(1901, 2155),
    # columns that come as text, by the source's option `types`
    ("string", "year"): st.sampled_from(["0000", "2155"]),
    ("string", "datetime(3)"): st.sampled_from(["0000-00-00 00:00:00.000", "2020-02-31 23:59:59.999"]),
    ("string", "time"): st.sampled_from(["-838:59:59", "00:00:00"]),
    ("string", "bit(1)"): st.sampled_from(["0", "1"]),
}
KINDS = {(name, ""): values for name, values in VALUES.items()} | WORDED
ALL_KINDS = tuple(sorted(KINDS))
NAMES = st.sampled_from(["id", "a b", 'q"', "\\", "\u00fc", "old", "data", "x.y", "1st", "K"])
SAMPLED = st.sampled_from(["insert", "update", "delete", "snapshot"])


@dataclass
class Made:
    """changes: for each, its kind (`insert`, `update`, `delete`, `snapshot`), the rows before and after it, and the
    values of the bus's columns of its last row."""

    table: TableSchema
    batch: pa.RecordBatch
    changes: list


@st.composite
def made(draw, kinds=ALL_KINDS, key_types=("int32", "string", "binary", "int64")):
    """kinds: pairs of a column type and the database's words for it, of which the columns without the key are."""
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    names = draw(st.lists(NAMES, min_size=len(chosen) + 1, max_size=len(chosen) + 1, unique=True))
    key_type = draw(st.sampled_from(key_types))
    columns = [Column(names[0], key_type, nullable=False)]
    columns += [Column(name, kind, db_type=words) for name, (kind, words) in zip(names[1:], chosen, strict=True)]
    table = TableSchema("main.t", tuple(columns), (names[0],) if draw(st.booleans()) else ())
    of = [VALUES[key_type], *[st.none() | KINDS[kind] for kind in chosen]]

    def row():
        return dict(zip(names, (draw(values) for values in of), strict=True))

    rows, changes = [], []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(SAMPLED)
        after = row()
        before = {**row(), **({names[0]: after[names[0]]} if draw(st.booleans()) else {})} if kind == "update" else None
        scn, ts = draw(st.integers(0, 1 << 60)), draw(st.integers(0, 4_000_000_000_000_000))
        at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=ts)
        bus = {"_commit_version": scn, "_seq": 2 * number + 1, "_commit_timestamp": at}
        bus |= {"_txid": draw(st.sampled_from(["g", 'a"\u00fc'])), "_snapshot": kind == "snapshot"}
        if before is not None:
            rows.append({**before, **bus, "_change_type": int(ChangeType.UPDATE_PREIMAGE), "_seq": 2 * number})
        number_of = {"update": ChangeType.UPDATE_POSTIMAGE, "delete": ChangeType.DELETE}.get(kind, ChangeType.INSERT)
        rows.append({**after, **bus, "_change_type": int(number_of)})
        changes.append((kind, before, after, bus | {"row": len(rows) - 1}))
    schema = frame_schema(table)
    arrays = [pa.array([each[field.name] for each in rows], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    # values as Arrow holds them: a decimal with all its digits
    python = [
        {c.name: v for c, v in zip(columns, values, strict=True)}
        for values in zip(
            *(
                pa.array(batch.column(n), forms_of(c.type).arrow).to_pylist()
                for n, c in zip(names, columns, strict=True)
            ),
            strict=True,
        )
    ]
    exact = []
    for kind, before, _, bus in changes:
        at = bus["row"]
        exact.append((kind, None if before is None else python[at - 1], python[at], bus))
    return Made(table, batch, exact)
