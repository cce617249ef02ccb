"""Which tables a statement may touch that we cannot read: the names that stand where tables' names stand."""

import re
from dataclasses import dataclass, field
from typing import Final

from databus.sources.mysql.history._tokens import Server, Token, Unreadable, tokens_of

_CERTAIN: Final = frozenset({"TABLE", "TABLES", "EXISTS", "INTO", "UPDATE", "RENAME", "TRUNCATE"})
_POSSIBLE: Final = frozenset({"TO", "AS", "ON", "FROM", "LIKE", "WITH"})
_LISTS: Final = frozenset({"DROP", "RENAME"})
_PASSED: Final = frozenset({"IF", "NOT", "EXISTS", "TABLE", "TABLES", "TO", "AS", "COLUMN", "INDEX", "KEY", "IGNORE"})
_ANY_NAME: Final = re.compile(r"[0-9A-Za-z_$\u0080-\U0010FFFF]+")


@dataclass(slots=True)
class Touched:
    """(database, name) pairs. certain: what follows TABLE and the like; possible: what may be something else, too."""

    certain: list[tuple[str, str]] = field(default_factory=list)
    possible: list[tuple[str, str]] = field(default_factory=list)


def touched_names(text: str, server: Server, sql_mode: int, database: str) -> Touched:
    """The names; where not even tokens can be told, every word counts as possible."""
    found = Touched()
    tokens: list[Token] = []
    try:
        tokens += tokens_of(text, server, sql_mode)
    except Unreadable:
        found.possible = [(database, word) for word in dict.fromkeys(_ANY_NAME.findall(text))]
    is_list = bool(tokens) and tokens[0].upper in _LISTS
    for index, token in enumerate(tokens):
        following = index + 1
        is_next = is_list and token.text == "," and token.kind == "other"
        if token.upper in _CERTAIN or is_next:
            _add(tokens, following, database, found.certain)
        elif token.upper in _POSSIBLE:
            _add(tokens, following, database, found.possible)
    return found


def _add(tokens: list[Token], index: int, database: str, names: list[tuple[str, str]]) -> None:
    if index >= len(tokens) or tokens[index].kind not in ("word", "quoted") or tokens[index].upper in _PASSED:
        return
    is_qualified = index + 2 < len(tokens) and tokens[index + 1].text == "." and tokens[index + 1].kind == "other"
    name = (tokens[index].text, tokens[index + 2].text) if is_qualified else (database, tokens[index].text)
    if name not in names:
        names.append(name)
