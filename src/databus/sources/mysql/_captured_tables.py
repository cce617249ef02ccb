"""Which tables are captured, what each is at the log's present position, and how its rows are decoded."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from databus.core import FatalError, SourceChanged, UnsupportedFeature, glob_of, source_name, split_database
from databus.schema import TableSchema, diff
from databus.sources.mysql._config import BinlogConfig, MysqlConfig
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql._session_position import HeldTable
from databus.sources.mysql.binlog import TableMap
from databus.sources.mysql.rows import DecodePlan, Omitter, Policies, bus_type, describe, make_plan, text_columns
from databus.sources.mysql.tables import check_agreement, from_table_map

SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


class ReadingOptions(Protocol):
    """The options of both kinds of sources that say how rows are read."""

    zero_dates: Literal["error", "null", "text"]
    invalid_text: Literal["error", "replace"]
    on_large_row: Literal["stop", "marker"]
    row_bytes_max: int


class TableSelection:
    """Which tables are captured, and which of their columns. fold: whether the server compares names in lower case."""

    def __init__(self, config: MysqlConfig | BinlogConfig, *, fold: bool) -> None:
        self._config = config if not fold else config.model_copy(update=_folded(config))
        self._fold = fold

    def selects(self, database: str, name: str) -> bool:
        """Whether that table is captured."""
        source = source_name(database, name)
        if database.lower() in SYSTEM_DATABASES:
            return False
        return self._config.selects(source.lower() if self._fold else source)

    def may_select_in(self, database: str) -> bool:
        """Whether a table of that database may be captured: False only where no pattern can fit one."""
        if database.lower() in SYSTEM_DATABASES:
            return False
        database = database.lower() if self._fold else database
        wanted = (split_database(pattern)[0] for pattern in self._config.tables)
        return any(not pattern or fnmatchcase(database, glob_of(pattern)) for pattern in wanted)

    def excluded(self, definition: TableDefinition) -> frozenset[str]:
        """The columns of that table that never reach the log. Raises `ConfigError` if one is in its key."""
        return self._config.excluded_columns(self.name_of(definition), definition.key)

    def texts(self, definition: TableDefinition) -> frozenset[str]:
        """The columns of that table that come as text although their type has a form of its own.

        Raises `ConfigError` for one that has no exact text.
        """
        asked, dates = self._config.types.get(self.name_of(definition), {}), self._config.zero_dates == "text"
        if not asked and not dates:
            return frozenset()
        kept = [column for column in definition.columns if column.name not in self.excluded(definition)]
        visible = replace(definition, columns=tuple(column for column in kept if not column.is_hidden))
        return text_columns(visible, {name.lower() for name in asked}, dates=dates)

    def name_of(self, definition: TableDefinition) -> str:
        """The table as options name it, in lower case where the server compares names so."""
        return definition.source.lower() if self._fold else definition.source


def json_form_of(flavor: str, version: tuple[int, int, int]) -> Literal["8.0", "5.7"]:
    """How a server prints JSON."""
    return "5.7" if flavor == "mysql" and version < (8, 0, 0) else "8.0"


def _folded(config: MysqlConfig | BinlogConfig) -> dict[str, object]:
    return {
        "tables": [name.lower() for name in config.tables],
        "exclude": [name.lower() for name in config.exclude],
        "columns": {name.lower(): choice for name, choice in config.columns.items()},
        "types": {name.lower(): choice for name, choice in config.types.items()},
    }


class CapturedTables:
    """Definitions and plans at the present position. known: looks a definition up in the history. is_other:
    whether a name is one of a view or a sequence. json_form: how the server prints JSON, which MySQL 8.0 changed.
    why_unknown: why the history has no definition of a table, for errors.

    `in_force` has the schemas that consumers know, by source. `held` has tables that are not captured for now (see
    `_held_tables`). `omitter` counts the omitted values, if values may be omitted.
    """

    def __init__(
        self,
        physical: str,
        selection: TableSelection,
        options: ReadingOptions,
        known: Callable[[str, str], TableDefinition | None],
        is_other: Callable[[str, str], bool],
        in_force: Mapping[str, TableSchema],
        json_form: Literal["8.0", "5.7"] = "8.0",
        why_unknown: Callable[[str, str], str] = lambda *_: "",
    ) -> None:
        self.selection = selection
        self.in_force = dict(in_force)
        self.held: dict[str, HeldTable] = {}
        self._physical = physical
        self._options = options
        self._known = known
        self._is_other = is_other
        self._json_form = json_form
        self._why_unknown = why_unknown
        self._plans: dict[int, DecodePlan] = {}
        self._refused: dict[int, FatalError] = {}
        self._stale: set[int] = set()
        self.omitter = Omitter(options.row_bytes_max) if options.on_large_row == "marker" else None
        self._zero_dates: Literal["error", "null"] = "null" if options.zero_dates == "null" else "error"

    def policies(self, definition: TableDefinition) -> Policies:
        """How the table's values are read."""
        texts = self.selection.texts(definition)
        return Policies(self._zero_dates, self._options.invalid_text, omitter=self.omitter, texts=texts)

    def selects(self, definition: TableDefinition) -> bool:
        """Whether the table is captured."""
        return self.selection.selects(definition.database, definition.name)

    def wants(self, table_map: TableMap) -> bool:
        """Whether the rows of this table are captured. MariaDB logs rows of sequences, too, which are no tables."""
        name = table_map.database, table_map.name
        return self.selection.selects(*name) and not self._is_other(*name)

    def describe(self, definition: TableDefinition) -> TableSchema:
        """The table as consumers see it.

        Raises `UnsupportedFeature` for a type, or a kind of table, that is not captured.
        """
        if definition.is_versioned:
            raise UnsupportedFeature(
                f"{definition.source} keeps the history of its rows (WITH SYSTEM VERSIONING): its log has an insert "
                f"for each old row, which cannot be distinguished from a new one. Leave the table out with `exclude`"
            )
        return describe(
            definition,
            excluded=self.selection.excluded(definition),
            texts=self.selection.texts(definition),
            zero_dates=self._zero_dates,
            invalid_text=self._options.invalid_text,
        )

    def redefine(self, definition: TableDefinition) -> tuple[TableSchema | None, TableSchema]:
        """The table has this definition from here on. Returns the schema that was in force, and the one that is."""
        known, table = self.in_force.get(definition.source), self.describe(definition)
        self.in_force[definition.source] = table
        return known, table

    def plan(self, slot: int) -> DecodePlan:
        """How rows of a table map are decoded, as `prepare` has made it. Raises the error of a refused table map."""
        if slot in self._refused:
            raise self._refused[slot]
        return self._plans[slot]

    def forget_plans(self) -> None:
        """Definitions have changed: a server may go on with the same table map, as MySQL 5.7 does after a renaming."""
        self._plans.clear()
        self._refused.clear()
        self._stale.clear()

    def doubt_plans(self, newest: DecodePlan) -> None:
        """The table has changed: compare its other table maps again when they come again."""
        source = newest.definition.source
        self._stale |= {
            slot for slot, plan in self._plans.items() if plan is not newest and plan.definition.source == source
        }

    def refuse(self, slot: int, error: FatalError) -> None:
        """Raise this error when rows of that table map come."""
        self._refused[slot] = error

    def is_prepared(self, slot: int) -> bool:
        """Whether there is a plan for this table map."""
        return slot not in self._stale and (slot in self._plans or slot in self._refused)

    def is_news(self, table: TableSchema) -> bool:
        """Whether the table had another schema up to here."""
        known = self.in_force.get(table.source)
        return known is None or known.fingerprint != table.fingerprint

    def is_another(self, table: TableSchema) -> bool:
        """Whether consumers know the table in a way by which its values may have changed."""
        known = self.in_force.get(table.source)
        if known is None:
            return False
        charsets = {column.name: column.charset for column in known.columns}
        is_converted = any(charsets.get(column.name) not in (None, column.charset) for column in table.columns)
        return is_converted or not diff(known, table).is_empty

    def is_retyped(self, definition: TableDefinition) -> bool:
        """Whether by the options now other columns of the table come as text than consumers know."""
        known = self.in_force.get(definition.source)
        if known is None or definition.source in self.held or not self.selects(definition):
            return False
        texts = self.selection.texts(definition)
        is_text = {column.name: column.type == "string" for column in known.columns}
        return any(
            is_text[column.name] != (column.name in texts)
            for column in definition.columns
            if column.name in is_text and bus_type(column) != "string"
        )

    def prepare(self, slot: int, table_map: TableMap, looked_up: TableDefinition | None = None) -> DecodePlan:
        """Make the plan of a new table map. looked_up: what the table is, where the history does not fit the map.

        Raises `SourceChanged` if its columns are unknown, or the known definition is not what the map says.
        """
        known = looked_up or self._known(table_map.database, table_map.name)
        if table_map.metadata.names is not None:
            definition = from_table_map(table_map, known)
        elif known is not None:
            check_agreement(table_map, known)
            definition = known
        else:
            why = self._why_unknown(table_map.database, table_map.name)
            raise SourceChanged(
                f"{self._physical}: nothing says what the columns of {table_map.source} are: the log does not name "
                f"them, and {why or 'the history begins after the table was made'}. Run SET GLOBAL binlog_row_metadata "
                f"= FULL on the server and start at a later position, or have the table read again; for log files, "
                f"begin a new log with `definitions`"
            )
        plan = make_plan(
            definition,
            table_map.types,
            table_map.metas,
            table_map.nullable,
            excluded=self.selection.excluded(definition),
            texts=self.selection.texts(definition),
            zero_dates=self._zero_dates,
            invalid_text=self._options.invalid_text,
            json_form=self._json_form,
            omitter=self.omitter,
        )
        self._plans[slot] = plan
        self._stale.discard(slot)
        return plan
