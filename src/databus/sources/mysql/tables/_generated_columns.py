"""Generated columns: which columns their expressions use, and which of them an ALTER TABLE may compute again.

A server computes them again, stored ones too, when a column that they use gets another type or collation. It logs no
row then.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.tables._lexer import Token, words

_PLAIN_NAME: Final = re.compile(r"[\w$ -]+")


_STEADY: Final = frozenset(
    words(
        "AND BETWEEN BOTH CASE DIV ELSE END FALSE FOR FROM IN IS LEADING MOD NULL OR THEN TRAILING TRUE WHEN XOR "
        "ABS CAST CEIL CEILING CHARACTER_LENGTH CHAR_LENGTH COALESCE CONCAT CONCAT_WS DAY DAYOFMONTH FLOOR GREATEST "
        "HOUR IF IFNULL INSTR ISNULL JSON_EXTRACT JSON_LENGTH JSON_UNQUOTE LCASE LEAST LEFT LOCATE LOWER LPAD LTRIM "
        "MID MINUTE MONTH NULLIF POSITION QUARTER REPLACE REVERSE RIGHT ROUND RPAD RTRIM SECOND SIGN SUBSTR SUBSTRING "
        "SUBSTRING_INDEX TRIM TRUNCATE UCASE UPPER YEAR"
    )
)
"""Key words and functions whose results depend on no setting of a session. Not so, for example: `/` (by
div_precision_increment), WEEK, DATE_FORMAT, dates made of text (by sql_mode), LIKE (by NO_BACKSLASH_ESCAPES).
"""
_OF_BYTES: Final = frozenset(words("BIT_LENGTH CRC32 HEX LENGTH MD5 OCTET_LENGTH SHA SHA1 SHA2"))
"""The same, of text and bytes; a number becomes text in the character set of the connection."""
_MARKS: Final = frozenset("(),+-*%=<>")
_NUMBERS: Final = ("SIGNED", "UNSIGNED", "DECIMAL", "INTEGER")
_DATED: Final = frozenset(
    {FieldType.DATE, FieldType.NEWDATE, FieldType.DATETIME, FieldType.DATETIME2, FieldType.TIMESTAMP}
    | {FieldType.TIMESTAMP2, FieldType.TIME, FieldType.TIME2}
)
_FLOATS: Final = frozenset({FieldType.FLOAT, FieldType.DOUBLE})
_LIKE_A_DATE: Final = re.compile(r"(?:\D*\d){6}")


def computed(
    column: ColumnDefinition,
    text: str,
    expression: Sequence[Token],
    others: Sequence[ColumnDefinition],
    *,
    is_stored: bool,
) -> ColumnDefinition:
    """A generated column, with the columns that its expression (as text and as tokens) uses. others: all columns."""
    column = replace(column, uses=names_in(text, others))
    return replace(column, is_steady=not is_stored or _is_steady(expression, column, others))


def spaced(expression: Sequence[Token]) -> str:
    """An expression as text in which names can be looked for."""
    return " ".join(token.text for token in expression)


def _is_steady(expression: Sequence[Token], column: ColumnDefinition, others: Iterable[ColumnDefinition]) -> bool:
    """Whether every session that computes an expression gets the same, whatever its settings. column: what is computed.

    Of columns with a use for more than their values (TIMESTAMP, CHAR, invalid dates) see `_computed_again` in `_apply`.
    """
    named = {other.name.casefold(): other for other in others}
    used = [named[name.casefold()] for name in column.uses or ()]
    if column.type in _DATED:  # text becomes a date, and fractions are rounded, by sql_mode
        return False
    has_text = any(token.kind == "string" for token in expression)
    if has_text and any(other.type in _FLOATS for other in used):  # 1e20 = '1E20' by the connection's collation
        return False
    has_bytes = bool(used) and all(other.charset is not None for other in used)
    known, names = _STEADY | _OF_BYTES if has_bytes else _STEADY, frozenset(named)
    triples = zip([_NONE, *expression], expression, [*expression[1:], _NONE], strict=False)
    return all(_is_steady_token(before, token, after, known, names) for before, token, after in triples)


_NONE: Final = Token("end", "", "", -1, -1)


def _is_steady_token(before: Token, token: Token, after: Token, known: frozenset[str], columns: frozenset[str]) -> bool:
    if before.upper == "AS":
        return token.upper in _NUMBERS
    if token.kind == "word" and after.kind == "string":  # a literal with its character set; else a date by its text
        return token.text.startswith("_")
    if token.kind == "word" and token.upper in ("AS", "NOT"):
        return token.upper == "AS" or before.upper == "IS" or after.upper in ("IN", "BETWEEN")
    if token.kind == "word" and (after.text == "(" or token.upper in known):
        return token.upper in known
    if token.kind in ("word", "quoted"):
        return token.text.casefold() in columns
    if token.kind == "string":
        return _LIKE_A_DATE.match(token.text) is None
    return token.kind in ("number", "hex", "bits") or token.text in _MARKS


def names_in(expression: str, columns: Iterable[ColumnDefinition]) -> tuple[str, ...]:
    """The columns that an expression may use: those whose names stand in it, be it as a function or inside a string.

    One column too many does no harm, and so no server's text has to be read as SQL.
    """
    names, text = [], expression.casefold()
    for column in columns:
        name = column.name.casefold()
        is_plain = _PLAIN_NAME.fullmatch(name) is not None  # others may stand there with escapes
        if not is_plain or re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text) is not None:
            names.append(column.name)
    return tuple(sorted(names))


def with_new_names(column: ColumnDefinition, renamed: Mapping[str, str]) -> ColumnDefinition:
    """A generated column after others were renamed: servers write the new names into its expression."""
    if not column.uses:
        return column
    return replace(column, uses=tuple(sorted(renamed.get(name, name) for name in column.uses)))


def looks_same(old: ColumnDefinition, new: ColumnDefinition, *, is_redefined: bool) -> bool:
    """Whether an expression is certain to see the same values in a column as before.

    is_redefined: its definition stands in the statement, or was converted; the collation may be another then.
    """
    if is_redefined and (new.is_generated or new.charset not in (None, BINARY)):
        return False
    return old == replace(new, name=old.name, default=old.default, is_invisible=old.is_invisible, uses=old.uses)


def recomputed_columns(columns: Sequence[ColumnDefinition], changed: set[str]) -> set[str]:
    """Which of `columns` are generated, or may be, from those in `changed`, or from one another."""
    names = set(changed)
    while changed:
        changed = {
            column.name
            for column in columns
            if column.name not in names and (column.uses is None or not names.isdisjoint(column.uses))
        }
        names |= changed
    return names
