"""`tests` in a pipeline's file: rows of a table, and what is to become of them on the way to an output or a filter.

Filters over whole tables are run here; those of typed rows in a Spark session that is started once, for all tests that
need one. No source, relay or target is touched. Start with `run_filter_tests`.
"""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from databus.core import (
    BUS_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    SNAPSHOT,
    TXID,
    ChangeType,
    ConfigError,
    DatabusError,
    SourceCheckpoint,
    UnrepresentableValue,
    canonical_name,
    split_physical,
)
from databus.flow import META_COLUMNS, Always, TableFilters, TableRows, decode_typed, user_rows_schema
from databus.formats import from_json_value, to_json_value
from databus.pipeline.engine import TypedSteps, analysis_error, named
from databus.pipeline.graph import Branch, FilterTest, Graph, Step
from databus.pipeline.trying._spark_on_demand import spark_on_demand
from databus.schema import Column, TableSchema, column_named, forms_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from databus.pipeline.graph import PipelineConfig

_KINDS: Final = tuple(each.label for each in ChangeType)
_SHOWN_MAX: Final = 20
_BUS: Final = frozenset(BUS_COLUMNS)

Given = Mapping[str, Any]
"""A row, in JSON's form of values: what `databus tail --json` prints of one."""


@dataclass(frozen=True)
class FilterTestResult:
    """What came of a test."""

    name: str
    table: str
    to: str
    differences: tuple[str, ...] = ()
    """Lines for people; none where it passed."""

    @property
    def is_passed(self) -> bool:
        """Whether all that came out is what was expected."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        told = {"test": self.name, "table": self.table, "to": self.to, "passed": self.is_passed}
        return {**told, "differences": list(self.differences)}


@dataclass(frozen=True)
class _Case:
    """A test that was found to make sense: its way through the graph, and its rows."""

    test: FilterTest
    branch: Branch
    name: str
    """Of the table, in full."""
    given: TableRows


def check_filter_tests(graph: Graph) -> Iterator[tuple[str, str]]:
    """What is wrong with the tests themselves, as (path, message). Runs none."""
    for name, test in graph.config.sections.tests.items():
        try:
            _case(graph, name, test)
        except ConfigError as error:
            where, _, message = str(error).partition(": ")
            yield where, message


def run_filter_tests(
    graph: Graph, only: Sequence[str] = (), *, session: "SparkSession | None" = None
) -> Iterator[FilterTestResult]:
    """The results of a pipeline's tests, one after the other. only: of these. session: for filters of typed rows.

    Raises `ConfigError` for a pipeline without tests, a name that is none, and a test that makes no sense.
    """
    tests = graph.config.sections.tests
    if not tests:
        raise ConfigError(f"{graph.config.path}: has no `tests`; the reference says what one looks like")
    for name in only:
        if name not in tests:
            raise ConfigError(f'{graph.config.path}: no test called "{name}"; {_near(name, tests)}')
    chosen = {name: _case(graph, name, test) for name, test in tests.items() if not only or name in only}
    with spark_on_demand("databus test", session) as spark:
        for name, case in chosen.items():
            yield FilterTestResult(name, case.test.table, case.test.to, tuple(_differences(graph, case, spark)))


# What a test says


def _case(graph: Graph, name: str, test: FilterTest) -> _Case:
    where = f"tests.{name}"
    full = _full_name(graph.config, test.table)
    branch = _branch(graph, where, test, full)
    table = _definition(graph.config, where, test, full)
    rows = rows_given(f"{where}.rows", table, test.rows)
    return _Case(test, branch, full, TableRows(table, rows))


def _full_name(config: "PipelineConfig", table: str) -> str:
    physical, source = split_physical(table)
    owners = [physical] if physical else [name for name, each in config.sources.items() if each.selects(source)]
    return f"{owners[0] if owners else next(iter(config.sources), 'test')}/{canonical_name(source)}"


def _branch(graph: Graph, where: str, test: FilterTest, full: str) -> Branch:
    """The way of the table to what `to` names."""
    if test.from_ is not None and f"inputs.{test.from_}" not in graph.inputs:
        there = [path.partition(".")[2] for path in graph.inputs]
        raise ConfigError(f'{where}.from: no input called "{test.from_}"; {_near(test.from_, there)}')
    if f"outputs.{test.to}" in graph.config.nodes:
        branches = graph.branches(f"outputs.{test.to}")
    else:
        found = graph.branches_behind(test.to)
        if found is None:
            outputs = [each.partition(".")[2] for each in graph.config.nodes if each.startswith("outputs.")]
            there = [*outputs, *(each for each in graph.referable if f"inputs.{each}" not in graph.inputs)]
            raise ConfigError(f'{where}.to: no output or filter called "{test.to}"; {_near(test.to, there)}')
        branches = found
    mine = [each for each in branches if test.from_ in (None, each.input.partition(".")[2]) and each.takes(full)]
    if not mine:
        raise ConfigError(f"{where}.to: no row of {full} comes to {test.to}; see `databus graph`")
    if len({each.input for each in mine}) > 1:
        inputs = ", ".join(sorted({each.input.partition(".")[2] for each in mine}))
        raise ConfigError(f"{where}.from: missing: {full} comes to {test.to} from {inputs}; name one of them")
    if len(mine) > 1:
        raise ConfigError(
            f"{where}.to: {full} comes to {test.to} by {len(mine)} ways; test the filters or branches before it"
        )
    return mine[0]


def _definition(config: "PipelineConfig", where: str, test: FilterTest, full: str) -> TableSchema:
    physical, _, source = full.partition("/")
    if test.columns is None:
        known = _known(config, where, physical)
        if source not in known:
            raise ConfigError(
                f"{where}.columns: missing: databus knows the columns of {full} only from a SQLite file that is there, "
                f"and has the table; name them, such as {{id: int64, status: string}}"
            )
        return known[source]
    columns = []
    for name, kind in test.columns.items():
        try:
            forms_of(kind)
        except ConfigError as error:
            raise ConfigError(f"{where}.columns.{name}: {error}") from None
        columns.append(Column(name, kind))
    try:
        return TableSchema(source, tuple(columns), tuple(test.key))
    except ConfigError as error:
        raise ConfigError(f"{where}.columns: {error}") from None


def _known(config: "PipelineConfig", where: str, physical: str) -> Mapping[str, TableSchema]:
    """The tables of a database that is a file here."""
    owner = config.sources.get(physical)
    if owner is None:
        return {}
    try:
        owner.tables_here(config.folder)
        return owner.definitions_here(config.folder) or {}
    except ConfigError as error:
        raise ConfigError(f"{where}.columns: missing, and not to be had from sources.{physical}.{error}") from None


def rows_given(where: str, table: TableSchema, given: Sequence[Given]) -> pa.Table:
    """The rows as a relay's come: each change a transaction of its own, the two images of an update one."""
    rows = [_row(f"{where}[{number}]", table, row) for number, row in enumerate(given)]
    scn = seq = 0
    before = None
    for row in rows:
        is_other_image = (before, row[CHANGE_TYPE]) == _KINDS[1:3]
        scn, seq = (scn, seq + 1) if is_other_image else (scn + 1, 1)
        before = row[CHANGE_TYPE]
        row.setdefault(COMMIT_VERSION, scn)
        row.setdefault(SEQ, seq)
        row.setdefault(COMMIT_TIMESTAMP, scn * 1_000_000)
        row.setdefault(TXID, f"t{scn}")
        row.setdefault(SNAPSHOT, False)
    schema = user_rows_schema(table)
    return pa.table([pa.array([row.get(each.name) for row in rows], each.type) for each in schema], schema=schema)


def _row(where: str, table: TableSchema, given: Given) -> dict[str, Any]:
    """A row by column, in Python's values; bus columns as they are given."""
    found: dict[str, Any] = {CHANGE_TYPE: given.get(CHANGE_TYPE, _KINDS[0])}
    if found[CHANGE_TYPE] not in _KINDS:
        raise ConfigError(f"{where}.{CHANGE_TYPE}: {found[CHANGE_TYPE]!r} is none of {', '.join(_KINDS)}")
    for name, value in given.items():
        if name == CHANGE_TYPE:
            continue
        column = name if name in _BUS else column_named(name, table.names)
        if column is None:
            raise ConfigError(f"{where}: {table.source} has no column {name}; {_near(name, table.names)}")
        try:
            kind = _BUS_TYPES.get(name) or table.column(column).type
            found[column] = from_json_value(to_json_value(value), kind)
        except (UnrepresentableValue, TypeError) as error:
            raise ConfigError(f"{where}.{name}: {error}") from None
    return found


_BUS_TYPES: Final = {
    COMMIT_VERSION: "int64",
    SEQ: "int64",
    COMMIT_TIMESTAMP: "timestamptz",
    TXID: "string",
    SNAPSHOT: "bool",
}


def _near(name: str, there: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, [*there], 1)
    return f'did you mean "{near[0]}"?' if near else f"there are {', '.join(there) or 'none'}"


# What comes of it


def _differences(graph: Graph, case: _Case, spark: "Callable[[], SparkSession]") -> Iterator[str]:
    try:
        if case.branch.steps:
            result = through_spark(graph, case.name, case.branch.steps, case.given, spark())
        else:
            result = _through_tables(graph, case)
    except DatabusError as error:
        yield str(error)
        return
    table = result.table
    try:
        expected = [_row(f"expect[{at}]", table, row) for at, row in enumerate(case.test.expect)]
    except ConfigError as error:
        yield f"{error} (behind the filters)"
        return
    more = [name for name in BUS_COLUMNS if name != CHANGE_TYPE and any(name in row for row in expected)]
    names = [CHANGE_TYPE, *table.names, *more]
    wanted = pa.table(
        [pa.array([row.get(name) for row in expected], result.rows.schema.field(name).type) for name in names], names
    )
    yield from _told(_shown(wanted, table), _shown(result.rows.select(names), table))


def _through_tables(graph: Graph, case: _Case) -> TableRows:
    physical, table = case.name.partition("/")[0], case.given.table
    now = Always(table)
    filters = TableFilters(physical, named(graph, tuple(step.node for step in case.branch.over_tables)), now, now)
    if not filters.filters:
        return case.given
    node = graph.config.nodes.get(case.branch.output)
    filters.check_key(table, () if node is None else node.config.key_choice.of(table.source))
    for each in filters.rows(case.given):
        return each
    result = filters.result(table)
    return TableRows(result, user_rows_schema(result).empty_table())


def through_spark(graph: Graph, name: str, steps: Sequence[Step], given: TableRows, spark: "SparkSession") -> TableRows:
    """What the filters of a typed way make of rows of the table of this full name. Raises what they do."""
    table, rows = given.table, given.rows
    controls = pa.nulls(rows.num_rows, pa.string())
    rows = rows.append_column(CONTROL, controls).select([*table.names, *META_COLUMNS])
    about = graph.about(steps, name)
    made, result = TypedSteps(graph, name, about).apply(spark.createDataFrame(rows), table)
    try:
        found = made.toArrow()
    except DatabusError:
        raise
    except Exception as error:  # whatever Spark, or a user's function, raises
        raise analysis_error(about[-1].node, error) from error
    nowhere = SourceCheckpoint()
    items = decode_typed(found, result, name.partition("/")[0], nowhere, nowhere).items
    found_rows = [item for item in items if isinstance(item, TableRows)]
    return found_rows[0] if found_rows else TableRows(result, user_rows_schema(result).empty_table())


def _shown(rows: pa.Table, table: TableSchema) -> list[dict[str, Any]]:
    """Rows in JSON's form of values."""
    unsigned = {each.name for each in table.columns if each.type == "uint64"}
    return [
        {
            name: int(value) if name in unsigned and value is not None else to_json_value(value)
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]


def _told(wanted: Sequence[Given], found: Sequence[Given]) -> Iterator[str]:
    """What differs between two lists of rows, for people."""
    texts = [[json.dumps(row, ensure_ascii=False) for row in rows] for rows in (wanted, found)]
    lines = [line for part in _parts(wanted, found, texts) for line in part]
    yield from lines[:_SHOWN_MAX]
    if len(lines) > _SHOWN_MAX:
        yield f"and {len(lines) - _SHOWN_MAX} more"


def _parts(wanted: Sequence[Given], found: Sequence[Given], texts: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    for what, a, b, c, d in difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
        if what == "equal":
            continue
        if b - a == d - c:
            pairs = zip(range(a, b), wanted[a:b], found[c:d], strict=True)
            yield [f"expect[{at}]: {', '.join(_values(one, other))}" for at, one, other in pairs]
            continue
        yield [f"expect[{at}]: missing: {texts[0][at]}" for at in range(a, b)]
        yield [f"not expected: {texts[1][at]}" for at in range(c, d)]


def _values(wanted: Given, found: Given) -> Iterator[str]:
    for name, value in wanted.items():
        one, other = (json.dumps(each, ensure_ascii=False) for each in (value, found[name]))
        if one != other:
            yield f"{name} is {other}, expected {one}"
