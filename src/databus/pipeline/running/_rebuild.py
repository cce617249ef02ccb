"""Making an output, or some of its tables, anew: what it has is removed, and read again.

`rebuild` is for a pipeline that does not run: its next run reads. In one that runs, the output rests meanwhile, and
reads when it goes on: `rebuild_at_rest`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from databus.core import ConfigError, CorruptData, InputError
from databus.disk import Location
from databus.filters import matches, nearest
from databus.pipeline.checks import check_sources
from databus.pipeline.engine import Ledger, OutputHandle, ledger_path
from databus.pipeline.graph import Graph, Kind, StateLock
from databus.plugins import Output, Removes


def rebuild(
    graph: Graph, output: str, patterns: Sequence[str] = (), *, confirm: Callable[[Sequence[str]], bool]
) -> Sequence[Location | Path]:
    """Have an output made anew, or only those of its tables that match one of `patterns`; returns the folders removed.

    confirm: is asked with the tables' full names; nothing is done if it says no. Killed half-way, the next run does
    the rest, or the same call again. Raises `InputError` for an output or table that is none, or an output that keeps
    nothing; `ConfigError` where the file names what no table has, as far as the databases say; `LockHeld` while the
    pipeline runs.
    """
    config, target = graph.config, _target(graph, output)
    _check(graph, target)
    assert isinstance(target, Removes)  # noqa: S101 - it was checked
    lock = StateLock(config.state, config.name)
    lock.take()
    try:
        ledger = _ledger_of(target, config.state, is_all=not patterns)
        ledger.take()  # from a pipeline that runs with another `state`
        written = {name for each in ledger.positions.values() for name in (*each.marks, *each.seeds)}
        tables = sorted(written.union(target.tables()))
        chosen = _chosen(tables, patterns, output)
        if not confirm(chosen):
            return []
        folders = ledger.make_anew(ledger.removing.union(chosen), target.remove)
        if not patterns:
            ledger.forget()
        return folders
    finally:
        target.close()
        lock.release()


def rebuild_at_rest(
    graph: Graph, output: str, patterns: Sequence[str], at_rest: Callable[[], AbstractContextManager[OutputHandle]]
) -> list[str]:
    """Have tables of an output of the pipeline that runs made anew; returns their full names. Raises as `rebuild` does.

    at_rest: has the output rest meanwhile, and gives what writes to it.
    """
    _check(graph, _target(graph, output))
    with at_rest() as handle:
        chosen = _chosen(handle.tables(), patterns, output)
        handle.make_anew(chosen)
    return chosen


def _check(graph: Graph, target: Output) -> None:
    """Raise where the target keeps nothing, or what is removed now could not be written again."""
    if not isinstance(target, Removes):
        raise InputError(
            f"outputs.{target.context.output}: its target keeps nothing that could be removed and written again. Under "
            f"another name the output begins as at a first start, and the target gets again what the relay holds"
        )
    found = [each for each in check_sources(graph, asks=True) if not each.path.startswith("sources.")]
    wrong = [each.in_file(graph.config.path) for each in found if not each.is_warning]
    if wrong:
        raise ConfigError("\n".join(wrong))


def keeps_changes(graph: Graph, output: str) -> bool:
    """Whether an output has changes that no snapshot brings back. Raises `InputError` for one that is none."""
    return not _target(graph, output).config.is_refilled


def _target(graph: Graph, output: str) -> Output:
    config = graph.config
    node = config.nodes.get(f"outputs.{output}")
    if node is None or node.kind is not Kind.OUTPUT:
        names = ", ".join(each.name for each in config.nodes.values() if each.kind is Kind.OUTPUT)
        raise InputError(f"{config.name}: has no output {output!r}; there are {names}")
    made: Output = node.plugin(node.config, config.context_of(node.name))
    return made


def _ledger_of(target: Output, state: Path, *, is_all: bool) -> Ledger:
    """The ledger; an empty one in the place of one that cannot be read, where it is to say nothing anyway."""
    path, context = ledger_path(target, state), target.context
    try:
        return Ledger.load(path, context.pipeline, context.output)
    except CorruptData:
        if not is_all:
            raise
        found = path.read()
        return Ledger(path, context.pipeline, context.output, tag=None if found is None else found.tag)


def _chosen(tables: Sequence[str], patterns: Sequence[str], output: str) -> list[str]:
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in tables):
            meant = nearest(pattern, tables)
            hint = f"; did you mean {meant}?" if meant else ""
            raise InputError(f"outputs.{output}: has no table {pattern!r}{hint}")
    return [name for name in tables if not patterns or matches(name, patterns)]
