"""Rebuilding an output, or some of its tables: what was written is removed, and read again.

`rebuild` is for a pipeline that does not run: its next run reads. In one that runs, `rebuild_at_rest` has the output
rest meanwhile; it reads when it continues.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

from databus.core import ConfigError, CorruptData, InputError
from databus.disk import Location
from databus.filters import matches, nearest
from databus.pipeline.checks import check_sources
from databus.pipeline.engine import Ledger, OutputHandle, ledger_path
from databus.pipeline.graph import Graph, NodeKind, PipelineConfig, while_stopped
from databus.plugins import Output, Removes


def rebuild(
    graph: Graph, output: str, patterns: Sequence[str] = (), *, confirm: Callable[[Sequence[str]], bool]
) -> Sequence[Location | Path]:
    """Rebuild an output, or only its tables that match one of `patterns`; returns the folders removed.

    confirm: called with the tables' full names; if it returns False, nothing is done. If this process is killed, the
    next run does the rest, or the same call again. Raises `InputError` for an unknown output or table, or an output
    that keeps nothing; `ConfigError` if the databases lack what the file names; `LockHeld` while the pipeline runs.
    """
    config, target = graph.config, graph.config.output_of(output)
    removes = _removes(graph, target)
    with while_stopped(config.state, config.name), closing(target):
        ledger = _ledger_of(target, config.state, is_all=not patterns)
        ledger.take()  # also from a pipeline that runs with another `state`
        written = {name for position in ledger.positions.values() for name in (*position.marks, *position.seeds)}
        tables = sorted(written.union(removes.tables()))
        chosen = _chosen(tables, patterns, output)
        if not confirm(chosen):
            return []
        folders = ledger.rebuild(ledger.removing.union(chosen), removes.remove)
        if not patterns:
            ledger.forget()
        return folders


def rebuild_at_rest(
    graph: Graph, output: str, patterns: Sequence[str], at_rest: Callable[[], AbstractContextManager[OutputHandle]]
) -> list[str]:
    """Rebuild tables of an output of a running pipeline; returns their full names. Raises as `rebuild` does.

    at_rest: has the output rest meanwhile, and gives its handle.
    """
    _removes(graph, graph.config.output_of(output))
    with at_rest() as handle:
        chosen = _chosen(handle.tables(), patterns, output)
        handle.rebuild(chosen)
    return chosen


def _removes(graph: Graph, target: Output) -> Removes:
    """The target; raises if it keeps nothing, or if what is removed now could not be written again."""
    if not isinstance(target, Removes):
        raise InputError(
            f"outputs.{target.context.output}: its target keeps nothing that could be removed and written again. Under "
            f"another name the output begins as at a first start, and the target gets again what the relay holds"
        )
    problems = [problem for problem in check_sources(graph, asks=True) if not problem.path.startswith("sources.")]
    wrong = [problem.in_file(graph.config.path) for problem in problems if not problem.is_warning]
    if wrong:
        raise ConfigError("\n".join(wrong))
    return target


def take_ledgers(config: PipelineConfig) -> None:
    """Take all outputs from a pipeline that runs elsewhere, with another `state`: by their ledgers it is no writer of
    them any more. The caller has the lock of the state here.
    """
    for node in config.nodes.values():
        if node.kind is NodeKind.OUTPUT:
            target = config.output_of(node.name)
            _ledger_of(target, config.state, is_all=False).take()
            target.close()


def keeps_changes(graph: Graph, output: str) -> bool:
    """Whether an output has changes that no snapshot brings back. Raises `InputError` for an unknown output."""
    return not graph.config.output_of(output).config.is_refilled


def _ledger_of(target: Output, state: Path, *, is_all: bool) -> Ledger:
    """The ledger. If all is rebuilt, its content does not matter: an unreadable one counts as empty."""
    path, context = ledger_path(target, state), target.context
    try:
        return Ledger.load(path, context.pipeline, context.output)
    except CorruptData:
        if not is_all:
            raise
        file = path.read()
        return Ledger(path, context.pipeline, context.output, tag=None if file is None else file.tag)


def _chosen(tables: Sequence[str], patterns: Sequence[str], output: str) -> list[str]:
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in tables):
            meant = nearest(pattern, tables)
            hint = f"; did you mean {meant}?" if meant else ""
            raise InputError(f"outputs.{output}: has no table {pattern!r}{hint}")
    return [name for name in tables if not patterns or matches(name, patterns)]
