"""A cursor over a statement's tokens, with the few moves that a reader of DDL needs."""

from collections.abc import Iterable
from typing import Final

from databus.sources.mysql.tables._lexer import ServerKind, Token, UnreadableStatement
from databus.sources.mysql.tables._syntax import Name

_END: Final = Token("end", "", "", -1, -1)


class TokenCursor:
    """Reads tokens from left to right. What is expected and is not there raises `UnreadableStatement`."""

    def __init__(self, tokens: Iterable[Token], server: ServerKind, sql_mode: int, database: str) -> None:
        self._tokens = list(tokens)
        self._at = 0
        self.server = server
        self.sql_mode = sql_mode
        self.database = database

    def peek(self, ahead: int = 0) -> Token:
        """The token at hand, or one after it."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left but a semicolon."""
        token = self.peek()
        return token.kind == "end" or (token.text == ";" and token.kind == "other")

    def take(self) -> Token:
        """The token at hand, moving on."""
        token = self.peek()
        if token.kind == "end":
            raise UnreadableStatement("the statement ends too early")
        self._at += 1
        return token

    def at_words(self, *words: str) -> bool:
        """Whether these key words come next, in this order."""
        return all(self.peek(ahead).upper == word for ahead, word in enumerate(words))

    def at_one_of(self, words: Iterable[str]) -> bool:
        """Whether the next token is one of these key words."""
        return self.peek().upper in words and self.peek().kind == "word"

    def accept(self, *words: str) -> bool:
        """Pass these key words if they come next."""
        if not self.at_words(*words):
            return False
        self._at += len(words)
        return True

    def accept_one_of(self, *words: str) -> str:
        """Pass one of these key words; empty if none comes."""
        upper = self.peek().upper
        if not upper or upper not in words:
            return ""
        self._at += 1
        return upper

    def expect(self, *words: str) -> None:
        """Pass these key words."""
        if not self.accept(*words):
            raise UnreadableStatement(f"{' '.join(words)} expected, not {self.peek().text[:40]!r}")

    def at_mark(self, mark: str, ahead: int = 0) -> bool:
        """Whether this punctuation comes next."""
        token = self.peek(ahead)
        return token.text == mark and token.kind == "other"

    def accept_mark(self, mark: str) -> bool:
        """Pass this punctuation if it comes next."""
        if not self.at_mark(mark):
            return False
        self._at += 1
        return True

    def expect_mark(self, mark: str) -> None:
        """Pass this punctuation."""
        if not self.accept_mark(mark):
            raise UnreadableStatement(f"{mark!r} expected, not {self.peek().text[:40]!r}")

    def identifier(self) -> str:
        """A name, quoted or not."""
        token = self.take()
        if token.kind not in ("word", "quoted"):
            raise UnreadableStatement(f"a name expected, not {token.text[:40]!r}")
        return token.text

    def name(self) -> Name:
        """A table's name, with or without its database."""
        self.accept_mark(".")
        first = self.identifier()
        if self.accept_mark("."):
            return Name(first, self.identifier())
        return Name(self.database, first)

    def column_name(self) -> str:
        """A column's name; of `database.table.column` the last part."""
        name = self.identifier()
        while self.accept_mark("."):
            name = self.identifier()
        return name

    def text(self) -> str:
        """A string, a name or a word: how character sets, engines and the like are named."""
        token = self.take()
        if token.kind not in ("word", "quoted", "string"):
            raise UnreadableStatement(f"a name expected, not {token.text[:40]!r}")
        return token.text

    def number(self) -> int:
        """A whole number."""
        token = self.take()
        if token.kind == "number" and token.text.isdigit():
            return int(token.text)
        raise UnreadableStatement(f"a number expected, not {token.text[:40]!r}")

    def cut_number(self) -> int:
        """A number of which servers take the digits before the point: `DECIMAL(19.5)` is DECIMAL(19)."""
        token = self.take()
        whole = token.text.partition(".")[0] or "0"
        if token.kind == "number" and whole.isdigit() and "e" not in token.text.lower():
            return int(whole)
        raise UnreadableStatement(f"a number expected, not {token.text[:40]!r}")

    def skip_brackets(self) -> list[Token]:
        """Pass what stands in brackets, and them; the tokens that it consists of."""
        self.expect_mark("(")
        tokens, depth = [], 1
        while depth:
            token = self.take()
            tokens.append(token)
            if token.kind == "other" and token.text in "()":
                depth += 1 if token.text == "(" else -1
        return tokens[:-1]

    def skip_value(self) -> None:
        """Pass one value: what stands in brackets, a signed number, a string, a word."""
        if self.at_mark("("):
            self.skip_brackets()
            return
        if self.at_mark("-") or self.at_mark("+"):
            self.take()
        self.take()

    def skip_to_comma(self) -> None:
        """Pass everything up to the next comma outside of brackets, or the end, or a bracket that closes."""
        while not self.is_at_end and not self.at_mark(",") and not self.at_mark(")"):
            if self.at_mark("("):
                self.skip_brackets()
            else:
                self.take()

    def if_exists(self) -> bool:
        """Pass IF EXISTS."""
        return self.accept("IF", "EXISTS")

    def if_not_exists(self) -> bool:
        """Pass IF NOT EXISTS."""
        return self.accept("IF", "NOT", "EXISTS")

    def skip_wait(self) -> None:
        """Pass MariaDB's WAIT n and NOWAIT."""
        if self.accept("WAIT"):
            self.number()
        else:
            self.accept("NOWAIT")
