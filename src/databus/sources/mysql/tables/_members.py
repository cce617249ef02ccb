"""Members of ENUM and SET that the catalogue does not show as they are.

The catalogues of all servers are in utf8mb3: a character beyond U+FFFF, or bytes that are no text, are a question mark
there (MySQL leaves out a member that is no text). The server itself is asked for the members in doubt: first for what
a value of the column's type is that has their number, then for a row that has one. A member that neither tells is
`UNKNOWN` where the question mark stands.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pymysql

from databus.sources.mysql._charsets import UNKNOWN, UTF8MB3
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql._server_text import decoded
from databus.sources.mysql.tables._column_types import escaped
from databus.sources.mysql.tables._lexer import Server
from databus.sources.mysql.tables._table_state import TableState

Query = Callable[[str], Sequence[Sequence[Any]]]

_ASKED_MAX: Final = 500
_ROWS_MAX: Final = 200_000
_PLAIN: Final = frozenset({UTF8MB3, "ucs2", "ascii", "latin1", BINARY})
"""Character sets of which the catalogue shows everything; `binary` as digits, or not at all (but see `_is_shown`)."""
_WIDE: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
_MADE: Final = re.compile(
    r"CREATE TABLE (?:IF NOT EXISTS )?(?:`(?:[^`]|``)+`\.)?`(?:[^`]|``)+` \(\n  `.*\n\)(?:(?! ENGINE=).)*", re.DOTALL
)
_COPIED: Final = re.compile(
    r"CREATE TABLE (?:IF NOT EXISTS )?(?:`(?:[^`]|``)+`\.)?`(?:[^`]|``)+` \(\n  `.*\n\) ENGINE=\w+(?:(?!CHARSET).)*",
    re.DOTALL,
)
_NO_ANSWER: Final = frozenset({1044, 1142, 1143, 1146, 1054, 1356})
"""Errors: we may not read the table, or it is gone."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks a server about the members of a column."""

    query: Query
    server: Server

    def settle(self, database: str, table: str, column: ColumnDefinition) -> ColumnDefinition:
        """The column with its members as they are."""
        doubtful = [number for number, member in enumerate(column.members) if "?" in member or not member]
        if not doubtful or self._is_shown(column.charset):
            return column
        source = f"{_name(database)}.{_name(table)}"
        found = self._by_type(source, column, doubtful)
        found |= self._by_rows(source, column, [number for number in doubtful if number not in found])
        members = list(column.members)
        for number in doubtful:
            if number in found:
                members[number] = found[number]
            elif column.charset in _WIDE or column.charset == BINARY:
                members[number] = members[number].replace("?", UNKNOWN)
        return _with_members(column, tuple(members))

    def _is_shown(self, charset: str | None) -> bool:
        """Whether the catalogue shows all members in this character set. MariaDB has bytes of `binary` as text."""
        if charset == BINARY:
            return not self.server.is_mariadb
        return charset is None or charset in _PLAIN

    def _by_type(self, source: str, column: ColumnDefinition, numbers: list[int]) -> dict[int, str]:
        """Values of the column's type by their numbers, without a table that is written. MySQL 8.0 has text there."""
        if (not self.server.is_mariadb and self.server.version < (8,)) or len(numbers) > _ASKED_MAX:
            return {}
        name = _name(column.name)
        values = ", ".join(str(_value(column, number)) for number in numbers)
        rows = self._ask(
            f"WITH RECURSIVE r (n, e) AS (SELECT 0, {name} FROM {source} WHERE FALSE UNION ALL SELECT 0, NULL "
            f"UNION ALL SELECT n + 1, CAST(ELT(n + 1, {values}) AS UNSIGNED) FROM r WHERE n < {len(numbers)}) "
            f"SELECT n, CAST(e AS BINARY) FROM r WHERE n > 0"
        )
        return self._sensible(column, {numbers[int(n) - 1]: raw for n, raw in rows})

    def _by_rows(self, source: str, column: ColumnDefinition, numbers: list[int]) -> dict[int, str]:
        """What rows have, among the first of the table."""
        name = _name(column.name)
        found: dict[int, Any] = {}
        for number in numbers[:_ASKED_MAX]:
            rows = self._ask(
                f"SELECT CAST(e AS BINARY) FROM (SELECT {name} AS e FROM {source} LIMIT {_ROWS_MAX}) AS d "
                f"WHERE e + 0 = {_value(column, number)} LIMIT 1"
            )
            if rows:
                found[number] = rows[0][0]
        return self._sensible(column, found)

    def _ask(self, sql: str) -> Sequence[Sequence[Any]]:
        try:
            return self.query(sql)
        except pymysql.MySQLError as error:
            if error.args and error.args[0] in _NO_ANSWER:
                return ()
            raise

    @staticmethod
    def _sensible(column: ColumnDefinition, answers: dict[int, Any]) -> dict[int, str]:
        """Those answers that the catalogue may show as it does."""
        texts = {
            number: decoded(raw, column.charset or BINARY) for number, raw in answers.items() if isinstance(raw, bytes)
        }
        may_show = _may_show_bytes if column.charset == BINARY else _may_show
        return {number: text for number, text in texts.items() if may_show(text, column.members[number])}


def is_in_servers_words(text: str, server: Server) -> bool:
    """Whether it is how MySQL 5.7 logs CREATE TABLE ... SELECT, whose rows then have a transaction of their own."""
    return not server.is_mariadb and server.version < (8,) and _MADE.fullmatch(text) is not None


def hides_charset(text: str) -> bool:
    """Whether it may be how a server logs CREATE TABLE ... LIKE a temporary table, or one of information_schema.

    It does so in words of its own, without the default character set that the table has taken from there.
    """
    return _COPIED.fullmatch(text) is not None


def with_likely_members(made: TableState, known: Iterable[TableState]) -> TableState:
    """A table that a server says in its own words to have made from a query, which are lossy like its catalogue.

    A member with a question mark is that of the column that it was made from: where the known columns that may be the
    one differ, or there is none, it is not known.
    """
    columns = tuple(made.columns)
    doubtful = [at for at, column in enumerate(columns) if column.charset in _WIDE and "?" in "".join(column.members)]
    if not doubtful:
        return made
    others = [column for table in known for column in table.columns if column.members]
    for at in doubtful:
        column = columns[at]
        found = {other.members for other in others if _may_be(other, column)}
        lost = tuple(member.replace("?", UNKNOWN) for member in column.members)
        settled = _with_members(column, found.pop() if len(found) == 1 else lost)
        columns = (*columns[:at], settled, *columns[at + 1 :])
    return replace(made, columns=columns)


def _may_be(other: ColumnDefinition, column: ColumnDefinition) -> bool:
    same = (other.type, other.charset, len(other.members)) == (column.type, column.charset, len(column.members))
    return same and all(_may_show(text, shown) for text, shown in zip(other.members, column.members, strict=True))


def _value(column: ColumnDefinition, number: int) -> int:
    return 1 << number if column.type is FieldType.SET else number + 1


def _may_show(text: str, shown: str) -> bool:
    """Whether the catalogue may show `text` so."""
    if not shown:
        return not text or any("\ud800" <= character <= "\udfff" for character in text)
    return len(text) == len(shown) and all(
        a == b or (b == "?" and (a > "\uffff" or "\ud800" <= a <= "\udfff")) for a, b in zip(text, shown, strict=True)
    )


def _may_show_bytes(text: str, shown: str) -> bool:
    """Whether MariaDB's catalogue may show bytes so: as UTF-8, with a question mark for each that utf8mb3 lacks."""
    each = ("?" * len(one.encode("utf-8", "surrogateescape")) if one > "\uffff" else one for one in text)
    return "".join("?" if "\udc80" <= one <= "\udcff" else one for one in each) == shown


def _with_members(column: ColumnDefinition, members: tuple[str, ...]) -> ColumnDefinition:
    if members == column.members:
        return column
    word = "enum" if column.type is FieldType.ENUM else "set"
    listed = ",".join(f"'{escaped(member)}'" for member in members)
    return replace(column, members=members, column_type=f"{word}({listed})")


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
