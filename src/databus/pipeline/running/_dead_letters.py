"""Dead letters of a pipeline's outputs, for who looks after it: listed, shown, replayed and dropped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from databus.core import DatabusError, InputError, StateDiffers
from databus.filters import matches
from databus.flow import LetterFile, Letters
from databus.pipeline.graph import Graph, Kind, PipelineConfig
from databus.plugins import KeepsLetters, Output


class Replayed(NamedTuple):
    """How many letters were written, and how many refused again; reasons: how many of these for which reason."""

    written: int
    refused: int
    reasons: Mapping[str, int]


class OutputLetters:
    """The letters of one output. Raises `InputError` for one that keeps none."""

    def __init__(self, graph: Graph, output: str) -> None:
        node = graph.config.nodes.get(f"outputs.{output}")
        if node is None or node.kind is not Kind.OUTPUT:
            names = ", ".join(node.name for node in graph.config.nodes.values() if node.kind is Kind.OUTPUT)
            raise InputError(f"{graph.config.name}: has no output {output!r}; there are {names}")
        made: Output = node.plugin(node.config, graph.config.context_of(node.name))
        if not isinstance(made, KeepsLetters):
            raise InputError(f"outputs.{output}: keeps no dead letters")
        self.name = output
        self._output, self._letters, self._replay = made, made.letters, made.replay

    def files(self, patterns: Sequence[str] = ()) -> list[LetterFile]:
        """Those of tables that match one of the patterns; of all tables without any."""
        return self._letters.files(_wanted(patterns))

    def read(self, patterns: Sequence[str] = ()) -> Iterator[Letters]:
        """The letters themselves; without those that are forgotten meanwhile."""
        return (found for file in self.files(patterns) if (found := self._letters.find(file)) is not None)

    def replay(self, patterns: Sequence[str] = ()) -> Replayed:
        """Write them once more; those that are refused again stay.

        Of a file that the pipeline takes letters from meanwhile, none is written; the next replay does.
        """
        written, reasons = 0, Counter[str]()
        try:
            for file in self.files(patterns):
                letters = self._letters.find(file)
                if letters is None:
                    continue
                left = self._replay(letters)
                self._letters.keep(file, left)
                written += file.count - len(left)
                reasons.update(each.reason for each in left)
        finally:
            self._output.close()
        return Replayed(written, reasons.total(), dict(reasons.most_common()))

    def drop(self, patterns: Sequence[str] = ()) -> int:
        """Forget them; returns how many there were."""
        files = self.files(patterns)
        for file in files:
            self._letters.keep(file, ())
        return sum(file.count for file in files)


def steer_letters(
    graph: Graph, verb: str, output: str, patterns: Sequence[str], seen: int | None = None
) -> dict[str, Any]:
    """Have the letters of an output written once more (`replay`), or forgotten (`drop`); what came of it.

    seen: how many there were when somebody looked. Raises `StateDiffers` where there are others.
    """
    letters = OutputLetters(graph, output)
    if seen is not None and (now := sum(file.count for file in letters.files(patterns))) != seen:
        raise StateDiffers(f"outputs.{output}: there are {now} letters now, no longer {seen}; look again, then decide")
    if verb == "drop":
        return {"dropped": letters.drop(patterns)}
    return dict(letters.replay(patterns)._asdict())


def outputs_with_letters(graph: Graph) -> list[OutputLetters]:
    """The outputs that may have any."""
    folders = []
    for node in graph.config.nodes.values():
        if node.kind is Kind.OUTPUT:
            try:
                folders.append(OutputLetters(graph, node.name))
            except InputError:
                continue
    return folders


def with_letters(config: PipelineConfig, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs of a status with `dead_letters`, how many there are; None of one that keeps none, or cannot be asked."""
    return {name: {**output, "dead_letters": _count(config, name)} for name, output in outputs.items()}


def _count(config: PipelineConfig, output: str) -> int | None:
    node = config.nodes.get(f"outputs.{output}")
    if node is None:
        return None
    made = node.plugin(node.config, config.context_of(node.name))
    try:
        return made.letters.count() if isinstance(made, KeepsLetters) else None
    except (DatabusError, OSError):
        return None
    finally:
        made.close()


def _wanted(patterns: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: not patterns or matches(name, patterns)
