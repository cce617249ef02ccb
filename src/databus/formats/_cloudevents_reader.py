"""CloudEvents to change rows: around our own line, or around Debezium's images."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT
from databus.formats._debezium_reader import KINDS, changes_of, images_of_json, row_type
from databus.formats._debezium_schema import CONNECTOR
from databus.formats._debezium_types import DebeziumForm
from databus.formats._own_reader import own_schema, rows_in
from databus.formats._parse import parsed
from databus.formats._read import (
    ReadRows,
    check_table,
    kinds_of,
    members_of,
    moments_from,
    present,
    rows_of,
    table_names,
)
from databus.schema import TableSchema

_PAIR: Final = r"^(?P<scn>\d+)/(?P<seq>\d+)/[crud]$"
_ATTRIBUTES: Final = (
    "id",
    "time",
    *(f"iodebezium{attribute}" for attribute in ("op", "db", "schema", "table", "connector")),
)


def cloudevents_rows(table: TableSchema, values: pa.Array) -> ReadRows:
    """The change rows of events around our own lines of one table; see `own_rows`."""
    messages, places = present(values)
    data = parsed(messages, pa.schema([("data", pa.struct(list(own_schema(table))))]), places).members["data"]
    return rows_in(table, members_of(data), places)


def cloudevents_debezium_rows(table: TableSchema, values: pa.Array, *, form: DebeziumForm | None = None) -> ReadRows:
    """The change rows of events around Debezium's images of one table; see `debezium_rows`."""
    form = form or DebeziumForm()
    messages, places = present(values)
    row = row_type(table, form)
    data = pa.struct([("before", row), ("after", row)])
    members = parsed(
        messages, pa.schema([*((name, pa.string()) for name in _ATTRIBUTES), ("data", data)]), places
    ).members
    kinds = kinds_of(members["iodebeziumop"], KINDS)
    chosen = np.flatnonzero(kinds)
    fields = {name: values.take(pa.array(chosen)) for name, values in members.items()}
    names = table_names(*(fields[f"iodebezium{attribute}"] for attribute in ("db", "table", "schema")))
    check_table(table, names, places[chosen])
    is_ours = pc.equal(fields["iodebeziumconnector"], CONNECTOR).fill_null(False)
    pairs = pc.extract_regex(fields["id"], _PAIR)
    scns, seqs = (pc.struct_field(pairs, name).cast(pa.int64()) for name in ("scn", "seq"))
    null = pa.scalar(None, pa.int64())
    bus = {
        COMMIT_VERSION: pc.if_else(is_ours, scns, null),
        SEQ: pc.if_else(is_ours, seqs, null),
        COMMIT_TIMESTAMP: moments_from(fields["time"], pa.timestamp("us", "UTC")),
        SNAPSHOT: pc.equal(fields["iodebeziumop"], "r"),
    }
    images = members_of(fields["data"])
    firsts, lasts = (images_of_json(table, images[name], form, is_ours=is_ours) for name in ("before", "after"))
    changes = changes_of(firsts, lasts, kinds[chosen], bus, places[chosen])
    return rows_of(table, changes, places[np.flatnonzero(kinds == 0)])
