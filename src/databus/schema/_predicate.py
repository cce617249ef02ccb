r"""Conditions over the columns of one row, as after WHERE in SQL: text to a small tree. Pure; nothing here has a row.

    status = 'paid' AND (total >= 10.50 OR code LIKE 'A\_%') AND NOT deleted AND region IN ('CH', 'FR')

The language is small on purpose: comparisons, BETWEEN, IN, LIKE, IS NULL, AND, OR, NOT, over columns and literals.
There is no arithmetic and no function, so that a condition means the same for every type and engine, and that strangers
may send one. What is not in it is refused with its place. Start with `Predicate.parse`, then `Predicate.over`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from databus.core import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from databus.schema._evaluate import BoundPredicate

TEXT_CHARS_MAX: Final = 100_000
DEPTH_MAX: Final = 64
DIGITS_MAX: Final = 76
EXPONENT_MAX: Final = 400


class LiteralKind(StrEnum):
    """What a literal is written as. Which values it stands for depends on the column that it is compared with."""

    NUMBER = "a number"
    TEXT = "text"
    BINARY = "binary"
    BOOLEAN = "TRUE or FALSE"
    DATE = "a DATE"
    TIMESTAMP = "a TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column, by the name that was written."""

    name: str
    at: int
    """Where it stands in the text."""


@dataclass(frozen=True, slots=True)
class LiteralNode:
    """A value. `value` is text for DATE and TIMESTAMP, as written."""

    kind: LiteralKind
    value: Decimal | str | bytes | bool
    at: int


Operand = ColumnName | LiteralNode


@dataclass(frozen=True, slots=True)
class ComparisonNode:
    """Two values compared; either side may be a column."""

    left: Operand
    sign: str
    """One of `=`, `<>`, `<`, `<=`, `>`, `>=`."""
    right: Operand
    at: int


@dataclass(frozen=True, slots=True)
class In:
    """Whether a column has one of some values."""

    column: ColumnName
    values: tuple[LiteralNode, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Like:
    """Whether text matches a pattern."""

    column: ColumnName
    pattern: str
    escape: str
    """The character behind which `%` and `_` mean themselves."""
    at: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column has no value; never unknown."""

    column: ColumnName
    at: int


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    node: "Node"


@dataclass(frozen=True, slots=True)
class Joined:
    """Two or more conditions, joined by `AND` or `OR`."""

    word: str
    nodes: tuple["Node", ...]


Node = ColumnName | LiteralNode | ComparisonNode | In | Like | IsNull | Not | Joined
"""A column or literal that stands as a condition is a boolean."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition."""

    text: str
    """The condition as it was written."""
    root: Node

    @classmethod
    def parse(cls, text: str) -> "Predicate":
        """Read a condition. Raises `ConfigError` that names the place of what is not understood.

        >>> Predicate.parse("total >= 10.50 AND code LIKE 'A%'").columns
        ('total', 'code')
        """
        if len(text) > TEXT_CHARS_MAX:
            raise ConfigError(f"{len(text)} characters of a condition; at most {TEXT_CHARS_MAX} are taken")
        return cls(text, _Parser(text).whole())

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, as written, each once."""
        return tuple(dict.fromkeys(column.name for column in _columns_of(self.root)))

    def over(self, schema: "pa.Schema") -> "BoundPredicate":
        """The condition over rows with these columns.

        Raises `ConfigError` for a column that is not there, and for a comparison that would not be exact.
        """
        from databus.schema._evaluate import bind

        return bind(self, schema)


def _columns_of(node: Node) -> Iterator[ColumnName]:
    match node:
        case ColumnName():
            yield node
        case ComparisonNode(left, _, right):
            yield from (side for side in (left, right) if isinstance(side, ColumnName))
        case In(column) | Like(column) | IsNull(column):
            yield column
        case Not(below):
            yield from _columns_of(below)
        case Joined(_, nodes):
            for part in nodes:
                yield from _columns_of(part)


_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<binary>[xX]'(?P<hex>[^']*)')
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
    | (?P<sign><>|!=|<=|>=|=|<|>|\(|\)|,|-)
    )""",
    re.VERBOSE,
)
_WORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "DATE", "TIMESTAMP"}
)
_COMPARISONS: Final = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_TURNED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """A word of the language, in upper case; empty for all else."""
        return self.text.upper() if self.kind == "word" and self.text.upper() in _WORDS else ""


def _refused(at: int, message: str) -> ConfigError:
    return ConfigError(f"character {at + 1}: {message}")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            what = "text that does not end" if text[start] in "'\"`" else f"{text[start]!r} has no meaning here"
            raise _refused(start, what)
        kind = next(name for name in ("binary", "number", "word", "text", "quoted", "sign") if match[name] is not None)
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return tokens


class _Parser:
    """Reads from left to right; each method takes what it is named after."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), _Token("end", "", len(text.rstrip()))]
        self._next = 0
        self._depth = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _takes(self, *words: str) -> bool:
        """Take these words, or signs, if they come next."""
        tokens = self._tokens[self._next : self._next + len(words)]
        if [token.word or (token.text if token.kind == "sign" else "") for token in tokens] != list(words):
            return False
        self._next += len(words)
        return True

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._unexpected(f"expected {sign}")

    def _unexpected(self, expected: str) -> ConfigError:
        token = self._token
        actual = "the condition ends" if token.kind == "end" else f"found {token.text[:40]}"
        return _refused(token.at, f"{expected}, {actual}")

    def whole(self) -> Node:
        node = self._or()
        if self._token.kind != "end":
            raise self._unexpected("expected AND, OR or the end")
        return node

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _refused(self._token.at, f"nested deeper than {DEPTH_MAX}")
        nodes = [self._and()]
        while self._takes("OR"):
            nodes.append(self._and())
        self._depth -= 1
        return nodes[0] if len(nodes) == 1 else Joined("OR", tuple(nodes))

    def _and(self) -> Node:
        nodes = [self._not()]
        while self._takes("AND"):
            nodes.append(self._not())
        return nodes[0] if len(nodes) == 1 else Joined("AND", tuple(nodes))

    def _not(self) -> Node:
        is_not = False
        while self._takes("NOT"):
            is_not = not is_not
        node = self._test()
        return Not(node) if is_not else node

    def _test(self) -> Node:
        if self._takes("("):
            node = self._or()
            self._expect(")")
            return node
        at = self._token.at
        left = self._operand()
        token = self._token
        if token.kind == "sign" and token.text in _COMPARISONS:
            self._take()
            return self._comparison(left, _COMPARISONS[token.text], self._operand(), token.at)
        if self._takes("IS", "NOT", "NULL"):
            return Not(IsNull(self._column(left), at))
        if self._takes("IS", "NULL"):
            return IsNull(self._column(left), at)
        is_not = self._takes("NOT")
        condition = self._range_or_list(left, at)
        if condition is not None:
            return Not(condition) if is_not else condition
        if is_not:
            raise self._unexpected("expected IN, LIKE or BETWEEN after NOT")
        if isinstance(left, LiteralNode) and left.kind is not LiteralKind.BOOLEAN:
            raise self._unexpected("expected a comparison")
        return left

    def _range_or_list(self, left: Operand, at: int) -> Node | None:
        if self._takes("IN"):
            return In(self._column(left), self._list(), at)
        if self._takes("LIKE"):
            pattern = self._text("a pattern, such as 'A%'")
            escape = self._text("a character") if self._takes("ESCAPE") else "\\"
            if len(escape) != 1:
                raise _refused(at, f"ESCAPE takes one character, not {escape!r}")
            return Like(self._column(left), pattern, escape, at)
        if self._takes("BETWEEN"):
            low = self._operand()
            if not self._takes("AND"):
                raise self._unexpected("expected AND between the bounds of BETWEEN")
            high = self._operand()
            bounds = (self._comparison(left, ">=", low, at), self._comparison(left, "<=", high, at))
            return Joined("AND", bounds)
        return None

    def _comparison(self, left: Operand, sign: str, right: Operand, at: int) -> ComparisonNode:
        if isinstance(left, LiteralNode) and isinstance(right, LiteralNode):
            raise _refused(at, "one side of a comparison has to be a column")
        if isinstance(left, LiteralNode):
            return ComparisonNode(right, _TURNED[sign], left, at)
        return ComparisonNode(left, sign, right, at)

    def _list(self) -> tuple[LiteralNode, ...]:
        self._expect("(")
        values: list[LiteralNode] = []
        while True:
            value = self._operand()
            if isinstance(value, ColumnName):
                raise _refused(value.at, f"a list holds values, and {value.name} would be a column")
            values.append(value)
            if not self._takes(","):
                break
        self._expect(")")
        return tuple(values)

    def _column(self, operand: Operand) -> ColumnName:
        if isinstance(operand, LiteralNode):
            raise _refused(operand.at, "expected a column")
        return operand

    def _text(self, what: str) -> str:
        if self._token.kind != "text":
            raise self._unexpected(f"expected {what}")
        return _unquoted(self._take().text)

    def _operand(self) -> Operand:
        token = self._token
        match token.kind:
            case "number":
                return self._number(is_negative=False)
            case "text":
                return LiteralNode(LiteralKind.TEXT, self._text("text"), token.at)
            case "binary":
                return self._binary()
            case "quoted":
                return ColumnName(_unquoted(self._take().text), token.at)
            case "sign" if token.text == "-":
                self._take()
                return self._number(is_negative=True)
            case "word":
                return self._word()
        raise self._unexpected("expected a column or a value")

    def _word(self) -> Operand:
        token = self._take()
        following = self._token
        match token.word:
            case "TRUE" | "FALSE":
                return LiteralNode(LiteralKind.BOOLEAN, token.word == "TRUE", token.at)
            case "DATE" | "TIMESTAMP" if following.kind == "text":
                return LiteralNode(LiteralKind[token.word], self._text("text"), token.at)
            case "NULL":
                raise _refused(token.at, "nothing is equal to NULL; write IS NULL or IS NOT NULL")
            case "" | "DATE" | "TIMESTAMP":
                pass
            case word:
                self._next -= 1
                raise self._unexpected(f"expected a column or a value before {word}")
        if following.kind == "sign" and following.text == "(":
            raise _refused(token.at, f"{token.text}(...): functions are not taken here")
        return ColumnName(token.text, token.at)

    def _number(self, *, is_negative: bool) -> LiteralNode:
        token = self._token
        if token.kind != "number":
            raise self._unexpected("expected a number after -")
        self._take()
        value = Decimal(token.text)
        _, digits, exponent = value.as_tuple()
        if len(digits) > DIGITS_MAX or abs(int(exponent)) > EXPONENT_MAX:
            raise _refused(token.at, f"a number has at most {DIGITS_MAX} digits, and an exponent up to {EXPONENT_MAX}")
        return LiteralNode(LiteralKind.NUMBER, value.copy_negate() if is_negative else value, token.at)

    def _binary(self) -> LiteralNode:
        token = self._take()
        try:
            return LiteralNode(LiteralKind.BINARY, bytes.fromhex(token.text[2:-1]), token.at)
        except ValueError:
            raise _refused(token.at, f"{token.text[:40]} is not pairs of hexadecimal digits") from None


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])
