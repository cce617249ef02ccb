"""Types: how a column's declared type becomes one of ours, and what each type accepts.

| declared type                                   | ours    | accepts                                      |
|-------------------------------------------------|---------|----------------------------------------------|
| contains INT; BOOL, BOOLEAN                     | int64   | integers                                     |
| contains CHAR, CLOB or TEXT                     | string  | text that is UTF-8                           |
| contains BLOB                                   | binary  | blobs                                        |
| contains REAL, FLOA or DOUB                     | float64 | reals; integers that a float holds exactly   |
| begins with DATE, TIME (so DATETIME, TIMESTAMP) | string  | text that is UTF-8                           |
| NUMERIC, DECIMAL, NUMBER, DEC, MONEY            | float64 | reals; integers that a float holds exactly   |
| none, ANY, everything else (JSON, UUID, STRING) | any     | every value, as the SQL literal that makes it |

The order is SQLite's own for affinities, so that a value which SQLite converts on the way in is of the type we expect.
A column may all the same hold a value of any type; one that its type does not accept stops capture, naming it, until
`types: {main.table: {column: any}}` says otherwise. `any` is a string column that holds `42`, `1.5`, `'it''s'`,
`X'00FF'` or is null.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import pyarrow as pa

from databus.core import ConfigError

ColumnKind = Literal["int64", "float64", "string", "binary", "any"]

KINDS: Final[tuple[ColumnKind, ...]] = ("int64", "float64", "string", "binary", "any")

_CONTAINS: Final[tuple[tuple[ColumnKind, tuple[str, ...]], ...]] = (
    ("int64", ("INT",)),
    ("string", ("CHAR", "CLOB", "TEXT")),
    ("binary", ("BLOB",)),
    ("float64", ("REAL", "FLOA", "DOUB")),
)
_BEGINS: Final[tuple[tuple[ColumnKind, re.Pattern[str]], ...]] = (
    ("int64", re.compile(r"BOOL(EAN)?\b")),
    ("string", re.compile(r"DATE|TIME")),
    ("float64", re.compile(r"(NUMERIC|DECIMAL|NUMBER|DEC|MONEY)\b")),
)

ACCEPTED: Final[dict[ColumnKind, frozenset[type]]] = {
    "int64": frozenset({int, type(None)}),
    "float64": frozenset({int, float, type(None)}),
    "string": frozenset({str, type(None)}),
    "binary": frozenset({bytes, type(None)}),
    "any": frozenset({str, type(None)}),
}
"""The Python types by which values of a kind arrive from SQLite."""

ARROW: Final[dict[ColumnKind, pa.DataType]] = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "any": pa.string(),
}


def kind_of(declared: str) -> ColumnKind:
    """Our type for a declared type.

    >>> kind_of("VARCHAR(20)"), kind_of("boolean"), kind_of("DateTime"), kind_of("decimal(10,2)"), kind_of("")
    ('string', 'int64', 'string', 'float64', 'any')
    """
    name = declared.upper().strip()
    for kind, words in _CONTAINS:
        if any(word in name for word in words):
            return kind
    for kind, pattern in _BEGINS:
        if pattern.match(name):
            return kind
    return "any"


def checked_kind(name: str, where: str) -> ColumnKind:
    """An override's type. Raises `ConfigError` naming `where` for an unknown type."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise ConfigError(f"{where}: {name!r} is not a type of the SQLite source; there are {', '.join(KINDS)}")


def exact_sql(kind: ColumnKind, value: str) -> str:
    """The expression that reads `value` so that its kind accepts it.

    quote() cuts a text at its first NUL and does not say infinities in SQL, so those are written otherwise.
    """
    if kind != "any":
        return value
    return (
        f"CASE WHEN {value} IS NULL THEN NULL"
        f" WHEN typeof({value}) = 'real' AND abs({value}) = 9e999"
        f" THEN CASE WHEN {value} > 0 THEN '9e999' ELSE '-9e999' END"
        f" WHEN typeof({value}) = 'text' AND instr({value}, char(0)) > 0"
        f" THEN 'CAST(X''' || hex({value}) || ''' AS TEXT)' ELSE quote({value}) END"
    )


def size_sql(kinds: Iterable[ColumnKind], values: Iterable[str]) -> str:
    """The expression for how large these values are together, but for those of fixed size.

    Of text it counts characters, which is cheaper. "0" where all are of fixed size.
    """
    pairs = zip(kinds, values, strict=False)
    return _sum([f"coalesce(length({value}), 0)" for kind, value in pairs if kind not in ("int64", "float64")]) or "0"


def _sum(terms: Sequence[str]) -> str:
    """Halves of halves: SQLite reads `a + b + c` as `(a + b) + c`, and refuses what is nested deeper than 1,000."""
    if len(terms) < 2:
        return "".join(terms)
    middle = len(terms) // 2
    return f"({_sum(terms[:middle])} + {_sum(terms[middle:])})"
