"""Temporary tables: the log has statements about them that look like statements about tables of the same names.

MariaDB logs RENAME TABLE so in any binlog_format. Sessions without binlog_format=ROW log more, and mark it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from databus.sources.mysql.tables._lexer import UnreadableStatement
from databus.sources.mysql.tables._statements import DdlStatement
from databus.sources.mysql.tables._syntax import AlterTable, ChangeRows, Parsed, RenameTables, Truncate
from databus.sources.mysql.tables._table_state import TableState
from databus.sources.mysql.tables._unknown_tables import TableName

TEMPORARY: Final = ", so that a temporary table of that name may be meant, which the log does not say"


def check_temporary(
    parsed: Parsed,
    statement: DdlStatement,
    tables: Mapping[TableName, TableState | None],
    captured: Callable[[str, str], bool],
    existing: Callable[[Sequence[TableName]], set[TableName]] | None,
) -> None:
    """Raise `UnreadableStatement` if a statement may be about temporary tables.

    tables: what it makes of ordinary tables, by old and new names; None for a name that it leaves without a table.
    existing: asks the server which tables it has; None if the server need not be asked. OPTIMIZE and REPAIR may be
    followed all the same: they change no definition.
    """
    alters = isinstance(parsed, AlterTable) and not all(isinstance(action, ChangeRows) for action in parsed.actions)
    if statement.uses_temporary and (alters or isinstance(parsed, Truncate)):
        raise UnreadableStatement(f"its session has temporary tables{TEMPORARY}")
    if existing is None or not isinstance(parsed, RenameTables) or not any(captured(*name) for name in tables):
        return
    dropped = [name for name, state in tables.items() if state is None]
    made = [name for name, state in tables.items() if state is not None]
    present = existing([*dropped, *made])
    if not present.isdisjoint(dropped) and not present.issuperset(made):
        raise UnreadableStatement(f"the server has tables by their old names, and not by their new ones{TEMPORARY}")
