"""`tests` in a pipeline's file: rows of a table, and the rows expected from them behind filters.

Filters over whole tables run here; those of typed rows in one Spark session, started if a test needs it. No source or
target is touched; a relay elsewhere is asked for the columns that a test does not name. Start with `run_filter_tests`.
"""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    ServiceUnavailable,
    SourceCheckpoint,
    TransientError,
    UnrepresentableValue,
    canonical_name,
    is_pattern,
    split_physical,
)
from databus.filters import full_pattern, patterns_meet
from databus.flow import META_COLUMNS, Always, TableFilters, TableRows, decode_typed, user_rows_schema
from databus.formats import from_json_value, hint_for, line_of, lines_in, to_json_value
from databus.pipeline.engine import TypedSteps, analysis_error, named
from databus.pipeline.graph import Branch, FilterTest, Graph, Problem, Step
from databus.pipeline.trying._spark_on_demand import spark_on_demand
from databus.schema import Column, TableSchema, column_named, forms_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from databus.pipeline.graph import PipelineConfig

_KINDS: Final = tuple(kind.label for kind in ChangeType)
_SHOWN_MAX: Final = 20
_BUS: Final = frozenset(BUS_COLUMNS)

Given = Mapping[str, Any]
"""A row with values in the form of JSON, as `databus tail --json` prints it."""


@dataclass(frozen=True)
class FilterTestResult:
    """The result of a test."""

    name: str
    table: str
    to: str
    differences: tuple[str, ...] = ()
    """Lines for people; none if it passed."""

    @property
    def is_passed(self) -> bool:
        """Whether the rows are those expected."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "test": self.name,
            "table": self.table,
            "to": self.to,
            "passed": self.is_passed,
            "differences": list(self.differences),
        }


@dataclass(frozen=True)
class _Case:
    """A valid test: its way through the graph, and its rows."""

    test: FilterTest
    branch: Branch
    name: str
    """The table's full name."""
    given: TableRows
    """The rows at the input."""


def check_filter_tests(graph: Graph, *, asks_relay: bool = False) -> Iterator[Problem]:
    """Why tests cannot be run. Runs none. Warnings: no row of the pipeline depends on its tests.

    asks_relay: ask a relay elsewhere for the columns that a test does not name; otherwise such a test counts as good.
    """
    captured = _Captured(graph.config, is_asked=asks_relay)
    for name, test in graph.config.sections.tests.items():
        try:
            _case(graph, name, test, captured)
        except _RelayNotAsked:
            continue
        except DatabusError as error:
            where, _, message = str(error).partition(": ")
            yield Problem(where, message, is_warning=True)
            if isinstance(error, TransientError):
                return  # the relay would have each further test wait


def run_filter_tests(
    graph: Graph,
    only: Sequence[str] = (),
    *,
    session: "SparkSession | None" = None,
    on_start: Callable[[str], None] = lambda _: None,
) -> Iterator[FilterTestResult]:
    """The results of a pipeline's tests, one after the other. only: these tests. session: for filters of typed rows.
    on_start: called with what takes so long, if a session has to be started for them.

    Raises `ConfigError` for a pipeline without tests, an unknown name, and tests with mistakes; `ServiceUnavailable` if
    the relay has to be asked for a table's columns, and does not answer.
    """
    tests = graph.config.sections.tests
    if not tests:
        raise ConfigError(f"{graph.config.path}: has no `tests`; the reference says what one looks like")
    for name in only:
        if name not in tests:
            raise ConfigError(f'{graph.config.path}: no test called "{name}"; {hint_for(name, tests)}')
    chosen = _cases(graph, {name: test for name, test in tests.items() if not only or name in only})
    with spark_on_demand("databus test", session, on_start) as spark:
        for name, case in chosen.items():
            yield FilterTestResult(name, case.test.table, case.test.to, tuple(_differences(graph, case, spark)))


# The parts of a test


class _RelayNotAsked(DatabusError):
    """Only a relay that is not to be asked knows the columns of a table."""


class _Captured:
    """The tables that the pipeline's relay has; looked up when the first is needed. is_asked: whether one elsewhere may
    be asked.
    """

    def __init__(self, config: "PipelineConfig", *, is_asked: bool) -> None:
        self._config = config
        self._is_asked = is_asked
        self._tables: Mapping[str, TableSchema] | None = None

    def table(self, where: str, full: str) -> TableSchema:
        """The definition of the table of this full name."""
        if self._tables is None:
            if self._config.relay.url is not None and not self._is_asked:
                raise _RelayNotAsked(where)
            try:
                self._tables = self._config.captured_tables()
            except DatabusError as error:
                kind = ServiceUnavailable if isinstance(error, TransientError) else ConfigError
                raise kind(
                    f"{where}: missing, and the relay, which may know them, does not say them: {error}"
                ) from None
        table = self._tables.get(full)
        if table is None:
            raise ConfigError(
                f"{where}: missing: databus knows the columns of {full} only from a SQLite file on this machine that "
                "has the table, or once the relay has captured it; name them, such as {id: int64, status: string}"
            )
        return table


def _cases(graph: Graph, tests: Mapping[str, FilterTest]) -> dict[str, _Case]:
    """The tests, if all of them can be run."""
    captured = _Captured(graph.config, is_asked=True)
    cases: dict[str, _Case] = {}
    mistakes: list[Problem] = []
    for name, test in tests.items():
        try:
            cases[name] = _case(graph, name, test, captured)
        except ConfigError as error:
            where, _, message = str(error).partition(": ")
            mistakes.append(Problem(where, message))
    if mistakes:
        path = graph.config.path
        lines = lines_in(path)
        placed = [replace(mistake, line=line_of(mistake.path, lines)) for mistake in mistakes]
        raise ConfigError("\n".join(mistake.in_file(path) for mistake in placed))
    return cases


def _case(graph: Graph, name: str, test: FilterTest, captured: _Captured) -> _Case:
    where = f"tests.{name}"
    full = _full_name(graph, test.table)
    branch = _branch(graph, where, test, full)
    table = _definition(graph.config, where, test, full, captured)
    rows = rows_given(f"{where}.rows", table, test.rows)
    return _Case(test, branch, full, TableRows(table, rows))


def _full_name(graph: Graph, table: str) -> str:
    """A table's name with its source: without one in the file, that which an input names."""
    physical, source = split_physical(table)
    config = graph.config
    owners = [physical] if physical else [name for name, owner in config.sources.items() if owner.selects(source)]
    owners += [*config.sources, *_sources_named(graph, source), "test"]
    return f"{owners[0]}/{canonical_name(source)}"


def _sources_named(graph: Graph, source: str) -> Iterator[str]:
    for node in graph.inputs.values():
        for pattern in node.choice().include if node.needs_relay else ():
            physical, _ = split_physical(full_pattern(pattern))
            if not is_pattern(physical) and patterns_meet(pattern, f"{physical}/{source}"):
                yield physical


def _branch(graph: Graph, where: str, test: FilterTest, full: str) -> Branch:
    """The way of the table to the node that `to` names."""
    if test.from_ is not None and f"inputs.{test.from_}" not in graph.inputs:
        there = [path.partition(".")[2] for path in graph.inputs]
        raise ConfigError(f'{where}.from: no input called "{test.from_}"; {hint_for(test.from_, there)}')
    if test.to in graph.config.outputs:
        branches = graph.branches(f"outputs.{test.to}")
    else:
        behind = graph.branches_behind(test.to)
        if behind is None:
            there = [*graph.config.outputs, *(name for name in graph.referable if f"inputs.{name}" not in graph.inputs)]
            raise ConfigError(f'{where}.to: no output or filter called "{test.to}"; {hint_for(test.to, there)}')
        branches = behind
    ways = [way for way in branches if test.from_ in (None, way.input.partition(".")[2]) and way.takes(full)]
    if not ways:
        is_guess = full.startswith("test/") and not test.table.startswith("test/") and not graph.config.sources
        source = "; this file has no `sources`: name it in `table`, such as shop/main.orders" if is_guess else ""
        raise ConfigError(f"{where}.to: no row of {full} comes to {test.to}; see `databus graph`{source}")
    if len({way.input for way in ways}) > 1:
        inputs = ", ".join(sorted({way.input.partition(".")[2] for way in ways}))
        raise ConfigError(f"{where}.from: missing: {full} comes to {test.to} from {inputs}; name one of them")
    if len(ways) > 1:
        raise ConfigError(
            f"{where}.to: {full} comes to {test.to} by {len(ways)} ways; test the filters or branches before it"
        )
    return ways[0]


def _definition(config: "PipelineConfig", where: str, test: FilterTest, full: str, captured: _Captured) -> TableSchema:
    physical, _, source = full.partition("/")
    if test.columns is None:
        return _known(config, where, physical).get(source) or captured.table(f"{where}.columns", full)
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
    """The tables of a database that is a file on this machine."""
    owner = config.sources.get(physical)
    if owner is None:
        return {}
    try:
        owner.tables_here(config.folder)
        return owner.definitions_here(config.folder) or {}
    except ConfigError as error:
        raise ConfigError(f"{where}.columns: missing, and unknown from sources.{physical}.{error}") from None


def rows_given(where: str, table: TableSchema, given: Sequence[Given]) -> pa.Table:
    """The rows as from a relay: each change is a transaction of its own; the two images of an update are one."""
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
    return pa.table([pa.array([row.get(column.name) for row in rows], column.type) for column in schema], schema=schema)


def _row(where: str, table: TableSchema, row: Given) -> dict[str, Any]:
    """A row by column, in Python's values."""
    values: dict[str, Any] = {CHANGE_TYPE: row.get(CHANGE_TYPE, _KINDS[0])}
    if values[CHANGE_TYPE] not in _KINDS:
        raise ConfigError(f"{where}.{CHANGE_TYPE}: {values[CHANGE_TYPE]!r} is none of {', '.join(_KINDS)}")
    for name, value in row.items():
        if name == CHANGE_TYPE:
            continue
        column = name if name in _BUS else column_named(name, table.names)
        if column is None:
            raise ConfigError(f"{where}: {table.source} has no column {name}; {hint_for(name, table.names)}")
        try:
            kind = _BUS_TYPES.get(name) or table.column(column).type
            values[column] = from_json_value(to_json_value(value), kind)
        except (UnrepresentableValue, TypeError) as error:
            raise ConfigError(f"{where}.{name}: {error}") from None
    return values


_BUS_TYPES: Final = {
    COMMIT_VERSION: "int64",
    SEQ: "int64",
    COMMIT_TIMESTAMP: "timestamptz",
    TXID: "string",
    SNAPSHOT: "bool",
}


# Its result


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
    yield from _compared(_shown(wanted, table), _shown(result.rows.select(names), table))


def _through_tables(graph: Graph, case: _Case) -> TableRows:
    physical, table = case.name.partition("/")[0], case.given.table
    known_tables = Always(table)
    filters = TableFilters(
        physical, named(graph, tuple(step.node for step in case.branch.over_tables)), known_tables, known_tables
    )
    if not filters.filters:
        return case.given
    node = graph.config.nodes.get(case.branch.output)
    filters.check_key(table, () if node is None else node.config.key_choice.of(table.source))
    for passed in filters.rows(case.given):
        return passed
    result = filters.result(table)
    return TableRows(result, user_rows_schema(result).empty_table())


def through_spark(graph: Graph, name: str, steps: Sequence[Step], given: TableRows, spark: "SparkSession") -> TableRows:
    """Run rows of the table of this full name through filters of typed rows. Raises what they raise."""
    table, rows = given.table, given.rows
    controls = pa.nulls(rows.num_rows, pa.string())
    rows = rows.append_column(CONTROL, controls).select([*table.names, *META_COLUMNS])
    about = graph.about(steps, name)
    frame, result = TypedSteps(graph, name, about).apply(spark.createDataFrame(rows), table)
    try:
        out = frame.toArrow()
    except DatabusError:
        raise
    except Exception as error:  # Spark and a user's function may raise anything
        raise analysis_error(about[-1].node, error) from error
    nowhere = SourceCheckpoint()
    items = decode_typed(out, result, name.partition("/")[0], nowhere, nowhere).items
    found_rows = [item for item in items if isinstance(item, TableRows)]
    return found_rows[0] if found_rows else TableRows(result, user_rows_schema(result).empty_table())


def _shown(rows: pa.Table, table: TableSchema) -> list[dict[str, Any]]:
    """Rows with values in the form of JSON."""
    unsigned = {column.name for column in table.columns if column.type == "uint64"}
    return [
        {
            name: int(value) if name in unsigned and value is not None else to_json_value(value)
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]


def _compared(expected: Sequence[Given], actual: Sequence[Given]) -> Iterator[str]:
    """The differences of two lists of rows, as lines for people."""
    texts = [[json.dumps(row, ensure_ascii=False) for row in rows] for rows in (expected, actual)]
    lines = [line for part in _parts(expected, actual, texts) for line in part]
    yield from lines[:_SHOWN_MAX]
    if len(lines) > _SHOWN_MAX:
        yield f"and {len(lines) - _SHOWN_MAX} more"


def _parts(
    expected: Sequence[Given], actual: Sequence[Given], texts: Sequence[Sequence[str]]
) -> Iterator[Sequence[str]]:
    for what, a, b, c, d in difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
        if what == "equal":
            continue
        if b - a == d - c:
            pairs = zip(range(a, b), expected[a:b], actual[c:d], strict=True)
            yield [f"expect[{at}]: {', '.join(_values(one, other))}" for at, one, other in pairs]
            continue
        yield [f"expect[{at}]: missing: {texts[0][at]}" for at in range(a, b)]
        yield [f"not expected: {texts[1][at]}" for at in range(c, d)]


def _values(wanted: Given, actual: Given) -> Iterator[str]:
    for name, value in wanted.items():
        expected, other = (json.dumps(item, ensure_ascii=False) for item in (value, actual[name]))
        if expected != other:
            yield f"{name} is {other}, expected {expected}"
