"""Dead letters of a pipeline's outputs: listed, shown, replayed and dropped."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from databus.core import DatabusError, InputError, StateDiffers
from databus.filters import matches
from databus.flow import LetterFile, Letters
from databus.pipeline.graph import Graph, PipelineConfig
from databus.plugins import KeepsLetters


class Replayed(NamedTuple):
    """Counts of letters."""

    written: int
    refused: int
    """Refused again."""
    reasons: Mapping[str, int]
    """How many were refused for which reason."""


class OutputLetters:
    """The letters of one output. Raises `InputError` for an output that keeps none."""

    def __init__(self, graph: Graph, output: str) -> None:
        plugin = graph.config.output_of(output)
        if not isinstance(plugin, KeepsLetters):
            raise InputError(f"outputs.{output}: keeps no dead letters")
        self.name = output
        self._output, self._letters, self._replay = plugin, plugin.letters, plugin.replay

    def files(self, patterns: Sequence[str] = ()) -> list[LetterFile]:
        """The files of tables that match one of the patterns; without patterns, of all tables."""
        return self._letters.files(_wanted(patterns))

    def read(self, patterns: Sequence[str] = ()) -> Iterator[Letters]:
        """The letters themselves, but for those that are dropped meanwhile."""
        return (letters for file in self.files(patterns) if (letters := self._letters.find(file)) is not None)

    def replay(self, patterns: Sequence[str] = ()) -> Replayed:
        """Write them again; those that are refused again stay.

        A file from which the pipeline takes letters at the same time is skipped; the next replay writes it.
        """
        written, reasons = 0, Counter[str]()
        try:
            for file in self.files(patterns):
                letters = self._letters.find(file)
                if letters is None:
                    continue
                refused = self._replay(letters)
                self._letters.keep(file, refused)
                written += file.count - len(refused)
                reasons.update(letter.reason for letter in refused)
        finally:
            self._output.close()
        return Replayed(written, reasons.total(), dict(reasons.most_common()))

    def drop(self, patterns: Sequence[str] = ()) -> int:
        """Drop them; returns how many there were."""
        files = self.files(patterns)
        for file in files:
            self._letters.keep(file, ())
        return sum(file.count for file in files)


def steer_letters(
    graph: Graph, verb: str, output: str, patterns: Sequence[str], seen: int | None = None
) -> dict[str, Any]:
    """Write the letters of an output again (`replay`), or drop them (`drop`); returns the counts.

    seen: how many letters the sender saw. Raises `StateDiffers` if the number has changed.
    """
    letters = OutputLetters(graph, output)
    if seen is not None and (count := sum(file.count for file in letters.files(patterns))) != seen:
        raise StateDiffers.between(f"the number of dead letters of outputs.{output}", seen, count, "count")
    if verb == "drop":
        return {"dropped": letters.drop(patterns)}
    return dict(letters.replay(patterns)._asdict())


def outputs_with_letters(graph: Graph) -> list[OutputLetters]:
    """The outputs that keep dead letters."""
    outputs = []
    for name in graph.config.outputs:
        with suppress(InputError):
            outputs.append(OutputLetters(graph, name))
    return outputs


def with_letters(config: PipelineConfig, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs of a status with `dead_letters`, their count; None if the output keeps none, or cannot be asked."""
    return {name: {**output, "dead_letters": _count(config, name)} for name, output in outputs.items()}


def _count(config: PipelineConfig, output: str) -> int | None:
    if output not in config.outputs:
        return None
    plugin = config.output_of(output)
    try:
        return plugin.letters.count() if isinstance(plugin, KeepsLetters) else None
    except (DatabusError, OSError):
        return None
    finally:
        plugin.close()


def _wanted(patterns: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: not patterns or matches(name, patterns)
