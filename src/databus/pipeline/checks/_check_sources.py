"""Names of tables and columns in a pipeline's file that its databases do not have.

A SQLite file is read. A server, or a relay that runs elsewhere, is asked only on request; otherwise only contradictions
within the file are found.
"""

import difflib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Self

from databus.core import ConfigError, DatabusError, MalformedRequest, UnknownColumn, is_pattern, split_database
from databus.filters import (
    FrameFilter,
    StreamFilter,
    matches,
    nearest,
    patterns_meet,
    patterns_of,
    selections_meet,
    selects,
)
from databus.flow import Always, TableFilters
from databus.pipeline.engine import check_keeps, into_output, named, no_column
from databus.pipeline.graph import Branch, Graph, Problem, physicals_of
from databus.plugins import ChecksTables, Output, RunContext, Shape, TablesFilter
from databus.schema import Column, TableSchema, column_named
from databus.sources import Describable, SourceConfig, offered, offers

_TABLES_MAX: Final = 5
"""Problems of one kind; further ones are counted."""

Tables = Mapping[str, TableSchema]
"""By full name."""


def check_definitions(graph: Graph, tables: Tables) -> Iterator[Problem]:
    """What would stop an output as soon as it gets one of these tables."""
    for node in graph.config.outputs.values():
        output = graph.config.output_of(node.name)
        for branch in graph.branches(node.path):
            if graph.inputs[branch.input].needs_relay:
                yield from _few(_check_branch(graph, branch, output, tables))


def _few(problems: Iterator[Problem]) -> Iterator[Problem]:
    """The first few of each place: a problem of one table is often one of a thousand."""
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.path] = counts.get(problem.path, 0) + 1
        if counts[problem.path] <= _TABLES_MAX:
            yield problem
    for path, count in counts.items():
        if count > _TABLES_MAX:
            yield Problem(path, f"the same of {count - _TABLES_MAX} more tables")


def _check_branch(graph: Graph, branch: Branch, output: Output, tables: Tables) -> Iterator[Problem]:
    if any(graph.filters[step.node].problems() for step in (*branch.steps, *branch.over_tables)):
        return
    input_filter = graph.inputs[branch.input].filter
    is_typed = branch.shape is not Shape.TABLES
    for name, whole in tables.items():
        if not (matches(name, [branch.table or ""]) if is_typed else selects(branch.selection, name)):
            continue
        try:
            over = FrameFilter.over(input_filter, name.partition("/")[0], whole)
            over.check([whole.source], is_at_end=True)
            table = over.cut_of(whole).after
        except (MalformedRequest, UnknownColumn) as error:
            option, _, message = str(error).partition(": ")
            yield Problem(f"{branch.input}.{_option_of(input_filter, name, option)}", message)
            continue
        try:
            result = _typed(graph, branch, name, table) if is_typed else _over_tables(graph, branch, name, table)
            if result is not None and isinstance(output, ChecksTables):
                output.check_table(result)
        except UnknownColumn:
            continue  # `check_sources` reports it, with a likely name
        except DatabusError as error:
            where, _, message = str(error).partition(": ")
            yield Problem(where, message)


def _option_of(input_filter: StreamFilter, name: str, option: str) -> str:
    """Which of an input's options has the condition or the columns of a table."""
    rules, _ = input_filter.about(name)
    patterns = [rule.tables for rule in rules if getattr(rule, option, None) is not None]
    return option if patterns[:1] in ([], ["*"]) else f"filters.{patterns[0]}.{option}"


def _over_tables(graph: Graph, branch: Branch, name: str, table: TableSchema) -> TableSchema:
    chain = _chain(graph, [step.node for step in branch.over_tables], name, table)
    return into_output(table, chain, graph.config.nodes[branch.output].config)


def _chain(graph: Graph, paths: Sequence[str], name: str, table: TableSchema) -> TableFilters:
    now = Always(table)
    return TableFilters(name.partition("/")[0], named(graph, tuple(paths)), now, now)


def _typed(graph: Graph, branch: Branch, name: str, table: TableSchema) -> TableSchema | None:
    """The names and the key of what comes out; None if they are unknown.

    Types are known up to the first of Spark's filters.
    """
    are_types_known = True
    for step in graph.about(branch.steps, name):
        node_filter = graph.filters[step.node]
        is_over_tables = isinstance(node_filter, TablesFilter)
        if is_over_tables and are_types_known:
            table = _chain(graph, [step.node], name, table).result(table)
            continue
        try:
            lineage = node_filter.lineage(table.names, step.branch)
        except KeyError as error:
            is_named = is_over_tables or error.args[0] in {column for _, column in node_filter.columns_read()}
            if not are_types_known and is_named:
                raise ConfigError(no_column(step.node, str(error.args[0]), table.names)) from None
            return None
        check_keeps(node_filter, step, table)
        are_types_known = False
        columns = tuple(Column(column, "string") for column in lineage.columns)
        table = replace(table, columns=columns, key=lineage.key(table.key))
    return table


@dataclass
class AskedTables:
    """The definitions that servers and relays gave."""

    tables: dict[str, Mapping[str, TableSchema]] = field(default_factory=dict)
    """By physical source and full name; without sources that did not answer."""
    problems: list[Problem] = field(default_factory=list)
    """Why a source did not answer; warnings, since a file may be checked where its databases cannot be reached."""

    @classmethod
    def of(cls, graph: Graph, asks: bool | Collection[str]) -> Self:
        """Ask the servers that can answer, all or those in `asks`, and a relay that runs elsewhere."""
        asked = cls()
        for name, source in graph.config.sources.items():
            if (asks is True or name in (asks or ())) and offers(source, Describable):
                asked._ask_server(name, source)
        asked._ask_relay(graph)
        return asked

    def lacks_a_name(self, name: str, source: SourceConfig) -> bool:
        """Whether a source names a table that does not exist; `check-source` reports that."""
        names = [definition.source for definition in self.tables.get(name, {}).values()]
        return name in self.tables and any(not is_pattern(entry) for entry in source.unmatched(names))

    def _ask_server(self, name: str, source: SourceConfig) -> None:
        try:
            definitions = offered(Describable, source, name).definitions(name, source)
        except DatabusError as error:
            self._unanswered(f"sources.{name}", error)
        else:
            self.tables[name] = {f"{name}/{definition.source}": definition for definition in definitions}

    def _ask_relay(self, graph: Graph) -> None:
        config = graph.config
        path = next((path for path, node in graph.inputs.items() if node.needs_relay), None)
        if config.relay.url is None or path is None:
            return
        context = RunContext(config.name, path.partition(".")[2], config.folder, config.relay.url, config.access)
        try:
            for physical in {name.partition("/")[0] for name in graph.inputs[path].tables_of(context)}:
                self.tables[physical] = graph.inputs[path].tables_now(context, physical)
        except DatabusError as error:
            self.tables.clear()
            self._unanswered("relay.url", error)

    def _unanswered(self, where: str, error: DatabusError) -> None:
        message = f"does not say which tables there are, so that names of tables and columns were not checked: {error}"
        self.problems.append(Problem(where, message, is_warning=True))


_NAMED_MAX: Final = 8
_NO_TABLE: Final = "no table called"

Columns = Mapping[str, Sequence[str]]
"""Columns by full name of a table."""


_STARTS: Final = ("starting_version", "starting_timestamp")


def check_sources(graph: Graph, *, asks: bool | Collection[str] = False) -> Iterator[Problem]:
    """Problems of `sources`, then names in inputs, filters and outputs that no source has. asks: also ask servers, all
    or those of these names, and a relay that runs elsewhere.
    """
    problems = [
        *_check_merging(graph),
        *_check_messages(graph),
        *_check_transactions(graph),
        *_check_united(graph),
        *_check_transaction_topics(graph),
    ]
    yield from problems
    columns_of: dict[str, Columns] = {}
    misnamed = False
    defined: dict[str, TableSchema] = {}
    asked = AskedTables.of(graph, asks) if asks else AskedTables()
    for name, source in graph.config.sources.items():
        where = f"sources.{name}"
        try:
            tables = source.tables_here(graph.config.folder)
            definitions = source.definitions_here(graph.config.folder) or {}
        except ConfigError as error:
            below, _, message = str(error).partition(": ")
            yield Problem(f"{where}.{below}", message)
            continue
        defined.update({f"{name}/{source}": table for source, table in definitions.items()})
        for problem in _check_options(where, source, tables):
            misnamed = misnamed or problem.path.startswith(f"{where}.tables[")
            yield problem
        if tables is not None:
            columns_of[name] = {
                f"{name}/{entry}": columns for entry, columns in tables.items() if source.selects(entry)
            }
        misnamed = misnamed or asked.lacks_a_name(name, source)
    yield from asked.problems
    for name, definitions in asked.tables.items():
        defined.update(definitions)
        columns_of[name] = {full: table.names for full, table in definitions.items()}
    if misnamed or len(columns_of) < len(graph.config.sources) or not columns_of:
        return  # incomplete: a right name could look wrong
    captured = {table: columns for tables in columns_of.values() for table, columns in tables.items()}
    reference_problems = [
        *_check_inputs(graph, captured),
        *_check_filters(graph, captured, defined),
        *_check_keys(graph, captured),
    ]
    may_come = graph.config.relay.url is not None
    yield from (
        replace(problem, is_warning=problem.is_warning or (may_come and _NO_TABLE in problem.message))
        for problem in reference_problems
    )
    for problem in check_definitions(graph, defined):
        # Problems of the same place are reported already, with a likely name.
        if not any(other.path.startswith(problem.path) for other in (*problems, *reference_problems)):
            yield problem


def _check_options(where: str, source: SourceConfig, tables: Columns | None) -> Iterator[Problem]:
    for option, chosen in (("columns", source.columns), ("ids", source.ids)):
        for table in chosen:
            if not source.selects(table):
                yield Problem(f"{where}.{option}.{table}", "is not captured; see `tables` and `exclude`")
    if tables is None:
        return
    for index, pattern in enumerate(source.tables):
        alone = source.model_copy(update={"tables": [pattern], "exclude": []})
        if not is_pattern(pattern) and not any(alone.selects(table) for table in tables):
            yield Problem(f"{where}.tables[{index}]", f"{_NO_TABLE} {pattern}; {_near(pattern, tables)}")
    for table, choice in source.columns.items():
        if source.selects(table):
            yield from _check_columns(f"{where}.columns.{table}", table, choice.exclude, tables)


def _check_columns(where: str, table: str, excluded: Sequence[str], tables: Columns) -> Iterator[Problem]:
    columns = next((columns for name, columns in tables.items() if name.lower() == table.lower()), None)
    if columns is None:
        yield Problem(where, f"there is no such table; {_near(table, tables)}")
        return
    known = {column.lower() for column in columns}
    for index, column in enumerate(excluded):
        if column.lower() not in known:
            yield Problem(f"{where}.exclude[{index}]", f'{table} has no column "{column}"; {_near(column, columns)}')


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = nearest(name, names) or next(iter(difflib.get_close_matches(name, names, 1)), None)
    if near is not None:
        return f'did you mean "{near}"?'
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"there are {', '.join(names[:_NAMED_MAX]) or 'none'}{more}"


def _check_inputs(graph: Graph, captured: Columns) -> Iterator[Problem]:
    for path, input_node in graph.inputs.items():
        if not input_node.needs_relay:
            continue
        choice = input_node.choice()
        for option, patterns in (("tables", choice.include), ("exclude", choice.exclude)):
            for index, pattern in enumerate(patterns):
                if not is_pattern(split_database(pattern)[1]) and not _matching(pattern, captured):
                    yield Problem(f"{path}.{option}[{index}]", f"{_NO_TABLE} {pattern}; {_near(pattern, captured)}")
        for pattern in (rule.tables for rule in input_node.filter.rules):
            if not is_pattern(split_database(pattern)[1]) and not _matching(pattern, captured):
                yield Problem(f"{path}.filters.{pattern}", f"{_NO_TABLE} {pattern}; {_near(pattern, captured)}")


def _matching(pattern: str, captured: Columns) -> list[str]:
    """Full names of the captured tables that match a name or pattern."""
    return [name for name in captured if matches(name, [pattern])]


def _check_filters(graph: Graph, captured: Columns, defined: Mapping[str, TableSchema]) -> Iterator[Problem]:
    for node in graph.config.outputs.values():
        for branch in graph.branches(node.path):
            columns = _behind_input(graph.inputs[branch.input].filter, captured, defined)
            if branch.over_tables and not branch.steps:
                yield from _check_over_tables(graph, branch, columns)
            if branch.table is not None and branch.steps and graph.inputs[branch.input].needs_relay:
                yield from _check_steps(graph, branch, columns)


def _behind_input(input_filter: StreamFilter, captured: Columns, defined: Mapping[str, TableSchema]) -> Columns:
    """The columns that pass an input's filter. Those of the key always do; if the key is unknown, all count."""
    columns = dict(captured)
    for name in captured:
        table = defined.get(name)
        if table is not None and "columns" in input_filter.form(name):
            with suppress(MalformedRequest, UnknownColumn):  # `check_definitions` reports it
                cut = FrameFilter.over(input_filter, name.partition("/")[0], table).cut_of(table)
                columns[name] = cut.after.names
    return columns


def _check_over_tables(graph: Graph, branch: Branch, captured: Columns) -> Iterator[Problem]:
    """Patterns that match no table, and tables without a column that a filter names."""
    columns_left = {name: list(columns) for name, columns in captured.items() if selects(branch.selection, name)}
    for step in branch.over_tables:
        node_filter = graph.filters[step.node]
        if not isinstance(node_filter, TablesFilter) or node_filter.problems():
            return
        work = node_filter.in_tasks
        yield from _check_patterns(step.node, node_filter, captured)
        yield from _check_skipped(
            step.node, node_filter, [columns for name, columns in columns_left.items() if work.is_about(name)]
        )
        for name, columns in columns_left.items():
            if work.is_about(name):
                yield from _check_over(step.node, node_filter, name, columns)
                columns_left[name] = work.columns_left(columns)


def _check_patterns(where: str, table_filter: TablesFilter, captured: Columns) -> Iterator[Problem]:
    for index, pattern in enumerate(table_filter.in_tasks.tables):
        if not _matching(pattern, captured):
            yield Problem(f"{where}.tables[{index}]", f"{_NO_TABLE} {pattern}; {_near(pattern, captured)}")


def _check_over(where: str, table_filter: TablesFilter, name: str, columns: Sequence[str]) -> Iterator[Problem]:
    """A column that a filter over whole tables names, and one of its tables does not have."""
    lacking = [column for column in table_filter.in_tasks.names if column_named(column, columns) is None]
    if lacking and table_filter.in_tasks.missing == "stop":
        yield Problem(
            f"{where}.{table_filter.option_of(lacking[0])}",
            f'{name} has no column "{lacking[0]}"; {_near(lacking[0], columns)} '
            "(or take the table out of `tables`, or write `missing: skip`)",
        )


def _check_skipped(where: str, table_filter: TablesFilter, about: Sequence[Sequence[str]]) -> Iterator[Problem]:
    """Columns of `missing: skip` that no table has: a misspelt one would be skipped without a word. A filter that hides
    columns may have a column's earlier name beside the present one.
    """
    work = table_filter.in_tasks
    known = sorted({name for columns in about for name in columns})
    open_names = [name for name in known if column_named(name, work.names) is None]
    is_hiding = work.hides and len(open_names) < len(known)
    for column in work.names if about and work.missing == "skip" else ():
        if all(column_named(column, columns) is None for columns in about):
            is_earlier = is_hiding and not difflib.get_close_matches(column, open_names, 1)
            yield Problem(
                f"{where}.{table_filter.option_of(column)}",
                f'none of its tables has a column "{column}"; {_near(column, known)}',
                is_warning=not work.hides or is_earlier,
            )


def _check_merging(graph: Graph) -> Iterator[Problem]:
    """Options of sources that may make different values equal in the columns of a mirror's `key`."""
    merging = [
        f"`{option}` of sources.{name}" for name, source in graph.config.sources.items() for option in source.merging
    ]
    for node in graph.config.outputs.values() if merging else ():
        if node.config.model_dump().get("key") and _is_mirror(node.config):
            yield Problem(
                f"{node.path}.key",
                f"{merging[0]} may make different values equal, and rows with an equal `key` become one row. It spares "
                "only the columns of a table's own key: choose columns that it does not change, or remove it",
                is_warning=True,
            )


def _check_messages(graph: Graph) -> Iterator[Problem]:
    """Rows that are not messages, on their way to an output that takes only messages."""
    for node in graph.config.outputs.values():
        if not node.config.takes_messages_alone:
            continue
        for branch in graph.branches(node.path):
            names = physicals_of(graph, branch)
            for name in names or ():
                source = graph.config.sources[name]
                if not source.has_messages:
                    yield Problem(f"{node.path}.format", _no_messages(f'"{name}" is a source `{source.type}`'))
            if not graph.inputs[branch.input].needs_relay:
                yield Problem(f"{node.path}.format", _no_messages(f'"{branch.edge_name}" makes rows of its own'))


def _check_transactions(graph: Graph) -> Iterator[Problem]:
    """Outputs that count the changes of transactions, and get them by several queries."""
    for node in graph.config.outputs.values():
        if not node.config.counts_transactions:
            continue
        branches = graph.branches(node.path)
        for branch in branches:
            if branch.shape is Shape.TYPED:
                yield Problem(
                    f"{node.path}.from",
                    f'"{branch.edge_name}" is typed rows of one table, which a query of their own brings, so the '
                    "changes of a transaction in all tables cannot be counted. Remove `transaction_topic`, or use "
                    "filters over whole tables (`where`, `project`, `mask`...)",
                )
        whole = [branch for branch in branches if branch.shape is Shape.TABLES]
        for first, other in itertools.combinations(whole, 2):
            if first.input != other.input and _share_a_source(graph, first, other):
                yield Problem(
                    f"{node.path}.from",
                    f"{_named(first)} and {_named(other)} may bring tables of one source by queries of their own, so "
                    "the changes of a transaction in all tables cannot be counted. Have one input bring all of them, "
                    "or remove `transaction_topic`",
                )


def _check_united(graph: Graph) -> Iterator[Problem]:
    """Inputs that one query has to read: several of one output, or of outputs of one lane."""
    outputs = graph.config.outputs.values()
    branches = [(node, branch) for node in outputs for branch in graph.branches(node.path)]
    inputs = {node.path: {branch.input for other, branch in branches if other is node} for node in outputs}
    seen: set[tuple[str, ...]] = set()
    for (node, one), (following, other) in itertools.combinations(branches, 2):
        is_lane = node.config.lane is not None and node.config.lane == following.config.lane
        are_shared = node is following or (is_lane and inputs[node.path] == inputs[following.path])
        key = following.path, *sorted((one.input, other.input))
        if key in seen or one.input == other.input or not are_shared:
            continue
        first, second = graph.inputs[one.input], graph.inputs[other.input]
        if Shape.TYPED in (first.emits, second.emits) or not _share_a_source(graph, one, other):
            continue
        why = ""
        if first.united([(first, ()), (second, ())]) is None:
            why = "inputs of these types cannot be read together"
        elif any(getattr(first.config, name, None) != getattr(second.config, name, None) for name in _STARTS):
            why = "they begin at different places"
        elif node is not following and selections_meet(one.selection, other.selection):
            why = "a table comes by both"
        if why:
            seen.add(key)
            yield Problem(
                f"{following.path}.from",
                f"{_named(one)} and {_named(other)} may bring tables of one source, which one query reads, and {why}. "
                f"Give one of them another {'output' if node is following else 'lane'}",
            )


def _check_transaction_topics(graph: Graph) -> Iterator[Problem]:
    """Outputs that write the same transactions to one topic: its readers would find two ends of each."""
    nodes = [node for node in graph.config.outputs.values() if node.config.transactions_go_to]
    for first, other in itertools.combinations(nodes, 2):
        ways = itertools.product(graph.branches(first.path), graph.branches(other.path))
        is_one_place = first.config.transactions_go_to == other.config.transactions_go_to
        if is_one_place and any(_share_a_source(graph, *pair) for pair in ways):
            yield Problem(
                f"{other.path}.debezium.transaction_topic",
                f"{first.path} writes the begins and ends of the same transactions to this topic, each with its own "
                "counts. Give each output a transaction topic of its own",
            )


def _named(branch: Branch) -> str:
    return f'"{branch.input.partition(".")[2]}"'


def _share_a_source(graph: Graph, first: Branch, other: Branch) -> bool:
    sources = physicals_of(graph, first), physicals_of(graph, other)
    if sources[0] is not None and sources[1] is not None:
        return not set(sources[0]).isdisjoint(sources[1])
    return any(
        patterns_meet(f"{pattern.partition('/')[0]}/*", f"{another.partition('/')[0]}/*")
        for pattern in patterns_of(first.selection)
        for another in patterns_of(other.selection)
    )


def _no_messages(origin: str) -> str:
    return (
        f"{origin}, whose rows are no messages: `message` takes those of a source `kafka` with `format: raw` or "
        "`json`. Choose another format, or another input"
    )


def _is_mirror(config: object) -> bool:
    return getattr(config, "mode", "mirror") == "mirror"


def _check_keys(graph: Graph, captured: Columns) -> Iterator[Problem]:
    """Tables and columns in an output's `key` that do not exist."""
    for node in graph.config.outputs.values():
        keys = getattr(node.config, "key", None)
        if not isinstance(keys, dict):
            continue
        is_whole = all(not branch.steps and not branch.over_tables for branch in graph.branches(node.path))
        for table, columns in keys.items():
            matching = _matching(table, captured)
            if not matching:
                yield Problem(f"{node.path}.key.{table}", f"{_NO_TABLE} {table}; {_near(table, captured)}")
            elif is_whole and len(matching) == 1:
                yield from _missing(f"{node.path}.key.{table}", table, columns, captured[matching[0]])


def _missing(where: str, table: str, columns: Iterable[str], existing: Sequence[str]) -> Iterator[Problem]:
    for column in columns:
        if column.lower() not in {known.lower() for known in existing}:
            yield Problem(where, f'{table} has no column "{column}"; {_near(column, existing)}')


def _check_steps(graph: Graph, branch: Branch, captured: Columns) -> Iterator[Problem]:
    """The filters on a way of typed rows up to the first of Spark's; later ones read its result."""
    table = branch.table or ""
    matching = _matching(table, captured)
    typed = next(step.node for step in branch.steps if not isinstance(graph.filters[step.node], TablesFilter))
    if not matching:
        yield Problem(f"{typed}.table", f"{_NO_TABLE} {table}; {_near(table, captured)}")
    if len(matching) != 1:
        return
    columns = [*captured[matching[0]]]
    for index, step in enumerate(branch.steps):
        node_filter = graph.filters[step.node]
        if not isinstance(node_filter, TablesFilter):
            for option, column in node_filter.columns_read():
                yield from _missing(f"{step.node}.{option}", table, [column], columns)
            return
        if node_filter.problems():
            return
        yield from _check_patterns(step.node, node_filter, captured)
        if index == 0:
            about = [its for name, its in captured.items() if node_filter.in_tasks.is_about(name)]
            yield from _check_skipped(step.node, node_filter, about)
        if node_filter.in_tasks.is_about(matching[0]):
            yield from _check_over(step.node, node_filter, matching[0], columns)
            columns = node_filter.in_tasks.columns_left(columns)
