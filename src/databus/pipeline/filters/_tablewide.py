"""Filters over whole tables: `where`, `project` and `rename`. One line is for a thousand tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from databus.core import ConfigError
from databus.pipeline._contract import FilterConfig, TablesFilter, TablesFilterConfig
from databus.pipeline._table_step import TableStep
from databus.schema import Column, Predicate, TableSchema, column_named, forms_of, sink_schema

Columns = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""One or more columns; one may stand without brackets."""


class WhereConfig(TablesFilterConfig):
    """Rows that a condition holds for, of any number of tables, before any output and without Spark's SQL."""

    type: Literal["where"] = "where"
    where: str = Field(
        min_length=1,
        description="Condition over the table's columns: comparisons, `IN`, `LIKE`, `BETWEEN`, `IS NULL`, `AND`, `OR`, "
        "`NOT`. See docs/recipes.md, Filter a thousand tables.",
        examples=["deleted_at IS NULL AND region IN ('CH', 'FR')"],
    )


class WhereFilter(TablesFilter):
    """See `WhereConfig`."""

    config_model: ClassVar[type[FilterConfig]] = WhereConfig
    hides: ClassVar[bool] = False

    def __init__(self, config: WhereConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.config: WhereConfig = config
        self._predicate: Predicate | None = None

    @property
    def predicate(self) -> Predicate:
        """The condition. Raises `ConfigError`."""
        if self._predicate is None:
            self._predicate = Predicate.parse(self.config.where)
        return self._predicate

    @property
    def names(self) -> Sequence[str]:
        """See `TablesFilter.names`."""
        return self.predicate.columns

    def problems(self) -> list[tuple[str, str]]:
        """A condition that is none."""
        try:
            self.predicate  # noqa: B018 - parsed when it is asked for
        except ConfigError as error:
            return [("where", str(error))]
        return []

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TablesFilter.over`. A column that the table got later is NULL."""
        if any(column is None for column in missing.values()):
            return TableStep.unchanged(table)
        later = {column.name: forms_of(column.type).sink for column in missing.values() if column is not None}
        bound = self.predicate.over(pa.schema([*sink_schema(table), *later.items()]))

        def apply(rows: pa.Table) -> pa.Table:
            judged = rows
            for name, kind in later.items():
                judged = judged.append_column(name, pa.nulls(rows.num_rows, kind))
            return rows.filter(bound.holds(judged))

        own = {name: name for name in table.names}
        return TableStep(table, table, apply, own, reads=bound.columns, selects=True)


class ProjectConfig(TablesFilterConfig):
    """Some of the columns of any number of tables. What is left out reaches no output; a key's columns have to stay."""

    type: Literal["project"] = "project"
    columns: Columns | None = Field(
        None, min_length=1, description="The columns that stay.", examples=[["id", "status"]]
    )
    exclude: Columns | None = Field(
        None, min_length=1, description="Or those that do not.", examples=[["password", "ssn"]]
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.columns is None) == (self.exclude is None):
            raise ValueError("give either `columns` or `exclude`")
        return self


class ProjectFilter(TablesFilter):
    """See `ProjectConfig`."""

    config_model: ClassVar[type[FilterConfig]] = ProjectConfig

    def __init__(self, config: ProjectConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.config: ProjectConfig = config

    @property
    def hides(self) -> bool:  # type: ignore[override]  # of the class where it is the same for all
        """With `exclude`: what is not named goes on."""
        return self.config.exclude is not None

    @property
    def names(self) -> Sequence[str]:
        """See `TablesFilter.names`."""
        return self.config.columns or self.config.exclude or ()

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TablesFilter.columns_left`."""
        named = {column_named(each, names) for each in self.names}
        return [name for name in names if (name in named) == (self.config.columns is not None)]

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TablesFilter.over`."""
        del missing
        left = self.columns_left(table.names)
        lost = [name for name in table.key if name not in left]
        if lost:
            raise ConfigError(
                f"{', '.join(lost)} is part of the key, by which rows are told apart, and has to stay; `mask` can "
                "`hash` it"
            )
        if not left:
            raise ConfigError("no column would be left")
        after = TableSchema(table.source, tuple(table.column(name) for name in left), table.key)
        gone = [name for name in table.names if name not in left]
        return TableStep(table, after, lambda rows: rows.drop_columns(gone), {name: name for name in left})


class RenameConfig(TablesFilterConfig):
    """Other names for columns of any number of tables."""

    type: Literal["rename"] = "rename"
    columns: dict[str, str] = Field(
        min_length=1,
        description="By name in the table: the name behind the filter.",
        examples=[{"cust_no": "customer"}],
    )


class RenameFilter(TablesFilter):
    """See `RenameConfig`."""

    config_model: ClassVar[type[FilterConfig]] = RenameConfig
    hides: ClassVar[bool] = False

    def __init__(self, config: RenameConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.config: RenameConfig = config

    @property
    def names(self) -> Sequence[str]:
        """See `TablesFilter.names`."""
        return tuple(self.config.columns)

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TablesFilter.columns_left`."""
        to = {column_named(old, names): new for old, new in self.config.columns.items()}
        return [to.get(name, name) for name in names]

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TablesFilter.over`."""
        del missing
        new = dict(zip(table.names, self.columns_left(table.names), strict=True))
        columns = tuple(
            Column(new[each.name], each.type, each.nullable, each.db_type, each.charset) for each in table.columns
        )
        after = TableSchema(table.source, columns, tuple(new[name] for name in table.key))

        def apply(rows: pa.Table) -> pa.Table:
            return rows.rename_columns([new.get(name, name) for name in rows.column_names])

        return TableStep(table, after, apply, {name: old for old, name in new.items()})
