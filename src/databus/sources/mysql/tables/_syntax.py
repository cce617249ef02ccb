"""What a statement says, once read: the few kinds that change tables, and nothing of the rest.

Names stand as written. Whatever has no place here has no effect on a definition or on rows.
"""

from dataclasses import dataclass, field

from databus.sources.mysql.tables._lexer import Token


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name. database: where it is not said, the statement's own."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class TypeText:
    """A column's type in canonical words.

    word: upper case, aliases resolved (`INT`, `VARCHAR`, `TEXT`...). sizes: what stands in brackets. members: bytes
    where digits say them. charset and collation: as written. is_national, is_byte: NCHAR, and CHAR BYTE.
    """

    word: str
    sizes: tuple[int, ...] = ()
    members: tuple[str | bytes, ...] = ()
    is_unsigned: bool = False
    is_zerofill: bool = False
    is_national: bool = False
    is_byte: bool = False
    is_compressed: bool = False
    charset: str | None = None
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class Literal:
    """One literal. kind: `number`, `string`, `hex`, `bits`, `null`, or `expression` for what is none.

    text: of a number its digits, of hex and bits the digits without their marks.
    """

    kind: str
    text: str = ""


NULL = Literal("null")
EXPRESSION = Literal("expression")


@dataclass(frozen=True, slots=True)
class ColumnText:
    """A column as a statement defines it. is_nullable, default: None where it is not said. expression: what a generated
    column is made of; is_stored: whether the table keeps its values. engine_option: the name of one that may say where
    its values are.
    """

    name: str
    type: TypeText
    is_nullable: bool | None = None
    default: Literal | None = None
    on_update: bool = False
    is_generated: bool = False
    expression: tuple[Token, ...] = ()
    is_stored: bool = False
    is_row_time: bool = False
    is_auto_increment: bool = False
    is_invisible: bool = False
    is_primary: bool = False
    is_unique: bool = False
    engine_option: str = ""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A column of a key; prefix: how many characters of it, 0 for all. name: empty for an expression. is_period: the
    name is a period's, WITHOUT OVERLAPS, which stands for its two columns.
    """

    name: str
    prefix: int = 0
    is_period: bool = False


@dataclass(frozen=True, slots=True)
class KeyText:
    """A key. kind: `primary`, `unique`, `index`, `foreign`, or MariaDB's `period`, which is none but has columns and a
    name as keys have. name: empty where the server makes one up.
    """

    kind: str
    name: str
    parts: tuple[KeyPart, ...]
    is_optional: bool = False
    is_hash: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a table or database that matter. charset, collation: as written. other_rows: the name of one that
    may say where a table's rows are.
    """

    charset: str | None = None
    collation: str | None = None
    engine: str | None = None
    is_versioned: bool = False
    other_rows: str = ""


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE. like: the table that it is made after. is_select: rows come from a query within the statement."""

    name: Name
    columns: tuple[ColumnText, ...] = ()
    keys: tuple[KeyText, ...] = ()
    options: Options = field(default_factory=Options)
    like: Name | None = None
    is_select: bool = False
    or_replace: bool = False
    is_optional: bool = False


FIRST = ""
"""A place before all columns; any other place is the name of the column before it, None is the end or no move."""


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
    default: Literal | None
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
    """DROP INDEX, DROP PRIMARY KEY (`PRIMARY`), DROP CONSTRAINT, DROP FOREIGN KEY. is_optional: it may not be a key.
    is_period: DROP PERIOD, whose name may be a key's, too.
    """

    name: str
    is_optional: bool = False
    is_period: bool = False


@dataclass(frozen=True, slots=True)
class RenameKey:
    """RENAME INDEX."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Rename:
    """RENAME TO, inside ALTER TABLE."""

    name: Name


@dataclass(frozen=True, slots=True)
class Convert:
    """CONVERT TO CHARACTER SET. charset None: the database's default."""

    charset: str | None
    collation: str | None


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Table options inside ALTER TABLE."""

    options: Options


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """An action that takes rows away or puts others in their place, unlogged. why: in words.

    other: another table whose rows change with it. makes, takes: a table that it creates, or consumes.
    """

    why: str
    other: Name | None = None
    makes: Name | None = None
    takes: Name | None = None


@dataclass(frozen=True, slots=True)
class SetVersioning:
    """ADD or DROP SYSTEM VERSIONING."""

    is_versioned: bool


@dataclass(frozen=True, slots=True)
class Copying:
    """What a statement says of how it is done. copies: whether the server writes all rows into a new table."""

    copies: bool


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
    | Rename
    | Convert
    | SetOptions
    | ChangeRows
    | SetVersioning
    | Copying
)


def moves_rows(action: Action) -> bool:
    """Whether a table of another name holds rows by it that no log entry told of."""
    return isinstance(action, Rename) or (isinstance(action, ChangeRows) and bool(action.other or action.makes))


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE, and what is that by other words: CREATE INDEX, DROP INDEX, OPTIMIZE TABLE, REPAIR TABLE.

    ignores: IGNORE, errors become changed values. copies: whether it asks for all rows to be written into a new table,
    or forbids it; None where the server chooses. is_lenient: values that do not fit are changed in any sql_mode.
    others: what the statement does to other tables.
    """

    name: Name
    actions: tuple[Action, ...]
    ignores: bool = False
    is_optional: bool = False
    copies: bool | None = None
    is_lenient: bool = False
    others: tuple["AlterTable", ...] = ()

    @property
    def keeps_all(self) -> bool:
        """Whether no column, key or row becomes another by what it says, but for what a copy may do."""
        return not self.actions and not self.ignores


@dataclass(frozen=True, slots=True)
class RenameTables:
    """RENAME TABLE, in order."""

    pairs: tuple[tuple[Name, Name], ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class DropTables:
    """DROP TABLE, and DROP VIEW and DROP SEQUENCE, whose names are in the same space.

    is_optional: IF EXISTS. Then names may be of another kind, which stay; servers log the statement all the same.
    """

    names: tuple[Name, ...]
    is_table: bool = True
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE, or a DELETE of all rows that the server logs for an emptied MEMORY table."""

    name: Name


@dataclass(frozen=True, slots=True)
class CreateOther:
    """CREATE VIEW and CREATE SEQUENCE: a name among the tables' that is none.

    is_optional: IF NOT EXISTS, of a view. Then it may be a table's, which stays; servers log the statement then too.
    """

    name: Name
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class SetDatabase:
    """CREATE DATABASE and ALTER DATABASE. is_new: CREATE. or_replace: what was in it is dropped."""

    database: str
    options: Options
    is_new: bool
    or_replace: bool = False
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
"""None: a statement that never matters."""
