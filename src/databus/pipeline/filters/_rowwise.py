"""Whether SQL handles each row by itself, as the bus's columns and mirrors need it.

A mirror handles each image of a row by itself: the result must depend only on that row, and be the same on a replay. So
joins, aggregates, windows, subqueries, limits, and functions of the clock or of chance are detected here.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import ParseError, SqlglotError

from databus.core import CHANGE_TYPE
from databus.flow import CONTROL_LABEL, META_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DIALECT: Final = "spark"
SQL_CHARS_MAX: Final = 100_000
_NEAR: Final = 0.8
_OPENS: Final = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSES: Final = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)

_CLAUSES: Final[tuple[tuple[Any, str], ...]] = (
    (exp.Window, "a window function"),
    (exp.AggFunc, "an aggregate"),
    (exp.Join, "a join"),
    (exp.Lateral, "LATERAL VIEW"),
    (exp.Group, "GROUP BY"),
    (exp.Having, "HAVING"),
    (exp.Qualify, "QUALIFY"),
    (exp.Distinct, "DISTINCT"),
    (exp.Limit, "LIMIT"),
    (exp.Fetch, "LIMIT"),
    (exp.Offset, "OFFSET"),
    (exp.Order, "ORDER BY"),
    (exp.Sort, "SORT BY"),
    (exp.Cluster, "CLUSTER BY"),
    (exp.Distribute, "DISTRIBUTE BY"),
    (exp.SetOperation, "a set operation"),
    (exp.With, "WITH"),
    (exp.Subquery, "a subquery"),
    (exp.Exists, "a subquery"),
    (exp.TableSample, "TABLESAMPLE"),
    (exp.Pivot, "PIVOT"),
    (exp.UDTF, "a function that makes several rows"),
    (exp.Explode, "a function that makes several rows"),
    (exp.Inline, "a function that makes several rows"),
    (exp.Rand, "chance"),
    (exp.Randn, "chance"),
    (exp.Uuid, "chance"),
    (exp.CurrentTimestamp, "the clock"),
    (exp.CurrentDate, "the clock"),
    (exp.CurrentTime, "the clock"),
)

_FUNCTIONS: Final = {
    **dict.fromkeys(("inline", "inline_outer", "stack", "json_tuple", "posexplode", "posexplode_outer"), "several"),
    **dict.fromkeys(("explode", "explode_outer", "variant_explode", "variant_explode_outer"), "several"),
    **dict.fromkeys(("random", "shuffle", "monotonically_increasing_id", "spark_partition_id", "uniform"), "chance"),
    **dict.fromkeys(("randstr", "input_file_name"), "chance"),
    **dict.fromkeys(("now", "curdate", "localtimestamp", "unix_timestamp"), "clock"),
    **dict.fromkeys(
        (
            "any",
            "bool_and",
            "bool_or",
            "count_min_sketch",
            "every",
            "grouping",
            "grouping_id",
            "histogram_numeric",
            "listagg",
            "max_by",
            "mean",
            "min_by",
            "mode",
            "percentile",
            "schema_of_variant_agg",
            "some",
            "string_agg",
            "try_avg",
            "try_sum",
        ),
        "aggregate",
    ),
}
_WORDS: Final = {
    "several": "a function that makes several rows",
    "chance": "chance",
    "clock": "the clock",
    "aggregate": "an aggregate",
}


def _message(error: SqlglotError | RecursionError) -> str:
    """What is wrong and where, without the parser's own terms."""
    if isinstance(error, ParseError) and error.errors:
        first = error.errors[0]
        at = f"near `{first['highlight']}`, at character {first['col']} of line {first['line']}"
        what = str(first["description"])
        if what.startswith("Required keyword"):
            return f"something is missing {at}"
        return f"{what} {at}" if "<" not in what else f"something is wrong {at}"
    return str(error).splitlines()[0] if str(error) else "too deeply nested"


def parse(text: str) -> exp.Expression:
    """One statement. Raises ValueError with a message for people if it does not parse or is more than one."""
    if len(text) > SQL_CHARS_MAX:
        raise ValueError(f"{len(text)} characters of SQL; at most {SQL_CHARS_MAX} are taken")
    try:
        statements = [statement for statement in sqlglot.parse(text, dialect=DIALECT) if statement is not None]
    except (SqlglotError, RecursionError) as error:
        raise ValueError(f"does not parse: {_message(error)}") from None
    if len(statements) != 1:
        raise ValueError(f"expected one statement, found {len(statements)}")
    return cast(exp.Expression, statements[0])


def parse_column(text: str) -> exp.Expression:
    """One column, as between SELECT and FROM."""
    return cast(exp.Expression, parse(f"SELECT {text}").expressions[0])


def parse_predicate(text: str) -> exp.Expression:
    """A condition, as after WHERE. Raises ValueError for anything more."""
    statement = parse(f"SELECT 1 FROM t WHERE {text}")  # noqa: S608 - parsed, never run
    where = statement.args.get("where")
    other_clauses = [
        name for name, value in statement.args.items() if value and name not in ("expressions", "from_", "where")
    ]
    if not isinstance(statement, exp.Select) or where is None or other_clauses or "from_" not in statement.args:
        raise ValueError("expected a condition, as after WHERE, and nothing else")
    return cast(exp.Expression, where.this)


def written_parts(select: str) -> tuple[list[str], str | None]:
    """A SELECT's columns, and its condition, as they were written, so that Spark gets the user's text and not what a
    parser makes of it. Raises ValueError for a SELECT with other clauses than FROM and WHERE.

    >>> written_parts("SELECT id, to_char(at, 'yyyy') AS y FROM t WHERE a IS DISTINCT FROM b")
    (['id', "to_char(at, 'yyyy') AS y"], 'a IS DISTINCT FROM b')
    """
    tokens = [token for token in sqlglot.tokenize(select, read=DIALECT) if token.token_type is not TokenType.SEMICOLON]
    parts: list[list[Any]] = [[]]
    words: list[TokenType] = []
    depth = 0
    for before, token in pairwise(tokens):
        kind = token.token_type
        depth += (kind in _OPENS) - (kind in _CLOSES)
        is_from = kind is TokenType.FROM and before.token_type is not TokenType.DISTINCT
        if depth == 0 and (is_from or kind is TokenType.WHERE):
            words.append(kind)
            parts.append([])
        elif depth == 0 and kind is TokenType.COMMA and not words:
            parts.append([])
        else:
            parts[-1].append(token)
    texts = [select[part[0].start : part[-1].end + 1] for part in parts if part]
    if words == [TokenType.FROM, TokenType.WHERE]:
        return texts[:-2], texts[-1]
    if words != [TokenType.FROM]:
        raise ValueError("expected SELECT, FROM and one table, and WHERE")
    return texts[:-1], None


Reads = Mapping[str, frozenset[str]]
"""The columns of the table that a name stands for, by the name in lower case."""


def columns_in(tree: exp.Expression, names: Sequence[str], aliases: Reads = MappingProxyType({})) -> frozenset[str]:
    """The columns, of those in `names`, that an expression reads. Upper and lower case are the same.

    aliases: what else it may name, such as a column that its SELECT makes before it. Raises KeyError for an unknown
    name; the bus's own columns and parameters of lambdas are ignored.
    """
    columns = {**aliases, **{name.lower(): frozenset([name]) for name in names}}
    bound = {expression.name for arrow in tree.find_all(exp.Lambda) for expression in arrow.expressions}
    names_read = [column.name for column in tree.find_all(exp.Column) if column.name and column.name not in bound]
    return frozenset[str]().union(*(columns[name.lower()] for name in names_read if name not in META_COLUMNS))


def _function_name(node: Any) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def misspelt(tree: exp.Expression) -> Iterator[str]:
    """Functions that Spark probably does not have, since it has one with nearly the same name; a message for each.

    >>> list(misspelt(parse("SELECT uper(a), luhn_check(b), upper(c) FROM t")))
    ['Spark has no function `uper`, as far as databus knows; did you mean `upper`?']
    """
    called = dict.fromkeys(_function_name(node) for node in tree.find_all(exp.Anonymous))
    if not called:
        return
    from pyspark.sql import functions

    known = [name for name in vars(functions) if not name.startswith("_")]
    for name in called:
        near = difflib.get_close_matches(name, known, 1, _NEAR) if name not in known else []
        if near:
            yield f"Spark has no function `{name}`, as far as databus knows; did you mean `{near[0]}`?"


def not_row_wise(tree: exp.Expression) -> Iterator[str]:
    """What in `tree`, a predicate or a SELECT, does not handle each row by itself; words for people, each once.

    >>> list(not_row_wise(parse("SELECT a, sum(b) FROM t GROUP BY a")))
    ['an aggregate', 'GROUP BY']
    """
    seen: set[str] = set()
    for node in tree.walk():
        for word in _words_of(node, tree):
            if word not in seen:
                seen.add(word)
                yield word


def _words_of(node: Any, tree: exp.Expression) -> Iterator[str]:
    if isinstance(node, exp.Select) and node is not tree:
        yield "a subquery"
    for kind, word in _CLAUSES:
        if isinstance(node, kind):
            yield word
            return
    group = _FUNCTIONS.get(_function_name(node))
    if group is not None:
        yield _WORDS[group]


def is_control(rows: "DataFrame") -> "Column":
    """Whether a row is a control, which passes all filters."""
    return rows[CHANGE_TYPE] == CONTROL_LABEL


def meta_columns(rows: "DataFrame") -> "list[Column]":
    """The bus's columns."""
    return [rows[name] for name in META_COLUMNS]
