"""The queries of a snapshot."""

from collections.abc import Sequence

from databus.sources.mysql._definition import TableDefinition, identifier
from databus.sources.mysql.snapshot._keys import KeyColumn, KeyRange, above, upto


def table_name(definition: TableDefinition) -> str:
    """The table in SQL."""
    return identifier(definition.database, definition.name)


def _select(key: Sequence[KeyColumn], part: KeyRange) -> str:
    """SELECT, in a mode in which MySQL from 8.0 on compares columns with invalid dates, where a place is
    one: others compare them anyway. Not for all queries: expressions of VIRTUAL columns may give other values in it.
    """
    values = (*zip(key, part.after or (), strict=False), *zip(key, part.upto or (), strict=False))
    is_plain = all(column.is_date(value) for column, value in values if column.form == "date")
    return "SELECT" if is_plain else "SELECT /*+ SET_VAR(sql_mode = 'ALLOW_INVALID_DATES') */"


def _numbers(key: Sequence[KeyColumn]) -> list[str]:
    return [f"{identifier(column.name)} | 0" for column in key if column.is_numbered]  # 64 bits on every server


def _from(definition: TableDefinition, key: Sequence[KeyColumn], index: str, part: KeyRange, where: str | None) -> str:
    conditions = []
    if part.after is not None:
        conditions.append(above(key, part.after))
    if part.upto is not None:
        conditions.append(upto(key, part.upto))
    if where:
        conditions.append(f"{where}\n")  # if it ends in a comment, our bracket is on the next line
    hint = f" FORCE INDEX ({identifier(index)})" if index else ""
    text = " AND ".join(f"({condition})" for condition in conditions)
    return f" FROM {table_name(definition)}{hint}" + (f" WHERE {text}" if text else "")


def rows_query(
    definition: TableDefinition,
    columns: Sequence[str],
    key: Sequence[KeyColumn],
    index: str,
    part: KeyRange,
    where: str | None,
    rows_max: int | None,
) -> str:
    """The rows of a part in the key's order, at most so many. columns: those asked for, in order."""
    names = [*_numbers(key), *map(identifier, columns)]
    order = f" ORDER BY {', '.join(identifier(column.name) for column in key)}" if key else ""
    limit = "" if rows_max is None else f" LIMIT {rows_max}"
    return f"{_select(key, part)} {', '.join(names)}{_from(definition, key, index, part, where)}{order}{limit}"


def first_query(definition: TableDefinition, key: Sequence[KeyColumn], index: str, part: KeyRange) -> str:
    """Read the first row of a part, without any of its values."""
    order = f" ORDER BY {', '.join(identifier(column.name) for column in key)}" if key else ""
    return f"{_select(key, part)} 1{_from(definition, key, index, part, None)}{order} LIMIT 1"


def place_query(definition: TableDefinition, key: Sequence[KeyColumn], index: str, part: KeyRange, rows: int) -> str:
    """The key of the row so many rows (at least one) into the part; no row if it has fewer."""
    names = [*_numbers(key), *(identifier(column.name) for column in key)]
    order = ", ".join(identifier(column.name) for column in key)
    source = _from(definition, key, index, part, None)
    return f"{_select(key, part)} {', '.join(names)}{source} ORDER BY {order} LIMIT 1 OFFSET {rows - 1}"


def bounds_query(definition: TableDefinition, column: KeyColumn, part: KeyRange) -> str:
    """The lowest and highest value of the only column of a key in a part: two dives into its index."""
    name = identifier(column.name)
    return f"SELECT MIN({name}), MAX({name}){_from(definition, (column,), '', part, None)}"
