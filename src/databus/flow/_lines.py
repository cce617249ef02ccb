"""A batch's items as the lines of JSON that the relay's `/stream` sends."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from databus.flow._batch import TableControl
from databus.formats import BigIntegers, change_text, control_line
from databus.schema import TableSchema, forms_of

_ROWS_AT_ONCE: Final = 8_192


def row_lines(
    source: str, table: TableSchema, rows: pa.Table, big_integers: BigIntegers = BigIntegers.NUMBER
) -> Iterator[str]:
    """Lines of rows as users see them, with their line feeds. source: `physical/db.table`."""
    for part in as_captured(table, rows).to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield change_text([(source, part)], big_integers).decode()


def control_text(source: str, control: TableControl, big_integers: BigIntegers = BigIntegers.NUMBER) -> str:
    """The line of a control, with its line feed."""
    return f"{control_line(source, control.body, control.pair, big_integers)}\n"


def as_captured(table: TableSchema, rows: pa.Table) -> pa.Table:
    """Rows with the table's columns in the types of its frames: an unsigned 64-bit integer is no decimal in JSON."""
    for index, column in enumerate(table.columns):
        forms = forms_of(column.type)
        if pa.types.is_uint64(forms.arrow) and rows.schema.field(index).type == forms.sink:
            rows = rows.set_column(index, column.name, rows.column(index).cast(forms.arrow))
    return rows
