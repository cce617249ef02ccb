"""Whether a table map may be of the table that the history knows: compares everything in it but the names.

Every table map has types, widths and nullability. With `binlog_row_metadata=MINIMAL` (the default of MySQL 8) it also
has signedness, the character sets of text and the kinds of geometries. Names, members of ENUM and SET, and the key are
in it only with FULL; `from_table_map` reads those.
"""

from typing import Final

from databus.core import SourceChanged
from databus.sources.mysql._charsets import charset_of_number
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.tables._from_table_map import GEOMETRIES, LoggedTable

_CUSTOM_COLLATIONS: Final = range(1024, 2048)
"""MySQL's administrators define collations in this range, so a number in it says nothing about the character set."""


def check_agreement(table_map: LoggedTable, known: TableDefinition) -> None:
    """Raise `SourceChanged`, naming the column, if a table map says something else than the known definition.

    Counts and types are compared where rows are planned (`make_plan`), which is expected to follow.
    """
    for index, (column, nullable) in enumerate(zip(known.columns, table_map.nullable, strict=False)):
        difference = _difference(table_map, index, column)
        if difference is None and not column.is_hidden and column.is_nullable != nullable:
            difference = "nullable" if nullable else "NOT NULL"
        if difference is not None:
            raise SourceChanged(
                f"{known.source}: the log has column {index + 1} ({column.name!r}) as {difference}, but its "
                f"definition at this position is {_words(column)}"
            )


def _difference(table_map: LoggedTable, index: int, column: ColumnDefinition) -> str | None:
    """What the optional part of the map says of a column differently from the definition, in words."""
    if index >= len(table_map.types) or table_map.types[index] != column.type:
        return None  # what the types say is not for this function to compare
    metadata = table_map.metadata
    if metadata.unsigned is not None and column.type is not FieldType.YEAR:
        is_unsigned = metadata.unsigned[index]
        if is_unsigned != column.is_unsigned:
            return "unsigned" if is_unsigned else "signed"
    number = metadata.collations[index] if metadata.collations is not None else None
    if number is not None and number not in _CUSTOM_COLLATIONS:
        charset = charset_of_number(number)
        if charset is not None and charset != (column.charset or BINARY):
            return f"text in {charset}" if charset != BINARY else "bytes"
    geometry = metadata.geometry_types[index] if metadata.geometry_types is not None else None
    if geometry is not None and geometry < len(GEOMETRIES):
        kind = column.column_type.split(" ")[0].replace("geomcollection", "geometrycollection")
        if kind != GEOMETRIES[geometry]:
            return GEOMETRIES[geometry]
    return None


def _words(column: ColumnDefinition) -> str:
    charset = f" in {column.charset}" if column.charset not in (None, BINARY) else ""
    return f"{column.column_type}{charset}{'' if column.is_nullable else ' NOT NULL'}"
