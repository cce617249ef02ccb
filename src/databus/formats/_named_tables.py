"""Which table each message of a topic is of, where a topic has messages of several."""

from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import SOURCE
from databus.formats._parse import parsed
from databus.formats._read import members_of, present, table_names

TableWords: TypeAlias = Literal["own", "debezium", "maxwell", "canal", "cloudevents", "cloudevents-debezium"]

_NAMES: Final = pa.struct([(name, pa.string()) for name in ("db", "schema", "table")])
_OWN: Final = pa.struct([(SOURCE, pa.string())])


def tables_named(words: TableWords, values: pa.Array, *, with_schema: bool = False) -> pa.StringArray:
    """The `db.table` that each message names; null for tombstones, and for messages that name none.

    with_schema: Debezium's messages have their schema beside them. Raises `UnrepresentableValue` for a message that is
    not JSON, with its number.
    """
    messages, places = present(values)
    if words == "own":
        names = _short(parsed(messages, pa.schema([(SOURCE, pa.string())]), places).members[SOURCE])
    elif words == "cloudevents":
        data = parsed(messages, pa.schema([("data", _OWN)]), places).members["data"]
        names = _short(pc.struct_field(data, SOURCE))
    elif words == "debezium":
        source = pa.field("source", _NAMES)
        if with_schema:
            payload = parsed(messages, pa.schema([("payload", pa.struct([source]))]), places).members["payload"]
            members = members_of(pc.struct_field(payload, "source"))
        else:
            members = members_of(parsed(messages, pa.schema([source]), places).members["source"])
        names = table_names(members["db"], members["table"], members["schema"])
    elif words == "cloudevents-debezium":
        attributes = [f"iodebezium{field.name}" for field in _NAMES]
        members = parsed(messages, pa.schema([(attribute, pa.string()) for attribute in attributes]), places).members
        database, schema, name = (members[attribute] for attribute in attributes)
        names = table_names(database, name, schema)
    else:
        members = parsed(messages, pa.schema([("database", pa.string()), ("table", pa.string())]), places).members
        names = table_names(members["database"], members["table"])
    at = np.full(len(values), -1, np.int64)
    at[places] = np.arange(len(places))
    return names.take(pa.array(at, mask=at < 0))


def _short(full: pa.Array) -> pa.StringArray:
    return pc.struct_field(pc.extract_regex(full, r"^[^/]*/(?P<name>.+)$"), "name")
