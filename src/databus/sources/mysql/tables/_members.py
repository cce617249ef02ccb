"""Members of ENUM and SET that the catalogue does not show as they are.

The catalogues of all servers are in utf8mb3: a character beyond U+FFFF, or bytes that are no text, are a question mark
there (MySQL omits a member that is not valid text). The server itself is asked for the members in doubt: first for a
value of the column's type that has their number, then for a row that has one. If neither answers, the member is
`UNKNOWN` where the question mark stands.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pymysql

from databus.sources.mysql._charsets import UNKNOWN, UTF8MB3
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType, identifier
from databus.sources.mysql._server_text import decoded
from databus.sources.mysql.tables._column_types import escaped
from databus.sources.mysql.tables._lexer import ServerKind
from databus.sources.mysql.tables._table_state import TableState

Query = Callable[[str], Sequence[Sequence[Any]]]

_ASKED_MAX: Final = 500  # members of a column that are asked for
_ROWS_MAX: Final = 200_000  # of a table that are searched for a member
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
"""Errors: databus may not read the table, or it is gone."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks a server about the members of a column."""

    query: Query
    server: ServerKind

    def settle(self, database: str, table: str, column: ColumnDefinition) -> ColumnDefinition:
        """The column with its members as they are."""
        doubtful = [number for number, member in enumerate(column.members) if "?" in member or not member]
        if not doubtful or self._is_shown(column.charset):
            return column
        source = identifier(database, table)
        answers = self._by_type(source, column, doubtful)
        answers |= self._by_rows(source, column, [number for number in doubtful if number not in answers])
        members = list(column.members)
        for number in doubtful:
            if number in answers:
                members[number] = answers[number]
            elif column.charset in _WIDE or column.charset == BINARY:
                members[number] = members[number].replace("?", UNKNOWN)
        return _with_members(column, tuple(members))

    def _is_shown(self, charset: str | None) -> bool:
        """Whether the catalogue shows all members in this character set. MariaDB has bytes of `binary` as text."""
        if charset == BINARY:
            return not self.server.is_mariadb
        return charset is None or charset in _PLAIN

    def _by_type(self, source: str, column: ColumnDefinition, numbers: list[int]) -> dict[int, str]:
        """Values of the column's type by their numbers, without writing a table. MySQL 8.0 has text there."""
        if (not self.server.is_mariadb and self.server.version < (8,)) or len(numbers) > _ASKED_MAX:
            return {}
        name = identifier(column.name)
        values = ", ".join(str(_value(column, number)) for number in numbers)
        rows = self._ask(
            f"WITH RECURSIVE r (n, e) AS (SELECT 0, {name} FROM {source} WHERE FALSE UNION ALL SELECT 0, NULL "
            f"UNION ALL SELECT n + 1, CAST(ELT(n + 1, {values}) AS UNSIGNED) FROM r WHERE n < {len(numbers)}) "
            f"SELECT n, CAST(e AS BINARY) FROM r WHERE n > 0"
        )
        return self._sensible(column, {numbers[int(n) - 1]: raw for n, raw in rows})

    def _by_rows(self, source: str, column: ColumnDefinition, numbers: list[int]) -> dict[int, str]:
        """What rows have, among the first of the table."""
        name = identifier(column.name)
        answers: dict[int, Any] = {}
        for number in numbers[:_ASKED_MAX]:
            rows = self._ask(
                f"SELECT CAST(e AS BINARY) FROM (SELECT {name} AS e FROM {source} LIMIT {_ROWS_MAX}) AS d "
                f"WHERE e + 0 = {_value(column, number)} LIMIT 1"
            )
            if rows:
                answers[number] = rows[0][0]
        return self._sensible(column, answers)

    def _ask(self, sql: str) -> Sequence[Sequence[Any]]:
        try:
            return self.query(sql)
        except pymysql.MySQLError as error:
            if error.args and error.args[0] in _NO_ANSWER:
                return ()
            raise

    @staticmethod
    def _sensible(column: ColumnDefinition, answers: dict[int, Any]) -> dict[int, str]:
        """The answers that the catalogue may show in the way that it shows the member."""
        texts = {
            number: decoded(raw, column.charset or BINARY) for number, raw in answers.items() if isinstance(raw, bytes)
        }
        may_show = _may_show_bytes if column.charset == BINARY else _may_show
        return {number: text for number, text in texts.items() if may_show(text, column.members[number])}


def is_in_servers_words(text: str, server: ServerKind) -> bool:
    """Whether MySQL 5.7 logs CREATE TABLE ... SELECT so; its rows then have a transaction of their own."""
    return not server.is_mariadb and server.version < (8,) and _MADE.fullmatch(text) is not None


def hides_charset(text: str) -> bool:
    """Whether a server may log CREATE TABLE ... LIKE so for a temporary table, or one of information_schema.

    It writes the statement itself, without the default character set that the new table has from the other.
    """
    return _COPIED.fullmatch(text) is not None


def with_likely_members(made: TableState, known: Iterable[TableState]) -> TableState:
    """A table made from a query. The server writes that statement itself, and loses members as its catalogue does.

    A member with a question mark is that of the column that it was made from: if no known column can be that one, or
    several that differ can, it is unknown.
    """
    columns = tuple(made.columns)
    doubtful = [at for at, column in enumerate(columns) if column.charset in _WIDE and "?" in "".join(column.members)]
    if not doubtful:
        return made
    others = [column for table in known for column in table.columns if column.members]
    for at in doubtful:
        column = columns[at]
        candidates = {other.members for other in others if _may_be(other, column)}
        lost = tuple(member.replace("?", UNKNOWN) for member in column.members)
        settled = _with_members(column, candidates.pop() if len(candidates) == 1 else lost)
        columns = (*columns[:at], settled, *columns[at + 1 :])
    return replace(made, columns=columns)


def _may_be(other: ColumnDefinition, column: ColumnDefinition) -> bool:
    same = (other.type, other.charset, len(other.members)) == (column.type, column.charset, len(column.members))
    return same and all(_may_show(text, listed) for text, listed in zip(other.members, column.members, strict=True))


def _value(column: ColumnDefinition, number: int) -> int:
    return 1 << number if column.type is FieldType.SET else number + 1


def _may_show(text: str, listed: str) -> bool:
    """Whether the catalogue may list `text` so."""
    if not listed:
        return not text or any("\ud800" <= character <= "\udfff" for character in text)
    return len(text) == len(listed) and all(
        a == b or (b == "?" and (a > "\uffff" or "\ud800" <= a <= "\udfff")) for a, b in zip(text, listed, strict=True)
    )


def _may_show_bytes(text: str, listed: str) -> bool:
    """Whether MariaDB's catalogue may list bytes so: as UTF-8, with a question mark for each that utf8mb3 lacks."""
    characters = ("?" * len(one.encode("utf-8", "surrogateescape")) if one > "\uffff" else one for one in text)
    return "".join("?" if "\udc80" <= one <= "\udcff" else one for one in characters) == listed


def _with_members(column: ColumnDefinition, members: tuple[str, ...]) -> ColumnDefinition:
    if members == column.members:
        return column
    word = "enum" if column.type is FieldType.ENUM else "set"
    listed = ",".join(f"'{escaped(member)}'" for member in members)
    return replace(column, members=members, column_type=f"{word}({listed})")
