"""Filters as the original's clients send them: by source id, over keys, RANGE and MOD. Made into ours here. Pure.

    {"40": {"partitionType": "RANGE", "filters": [{"keyRange": {"start": 0, "end": 1000}}]}}

RANGE becomes a condition over the key. One bucket of MOD becomes a partition: as many, dealt by our hash, so that a
bucket holds other keys than it did there, and all of them together still hold each key once.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from databus.core import MalformedRequest
from databus.filters import Partition
from databus.log import SchemaStore
from databus.schema import TableSchema

_TYPE: Final = "partitionType"


def translated(text: str | None, store: SchemaStore, visible: Mapping[str, int]) -> tuple[str | None, Partition | None]:
    """`filters` in our words, and the partition that it asks for. What is ours already is the same text.

    visible: the tables that are there for who asks, with their ids.

    Raises `MalformedRequest` for what is neither.
    """
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return text, None  # said where it is read
    if not isinstance(value, dict) or not any(isinstance(each, dict) and _TYPE in each for each in value.values()):
        return text, None
    found: dict[str, Any] = {}
    partitions: set[Partition | None] = set()
    for name, each in value.items():
        table = _table_of(name, store, visible)
        where, partition = _one(f"filters: {name[:100]}", each, table)
        if where is not None:
            found[store.full_name(table.source)] = {"where": where}
        partitions.add(partition)
    if len(partitions) > 1:
        raise MalformedRequest("filters: MOD of all sources has to be the same bucket here; ask for each by itself")
    return json.dumps(found) if found else None, partitions.pop()


def _table_of(name: str, store: SchemaStore, visible: Mapping[str, int]) -> TableSchema:
    source = next((source for source, id_ in visible.items() if str(id_) == name), None)
    table = None if source is None else store.definition_now(source)
    if table is None:
        raise MalformedRequest(f"filters: {name[:100]!r} is not the id of a source; /sources lists them")
    return table


def _one(where: str, value: Any, table: TableSchema) -> tuple[str | None, Partition | None]:
    try:
        kind, filters = value[_TYPE], value.get("filters", [])
        if kind == "NONE":
            return None, None
        if kind == "RANGE":
            bounds = [(int(each["keyRange"]["start"]), int(each["keyRange"]["end"])) for each in filters]
            return _range(where, bounds, table), None
        if kind == "MOD":
            (only,) = filters
            start, end = int(only["bktRange"]["start"]), int(only["bktRange"]["end"])
            if end == start + 1:
                return None, Partition.parse(f"{start}/{int(only['numBuckets'])}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedRequest(f"{where}: not a filter: {error!r} in {str(value)[:200]}") from error
    raise MalformedRequest(
        f"{where}: {str(kind)[:100]!r} with these buckets: there are NONE, RANGE, and MOD with one bucket, whose "
        "`bktRange` ends one behind its start"
    )


def _range(where: str, bounds: list[tuple[int, int]], table: TableSchema) -> str:
    if len(table.key) != 1 or "int" not in table.column(table.key[0]).type or not bounds:
        key: Mapping[str, str] = {name: table.column(name).type for name in table.key}
        raise MalformedRequest(f"{where}: RANGE takes a key of one whole number; the key of {table.source} is {key}")
    name = '"{}"'.format(table.key[0].replace('"', '""'))
    return " OR ".join(f"({name} >= {start} AND {name} < {end})" for start, end in bounds)
