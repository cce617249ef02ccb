"""SQL as tokens: just enough to find the parts of an index and of a table definition in the text SQLite keeps."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<number>(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?))
      | (?P<word>[^\W\d](?:\w|\$)*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


class SqlToken(NamedTuple):
    """One token: its kind, its text, and where it stands."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """Its identifier, unquoted; its text for anything else."""
        if self.kind != "quoted":
            return self.text
        if self.text[0] == "[":
            return self.text[1:-1]
        return self.text[1:-1].replace(self.text[0] * 2, self.text[0])

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these key words, unquoted."""
        return self.kind == "word" and self.text.upper() in words


def tokens_of(sql: str) -> Iterator[SqlToken]:
    """The tokens of a statement, without blanks and comments.

    >>> [t.name for t in tokens_of("a /* b */ + [c d]")]
    ['a', '+', 'c d']
    """
    for match in _TOKEN.finditer(sql):
        if match.lastgroup != "blank":
            yield SqlToken(str(match.lastgroup), match.group(), match.start(), match.end())


def body_parts(sql: str) -> tuple[list[str], str]:
    """What stands between the first top-level parentheses, cut at its commas; and what follows them.

    >>> body_parts("CREATE INDEX i ON t(lower(a), b DESC) WHERE c > 0")
    (['lower(a)', 'b DESC'], 'WHERE c > 0')
    """
    depth, start, parts = 0, 0, []
    for token in tokens_of(sql):
        if token.text == "(" and token.kind == "other":
            depth += 1
            if depth == 1:
                start = token.end
        elif token.text == ")" and token.kind == "other":
            depth -= 1
            if depth == 0:
                parts.append(sql[start : token.start].strip())
                return parts, sql[token.end :].strip()
        elif token.text == "," and token.kind == "other" and depth == 1:
            parts.append(sql[start : token.start].strip())
            start = token.end
    return parts, ""


def without_order(part: str) -> str:
    """An indexed expression without its trailing ASC or DESC.

    >>> without_order("lower(a) COLLATE NOCASE DESC")
    'lower(a) COLLATE NOCASE'
    """
    tokens = list(tokens_of(part))
    return part[: tokens[-1].start].strip() if tokens and tokens[-1].is_word("ASC", "DESC") else part


def condition_of(tail: str) -> str | None:
    """The condition of a partial index, from what follows its columns."""
    tokens = list(tokens_of(tail))
    return tail[tokens[0].end :].strip().rstrip(";") if tokens and tokens[0].is_word("WHERE") else None


def mentions(sql: str, names: Iterable[str]) -> bool:
    """Whether an identifier in `sql` is one of `names`; case does not count."""
    wanted = {name.lower() for name in names}
    return any(token.kind in ("word", "quoted") and token.name.lower() in wanted for token in tokens_of(sql))


def is_after_trigger(sql: str) -> bool:
    """Whether a trigger is surely an AFTER one; one that does not say when is a BEFORE one.

    >>> is_after_trigger("CREATE TRIGGER before AFTER INSERT ON t BEGIN SELECT 1; END")
    True
    >>> is_after_trigger("CREATE TRIGGER after DELETE ON t BEGIN SELECT 1; END")
    False
    """
    words = list(tokens_of(sql))
    begin = next(i for i, token in enumerate(words) if token.is_word("TRIGGER")) + 1
    if words[begin].is_word("IF"):
        begin += len(("IF", "NOT", "EXISTS"))
    if words[begin + 1].text == ".":
        begin += 2
    return words[begin + 1].is_word("AFTER")


def is_literal(sql: str) -> bool:
    """Whether a column's default is one literal, the same for every row.

    >>> is_literal("-1.5"), is_literal("'a'"), is_literal("x'00'"), is_literal("CURRENT_TIMESTAMP")
    (True, True, True, False)
    """
    tokens = list(tokens_of(sql))
    if tokens and tokens[0].text in ("+", "-"):
        return len(tokens) == 2 and tokens[1].kind == "number"
    if len(tokens) == 2 and tokens[0].is_word("X") and tokens[1].kind == "string":
        return True
    return len(tokens) == 1 and (tokens[0].kind in ("string", "number") or tokens[0].is_word("NULL", "TRUE", "FALSE"))
