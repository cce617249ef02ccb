"""Generated columns: which columns their expressions use, and whose values an ALTER TABLE may make anew by that.

A server computes them again, stored ones too, when a column that they use gets another type or collation. It logs no
row then.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from databus.sources.mysql._definition import BINARY, ColumnDefinition

_PLAIN_NAME: Final = re.compile(r"[\w$ -]+")


def names_in(expression: str, columns: Iterable[ColumnDefinition]) -> tuple[str, ...]:
    """The columns that an expression may use: those whose names stand in it, be it as a function or inside a string.

    Too many do no harm, and then no text of any server has to be read as SQL.
    """
    found, text = [], expression.casefold()
    for column in columns:
        name = column.name.casefold()
        is_plain = _PLAIN_NAME.fullmatch(name) is not None  # others may stand there with escapes
        if not is_plain or re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text) is not None:
            found.append(column.name)
    return tuple(sorted(found))


def with_new_names(column: ColumnDefinition, renamed: Mapping[str, str]) -> ColumnDefinition:
    """A generated column after others were renamed: servers write the new names into its expression."""
    if not column.uses:
        return column
    return replace(column, uses=tuple(sorted(renamed.get(name, name) for name in column.uses)))


def looks_same(old: ColumnDefinition, new: ColumnDefinition, *, is_spelled_anew: bool) -> bool:
    """Whether an expression cannot but see in a column what it saw before.

    is_spelled_anew: its definition stands in the statement, or was converted; the collation may be another then.
    """
    if is_spelled_anew and (new.is_generated or new.charset not in (None, BINARY)):
        return False
    return old == replace(new, name=old.name, default=old.default, is_invisible=old.is_invisible, uses=old.uses)


def made_anew(columns: Sequence[ColumnDefinition], changed: set[str]) -> set[str]:
    """Which of `columns` are generated, or may be, from those in `changed`, or from one another."""
    found = set(changed)
    while changed:
        changed = {
            column.name
            for column in columns
            if column.name not in found and (column.uses is None or not found.isdisjoint(column.uses))
        }
        found |= changed
    return found
