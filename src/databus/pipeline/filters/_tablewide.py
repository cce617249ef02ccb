"""Filters over whole tables: `where`, `project` and `rename`. One line is for a thousand tables."""

from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from databus.core import ConfigError
from databus.flow import Project, Rename, Where
from databus.plugins import FilterConfig, TablesFilter, TablesFilterConfig

Columns = Annotated[
    list[str],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
]
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
    config: WhereConfig

    @cached_property
    def in_tasks(self) -> Where:
        """See `TablesFilter.in_tasks`."""
        return Where(**self.about, condition=self.config.where)

    def problems(self) -> list[tuple[str, str]]:
        """A condition that is none."""
        try:
            self.in_tasks.predicate  # noqa: B018 - parsed when it is asked for
        except ConfigError as error:
            return [("where", str(error))]
        return []


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
    config: ProjectConfig

    @cached_property
    def in_tasks(self) -> Project:
        """See `TablesFilter.in_tasks`."""
        given = self.config.columns, self.config.exclude
        columns, exclude = (None if each is None else tuple(each) for each in given)
        return Project(**self.about, columns=columns, exclude=exclude)


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
    config: RenameConfig

    @cached_property
    def in_tasks(self) -> Rename:
        """See `TablesFilter.in_tasks`."""
        return Rename(**self.about, columns=self.config.columns)
