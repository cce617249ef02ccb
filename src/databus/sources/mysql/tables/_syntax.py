"""What a statement says, once read: the few kinds that change tables, and nothing of the rest.

Names stand as written. Whatever has no place here has no effect on a definition or on rows.
"""

from dataclasses import dataclass, field

from databus.sources.mysql.tables._lexer import Token


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name."""

    database: str
    """The statement's own where it names none."""
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class TypeText:
    """A column's type in canonical words."""

    word: str
    """Upper case, aliases resolved (`INT`, `VARCHAR`, `TEXT`...)."""
    sizes: tuple[int, ...] = ()
    """The numbers in brackets."""
    members: tuple[str | bytes, ...] = ()
    """Of ENUM and SET; bytes where they are written as digits."""
    is_unsigned: bool = False
    is_zerofill: bool = False
    is_national: bool = False
    """NCHAR."""
    is_byte: bool = False
    """CHAR BYTE."""
    is_compressed: bool = False
    charset: str | None = None
    """As written."""
    collation: str | None = None
    """As written."""


@dataclass(frozen=True, slots=True)
class SqlLiteral:
    """One literal."""

    kind: str
    """`number`, `string`, `hex`, `bits`, `null`, or `expression` for anything else."""
    text: str = ""
    """The digits of a number; of hex and bits the digits without their marks."""


NULL = SqlLiteral("null")
EXPRESSION = SqlLiteral("expression")


@dataclass(frozen=True, slots=True)
class ColumnText:
    """A column as a statement defines it."""

    name: str
    type: TypeText
    is_nullable: bool | None = None
    """None where the statement does not say."""
    default: SqlLiteral | None = None
    """None where the statement does not say."""
    on_update: bool = False
    is_generated: bool = False
    expression: tuple[Token, ...] = ()
    """What a generated column is computed from."""
    is_stored: bool = False
    """Whether the table keeps the values of a generated column."""
    is_row_time: bool = False
    is_auto_increment: bool = False
    is_invisible: bool = False
    is_primary: bool = False
    is_unique: bool = False
    engine_option: str = ""
    """The name of an option that may say where the column's values are."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A column of a key."""

    name: str
    """Empty for an expression."""
    prefix: int = 0
    """How many characters of it; 0 for all."""
    is_period: bool = False
    """WITHOUT OVERLAPS: `name` is a period's, and stands for its two columns."""


@dataclass(frozen=True, slots=True)
class KeyText:
    """A key as a statement defines it."""

    kind: str
    """`primary`, `unique`, `index`, `foreign`; or MariaDB's `period`, which is no key, but has columns and a name like
    one.
    """
    name: str
    """Empty where the server chooses it."""
    parts: tuple[KeyPart, ...]
    is_optional: bool = False
    is_hash: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a table or database that matter."""

    charset: str | None = None
    """As written."""
    collation: str | None = None
    """As written."""
    engine: str | None = None
    is_versioned: bool = False
    other_rows: str = ""
    """The name of an option that may say where the table's rows are."""


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE."""

    name: Name
    columns: tuple[ColumnText, ...] = ()
    keys: tuple[KeyText, ...] = ()
    options: Options = field(default_factory=Options)
    like: Name | None = None
    """The table of CREATE TABLE ... LIKE."""
    is_select: bool = False
    """Whether the rows come from a query inside the statement."""
    or_replace: bool = False
    is_optional: bool = False


FIRST = ""
"""A place before all columns. Any other place is the name of the column before it; None is the end, or no move."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """ADD COLUMN."""

    column: ColumnText
    place: str | None = None
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """MODIFY and CHANGE: `old` gets the definition, and the name, of `column`."""

    old: str
    column: ColumnText
    place: str | None = None
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """RENAME COLUMN."""

    old: str
    new: str
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """DROP COLUMN."""

    name: str
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    """ALTER COLUMN SET DEFAULT or DROP DEFAULT (None)."""

    column: str
    default: SqlLiteral | None
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class SetVisibility:
    """ALTER COLUMN SET INVISIBLE or SET VISIBLE."""

    column: str
    is_invisible: bool


@dataclass(frozen=True, slots=True)
class AddKey:
    """ADD INDEX and its kin."""

    key: KeyText


@dataclass(frozen=True, slots=True)
class DropKey:
    """DROP INDEX, DROP PRIMARY KEY (`PRIMARY`), DROP CONSTRAINT, DROP FOREIGN KEY."""

    name: str
    is_optional: bool = False
    """The name may be no key's."""
    is_period: bool = False
    """DROP PERIOD; a key can have the same name."""


@dataclass(frozen=True, slots=True)
class RenameKey:
    """RENAME INDEX."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RenameTo:
    """RENAME TO, inside ALTER TABLE."""

    name: Name


@dataclass(frozen=True, slots=True)
class Convert:
    """CONVERT TO CHARACTER SET."""

    charset: str | None
    """None for the database's default."""
    collation: str | None


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Table options inside ALTER TABLE."""

    options: Options


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """An action that removes or replaces rows without logging them."""

    why: str
    """In words."""
    other: Name | None = None
    """Another table whose rows change with it."""
    makes: Name | None = None
    """A table that it creates."""
    takes: Name | None = None
    """A table that it consumes."""


@dataclass(frozen=True, slots=True)
class SetVersioning:
    """ADD or DROP SYSTEM VERSIONING."""

    is_versioned: bool


@dataclass(frozen=True, slots=True)
class CopyClause:
    """What a statement says of how the server is to execute it."""

    copies: bool
    """Whether the server writes all rows into a new table."""


Action = (
    AddColumn
    | ChangeColumn
    | RenameColumn
    | DropColumn
    | SetDefault
    | SetVisibility
    | AddKey
    | DropKey
    | RenameKey
    | RenameTo
    | Convert
    | SetOptions
    | ChangeRows
    | SetVersioning
    | CopyClause
)


def moves_rows(action: Action) -> bool:
    """Whether it brings rows into a table of another name without logging them."""
    return isinstance(action, RenameTo) or (isinstance(action, ChangeRows) and bool(action.other or action.makes))


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE, and the statements that are the same: CREATE INDEX, DROP INDEX, OPTIMIZE TABLE, REPAIR TABLE."""

    name: Name
    actions: tuple[Action, ...]
    ignores: bool = False
    """IGNORE: values that do not fit are changed instead of refused."""
    is_optional: bool = False
    copies: bool | None = None
    """True if it asks the server to write all rows into a new table, False if it forbids that; None where the server
    chooses.
    """
    is_lenient: bool = False
    """Values that do not fit are changed in any sql_mode."""
    others: tuple["AlterTable", ...] = ()
    """What the statement does to other tables."""

    @property
    def keeps_all(self) -> bool:
        """Whether the statement changes no column, key or row, except by what a copy may do."""
        return not self.actions and not self.ignores


@dataclass(frozen=True, slots=True)
class RenameTables:
    """RENAME TABLE, in order."""

    pairs: tuple[tuple[Name, Name], ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class DropTables:
    """DROP TABLE; also DROP VIEW and DROP SEQUENCE, since tables, views and sequences share their names."""

    names: tuple[Name, ...]
    is_table: bool = True
    is_optional: bool = False
    """IF EXISTS. Objects of another kind stay then; servers log the statement all the same."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE, or a DELETE of all rows that the server logs for an emptied MEMORY table."""

    name: Name


@dataclass(frozen=True, slots=True)
class CreateOther:
    """CREATE VIEW and CREATE SEQUENCE: they take a name among the tables' names."""

    name: Name
    is_optional: bool = False
    """IF NOT EXISTS, of a view. A table of that name stays then; servers log the statement all the same."""


@dataclass(frozen=True, slots=True)
class SetDatabase:
    """CREATE DATABASE and ALTER DATABASE."""

    database: str
    options: Options
    is_new: bool
    """CREATE."""
    or_replace: bool = False
    """Everything that was in the database is dropped."""
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """DROP DATABASE."""

    database: str


@dataclass(frozen=True, slots=True)
class ChangesRows:
    """INSERT, UPDATE and their like: they must not be in a log of format ROW."""

    verb: str


Parsed = (
    CreateTable
    | AlterTable
    | RenameTables
    | DropTables
    | Truncate
    | CreateOther
    | SetDatabase
    | DropDatabase
    | ChangesRows
    | None
)
"""None for a statement that never matters."""
