"""Literal character sets: in which of them a statement's literals are, and what the server makes of them."""

from dataclasses import dataclass
from typing import Final, Self

from databus.sources.mysql._charsets import charset_of_number, is_text, shown
from databus.sources.mysql._definition import BINARY
from databus.sources.mysql._server_text import converted, decoded, encoded
from databus.sources.mysql.tables._lexer import UnreadableStatement
from databus.sources.mysql.tables._syntax import SqlLiteral

_NARROWED: Final = "tis620"  # of characters beyond U+FFFF servers keep a part there, and not the same part always


@dataclass(frozen=True, slots=True)
class LiteralCharsets:
    """Text comes in the client's character set, becomes a literal in the connection's, and then a column's."""

    client: str = "utf8mb4"
    connection: str = "utf8mb4"

    @classmethod
    def by(cls, collations: tuple[int, int, int] | None) -> Self:
        """As a statement's event has it: the collations of client, connection and server."""
        if collations is None:
            return cls()
        client, connection, _ = (charset_of_number(number) or "utf8mb4" for number in collations)
        return cls(client, connection)

    def text_in(self, text: str, charset: str) -> str:
        """The text that a literal becomes in a column of that character set.

        Raises `UnreadableStatement` if it is unknown.
        """
        if BINARY in (self.client, self.connection) or charset == BINARY:
            return decoded(self.bytes_in(text, charset), charset)
        return _converted(_converted(text, self.client, self.connection), self.connection, charset)

    def bytes_in(self, text: str, charset: str) -> bytes:
        """The bytes that a literal becomes there. Raises `UnreadableStatement` if they are not known."""
        try:
            if self.connection == BINARY:
                return encoded(text, self.client)
            if self.client == BINARY:
                text = decoded(encoded(text, BINARY), self.connection)
            else:
                text = _converted(text, self.client, self.connection)
            if charset == BINARY:
                return encoded(text, self.connection)
            return encoded(_converted(text, self.connection, charset), charset)
        except UnicodeEncodeError as error:
            raise UnreadableStatement(
                f"the bytes of {text[:40]!r} in {charset} are not certain: {error.reason}"
            ) from error

    def literal_in(self, literal: SqlLiteral, charset: str | None) -> SqlLiteral:
        """A string as the literal that a column of that character set gets; anything else as it is."""
        if literal.kind != "string" or charset is None:
            return literal
        if charset == BINARY:
            return SqlLiteral("hex", self.bytes_in(literal.text, BINARY).hex())
        return SqlLiteral("string", self.text_in(literal.text, charset))


def _converted(text: str, old: str, new: str) -> str:
    """Text of one character set converted to another. Invalid bytes stay if the two are the same."""
    if old == new:
        return text
    if not is_text(text):  # by server and by character set a question mark for each byte, or the text ends there
        text = shown(text[:40])
        raise UnreadableStatement(f"what becomes in {new} of the bytes of {text!r} that are no {old} is not certain")
    if new == _NARROWED and any(character > "\uffff" for character in text):
        raise UnreadableStatement(f"what {text[:40]!r} becomes in {new} is not certain")
    return converted(text, new)
