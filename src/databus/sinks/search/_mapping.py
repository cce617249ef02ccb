"""How a table is an index: the name, and the mapping of its columns. No I/O."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from databus.core import COMMIT_VERSION, SEQ, InputError, UnsupportedFeature, name_parts
from databus.schema import TableSchema

DELETED: Final = "_deleted"
"""The field that says, with soft deletes, that the row is gone."""

OWN_FIELDS: Final[Mapping[str, Any]] = {COMMIT_VERSION: {"type": "long"}, SEQ: {"type": "long"}}
_RESERVED: Final = frozenset(
    {"_id", "_index", "_type", "_source", "_routing", "_version", "_seq_no", "_primary_term", "_field_names"}
    | {"_ignored", "_size", "_parent", "_all", "_uid", "_nested_path", "_doc_count", "_meta", "_tier", "_score"}
)
_KEYWORD_CHARS_MAX: Final = 8191  # of four bytes each: a term has at most 32,766
_FORBIDDEN: Final = re.compile(r'[\\/*?"<>| ,#:]')
_INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
_FIXED: Final[Mapping[str, Mapping[str, Any]]] = {
    "bool": {"type": "boolean"},
    "float32": {"type": "double", "ignore_malformed": True},  # NaN and infinities are texts, which no number is
    "float64": {"type": "double", "ignore_malformed": True},
    "binary": {"type": "binary"},
    "date": {"type": "date", "ignore_malformed": True},
    "timestamp": {"type": "date", "ignore_malformed": True},
    "timestamptz": {"type": "date", "ignore_malformed": True},
}


def index_name(template: str, physical: str, source: str) -> str:
    """The index of a source, by a template such as `{db}-{table}`, in small letters. Raises `InputError` for a name
    that no index can have.
    """
    db, table = name_parts(source)
    name = template.replace("{physical}", physical).replace("{db}", db).replace("{table}", table).lower()
    wrong = _FORBIDDEN.search(name) or name.startswith(("-", "_", "+")) or name in ("", ".", "..")
    if wrong or len(name.encode()) > 255:
        raise InputError(
            f"{physical}/{source}: no index can be called {name!r}: its name has at most 255 bytes, none of the "
            f'characters \\ / * ? " < > | , # : and blanks, and does not begin with - _ or +. Set `index`'
        )
    return name


def check_names(table: TableSchema) -> None:
    """Raises `UnsupportedFeature` for columns that no field can be called like."""
    wrong = [name for name in table.names if name in _RESERVED or name == DELETED or "." in name or not name.strip()]
    if wrong:
        raise UnsupportedFeature(
            f"{table.source}: no field of an index can be called {', '.join(map(repr, wrong))}: give the column "
            f"another name before this output with the filter `rename`, or leave it out with `project`"
        )


def mapping_of(
    table: TableSchema, key: Sequence[str], own: Mapping[str, Any], *, has_unsigned: bool, soft: bool
) -> dict[str, Any]:
    """The properties of an index of a table. own: by column, what the user wants instead. has_unsigned: whether the
    server has the type unsigned_long.
    """
    fields = {
        column.name: own.get(column.name) or _field(column.type, is_key=column.name in key, has_unsigned=has_unsigned)
        for column in table.columns
    }
    return {**fields, **OWN_FIELDS, **({DELETED: {"type": "boolean"}} if soft else {})}


def _field(kind: str, *, is_key: bool, has_unsigned: bool) -> Mapping[str, Any]:
    keyword = {"type": "keyword", "ignore_above": _KEYWORD_CHARS_MAX}
    if kind in _INTEGERS:
        return {"type": "long", "ignore_malformed": True}  # a column that becomes wider than a long stays readable
    if kind == "uint64":
        return {"type": "unsigned_long", "ignore_malformed": True} if has_unsigned else keyword
    if kind.startswith("decimal"):
        return {"type": "double", "ignore_malformed": True}
    if kind == "string":
        return keyword if is_key else {"type": "text", "fields": {"keyword": keyword}}
    return _FIXED[kind]


def below(pair: tuple[int, int]) -> dict[str, Any]:
    """The query of documents whose pair is below this one."""
    scn, seq = pair
    same = {"bool": {"filter": [{"term": {COMMIT_VERSION: scn}}, {"range": {SEQ: {"lt": seq}}}]}}
    return {"bool": {"should": [{"range": {COMMIT_VERSION: {"lt": scn}}}, same], "minimum_should_match": 1}}


def last_rows(ids: pa.LargeStringArray) -> np.ndarray[Any, Any]:
    """Where the last row of each id stands, in order. ids: of rows in the order of their pairs."""
    codes = ids.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    last = np.empty(codes.max() + 1 if len(codes) else 0, np.int64)
    last[codes] = np.arange(len(codes))  # of several numbers for one place the last one stays
    last.sort()
    return last
