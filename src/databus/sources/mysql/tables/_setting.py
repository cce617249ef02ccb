"""Setting: the server, session and database in which a statement ran, as far as its meaning depends on them."""

from dataclasses import dataclass, field

from databus.sources.mysql._definition import ColumnDefinition
from databus.sources.mysql.tables._lexer import ServerKind, UnknownEffect
from databus.sources.mysql.tables._literal_charsets import LiteralCharsets
from databus.sources.mysql.tables._syntax import SqlLiteral


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a statement ran."""

    server: ServerKind
    sql_mode: int
    explicit_timestamps: bool | None
    """`explicit_defaults_for_timestamp`; None where nothing says it."""
    database_charset: str
    """The default of tables that do not say theirs, or `UNKNOWN_CHARSET`."""
    zero_dates: str = "error"
    """With `null` the value of a zero date is known, NULL; with `text` it is its text."""
    written: LiteralCharsets = field(default_factory=LiteralCharsets)
    """The character sets of its literals."""
    time_zone: str | None = None
    """The session's, where the statement used it."""
    system_zone: str | None = None
    """What the time zone SYSTEM is."""

    @property
    def is_explicit_for_timestamp(self) -> bool:
        """`explicit_timestamps`, where a column depends on it. Raises `UnknownEffect`."""
        if self.explicit_timestamps is None:
            raise UnknownEffect(
                "what a TIMESTAMP without NULL, NOT NULL or a default is depends on the server's "
                "explicit_defaults_for_timestamp, which the log does not say; set the option of that name"
            )
        return self.explicit_timestamps

    def literal(self, column: ColumnDefinition, literal: SqlLiteral | None) -> SqlLiteral | None:
        """A default as the column gets it."""
        return None if literal is None else self.written.literal_in(literal, column.charset)
