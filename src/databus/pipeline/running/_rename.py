"""Giving an output, or a pipeline, another name, while what was written stays its own.

Names stand in the place of an output's ledger, in what its target says of itself, and in the folder of its dead
letters. They are changed in an order in which whoever is killed has the same call to repeat, and nothing is written
meanwhile:

1. The new ledger says that it comes from the old one, and the old one that it goes to the new one. A run of either
   refuses from then on.
2. The target takes the new name (`TakesName`), and dead letters move.
3. The new ledger says what the old one said, and may be written; the old one is removed.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from databus.core import ConfigError, InputError
from databus.disk import move_folder
from databus.pipeline.engine import LEDGERS, Ledger, ledger_path
from databus.pipeline.graph import Graph, Kind, PipelineConfig, state_folder, while_stopped
from databus.pipeline.telling import Resting
from databus.plugins import KeepsLetters, Output, OutputContext, TakesName


class Renamed(NamedTuple):
    """An output that has another name now, or whose pipeline has."""

    output: str
    tables: int
    """Of how many the ledger says where they stand."""
    records: int
    """How much the target knew by the old name: tables, or parts of them; none where it knows no names."""
    letters: int
    """Dead letters that it has."""


@dataclass(frozen=True)
class _Move:
    """An output by its old names, and by its new ones."""

    before: Output
    after: Output
    old: Ledger
    new: Ledger

    @property
    def is_one_file(self) -> bool:
        """Whether both ledgers are the same file, in a state that has no name in its path."""
        return self.old.path == self.new.path

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do but to remove the old ledger."""
        return not self.is_one_file and self.old.renaming == self.new.names and self.new.renaming is None

    def check(self) -> None:
        """Raises `InputError` where one of the ledgers is on another way, or the new name has been written."""
        for mine, other in ((self.old, self.new), (self.new, self.old)):
            if mine.renaming not in (None, other.names):
                raise InputError(mine.half_renamed)
        if not self.is_over and self.new.renaming is None and self.new.positions:
            raise InputError(
                f"outputs.{self.new.output}: has been written already by this name ({self.new.path}), and "
                f"outputs.{self.old.output} by the old one ({self.old.path}): one of them would be forgotten. Give the "
                f"output a third name"
            )

    def reserve(self) -> None:
        """The first step. The old ledger comes last: while it says nothing, a run by the old name is right."""
        if self.is_over:
            return
        if not self.is_one_file:
            self.new.reserve(self.old.names)
        self.old.reserve(self.new.names)

    def carry_out(self) -> Renamed:
        """The others."""
        tables = {name for position in self.old.positions.values() for name in position.known}
        records = letters = 0
        try:
            if not self.is_over and isinstance(self.after, TakesName):
                records = self.after.take_name(self.before.context, tables)
            if isinstance(self.before, KeepsLetters) and isinstance(self.after, KeepsLetters):
                letters = self.before.letters.move(self.after.letters)
        finally:
            self.after.close()
        if not self.is_over:
            self.new.come_from(self.old)
        if not self.is_one_file:
            self.old.path.remove()
        return Renamed(self.new.output, len(tables), records, letters)


def rename_output(graph: Graph, old: str, new: str) -> Sequence[Renamed]:
    """Have the output that the file calls `new` go on where the one that was called `old` stands; nothing if that was
    done before.

    Killed half-way, the same call does the rest; no run begins before. Raises `InputError` where the names are not
    such, or nothing was written by the old one; `LockHeld` while the pipeline runs.
    """
    config = graph.config
    _check_output(config, old, new)
    with while_stopped(config.state, config.name):
        begun = _begun([_move(config, new, replace(config.context_of(new), output=old), config.state)])
        Resting(config.state).call(old, new)
        return [move.carry_out() for move in begun]


def rename_pipeline(graph: Graph, old: str) -> Sequence[Renamed]:
    """The same for all outputs of a pipeline that was called `old`; its state is moved, where the name stands in it."""
    config = graph.config
    if old == config.name:
        raise InputError(f"{config.path}: is of pipeline {old} still. Give it its new `name` there first")
    before = state_folder(config.folder, old, config.sections.state)
    with ExitStack() as held:
        held.enter_context(while_stopped(config.state, config.name))
        if before != config.state and before.exists():
            held.enter_context(while_stopped(before, old))
        names = [node.name for node in config.nodes.values() if node.kind is Kind.OUTPUT]
        moves = [_move(config, name, replace(config.context_of(name), pipeline=old), before) for name in names]
        begun = _begun(moves)
        if before != config.state:
            _move_state(before, config.state)  # also which outputs are paused, before one of them may run
        return [move.carry_out() for move in begun]


def _check_output(config: PipelineConfig, old: str, new: str) -> None:
    outputs = [node.name for node in config.nodes.values() if node.kind is Kind.OUTPUT]
    if new not in outputs:
        raise InputError(
            f"{config.path}: has no output {new!r}; there are {', '.join(outputs)}. Give the output its new name there "
            f"first"
        )
    if old in outputs:
        raise InputError(f"{config.path}: still has an output {old!r}, which goes on where it stands")


def rename_target(before: Output, after: Output, was: Path, state: Path) -> Sequence[Renamed]:
    """The same for one output by itself, as old names and new ones make it. was, state: the pipeline's folders."""
    return [move.carry_out() for move in _begun([_move_of(before, after, was, state)])]


def _move(config: PipelineConfig, name: str, context: OutputContext, was: Path) -> _Move:
    """context, was: those of before."""
    node = config.nodes[f"{Kind.OUTPUT}.{name}"]
    before, after = (node.plugin(node.config, each) for each in (context, config.context_of(name)))
    return _move_of(before, after, was, config.state)


def _move_of(before: Output, after: Output, folder: Path, state: Path) -> _Move:
    old, new = ((each.context.pipeline, each.context.output) for each in (before, after))
    was, is_now = ledger_path(before, folder), ledger_path(after, state)
    if was != is_now:
        return _Move(before, after, Ledger.load(was, *old), Ledger.load(is_now, *new))
    try:
        return _Move(before, after, Ledger.load(was, *old), Ledger(is_now, *new))
    except ConfigError:  # it has the new name already, or another one
        return _Move(before, after, Ledger(was, *old), Ledger.load(is_now, *new))


def _begun(moves: Sequence[_Move]) -> list[_Move]:
    """Those of which something was written. All of them are reserved before one is changed, so that no run begins any.
    Raises `InputError` where nobody knows the old name, nor the new one.
    """
    begun = [move for move in moves if move.old.tag is not None]
    for move in begun:
        move.check()
    if all(move.old.tag is None and move.new.tag is None for move in moves):
        paths = ", ".join(str(move.old.path) for move in moves)
        raise InputError(f"nothing was written by the old name: there is no {paths}")
    for move in begun:
        move.reserve()
    return begun


def _move_state(before: Path, after: Path) -> None:
    """Move what a pipeline keeps beside its ledgers, but for what there is by the new name already, as the lock."""
    for path in sorted(before.iterdir()) if before.exists() else ():
        if path.name != LEDGERS and not (after / path.name).exists():
            move_folder(path, after / path.name)
