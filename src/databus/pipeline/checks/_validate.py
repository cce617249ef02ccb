"""All problems of a pipeline's file at once, without Spark. Start with `validate`."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from databus.core import ConfigError, is_pattern, split_physical
from databus.filters import TableChoice, full_pattern, may_select, patterns_meet, patterns_of, selections_meet
from databus.formats import line_of, lines_in, validated
from databus.pipeline.checks._check_options import (
    check_compacted,
    check_http,
    check_master,
    check_nested,
    check_path,
    check_settings,
    check_stores,
    check_targets,
    is_many,
    real_path,
)
from databus.pipeline.checks._check_renamed import check_renamed
from databus.pipeline.checks._check_sources import check_sources
from databus.pipeline.engine import check_options
from databus.pipeline.graph import (
    BRANCHES_MAX,
    Branch,
    Graph,
    NodeKind,
    NodeSpec,
    PipelineConfig,
    Problem,
    physicals_of,
    read_pipeline,
)
from databus.pipeline.trying import check_filter_tests
from databus.plugins import Shape, TablesFilter, TakesFrames

_PATTERNS_SHOWN_MAX: Final = 5


def validate(
    path: Path | str,
    *,
    master: str | None = None,
    offline: bool = False,
    asks_sources: bool | Collection[str] = False,
) -> list[Problem]:
    """All problems of a pipeline's file; it can run if they are only warnings. Of its databases only files are read;
    object stores are asked whether they can be read.

    master: that of `--master`, instead of `spark.master` in the file. offline: ask no store. asks_sources: ask servers,
    all or those of these names, or the relay that runs elsewhere, for their tables and columns.
    """
    _, problems = _examined(Path(path), master, offline=offline, asks_sources=asks_sources)
    return _placed(path, problems)


def examined_pipeline(path: Path | str, *, master: str | None = None) -> tuple[Graph, list[Problem]]:
    """A pipeline's graph and its warnings, after all checks of `validate` on one reading of the file. Raises
    `ConfigError` as `load_pipeline` does.
    """
    graph, problems = _examined(Path(path), master, offline=False)
    return _right(path, graph, problems), _placed(path, problems)


def load_pipeline(path: Path | str, *, master: str | None = None) -> Graph:
    """A pipeline's graph. Raises `ConfigError` with a line for each problem, beginning with the file's name."""
    graph, problems = _read(Path(path), master)
    return _right(path, graph, problems)


def _right(path: Path | str, graph: Graph | None, problems: list[Problem]) -> Graph:
    errors = [problem for problem in problems if not problem.is_warning]
    if errors or graph is None:
        raise ConfigError("\n".join(problem.in_file(path) for problem in _placed(path, errors)))
    return graph


def _examined(
    path: Path, master: str | None, *, offline: bool, asks_sources: bool | Collection[str] = False
) -> tuple[Graph | None, list[Problem]]:
    graph, problems = _read(path, master, partial(check_filter_tests, asks_relay=bool(asks_sources)))
    if graph is not None and not graph.cycle():
        stores = () if offline else check_stores(graph.config)
        problems = sorted({*problems, *check_sources(graph, asks=asks_sources), *stores})
        if all(problem.is_warning for problem in problems):
            problems = sorted({*problems, *check_targets(graph), *check_renamed(graph)})
    return graph, problems


def _placed(path: Path | str, problems: list[Problem]) -> list[Problem]:
    """Problems with their lines in the file."""
    lines = lines_in(Path(path)) if problems else {}
    return [
        problem if problem.line is not None else replace(problem, line=line_of(problem.path, lines))
        for problem in problems
    ]


def _read(
    path: Path, master: str | None, check_tests: Callable[[Graph], Iterable[Problem]] = lambda _: ()
) -> tuple[Graph | None, list[Problem]]:
    """check_tests: called if all nodes are there, of which the tests speak. Only who looks for all mistakes needs it: a
    test that cannot be run keeps no row from coming.
    """
    config, problems = read_pipeline(path)
    if config is None:
        return None, problems
    graph, joined = Graph.of(config)
    problems += joined
    is_whole = not problems
    problems += _check_options(graph)
    problems += check_master(master, config)
    problems += check_settings(config.sections.spark.settings)
    if config.sections.run.http is not None:
        problems += check_http(config.sections.run.http, "run.http", config)
    problems += _check_relay(config, graph)
    cycle = graph.cycle()
    if cycle:
        problems.append(Problem(cycle[0], f"a cycle: {' -> '.join(_name(path) for path in reversed(cycle))}"))
    else:
        problems += _check_edges(graph, is_whole=is_whole)
        problems += check_tests(graph) if is_whole else ()
    return graph, sorted(set(_without_echoes(problems)))


def _without_echoes(problems: list[Problem]) -> Iterator[Problem]:
    """Without problems of a `${NAME}` that is only there because it has no value."""
    unset = {problem.path for problem in problems if problem.is_unset}
    for problem in problems:
        if problem.is_unset or problem.path not in unset or problem.message.startswith("there is no such option"):
            yield problem


def _name(path: str) -> str:
    return path.partition(".")[2]


def _check_options(graph: Graph) -> Iterator[Problem]:
    for path, node_filter in graph.filters.items():
        problems = node_filter.problems()
        for below, message in problems or node_filter.doubts():
            yield Problem(f"{path}.{below}", message, is_warning=not problems)


def _check_relay(config: PipelineConfig, graph: Graph) -> Iterator[Problem]:
    relay = config.relay
    if relay.url is not None and config.sources:
        yield Problem("relay.url", "names a relay that runs elsewhere, and `sources` asks for one here; leave one out")
    if relay.url is None and not config.sections.sources and any(node.needs_relay for node in graph.inputs.values()):
        yield Problem("relay", "there is none to read: name one (`relay: {url: ...}`) or give `sources` to capture")
    if config.sources:
        yield from _check_own_relay(config)
    for name, file in config.access.options().items():
        if not Path(file).is_file():
            yield Problem(f"relay.{name}", f"{file}: there is no such file")
    yield from _check_tls(config)


def _check_tls(config: PipelineConfig) -> Iterator[Problem]:
    """Options that contradict each other, and a token that anybody on the network can read."""
    from databus.relay import is_loopback

    relay = config.relay
    has_tls = bool(relay.tls) if relay.url is None else relay.url.startswith("https:")
    where, address = ("relay.listen", f"http://{relay.listen}") if relay.url is None else ("relay.url", relay.url)
    if relay.url is not None and relay.tls:
        yield Problem("relay.tls", "is the certificate of a relay that the pipeline starts itself; leave it out")
    if mistake := config.access.mistake(is_tls=has_tls):
        yield Problem("relay", mistake)
    host = urlsplit(address).hostname
    if config.token_file is not None and not has_tls and host and not is_loopback(host):
        yield Problem(
            where,
            f"the token and all rows cross the network in clear ({host}); give the relay a certificate (`tls`)",
            is_warning=True,
        )


def _check_own_relay(config: PipelineConfig) -> Iterator[Problem]:
    from databus.relay import RelayConfig, is_loopback

    relay = config.relay
    sections: Mapping[str, Any] = {"log": relay.log, "capture": relay.capture, "serve": relay.serve}
    if relay.tls:
        sections = {**sections, "tls": relay.tls}
        for name in ("certificate_file", "key_file", "client_ca_file"):
            file = relay.tls.get(name)
            if isinstance(file, str) and not (config.folder / file).is_file():
                yield Problem(f"relay.tls.{name}", f"{config.folder / file}: there is no such file")
    try:
        validated(RelayConfig, {**sections, "listen": relay.listen, "sources": {}}, "relay")
    except ConfigError as error:
        for line in str(error).splitlines():
            where, _, message = line.partition(": ")
            yield Problem(where, message)
    host = relay.listen.rpartition(":")[0]
    if not is_loopback(host) and relay.token_file is None:
        yield Problem("relay.token_file", f"missing: {host} can be reached from other machines, so a token is needed")


def _check_edges(graph: Graph, *, is_whole: bool) -> Iterator[Problem]:
    config = graph.config
    if not config.sections.outputs:
        yield Problem("outputs", "there is none; a pipeline needs at least one input and one output")
    if not config.sections.inputs:
        yield Problem("inputs", "there is none; a pipeline needs at least one input and one output")
    for path, input_node in graph.inputs.items():
        yield from _check_tables(config, path, input_node.choice())
    for edge in graph.edges:
        target = config.nodes[edge.target]
        if target.kind is NodeKind.FILTER:
            yield from _check_into_filter(graph, edge.source, edge.place, target)
    if is_whole:
        yield from _check_unused(graph)
    branches = {node.path: graph.branches(node.path) for node in config.outputs.values()}
    for path, ways in branches.items():
        if len(ways) > BRANCHES_MAX:
            yield Problem(path, f"more than {BRANCHES_MAX} ways lead here; split the pipeline")
            continue
        yield from _check_output(graph, config.nodes[path], ways)
        yield from _check_keys(config.nodes[path], ways)
        yield from check_compacted(graph, config.nodes[path], ways)
    yield from _check_paths(graph, branches)
    origins = {path: [config.nodes[way.input] for way in ways] for path, ways in branches.items()}
    yield from check_options(config, origins)


def _check_tables(config: PipelineConfig, path: str, choice: TableChoice) -> Iterator[Problem]:
    """Patterns of an input that match nothing that the pipeline's own relay captures."""
    import difflib

    if not config.sources:
        return
    for index, pattern in enumerate(choice.include):
        physical, table = split_physical(full_pattern(pattern))
        named = [name for name in config.sources if patterns_meet(f"{physical}/*", f"{name}/*")]
        where = f"{path}.tables[{index}]"
        if not named:
            close = difflib.get_close_matches(physical, config.sources, 1)
            hint = f'did you mean "{close[0]}/{table}"?' if close else f"there are {', '.join(config.sources)}"
            yield Problem(where, f'no physical source called "{physical}"; {hint}')
        elif not is_pattern(table) and not any(config.sources[name].selects(table) for name in named):
            yield Problem(where, f"{pattern} is not captured; see `sources.{named[0]}.tables` and `.exclude`")


def _check_into_filter(graph: Graph, source: str, place: str, target: NodeSpec) -> Iterator[Problem]:
    shape = graph.shape_out(source)
    this = graph.filters[target.path]
    before = _name(source)
    if isinstance(this, TablesFilter):
        if shape is not graph.shape_out(target.path):
            yield Problem(
                place,
                f'"{before}" carries tables, and something else that comes to {_name(target.path)} is typed rows of '
                f"one table; give each a {target.type} of its own",
            )
    elif this.takes is Shape.TABLES and shape is Shape.TYPED:
        yield Problem(
            place,
            f'"{before}" gives typed rows of one table, and a route by table takes tables; put the route before it, or '
            "divide its rows by `where`",
        )
    if this.takes is Shape.TYPED and shape is Shape.TABLES and this.table is None:
        yield Problem(
            f"{target.path}.table", f'missing: "{before}" carries tables, and {target.type} works on one of them'
        )
    if this.takes is Shape.TYPED and shape is Shape.TYPED and this.table is not None and source in graph.inputs:
        yield Problem(f"{target.path}.table", f'"{before}" has rows of one table already; leave this out')


def _check_unused(graph: Graph) -> Iterator[Problem]:
    used = graph.reaching()
    for path, node in graph.config.nodes.items():
        if path not in used:
            yield Problem(
                path,
                f"no output gets anything from it; name it in a `from`, or remove this {node.kind.word}",
                is_warning=True,
            )


def _check_output(graph: Graph, node: NodeSpec, branches: list[Branch]) -> Iterator[Problem]:
    for branch in branches:
        yield from _check_branch(graph, node, branch)
    for first, other in combinations(branches, 2):
        if first.input == other.input and first.over_tables != other.over_tables and _tables_meet(first, other):
            yield Problem(
                other.edge.place,
                f'tables reach {node.name} by "{first.edge_name}" and by "{other.edge_name}", through other filters; '
                "have `route` divide them, or give one of them an output of its own",
            )
    for first, other in combinations(branches, 2):
        shared = _shared(first, other)
        if shared is not None:
            yield Problem(
                other.edge.place,
                f'{shared} reaches {node.name} by "{first.edge_name}" and by "{other.edge_name}"; a table has one way '
                "into an output: leave it out of one of them, or give it an output of its own",
            )


def _tables_meet(first: Branch, other: Branch) -> bool:
    is_tables = first.shape is Shape.TABLES and other.shape is Shape.TABLES
    return is_tables and selections_meet(first.selection, other.selection)


def _check_keys(node: NodeSpec, branches: list[Branch]) -> Iterator[Problem]:
    """Tables that are given a key and do not come to this output."""
    keys = getattr(node.config, "key", None)
    for table in keys if isinstance(keys, dict) else ():
        if not any(
            may_select(branch.selection, table) if branch.table is None else patterns_meet(branch.table, table)
            for branch in branches
        ):
            yield Problem(
                f"{node.path}.key.{table}", f"no table called {table} comes here; a key is given by `db.table`"
            )


def _shared(first: Branch, other: Branch) -> str | None:
    """A table, or a pattern of tables, that both branches carry."""
    if first.shape is Shape.TABLES and other.shape is Shape.TABLES:
        if first.input == other.input:
            return None  # one query reads both, each table once
        meets = selections_meet(first.selection, other.selection)
        return f"a table of {' and '.join(patterns_of(first.selection)[:2])}" if meets else None
    if first.shape is Shape.TABLES:
        first, other = other, first
    table = first.table
    if table is None:
        return "its table" if first.input == other.input else None
    if other.shape is Shape.TABLES:
        return table if may_select(other.selection, table) else None
    return table if other.table is not None and patterns_meet(table, other.table) else None


def _check_branch(graph: Graph, node: NodeSpec, branch: Branch) -> Iterator[Problem]:
    if branch.shape is Shape.TABLES and issubclass(node.plugin, TakesFrames):
        yield Problem(
            branch.edge.place,
            f'"{branch.edge_name}" carries tables, and {node.type} takes typed rows of one table; put a filter between '
            "that names one, such as `type: sql` with `table` and `where`",
        )
    for step in branch.steps:
        this = graph.filters[step.node]
        if isinstance(this, TablesFilter) and this.in_tasks.needs_tables:
            yield Problem(
                f"{step.node}.from",
                f"{graph.config.nodes[step.node].type} works between inputs and outputs that carry tables, and on the "
                f"way to {node.name} another filter is about the rows of one table; use `where`, `project` and "
                "`rename` in the place of that one, or give it another way",
            )
    if branch.table is None or not branch.steps:
        return
    if not may_select(branch.selection, branch.table):
        first = next(step.node for step in branch.steps if graph.filters[step.node].table is not None)
        patterns = patterns_of(branch.selection)
        is_elsewhere = any(patterns_meet(branch.table, pattern) for pattern in patterns)
        why = (
            "another branch has it"
            if is_elsewhere
            else f"what comes is {', '.join(patterns[:_PATTERNS_SHOWN_MAX]) or 'nothing'}"
        )
        yield Problem(
            f"{first}.table", f'{branch.table} does not come out of "{_name(branch.input)}" on this way: {why}'
        )
    tables = {graph.filters[step.node].table for step in branch.steps} - {None}
    for step in branch.steps[1:]:
        named = graph.filters[step.node].table
        if len(tables) > 1 and named is not None and not patterns_meet(named, branch.table):
            yield Problem(
                f"{step.node}.table", f"{named}, but what comes here is rows of {branch.table}; leave this out"
            )


def _check_paths(graph: Graph, branches: Mapping[str, list[Branch]]) -> Iterator[Problem]:
    """Targets that would be fed by several tables, several physical sources, or several outputs."""
    outputs = [node for node in graph.config.outputs.values() if isinstance(getattr(node.config, "path", None), str)]
    for node in outputs:
        yield from _check_path(graph, node, branches[node.path])
    places = {
        node.path: real_path(graph.config.folder, node.config.path.rstrip("/").removesuffix("/{table}"))
        for node in outputs
    }
    for first, other in combinations(outputs, 2):
        if places[first.path] == places[other.path] and any(
            _may_share(a, b) for a in branches[first.path] for b in branches[other.path]
        ):
            yield Problem(f"{other.path}.path", f"{first.path} writes the same tables to {other.config.path} already")
    yield from check_nested(graph, outputs, branches)


def _may_share(first: Branch, other: Branch) -> bool:
    return _shared(first, other) is not None or (
        first.shape is Shape.TABLES and selections_meet(first.selection, other.selection)
    )


def _check_path(graph: Graph, node: NodeSpec, branches: list[Branch]) -> Iterator[Problem]:
    path = node.config.path
    wrong = [*check_path(node, graph.config)]
    if wrong:
        yield from wrong
        return
    if getattr(node.config, "merge", False):
        return
    physicals = {name for branch in branches for name in physicals_of(graph, branch) or ()}
    if len(physicals) > 1 and "{physical}" not in path:
        yield Problem(
            f"{node.path}.path",
            f"tables of {' and '.join(sorted(physicals))} would meet in one target where they have one name; put "
            f"`{{physical}}` into the path{_or_merge(node)}",
        )
    many = any(branch.shape is Shape.TABLES and is_many(branch) for branch in branches)
    if many and "{" in path and "{table}" not in path:
        yield Problem(
            f"{node.path}.path",
            f"several tables would become one target; put `{{table}}` into the path{_or_merge(node)}",
        )


def _or_merge(node: NodeSpec) -> str:
    return ", or say `merge: true`" if hasattr(node.config, "merge") else ""
