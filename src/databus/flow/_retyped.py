"""Columns of a history whose type has changed to one that the values from before do not fit into: they go on under
another name, which says the type, so that nothing is rewritten and nothing stops.

Which name that is follows from the columns that there are. A type that once found room under the column's own name
always does, since columns become wider and never narrower; so a reader finds what a writer has chosen.
"""

import re
from collections.abc import Collection
from typing import Final

import pyarrow as pa

_FLAG: Final = {b"databus.retype": b"new_column"}
_NOT_OF_A_NAME: Final = re.compile(r"\W+")
_LOOKS_RETYPED: Final = re.compile(r"__(bool|u?int|float|double|half|string|large|binary|date|time|decimal)\w*$")


def retyped_name(field: pa.Field) -> str:
    """The other name of a column.

    >>> retyped_name(pa.field("price", pa.decimal128(10, 2)))
    'price__decimal128_10_2'
    """
    return f"{field.name}__{_NOT_OF_A_NAME.sub('_', str(field.type)).strip('_')}"


def own_name(name: str) -> str:
    """The first name of a column. One that looks like another's other name gets an underscore.

    >>> own_name("price"), own_name("price__int64")
    ('price', 'price__int64_')
    """
    return f"{name}_" if _LOOKS_RETYPED.search(name) else name


def stored_name(field: pa.Field, have: Collection[str]) -> str:
    """Under which name a history with the columns `have` has the values of a column."""
    other = retyped_name(field)
    return other if other in have else own_name(field.name)


def is_stored_as(name: str, column: str) -> bool:
    """Whether a column of a history may have values of a table's column."""
    return name == own_name(column) or name.startswith(f"{column}__")


def retyping(schema: pa.Schema) -> pa.Schema:
    """The columns of a history in which such columns may be, marked so that tasks know."""
    return schema.with_metadata(_FLAG)


def as_stored(rows: pa.Table, have: pa.Schema) -> pa.Table:
    """Rows with the names under which a history has their columns."""
    if (have.metadata or {}).get(b"databus.retype") is None:
        return rows
    return rows.rename_columns([stored_name(field, have.names) for field in rows.schema])
