"""What a pipeline's file says of tables and columns that its databases do not have.

A SQLite file is looked into. A server, or a relay that runs elsewhere, is asked only where one wants that; otherwise
only what the configuration itself contradicts is found here.
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
from databus.pipeline.graph import Branch, Graph, Kind, Problem, physicals_of
from databus.plugins import ChecksTables, Output, RunContext, Shape, TablesFilter
from databus.schema import Column, TableSchema, column_named
from databus.sources import Describable, SourceConfig, offered, offers

_TOLD_MAX: Final = 5

Tables = Mapping[str, TableSchema]
"""By full name."""


def check_definitions(graph: Graph, tables: Tables) -> Iterator[Problem]:
    """What would stop an output as soon as it meets one of these tables."""
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT:
            continue
        output = node.plugin(node.config, graph.config.context_of(node.name))
        for branch in graph.branches(node.path):
            if graph.inputs[branch.input].needs_relay:
                yield from _few(_check_branch(graph, branch, output, tables))


def _few(problems: Iterator[Problem]) -> Iterator[Problem]:
    """Some of them, of each place: what is wrong with one table is often wrong with a thousand."""
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.path] = counts.get(problem.path, 0) + 1
        if counts[problem.path] <= _TOLD_MAX:
            yield problem
    for path, count in counts.items():
        if count > _TOLD_MAX:
            yield Problem(path, f"the same of {count - _TOLD_MAX} more tables")


def _check_branch(graph: Graph, branch: Branch, output: Output, tables: Tables) -> Iterator[Problem]:
    if any(graph.filters[step.node].problems() for step in (*branch.steps, *branch.over_tables)):
        return
    wanted = graph.inputs[branch.input].filter
    is_typed = branch.shape is not Shape.TABLES
    for name, whole in tables.items():
        if not (matches(name, [branch.table or ""]) if is_typed else selects(branch.selection, name)):
            continue
        try:
            over = FrameFilter.over(wanted, name.partition("/")[0], whole)
            over.check([whole.source], is_at_end=True)
            table = over.cut_of(whole).after
        except (MalformedRequest, UnknownColumn) as error:
            option, _, message = str(error).partition(": ")
            yield Problem(f"{branch.input}.{_option_of(wanted, name, option)}", message)
            continue
        try:
            made = _typed(graph, branch, name, table) if is_typed else _over_tables(graph, branch, name, table)
            if made is not None and isinstance(output, ChecksTables):
                output.check_table(made)
        except UnknownColumn:
            continue  # told with what may have been meant
        except DatabusError as error:
            where, _, message = str(error).partition(": ")
            yield Problem(where, message)


def _option_of(wanted: StreamFilter, name: str, option: str) -> str:
    """Where in an input's options the condition or the columns of a table stand."""
    rules, _ = wanted.about(name)
    mine = [rule.tables for rule in rules if getattr(rule, option, None) is not None]
    return option if mine[:1] in ([], ["*"]) else f"filters.{mine[0]}.{option}"


def _over_tables(graph: Graph, branch: Branch, name: str, table: TableSchema) -> TableSchema:
    chain = _chain(graph, [step.node for step in branch.over_tables], name, table)
    return into_output(table, chain, graph.config.nodes[branch.output].config)


def _chain(graph: Graph, paths: Sequence[str], name: str, table: TableSchema) -> TableFilters:
    now = Always(table)
    return TableFilters(name.partition("/")[0], named(graph, tuple(paths)), now, now)


def _typed(graph: Graph, branch: Branch, name: str, table: TableSchema) -> TableSchema | None:
    """What comes out, as far as names and key go; None where that cannot be told.

    Types are known up to the first of Spark's filters.
    """
    are_types_known = True
    for step in graph.about(branch.steps, name):
        each = graph.filters[step.node]
        is_over_tables = isinstance(each, TablesFilter)
        if is_over_tables and are_types_known:
            table = _chain(graph, [step.node], name, table).result(table)
            continue
        try:
            lineage = each.lineage(table.names, step.branch)
        except KeyError as error:
            is_named = is_over_tables or error.args[0] in {column for _, column in each.columns_read()}
            if not are_types_known and is_named:
                raise ConfigError(no_column(step.node, str(error.args[0]), table.names)) from None
            return None
        check_keeps(each, step, table)
        are_types_known = False
        columns = tuple(Column(column, "string") for column in lineage.columns)
        table = replace(table, columns=columns, key=lineage.key(table.key))
    return table


@dataclass
class AskedTables:
    """tables: by physical source and full name; none of a source that did not answer. problems: why not, as warnings:
    a file may be looked at where its databases cannot be reached.
    """

    tables: dict[str, Mapping[str, TableSchema]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, asks: bool | Collection[str]) -> Self:
        """Ask the servers that can be asked, all or those of these names, and a relay that runs elsewhere."""
        asked = cls()
        for name, source in graph.config.sources.items():
            if (asks is True or name in (asks or ())) and offers(source, Describable):
                asked._ask_server(name, source)
        asked._ask_relay(graph)
        return asked

    def lacks_a_name(self, name: str, source: SourceConfig) -> bool:
        """Whether a source names a table that there is not; `check-source` says so."""
        there = [each.source for each in self.tables.get(name, {}).values()]
        return name in self.tables and any(not is_pattern(each) for each in source.unmatched(there))

    def _ask_server(self, name: str, source: SourceConfig) -> None:
        try:
            definitions = offered(Describable, source, name).definitions(name, source)
        except DatabusError as error:
            self._unanswered(f"sources.{name}", error)
        else:
            self.tables[name] = {f"{name}/{definition.source}": definition for definition in definitions}

    def _ask_relay(self, graph: Graph) -> None:
        config = graph.config
        path = next((path for path, each in graph.inputs.items() if each.needs_relay), None)
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
    """Problems of `sources`, then those of inputs and filters that name what no source has. asks: also servers, all
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
    known: dict[str, Columns] = {}
    misnamed = False
    defined: dict[str, TableSchema] = {}
    asked = AskedTables.of(graph, asks) if asks else AskedTables()
    for name, source in graph.config.sources.items():
        where = f"sources.{name}"
        try:
            tables = source.tables_here(graph.config.folder)
            there = source.definitions_here(graph.config.folder) or {}
        except ConfigError as error:
            below, _, message = str(error).partition(": ")
            yield Problem(f"{where}.{below}", message)
            continue
        defined.update({f"{name}/{each}": table for each, table in there.items()})
        for problem in _check_options(where, source, tables):
            misnamed = misnamed or problem.path.startswith(f"{where}.tables[")
            yield problem
        if tables is not None:
            known[name] = {f"{name}/{each}": columns for each, columns in tables.items() if source.selects(each)}
        misnamed = misnamed or asked.lacks_a_name(name, source)
    yield from asked.problems
    for name, there in asked.tables.items():
        defined.update(there)
        known[name] = {each: table.names for each, table in there.items()}
    if misnamed or len(known) < len(graph.config.sources) or not known:
        return  # what names a table that would be there would be told off for it
    captured = {table: columns for each in known.values() for table, columns in each.items()}
    found = [
        *_check_inputs(graph, captured),
        *_check_filters(graph, captured, defined),
        *_check_keys(graph, captured),
    ]
    may_come = graph.config.relay.url is not None
    yield from (replace(each, is_warning=each.is_warning or (may_come and _NO_TABLE in each.message)) for each in found)
    for problem in check_definitions(graph, defined):
        if not any(
            other.path.startswith(problem.path) for other in (*problems, *found)
        ):  # told already, with what was meant
            yield problem


def _is_name(pattern: str) -> bool:
    return not is_pattern(pattern)


def _check_options(where: str, source: SourceConfig, tables: Columns | None) -> Iterator[Problem]:
    for option, chosen in (("columns", source.columns), ("ids", source.ids)):
        for table in chosen:
            if not source.selects(table):
                yield Problem(f"{where}.{option}.{table}", "is not captured; see `tables` and `exclude`")
    if tables is None:
        return
    for index, pattern in enumerate(source.tables):
        alone = source.model_copy(update={"tables": [pattern], "exclude": []})
        if _is_name(pattern) and not any(alone.selects(table) for table in tables):
            yield Problem(f"{where}.tables[{index}]", f"{_NO_TABLE} {pattern}; {_near(pattern, tables)}")
    for table, choice in source.columns.items():
        if source.selects(table):
            yield from _check_columns(f"{where}.columns.{table}", table, choice.exclude, tables)


def _check_columns(where: str, table: str, left_out: Sequence[str], tables: Columns) -> Iterator[Problem]:
    columns = next((columns for name, columns in tables.items() if name.lower() == table.lower()), None)
    if columns is None:
        yield Problem(where, f"there is no such table; {_near(table, tables)}")
        return
    known = {column.lower() for column in columns}
    for index, column in enumerate(left_out):
        if column.lower() not in known:
            yield Problem(f"{where}.exclude[{index}]", f'{table} has no column "{column}"; {_near(column, columns)}')


def _near(name: str, there: Iterable[str]) -> str:
    names = sorted(there)
    near = nearest(name, names) or next(iter(difflib.get_close_matches(name, names, 1)), None)
    if near is not None:
        return f'did you mean "{near}"?'
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"there are {', '.join(names[:_NAMED_MAX]) or 'none'}{more}"


def _check_inputs(graph: Graph, captured: Columns) -> Iterator[Problem]:
    for path, each in graph.inputs.items():
        if not each.needs_relay:
            continue
        choice = each.choice()
        for option, patterns in (("tables", choice.include), ("exclude", choice.exclude)):
            for index, pattern in enumerate(patterns):
                if _is_name(split_database(pattern)[1]) and not _found(pattern, captured):
                    yield Problem(f"{path}.{option}[{index}]", f"{_NO_TABLE} {pattern}; {_near(pattern, captured)}")
        for pattern in (rule.tables for rule in each.filter.rules):
            if _is_name(split_database(pattern)[1]) and not _found(pattern, captured):
                yield Problem(f"{path}.filters.{pattern}", f"{_NO_TABLE} {pattern}; {_near(pattern, captured)}")


def _found(pattern: str, captured: Columns) -> list[str]:
    """Full names of captured tables that a name or pattern means."""
    return [name for name in captured if matches(name, [pattern])]


def _check_filters(graph: Graph, captured: Columns, defined: Mapping[str, TableSchema]) -> Iterator[Problem]:
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT:
            continue
        for branch in graph.branches(node.path):
            left = _left(graph.inputs[branch.input].filter, captured, defined)
            if branch.over_tables and not branch.steps:
                yield from _check_over_tables(graph, branch, left)
            if branch.table is not None and branch.steps and graph.inputs[branch.input].needs_relay:
                yield from _check_steps(graph, branch, left)


def _left(wanted: StreamFilter, captured: Columns, defined: Mapping[str, TableSchema]) -> Columns:
    """The columns that an input's filter lets through. The key's always come, so where it is not known, all may."""
    columns = dict(captured)
    for name in captured:
        table = defined.get(name)
        if table is not None and "columns" in wanted.form(name):
            with suppress(MalformedRequest, UnknownColumn):  # told by the definitions
                cut = FrameFilter.over(wanted, name.partition("/")[0], table).cut_of(table)
                columns[name] = cut.after.names
    return columns


def _check_over_tables(graph: Graph, branch: Branch, captured: Columns) -> Iterator[Problem]:
    """Patterns that no table matches, and tables that lack a column that is named."""
    left = {name: list(columns) for name, columns in captured.items() if selects(branch.selection, name)}
    for step in branch.over_tables:
        each = graph.filters[step.node]
        if not isinstance(each, TablesFilter) or each.problems():
            return
        work = each.in_tasks
        yield from _check_patterns(step.node, each, captured)
        yield from _check_skipped(step.node, each, [columns for name, columns in left.items() if work.is_about(name)])
        for name, columns in left.items():
            if work.is_about(name):
                yield from _check_over(step.node, each, name, columns)
                left[name] = work.columns_left(columns)


def _check_patterns(where: str, each: TablesFilter, captured: Columns) -> Iterator[Problem]:
    for index, pattern in enumerate(each.in_tasks.tables):
        if not _found(pattern, captured):
            yield Problem(f"{where}.tables[{index}]", f"{_NO_TABLE} {pattern}; {_near(pattern, captured)}")


def _check_over(where: str, each: TablesFilter, name: str, columns: Sequence[str]) -> Iterator[Problem]:
    """A column that a filter over whole tables names, and a table that it is about lacks."""
    lacking = [column for column in each.in_tasks.names if column_named(column, columns) is None]
    if lacking and each.in_tasks.missing == "stop":
        yield Problem(
            f"{where}.{each.option_of(lacking[0])}",
            f'{name} has no column "{lacking[0]}"; {_near(lacking[0], columns)} '
            "(or take the table out of `tables`, or write `missing: skip`)",
        )


def _check_skipped(where: str, each: TablesFilter, about: Sequence[Sequence[str]]) -> Iterator[Problem]:
    """Columns that may be missing, and are in all tables: a misspelt one would leave what is meant as it is. An earlier
    name of a hidden column may stand beside the one that it has now.
    """
    work = each.in_tasks
    known = sorted({name for columns in about for name in columns})
    open_names = [name for name in known if column_named(name, work.names) is None]
    is_hiding = work.hides and len(open_names) < len(known)
    for column in work.names if about and work.missing == "skip" else ():
        if all(column_named(column, columns) is None for columns in about):
            is_earlier = is_hiding and not difflib.get_close_matches(column, open_names, 1)
            yield Problem(
                f"{where}.{each.option_of(column)}",
                f'none of its tables has a column "{column}"; {_near(column, known)}',
                is_warning=not work.hides or is_earlier,
            )


def _check_merging(graph: Graph) -> Iterator[Problem]:
    """Options of sources that may make values one by which a mirror is told to tell rows apart."""
    merging = [
        f"`{each}` of sources.{name}" for name, source in graph.config.sources.items() for each in source.merging
    ]
    for node in graph.config.nodes.values() if merging else ():
        if node.kind is Kind.OUTPUT and node.config.model_dump().get("key") and _is_mirror(node.config):
            yield Problem(
                f"{node.path}.key",
                f"{merging[0]} may make values that differ one, and rows whose `key` is then the same become one row. "
                "It spares the columns of a table's own key only: choose columns that it leaves alone, or leave it out",
                is_warning=True,
            )


def _check_messages(graph: Graph) -> Iterator[Problem]:
    """Rows that are no messages, on their way to an output that takes nothing else."""
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT or not node.config.takes_messages_alone:
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
    """Outputs that count the changes of transactions, and are given these by more than one query."""
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT or not node.config.counts_transactions:
            continue
        branches = graph.branches(node.path)
        for branch in branches:
            if branch.shape is Shape.TYPED:
                yield Problem(
                    f"{node.path}.from",
                    f'"{branch.edge_name}" is typed rows of one table, which come by themselves, so that nobody could '
                    "count the changes of a transaction in all tables. Leave `transaction_topic` out, or choose with "
                    "filters over whole tables (`where`, `project`, `mask`...)",
                )
        whole = [branch for branch in branches if branch.shape is Shape.TABLES]
        for one, other in itertools.combinations(whole, 2):
            if one.input != other.input and _share_a_source(graph, one, other):
                yield Problem(
                    f"{node.path}.from",
                    f"{_named(one)} and {_named(other)} may bring tables of one source, each by itself, so that nobody "
                    "could count the changes of a transaction in all tables. Have one input bring all of them, or "
                    "leave `transaction_topic` out",
                )


def _check_united(graph: Graph) -> Iterator[Problem]:
    """Inputs that one query is to read: several of one output, or of outputs of one lane."""
    outputs = [node for node in graph.config.nodes.values() if node.kind is Kind.OUTPUT]
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
    """Outputs that tell of the same transactions in one place: their readers would find two ends of each."""
    nodes = [
        node for node in graph.config.nodes.values() if node.kind is Kind.OUTPUT and node.config.transactions_go_to
    ]
    for one, other in itertools.combinations(nodes, 2):
        ways = itertools.product(graph.branches(one.path), graph.branches(other.path))
        is_one_place = one.config.transactions_go_to == other.config.transactions_go_to
        if is_one_place and any(_share_a_source(graph, *pair) for pair in ways):
            yield Problem(
                f"{other.path}.debezium.transaction_topic",
                f"{one.path} writes the begins and ends of the same transactions to this topic, each with its own "
                "counts. Give each output a transaction topic of its own",
            )


def _named(branch: Branch) -> str:
    return f'"{branch.input.partition(".")[2]}"'


def _share_a_source(graph: Graph, one: Branch, other: Branch) -> bool:
    known = physicals_of(graph, one), physicals_of(graph, other)
    if known[0] is not None and known[1] is not None:
        return not set(known[0]).isdisjoint(known[1])
    return any(
        patterns_meet(f"{pattern.partition('/')[0]}/*", f"{another.partition('/')[0]}/*")
        for pattern in patterns_of(one.selection)
        for another in patterns_of(other.selection)
    )


def _no_messages(what: str) -> str:
    return (
        f"{what}, whose rows are no messages: `message` takes those of a source `kafka` with `format: raw` or `json`. "
        "Choose another format, or another input"
    )


def _is_mirror(config: object) -> bool:
    return getattr(config, "mode", "mirror") == "mirror"


def _check_keys(graph: Graph, captured: Columns) -> Iterator[Problem]:
    """Tables and columns that an output's `key` names."""
    for node in graph.config.nodes.values():
        keys = getattr(node.config, "key", None)
        if node.kind is not Kind.OUTPUT or not isinstance(keys, dict):
            continue
        is_whole = all(not branch.steps and not branch.over_tables for branch in graph.branches(node.path))
        for table, columns in keys.items():
            found = _found(table, captured)
            if not found:
                yield Problem(f"{node.path}.key.{table}", f"{_NO_TABLE} {table}; {_near(table, captured)}")
            elif is_whole and len(found) == 1:
                yield from _missing(f"{node.path}.key.{table}", table, columns, captured[found[0]])


def _missing(where: str, table: str, columns: Iterable[str], there: Sequence[str]) -> Iterator[Problem]:
    for column in columns:
        if column.lower() not in {each.lower() for each in there}:
            yield Problem(where, f'{table} has no column "{column}"; {_near(column, there)}')


def _check_steps(graph: Graph, branch: Branch, captured: Columns) -> Iterator[Problem]:
    """The filters on a way of typed rows up to the first of Spark's; what comes after that reads what it made."""
    table = branch.table or ""
    found = _found(table, captured)
    typed = next(step.node for step in branch.steps if not isinstance(graph.filters[step.node], TablesFilter))
    if not found:
        yield Problem(f"{typed}.table", f"{_NO_TABLE} {table}; {_near(table, captured)}")
    if len(found) != 1:
        return
    columns = [*captured[found[0]]]
    for index, step in enumerate(branch.steps):
        each = graph.filters[step.node]
        if not isinstance(each, TablesFilter):
            for option, column in each.columns_read():
                yield from _missing(f"{step.node}.{option}", table, [column], columns)
            return
        if each.problems():
            return
        yield from _check_patterns(step.node, each, captured)
        if index == 0:
            about = [its for name, its in captured.items() if each.in_tasks.is_about(name)]
            yield from _check_skipped(step.node, each, about)
        if each.in_tasks.is_about(found[0]):
            yield from _check_over(step.node, each, found[0], columns)
            columns = each.in_tasks.columns_left(columns)
