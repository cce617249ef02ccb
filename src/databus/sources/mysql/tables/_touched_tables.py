"""Which tables an unreadable statement may touch: the names that stand where tables' names stand."""

import re
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Final

from databus.sources.mysql.tables._lexer import ServerKind, Token, UnreadableStatement, tokens_of

_BEFORE_NAME: Final = {
    "DELETE": frozenset({"FROM"}),
    "UPDATE": frozenset({"UPDATE", "IGNORE", "LOW_PRIORITY"}),
    "INSERT": frozenset({"INSERT", "INTO", "IGNORE", "DELAYED", "LOW_PRIORITY", "HIGH_PRIORITY"}),
    "REPLACE": frozenset({"REPLACE", "INTO", "DELAYED", "LOW_PRIORITY"}),
    "RENAME": frozenset({"TO"}),
    "TRUNCATE": frozenset({"TRUNCATE"}),
}
"""By a statement's first word: after which words, besides TABLE, a table's name follows."""

_ALTERING: Final = frozenset({"ALTER", "DROP", "OPTIMIZE", "RENAME", "REPAIR", "TRUNCATE"})
_WAITS_SINCE: Final = (8, 0)
_CHANGING: Final = frozenset({"ALTER", "CREATE", "DROP", "OPTIMIZE", "RENAME", "REPAIR", "TRUNCATE"})
_LISTS: Final = frozenset({"DROP", "OPTIMIZE", "RENAME", "REPAIR"})
_PASSED: Final = frozenset({"IF", "NOT", "EXISTS", "TO", "AS", "INTO", "TABLE", "IGNORE", "LOW_PRIORITY", "DELAYED"})
_ANY_NAME: Final = re.compile(r"[0-9A-Za-z_$\u0080-\U0010FFFF]+")


@dataclass(slots=True)
class Touched:
    """The (database, name) pairs in a statement that cannot be read."""

    certain: list[tuple[str, str]] = field(default_factory=list)
    """Names where only a table's name can stand."""
    possible: list[tuple[str, str]] = field(default_factory=list)
    """Names where something else can stand too."""
    is_all: bool = True
    """Whether a statement that changes tables names all of them here. Not so for one that changes rows (triggers and
    foreign keys change other tables), nor for a text that breaks off.
    """


def touched_names(text: str, server: ServerKind, sql_mode: int, database: str) -> Touched:
    """The names, as far as there are tokens. In a text that breaks off, every word before that is possible, too."""
    touched = Touched()
    tokens: list[Token] = []
    try:
        for token in tokens_of(text, server, sql_mode):
            tokens.append(token)  # noqa: PERF402 - those before the place where it fails are wanted
    except UnreadableStatement:
        words = _ANY_NAME.findall(text)
        touched.possible = list(dict.fromkeys([*((database, word) for word in words), *pairwise(words)]))
        touched.is_all = False
    tokens = _without_preface(tokens, server)
    first = tokens[0].upper if tokens else ""
    touched.is_all &= first in _CHANGING
    before = _BEFORE_NAME.get(first, frozenset())
    for index, token in enumerate(tokens):
        is_next = first in _LISTS and token.kind == "other" and token.text == ","
        is_new_name = token.upper in ("RENAME", "TO", "AS") and "RENAME" in (token.upper, tokens[index - 1].upper)
        if token.upper in ("TABLE", "TABLES") or token.upper in before or is_next or is_new_name:
            _add(tokens, index + 1, database, touched.certain)
        elif token.upper == "ON":
            _add(tokens, index + 1, database, touched.possible)
    return touched


def altered_names(text: str, server: ServerKind, sql_mode: int, database: str) -> list[tuple[str, str]]:
    """The tables that a statement alters or empties, as far as there are tokens; without temporary ones.

    Only MySQL before 8.0 lets such a statement pass while a prepared transaction has rows of its table; elsewhere there
    are none: MariaDB lets pass what changes nothing, such as a MODIFY to the type that is there.
    """
    if server.is_mariadb or server.version >= _WAITS_SINCE:
        return []
    try:
        first = [token.upper for token in islice(tokens_of(text, server, sql_mode), 2)]
    except UnreadableStatement:
        first = text.upper().split(maxsplit=2)[:2]
    if not first or first[0] not in _ALTERING or first[1:] == ["TEMPORARY"]:
        return []
    touched = touched_names(text, server, sql_mode, database)
    return touched.certain or touched.possible


def _without_preface(tokens: list[Token], server: ServerKind) -> list[Token]:
    """The tokens from a statement's first word on; of MariaDB's SET STATEMENT ... FOR, from what is run by it."""
    begin = next((at for at, token in enumerate(tokens) if token.kind != "other" or token.text not in "();"), 0)
    if server.is_mariadb and [token.upper for token in tokens[begin : begin + 2]] == ["SET", "STATEMENT"]:
        begin = next((at + 1 for at, token in enumerate(tokens) if token.upper == "FOR"), begin)
    return tokens[begin:]


def _add(tokens: list[Token], index: int, database: str, names: list[tuple[str, str]]) -> None:
    while index < len(tokens) and (tokens[index].upper in _PASSED or _is_mark(tokens[index])):
        index += 1
    if index >= len(tokens) or tokens[index].kind not in ("word", "quoted"):
        return
    is_qualified = index + 2 < len(tokens) and tokens[index + 1].kind == "other" and tokens[index + 1].text == "."
    name = (tokens[index].text, tokens[index + 2].text) if is_qualified else (database, tokens[index].text)
    names.append(name)


def _is_mark(token: Token) -> bool:
    """Whether it may stand between a key word and a name: `RENAME = t`, `TABLE .t`."""
    return token.kind == "other" and token.text in ("=", ".")
