"""Renaming an output or a pipeline, so that it keeps what was written under the old name.

Names are part of the path of an output's ledger, of what its target records, and of the folder of its dead letters. The
order of the steps is such that after a kill at any moment the same call completes the rest, and no run writes before:

1. The new ledger notes that it takes over the old one, and the old one that it becomes the new one. From then on a run
   with either name is refused.
2. The target takes the new name (`TakesName`), and dead letters move.
3. The new ledger takes the content of the old one, and may be written again; the old one is removed.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from databus.core import ConfigError, InputError
from databus.disk import move_folder
from databus.pipeline.engine import LEDGERS, Ledger, ledger_path
from databus.pipeline.graph import Graph, PipelineConfig, state_folder, while_stopped
from databus.pipeline.telling import Resting
from databus.plugins import KeepsLetters, Output, OutputContext, TakesName


class Renamed(NamedTuple):
    """An output after it, or its pipeline, was renamed."""

    output: str
    tables: int
    """How many have a place in the ledger."""
    records: int
    """What the target recorded by the old name: tables, or parts of them; none if it records no names."""
    letters: int
    """Dead letters that were moved."""


@dataclass(frozen=True)
class _Move:
    """An output under its old names and its new ones."""

    before: Output
    after: Output
    old: Ledger
    new: Ledger

    @property
    def is_one_file(self) -> bool:
        """Whether both ledgers are the same file, as in a state folder without the name in its path."""
        return self.old.path == self.new.path

    @property
    def is_over(self) -> bool:
        """Whether only the old ledger is left to be removed."""
        return not self.is_one_file and self.old.renaming == self.new.names and self.new.renaming is None

    def check(self) -> None:
        """Raises `InputError` if a ledger is part of another renaming, or the new name has its own ledger."""
        for ledger, other in ((self.old, self.new), (self.new, self.old)):
            if ledger.renaming not in (None, other.names):
                raise InputError(ledger.half_renamed)
        if not self.is_over and self.new.renaming is None and self.new.positions:
            raise InputError(
                f"outputs.{self.new.output}: has been written already by this name ({self.new.path}), and "
                f"outputs.{self.old.output} by the old one ({self.old.path}): one of them would be forgotten. Give the "
                f"output a third name"
            )

    def reserve(self) -> None:
        """The first step. The old ledger is written last: until then a run by the old name is still correct."""
        if self.is_over:
            return
        if not self.is_one_file:
            self.new.reserve(self.old.names)
        self.old.reserve(self.new.names)

    def carry_out(self) -> Renamed:
        """The other steps."""
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
    """Have the output that the file now calls `new` continue at the places of the one that it called `old`. Calling it
    again changes nothing.

    After a kill the same call does the rest; until then no run starts. Raises `InputError` if the file does not have
    just the new name, or nothing was written by the old one; `LockHeld` while the pipeline runs.
    """
    config = graph.config
    _check_output(config, old, new)
    with while_stopped(config.state, config.name):
        begun = _begun([_move(config, new, replace(config.context_of(new), output=old), config.state)])
        Resting(config.state).call(old, new)
        return [move.carry_out() for move in begun]


def rename_pipeline(graph: Graph, old: str) -> Sequence[Renamed]:
    """The same for all outputs of a pipeline that was called `old`; its state is moved if its path has the name."""
    config = graph.config
    if old == config.name:
        raise InputError(f"{config.path}: still has the name {old}. Give the pipeline its new `name` there first")
    before = state_folder(config.folder, old, config.sections.state)
    with ExitStack() as held:
        held.enter_context(while_stopped(config.state, config.name))
        if before != config.state and before.exists():
            held.enter_context(while_stopped(before, old))
        contexts = {name: replace(config.context_of(name), pipeline=old) for name in config.outputs}
        moves = [_move(config, name, context, before) for name, context in contexts.items()]
        begun = _begun(moves)
        if before != config.state:
            _move_state(before, config.state)  # with the list of paused outputs, before one of them may run
        return [move.carry_out() for move in begun]


def _check_output(config: PipelineConfig, old: str, new: str) -> None:
    outputs = config.outputs
    if new not in outputs:
        raise InputError(
            f"{config.path}: has no output {new!r}; there are {', '.join(outputs)}. Give the output its new name there "
            f"first"
        )
    if old in outputs:
        raise InputError(f"{config.path}: still has an output {old!r}, which keeps its places")


def rename_target(before: Output, after: Output, was: Path, state: Path) -> Sequence[Renamed]:
    """The same for one output, given as its old and new names make it. was, state: the state folders."""
    return [move.carry_out() for move in _begun([_move_of(before, after, was, state)])]


def _move(config: PipelineConfig, name: str, context: OutputContext, was: Path) -> _Move:
    """context, was: those before the renaming."""
    node = config.outputs[name]
    return _move_of(node.plugin(node.config, context), config.output_of(name), was, config.state)


def _move_of(before: Output, after: Output, folder: Path, state: Path) -> _Move:
    old, new = ((output.context.pipeline, output.context.output) for output in (before, after))
    was, is_now = ledger_path(before, folder), ledger_path(after, state)
    if was != is_now:
        return _Move(before, after, Ledger.load(was, *old), Ledger.load(is_now, *new))
    try:
        return _Move(before, after, Ledger.load(was, *old), Ledger(is_now, *new))
    except ConfigError:  # the file has the new name already, or a third one
        return _Move(before, after, Ledger(was, *old), Ledger.load(is_now, *new))


def _begun(moves: Sequence[_Move]) -> list[_Move]:
    """The moves of outputs that were written. All are reserved before one is carried out, so that no run starts any.
    Raises `InputError` if there is no ledger of the old names, nor of the new ones.
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
    """Move what a pipeline keeps beside its ledgers, except what exists by the new name already, such as the lock."""
    for path in sorted(before.iterdir()) if before.exists() else ():
        if path.name != LEDGERS and not (after / path.name).exists():
            move_folder(path, after / path.name)
