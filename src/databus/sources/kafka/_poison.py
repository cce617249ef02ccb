"""Messages that are not what the configuration says: singled out among the others. No I/O."""

import json
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import UnrepresentableValue
from databus.sources.kafka._consumer import TopicMessages

T = TypeVar("T")
Numbers = npt.NDArray[np.intp]

_UNREADABLE: Final = (UnrepresentableValue, ValueError, ArithmeticError, RecursionError)
"""What readers raise for a message, foreseen or not. Whatever `on_poison` does not get stops capture without saying at
which message, and at each start again."""


class Poison(NamedTuple):
    """A message that cannot be read."""

    at: int
    """Its index among the messages."""
    reason: str


def sifted(
    messages: TopicMessages, read: Callable[[TopicMessages], T], *, is_json: bool
) -> tuple[list[T], list[Poison]]:
    """What `read` makes of all messages that it can read, in order, and the others.

    `read` raises for any of them that it cannot read; messages are halved until those that are wrong stand alone.
    is_json: each is to be JSON, so those that are none are set aside first, which is quicker.
    """
    results: list[T] = []
    poison: list[Poison] = []
    waiting: list[Numbers] = [np.arange(len(messages))]
    while waiting:
        chosen = waiting.pop()
        if not len(chosen):
            continue
        try:
            results.append(read(messages if len(chosen) == len(messages) else messages.chosen(chosen)))
        except _UNREADABLE as error:
            if len(chosen) == 1:
                poison.append(Poison(int(chosen[0]), str(error)))
            elif is_json:
                is_json = False
                poison = _not_json(messages.values)
                waiting.append(np.setdiff1d(chosen, [fault.at for fault in poison]))
            else:
                half = len(chosen) // 2
                waiting += [chosen[half:], chosen[:half]]
    return results, sorted(poison)


def _not_json(values: pa.Array) -> list[Poison]:
    poison = []
    for at, value in enumerate(values.to_pylist()):
        try:
            json.loads(value or b"0")
        except (ValueError, RecursionError) as error:
            poison.append(Poison(at, f"it is not JSON: {error}"))
    return poison


def before(messages: TopicMessages, poison: list[Poison]) -> TopicMessages:
    """The messages without those that are wrong, and without what comes behind them in their partitions."""
    kept = np.ones(len(messages), bool)
    for at, _ in poison:
        behind = messages.offsets >= messages.offsets[at]
        kept &= ~((messages.partitions == messages.partitions[at]) & behind)
    return messages.chosen(np.flatnonzero(kept))
