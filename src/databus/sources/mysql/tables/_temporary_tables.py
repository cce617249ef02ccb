"""Temporary tables: statements about them that the log has like those about the tables whose names they have.

MariaDB logs RENAME TABLE so in any binlog_format. Sessions without binlog_format=ROW log more, and mark it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from databus.sources.mysql.tables._lexer import UnreadableStatement
from databus.sources.mysql.tables._statements import Statement
from databus.sources.mysql.tables._syntax import AlterTable, ChangeRows, Parsed, RenameTables, Truncate
from databus.sources.mysql.tables._table_state import TableState
from databus.sources.mysql.tables._unknown_tables import TableName

TEMPORARY: Final = ", so that a temporary table of that name may be meant, which the log does not say"


def check_temporary(
    parsed: Parsed,
    statement: Statement,
    tables: Mapping[TableName, TableState | None],
    captured: Callable[[str, str], bool],
    there: Callable[[Sequence[TableName]], set[TableName]] | None,
) -> None:
    """Raise `UnreadableStatement` if a statement may be about temporary tables.

    tables: what it makes of tables if it is not, by old and new names; None where it leaves nothing. there: asks the
    server which it has; None for none that has to be asked. OPTIMIZE and REPAIR may be followed all the same: no
    definition changes by them.
    """
    alters = isinstance(parsed, AlterTable) and not all(isinstance(action, ChangeRows) for action in parsed.actions)
    if statement.uses_temporary and (alters or isinstance(parsed, Truncate)):
        raise UnreadableStatement(f"its session has temporary tables{TEMPORARY}")
    if there is None or not isinstance(parsed, RenameTables) or not any(captured(*name) for name in tables):
        return
    gone = [name for name, state in tables.items() if state is None]
    made = [name for name, state in tables.items() if state is not None]
    found = there([*gone, *made])
    if not found.isdisjoint(gone) and not found.issuperset(made):
        raise UnreadableStatement(f"the server has tables by their old names, and not by their new ones{TEMPORARY}")
