"""Filter `sql`: a WHERE, or a SELECT, over one table.

The SQL sees the user's columns; the bus's columns and the rows of controls are always kept.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from sqlglot import exp

from databus.core import ConfigError, name_parts, split_physical
from databus.flow import META_COLUMNS, Lineage, is_meta
from databus.pipeline.filters._rowwise import (
    columns_in,
    is_control,
    meta_columns,
    misspelt,
    not_row_wise,
    parse,
    parse_column,
    parse_predicate,
    written_parts,
)
from databus.plugins import Filter, FilterConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ALLOWED_ARGS = frozenset({"expressions", "from_", "where", "kind", "hint"})


class SqlConfig(FilterConfig):
    """Rows for which a condition holds, or a SELECT over one table, each row by itself."""

    type: Literal["sql"] = "sql"
    table: str | None = Field(
        None,
        description="The table, as `db.table` or `physical/db.table`. Needed with `where` after an edge of many "
        "tables; a `select` may name it itself after FROM.",
        examples=["main.orders"],
    )
    where: str | None = Field(
        None, min_length=1, description="Condition, in Spark's SQL.", examples=["total_cents > 10000"]
    )
    select: str | None = Field(
        None,
        min_length=1,
        description="SELECT over the table, in Spark's SQL. No join, aggregate, window, subquery, limit, clock or "
        "chance; the bus's columns are always kept. Keep the key's columns unchanged, under any name; if they are "
        "computed, a mirror needs the output's `key`.",
        examples=["SELECT id, total_cents / 100 AS total FROM orders WHERE status <> 'draft'"],
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.where is None) == (self.select is None):
            raise ValueError("give either `where` or `select`")
        return self


class SqlFilter(Filter):
    """See this module's first lines."""

    config_model: ClassVar[type[FilterConfig]] = SqlConfig
    config: SqlConfig

    @property
    def table(self) -> str | None:
        """The table named by `table`, or by the SELECT's FROM."""
        if self.config.table is not None or self.config.select is None:
            return self.config.table
        try:
            return _name_of(_from_of(self._tree))
        except ValueError:
            return None  # `problems` reports it

    @cached_property
    def _tree(self) -> exp.Select:
        tree = parse(self.config.select or "")
        if not isinstance(tree, exp.Select):
            raise ValueError("expected a SELECT")  # noqa: TRY004 - it is the text that is wrong
        return tree

    @cached_property
    def _parts(self) -> tuple[list[str], str | None]:
        texts, where = written_parts(self.config.select or "")
        if list(map(parse_column, texts)) != self._tree.expressions:
            raise ValueError("its columns cannot be separated; write it more simply")
        return texts, where

    def problems(self) -> list[tuple[str, str]]:
        """SQL that is not valid, or does not handle each row by itself."""
        option = "where" if self.config.where is not None else "select"
        try:
            tree = (
                parse_predicate(self.config.where) if self.config.where is not None else parse(self.config.select or "")
            )
            reasons = list(not_row_wise(tree))
            if not reasons and option == "select":
                return [(option, message) for message in self._select_problems()]
        except ValueError as error:
            return [(option, str(error))]
        return [
            (option, f"{word} does not handle each row by itself; do that in a query over the copy") for word in reasons
        ]

    def doubts(self) -> list[tuple[str, str]]:
        """Functions that Spark probably does not have."""
        if self.config.where is not None:
            return [("where", message) for message in misspelt(parse_predicate(self.config.where))]
        return [("select", message) for message in misspelt(self._tree)]

    def columns_read(self) -> list[tuple[str, str]]:
        """The columns that the condition or the SELECT names, without the bus's own and fields of structs."""
        option = "where" if self.config.where is not None else "select"
        try:
            tree = self._tree if self.config.where is None else parse_predicate(self.config.where)
        except ValueError:
            return []  # `problems` reports it
        bound = {expression.name for arrow in tree.find_all(exp.Lambda) for expression in arrow.expressions}
        aliases = (
            {expression.alias.lower() for expression in tree.expressions if expression.alias}
            if option == "select"
            else set()
        )
        names = dict.fromkeys(column.name for column in tree.find_all(exp.Column) if not column.table and column.name)
        ignored = {name for name in names if is_meta(name) or name in bound or name.lower() in aliases}
        return [(option, name) for name in names if name not in ignored]

    def lineage(self, names: Sequence[str], branch: str | None) -> Lineage:
        """See `Filter.lineage`. As Spark does it, upper and lower case are the same."""
        del branch
        if self.config.where is not None:
            return Lineage({name: name for name in names}, columns_in(parse_predicate(self.config.where), names))
        tree, columns, read = self._tree, dict[str, str | None](), frozenset[str]()
        reads_of: dict[str, frozenset[str]] = {}  # the columns that each alias reads, which later columns may name
        for projection in tree.expressions:
            if projection.is_star:
                columns |= {name: name for name in _starred(projection, names)}
                continue
            bare, name = projection.unalias(), projection.alias_or_name
            used = columns_in(projection, names, reads_of)
            named = {
                original.lower(): column for original, column in (*columns.items(), *zip(names, names, strict=True))
            }
            columns[name] = named.get(bare.name.lower()) if isinstance(bare, exp.Column) else None
            reads_of[name.lower()] = used
            read |= used if columns[name] is None else frozenset()
        where = tree.args.get("where")
        made_of = {name: reads_of[name.lower()] for name, column in columns.items() if column is None}
        return Lineage(columns, read if where is None else read | columns_in(where, names), made_of=made_of)

    def leaves_out_rows(self, branch: str | None) -> bool:
        """See `Filter.leaves_out_rows`: with a condition."""
        del branch
        return self.config.where is not None or self._tree.args.get("where") is not None

    def _select_problems(self) -> Iterator[str]:
        tree = self._tree
        unknown = [name for name, value in tree.args.items() if value and name not in _ALLOWED_ARGS]
        if unknown:
            what = unknown[0].rstrip("_").upper()
            yield f"{what} is not allowed here; beside its columns there are FROM with one table, and WHERE"
        named = _name_of(_from_of(tree))
        table = self.config.table
        parts = name_parts(split_physical(table or "")[1])
        if table is not None and _from_of(tree).name != parts[1] and named != ".".join(parts):
            yield f'reads FROM {named}, but `table` says "{table}"'
        if not unknown:
            self._parts  # noqa: B018 - raises if it cannot be split
        for projection in tree.expressions:
            if projection.alias_or_name in META_COLUMNS:
                yield f"{projection.alias_or_name} is one of the bus's own columns, which are always kept"
        names = [
            expression.alias_or_name.lower()
            for expression in tree.expressions
            if not expression.is_star and expression.alias_or_name
        ]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield f"two columns are called {name!r}; give one of them another name with AS"

    def apply(self, rows: "DataFrame", branch: str | None) -> "DataFrame":
        """The rows for which the condition holds, with the columns of the SELECT; see `Filter.apply`."""
        del branch
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

        if self.config.where is not None:
            return rows.where(is_control(rows) | F.expr(self.config.where))
        tree = self._tree
        table = _from_of(tree)
        rows = rows.alias(table.alias or table.name)
        texts, where = self._parts
        if where is not None:
            rows = rows.where(is_control(rows) | F.expr(where))
        written = zip(tree.expressions, texts, strict=True)
        columns = [column for projection, text in written for column in _expanded(projection, text, rows)]
        result = rows.select(*columns, *meta_columns(rows))
        names = [name.lower() for name in result.columns]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"select: two columns are called {name!r}; give one of them another name with AS")
        return result


def _from_of(tree: exp.Select) -> exp.Table:
    clause = tree.args.get("from_")
    table = None if clause is None else clause.this
    if not isinstance(table, exp.Table):
        raise ValueError("expected FROM and the name of a table")  # noqa: TRY004 - it is the text that is wrong
    return table


def _name_of(table: exp.Table) -> str:
    return ".".join(part for part in (table.catalog, table.db, table.name) if part)


def _expanded(projection: exp.Expression, text: str, rows: "DataFrame") -> list[Any]:
    """A projection as columns of Spark; a star stands for the table's columns without the bus's."""
    from pyspark.sql import functions as F  # noqa: N812

    if not projection.is_star:
        return [F.expr(text)]
    return [F.col("`" + name.replace("`", "``") + "`") for name in _starred(projection, rows.columns)]


def _starred(projection: exp.Expression, names: Sequence[str]) -> list[str]:
    """The columns that a star stands for: the table's, without those after EXCEPT."""
    star = projection if isinstance(projection, exp.Star) else projection.this
    excluded = {column.name.lower() for column in star.args.get("except_") or ()}
    return [name for name in names if not is_meta(name) and name.lower() not in excluded]
