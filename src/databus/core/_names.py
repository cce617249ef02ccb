"""Names of sources: a pair of a database and a table, as one text, and patterns over such names.

A name is `db.table`. Its first dot ends the database; dots behind that are the table's own. What stands between
backquotes stands for itself, so that a database with a dot is `` `shop.example`.t ``; a backquote in there is doubled.
Quoted are databases with a dot, and every database or table with a character that means something where names are
chosen (comma, slash, backquote, `*`, `?`, `[`), with blanks at an end, or without any character. All other names are
plain. So two tables never have one text, and a name, taken as a pattern, matches its own table alone.

Text is made of a name by `source_name` and `short_name` alone, and is read by what else is here.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

_SPECIAL: Final = re.compile(r"[,/`*?\[]")
_TOKEN: Final = re.compile(r"`((?:[^`]|``)*)`|(.)", re.DOTALL)
_WILD: Final = frozenset("*?[")


def _spelled(part: str, *, dots: bool) -> str:
    """A part of a name as text. dots: whether a dot is quoted."""
    is_plain = part and part == part.strip() and not _SPECIAL.search(part) and not (dots and "." in part)
    return part if is_plain else "`" + part.replace("`", "``") + "`"


def database_name(database: str) -> str:
    """A database's name as it is written in patterns.

    >>> database_name("shop"), database_name("shop.example")
    ('shop', '`shop.example`')
    """
    return _spelled(database, dots=True)


@lru_cache(maxsize=4096)
def source_name(database: str, table: str) -> str:
    """The text of a name; another one for each pair.

    >>> source_name("main", "orders"), source_name("a", "b.c"), source_name("a.b", "c"), source_name("main", "a,b")
    ('main.orders', 'a.b.c', '`a.b`.c', 'main.`a,b`')
    """
    return f"{_spelled(database, dots=True)}.{_spelled(table, dots=False)}"


@lru_cache(maxsize=4096)
def name_parts(source: str) -> tuple[str, str]:
    """The database and the table of a name; what has no dot is a table alone.

    >>> name_parts("a.b.c"), name_parts("`a.b`.c"), name_parts("orders")
    (('a', 'b.c'), ('a.b', 'c'), ('', 'orders'))
    """
    database, table = split_database(source)
    return plain_name(database), plain_name(table)


def short_name(source: str) -> str:
    """The name without its database, as a pattern that matches such tables.

    >>> short_name("main.orders"), short_name("a.b.c")
    ('orders', '`b.c`')
    """
    return _spelled(name_parts(source)[1], dots=True)


def _tokens(text: str) -> Iterable[tuple[str, int, bool]]:
    """The characters that stand outside of backquotes, and quoted texts; where each begins, and whether it is quoted.

    A backquote without another one is a character like others.
    """
    for token in _TOKEN.finditer(text):
        quoted = token[1]
        yield (token[2], token.start(), False) if quoted is None else (quoted.replace("``", "`"), token.start(), True)


def plain_name(text: str) -> str:
    """What a database or table whose text this is is called.

    >>> plain_name("orders"), plain_name("`a.b`")
    ('orders', 'a.b')
    """
    return "".join(part for part, _, _ in _tokens(text)) if "`" in text else text


def _split(text: str, sign: str) -> tuple[str, str, str]:
    """As `str.partition`, at the first sign outside of backquotes."""
    if "`" not in text:
        return text.partition(sign)
    at = next((at for part, at, is_quoted in _tokens(text) if part == sign and not is_quoted), -1)
    return (text, "", "") if at < 0 else (text[:at], sign, text[at + 1 :])


def split_names(text: str) -> list[str]:
    """A list of names or patterns with commas between them, without the blanks around each.

    >>> split_names("main.orders, main.`a,b`")
    ['main.orders', 'main.`a,b`']
    """
    names, sign = [], ","
    while sign:
        part, sign, text = _split(text, ",")
        names.append(part.strip())
    return names


def split_physical(name: str) -> tuple[str, str]:
    """The physical source of a name or pattern, empty where it is not said, and the rest of its text.

    >>> split_physical("shop/main.orders"), split_physical("main.`a/b`")
    (('shop', 'main.orders'), ('', 'main.`a/b`'))
    """
    physical, slash, rest = _split(name, "/")
    return (physical, rest) if slash else ("", name)


def split_database(name: str) -> tuple[str, str]:
    """The texts of the database, empty where it is not said, and of the table, of a name or pattern.

    >>> split_database("main.o*"), split_database("`a.b`.`c*`"), split_database("orders")
    (('main', 'o*'), ('`a.b`', '`c*`'), ('', 'orders'))
    """
    database, dot, table = _split(name, ".")
    return (database, table) if dot else ("", name)


@lru_cache(maxsize=4096)
def glob_of(pattern: str) -> str:
    """What `fnmatch` understands of a part of a pattern.

    >>> glob_of("o*"), glob_of("`o*`")
    ('o*', 'o[*]')
    """
    if "`" not in pattern:
        return pattern
    return "".join(re.sub(r"([*?\[])", r"[\1]", part) if is_quoted else part for part, _, is_quoted in _tokens(pattern))


def is_pattern(text: str) -> bool:
    """Whether a text may match more than one name: it has a wildcard outside of backquotes.

    >>> is_pattern("main.*"), is_pattern("main.`*`")
    (True, False)
    """
    return any(part in _WILD and not is_quoted for part, _, is_quoted in _tokens(text)) if _WILD & set(text) else False


def name_fits(source: str, pattern: str) -> bool:
    """Whether a name (`db.table`) matches a pattern: of both parts, or, where it has no dot, of the table or of all.

    >>> name_fits("shop.orders", "shop.o*"), name_fits("shop.orders", "orders"), name_fits("`a.b`.c", "`a.b`.*")
    (True, True, True)
    >>> name_fits("`a.b`.c", "a.*"), name_fits("a.b.c", "c")
    (False, False)
    """
    database, table = name_parts(source)
    wanted_database, wanted = split_database(pattern)
    if wanted_database:
        return fnmatchcase(database, glob_of(wanted_database)) and fnmatchcase(table, glob_of(wanted))
    both = f"{database}.{table}"  # as `shop*` is written for all tables of such databases
    return fnmatchcase(table, glob_of(wanted)) or (is_pattern(wanted) and fnmatchcase(both, glob_of(wanted)))


def canonical_name(name: str) -> str:
    """The text that `source_name` makes of a name, however its writer has quoted it.

    >>> canonical_name("`shop`.`orders`"), canonical_name("a.`b.c`"), canonical_name("orders")
    ('shop.orders', 'a.b.c', 'orders')
    """
    return source_name(*name_parts(name)) if split_database(name)[0] else name
