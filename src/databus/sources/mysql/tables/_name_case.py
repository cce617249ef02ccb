"""Spelling: whether two names that differ in case only are one, which the log does not say."""

from typing import Final

from databus.core import source_name
from databus.sources.mysql.tables._unknown_tables import TableName

_OPTION: Final = "lower_case_table_names"


class Spelling:
    """Names as the server compares them. fold: in lower case; None: unknown, so such names are in doubt."""

    def __init__(self, fold: bool | None) -> None:
        self._fold = fold
        self._spelled: dict[TableName, TableName] = {}  # in lower case: as it is known

    def of(self, name: str) -> str:
        """The name by which a table or database is known."""
        return name.lower() if self._fold else name

    def clear(self) -> None:
        """Know no table."""
        self._spelled.clear()

    def add(self, name: TableName) -> None:
        """Know a table by that name."""
        if self._fold is None:
            self._spelled[name[0].lower(), name[1].lower()] = name

    def rival(self, name: TableName) -> TableName | None:
        """The name of a known table that may be the same one."""
        if self._fold is not None:
            return None
        other = self._spelled.get((name[0].lower(), name[1].lower()))
        return None if other == name else other

    def doubt(self, name: TableName, other: TableName) -> str:
        """What is unknown, and what to do."""
        return (
            f"{source_name(*name)} and {source_name(*other)} are one table or two, by the server's {_OPTION}, which "
            f"the log does not say; set the option of that name"
        )
