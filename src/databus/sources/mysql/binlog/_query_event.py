"""QUERY events: a statement's text and the settings it ran under, and what kind of statement it is.

Nothing here reads SQL beyond its first words. What may be DDL is given out; what only groups transactions, or can touch
no table's definition, is not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from databus.sources.mysql._charsets import charset_of_number
from databus.sources.mysql._server_text import decoded
from databus.sources.mysql.binlog._byte_reader import ByteReader

QueryKind = Literal[
    "begin",
    "commit",
    "rollback",
    "savepoint",
    "rollback-to",
    "nothing",
    "xa-begin",
    "xa-commit",
    "xa-rollback",
    "rows",
    "ddl",
]
AlterPhase = Literal["start", "commit", "rollback"]

_SPACE: Final = re.compile(r"(?:\s+|/\*(?!M?!)(?s:.*?)\*/|--[ \t\r\n][^\n]*\n?|#[^\n]*\n?|\()+")
_WORDS: Final = re.compile(r"(?:/\*M?!\d*\s*)?([A-Za-z]+)(?:\s+([A-Za-z]+))?(?:\s+([A-Za-z]+))?")
_FOR: Final = re.compile(r"\bFOR\b", re.IGNORECASE)
_QUALIFIED: Final = re.compile(r"(?:(?<!`)`((?:[^`]|``)++)`|\"([^\"]+)\"|(?<![\w$])([\w$]++))\s*+\.")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Statements that change no row and no table's definition, by their first word.
_NOTHING: Final = _words(
    "ANALYZE BINLOG CACHE CHANGE CHECK CHECKSUM DO EXPLAIN FLUSH GRANT HELP INSTALL KILL LOCK PURGE RELEASE "
    "RESET RESTART REVOKE SET SHOW SHUTDOWN START STOP UNINSTALL UNLOCK USE"
)
_ROWS: Final = _words("CALL DELETE INSERT LOAD MERGE REPLACE SELECT TABLE UPDATE VALUES WITH")
_DEFINES: Final = _words("ALTER CREATE DROP RENAME")
_NOT_TABLES: Final = _words(
    "AGGREGATE EVENT FUNCTION INSTANCE PACKAGE PROCEDURE RESOURCE ROLE SERVER TEMPORARY TRIGGER UNDO USER"
)
_XA: Final[Mapping[str, QueryKind]] = {
    "START": "xa-begin",
    "BEGIN": "xa-begin",
    "COMMIT": "xa-commit",
    "ROLLBACK": "xa-rollback",
}

# Codes of status variables of a fixed width: those that matter, and those that do not.
_VALUES: Final[Mapping[int, tuple[str, int]]] = {
    1: ("sql_mode", 8),
    8: ("database_charset", 2),
    16: ("explicit_defaults_for_timestamp", 1),
    17: ("has_xid", 8),
}
_WIDTHS: Final = {0: 4, 3: 4, 7: 2, 9: 8, 10: 4, 13: 3, 14: 4, 15: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8}
_ALTER_PHASE: Final = 130
_ALTER_PHASES: Final[Mapping[int, AlterPhase]] = {2: "start", 4: "commit", 8: "rollback"}


@dataclass(frozen=True, slots=True)
class Query:
    """A statement as logged. A setting is None where the event does not say it."""

    text: str
    """Decoded by the client's character set; bytes that are not in it are kept as surrogates."""
    database: str
    error_code: int = 0
    sql_mode: int | None = None
    charsets: tuple[int, int, int] | None = None
    """The collations of the client, the connection and the server."""
    database_charset: int | None = None
    explicit_defaults_for_timestamp: bool | None = None
    has_xid: bool = False
    alter_phase: AlterPhase | None = None
    """MariaDB with `binlog_alter_two_phase` logs a statement when it starts, and again when it is done or was undone.
    """
    time_zone: str | None = None
    """The session's, where the statement used it."""
    uses_temporary: bool = False
    """The statement may be about temporary tables of its session, which can have the names of other tables."""
    raw: bytes = b""
    """The text as logged."""

    @property
    def is_without_effect(self) -> bool:
        """Whether the tables are still as they were: an ALTER TABLE has only started, or was undone."""
        return self.alter_phase in ("start", "rollback")


_OF_SESSION: Final = 0x4  # LOG_EVENT_THREAD_SPECIFIC_F


def parse_query(body: bytes, *, flags: int = 0, text: bytes | None = None) -> Query:
    """Read a QUERY event's body. `flags`: its header's. `text`: what its text is once inflated. Raises `ValueError`."""
    reader = ByteReader(body)
    reader.take(8)
    database_bytes = reader.integer(1)
    error_code = reader.integer(2)
    variables = reader.take(reader.integer(2))
    database = reader.take(database_bytes).decode("utf-8", "surrogateescape")
    if reader.take(1) != b"\0":
        raise ValueError("no zero byte after the database's name")
    raw = reader.rest() if text is None else text
    settings = _variables(variables)
    charsets = settings.get("charsets")
    client = charset_of_number(charsets[0]) if charsets else None
    uses_temporary = bool(flags & _OF_SESSION)
    return Query(
        decoded(raw, client or "utf8mb4"), database, error_code, raw=raw, uses_temporary=uses_temporary, **settings
    )


def _variables(raw: bytes) -> dict[str, Any]:
    """The status variables that matter. One of an unknown code ends the reading, as the servers do it themselves."""
    reader = ByteReader(raw)
    settings: dict[str, Any] = {}
    while not reader.is_done:
        code = reader.integer(1)
        if code in _VALUES:
            name, width = _VALUES[code]
            settings[name] = reader.integer(width)
        elif code == 4:
            settings["charsets"] = (reader.integer(2), reader.integer(2), reader.integer(2))
        elif code == 5:
            settings["time_zone"] = reader.take(reader.integer(1)).decode("utf-8", "surrogateescape")
        elif code == _ALTER_PHASE:
            phase = settings["alter_phase"] = _ALTER_PHASES.get(reader.integer(1) & 0b1110)
            reader.take(8 if phase in ("commit", "rollback") else 0)  # the sequence number of its start
        elif not _skip(reader, code):
            break
    if "explicit_defaults_for_timestamp" in settings:
        settings["explicit_defaults_for_timestamp"] = bool(settings["explicit_defaults_for_timestamp"])
    settings["has_xid"] = "has_xid" in settings
    return settings


def _skip(reader: ByteReader, code: int) -> bool:
    """Step over a variable that does not matter; False if its code is not known."""
    if code in _WIDTHS:
        reader.take(_WIDTHS[code])
    elif code == 2:
        reader.take(reader.integer(1) + 1)
    elif code == 6:
        reader.take(reader.integer(1))
    elif code == 11:
        reader.take(reader.integer(1))
        reader.take(reader.integer(1))
    elif code == 12:
        count = reader.integer(1)
        for _ in range(count if count < 254 else 0):
            reader.until_zero()
    else:
        return False
    return True


def kind_of(text: str) -> QueryKind:
    """What a statement can do, by its first words; `ddl` where that cannot be excluded.

    >>> kind_of("/* app */ create table t (a int)"), kind_of("GRANT ALL ON *.* TO x"), kind_of("xa start 'a'")
    ('ddl', 'nothing', 'xa-begin')
    """
    space = _SPACE.match(text)
    match = _WORDS.match(text, space.end() if space else 0)
    if match is None:
        return "ddl" if text.strip() else "nothing"
    first, second, third = ((word or "").upper() for word in match.groups())
    if first == "SET" and second == "STATEMENT":  # MariaDB: SET STATEMENT variable = value FOR statement
        statement = _FOR.split(text, maxsplit=1)[1:]
        return kind_of(statement[0]) if statement else "nothing"
    if first in _ROWS:
        return "rows"
    return _kind_by_words(first, second, third)


def _kind_by_words(first: str, second: str, third: str) -> QueryKind:
    kind: QueryKind = "ddl"
    if first == "BEGIN" or (first == "START" and second == "TRANSACTION"):
        kind = "begin"
    elif first == "COMMIT":
        kind = "commit"
    elif first == "ROLLBACK":
        kind = "rollback-to" if "TO" in (second, third) else "rollback"
    elif first == "SAVEPOINT":
        kind = "savepoint"
    elif first == "XA":
        kind = _XA.get(second, "nothing")
    elif first in _NOTHING or (first in _DEFINES and second in _NOT_TABLES):
        kind = "nothing"
    return kind


def databases_of(query: Query) -> set[str]:
    """The default database of a statement, and every name in it that may be one."""
    named = {(a or b or c).replace("``", "`") for a, b, c in _QUALIFIED.findall(query.text)}
    return named | ({query.database} if query.database else set())
