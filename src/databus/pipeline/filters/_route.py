"""Filter `route`: sends tables, or the rows of one table, into named branches, read as `filter.branch`.

By table, its edges carry tables, and no row is read. By condition, a row goes into every branch whose condition holds,
each image of an update by itself; controls go into every branch.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from databus.filters import TableChoice
from databus.flow import Lineage
from databus.pipeline.filters._rowwise import columns_in, is_control, misspelt, not_row_wise, parse_predicate
from databus.pipeline.filters._tablewide import Texts
from databus.plugins import Filter, FilterConfig, Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_Branch = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class RouteConfig(FilterConfig):
    """Named branches, by table or by a condition over the rows of one table."""

    type: Literal["route"] = "route"
    tables: dict[_Branch, Texts] | None = Field(
        None, min_length=1, description="By branch: patterns of tables.", examples=[{"people": ["*.customers"]}]
    )
    table: str | None = Field(None, description="With `where`: the table, as `db.table` or `physical/db.table`.")
    where: dict[_Branch, str] | None = Field(
        None,
        min_length=1,
        description="By branch: a condition in Spark's SQL, over each row by itself.",
        examples=[{"large": "total_cents > 10000", "gifts": "is_gift"}],
    )
    otherwise: _Branch | None = Field(None, description="Name of one more branch, for all that goes into no other.")

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.tables is None) == (self.where is None):
            raise ValueError("give either `tables` or `where`")
        if self.tables is not None and self.table is not None:
            raise ValueError("`table` goes with `where`")
        if self.otherwise in (self.tables or self.where or ()):
            raise ValueError(f'otherwise: there is a branch called "{self.otherwise}" already')
        return self


class RouteFilter(Filter):
    """See this module's first lines."""

    config_model: ClassVar[type[FilterConfig]] = RouteConfig
    config: RouteConfig

    @property
    def takes(self) -> Shape:
        """Tables, if it routes by table."""
        return Shape.TABLES if self.config.tables is not None else Shape.TYPED

    @property
    def table(self) -> str | None:
        """The table that its conditions are about."""
        return self.config.table

    @property
    def branches(self) -> tuple[str, ...]:
        """All branches."""
        otherwise = () if self.config.otherwise is None else (self.config.otherwise,)
        return (*(self.config.tables or self.config.where or ()), *otherwise)

    def problems(self) -> list[tuple[str, str]]:
        """Conditions that are not valid, or depend on more than their row."""
        columns: list[tuple[str, str]] = []
        for branch, text in (self.config.where or {}).items():
            try:
                words = list(not_row_wise(parse_predicate(text)))
            except ValueError as error:
                columns.append((f"where.{branch}", str(error)))
                continue
            columns += [(f"where.{branch}", f"{word} does not handle each row by itself") for word in words]
        return columns

    def doubts(self) -> list[tuple[str, str]]:
        """Functions that Spark probably does not have."""
        where = self.config.where or {}
        return [
            (f"where.{branch}", message)
            for branch, text in where.items()
            for message in misspelt(parse_predicate(text))
        ]

    def choose(self, branch: str | None) -> TableChoice:
        """The tables of a branch."""
        tables = self.config.tables or {}
        if branch is not None and branch in tables:
            return TableChoice(tuple(tables[branch]))
        return TableChoice(exclude=tuple(pattern for patterns in tables.values() for pattern in patterns))

    def lineage(self, names: Sequence[str], branch: str | None) -> Lineage:
        """See `Filter.lineage`: the columns are kept, and its conditions read some."""
        where = self.config.where or {}
        texts = [where[branch]] if branch is not None and branch in where else list(where.values())
        read = (columns_in(parse_predicate(text), names) for text in texts)
        return Lineage({name: name for name in names}, frozenset[str]().union(*read))

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """See `Filter.form`: the branch's condition, or those of all others."""
        where = self.config.where or {}
        if branch is not None and branch in where:
            return {"type": "route", "where": where[branch]}
        return {"type": "route", "otherwise": sorted(where.values())}

    def apply(self, rows: "DataFrame", branch: str | None) -> "DataFrame":
        """The rows of a branch."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

        where = self.config.where or {}
        if branch is not None and branch in where:
            return rows.where(is_control(rows) | F.expr(where[branch]))
        holds: list[Column] = [F.coalesce(F.expr(text), F.lit(False)) for text in where.values()]
        return rows.where(is_control(rows) | ~reduce(or_, holds))
