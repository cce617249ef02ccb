"""Places: how far each partition has been read, and what became of them meanwhile. No I/O.

The position of a commit is `{"cluster": ID, "topics": {NAME: {"id": ID, "offsets": [NEXT, ...]}}}`, the next offset of
each partition by its number. A topic's id differs from that of every topic before it that had its name. Mirrors read it
too, for the cluster and the number of partitions (`databus.tasks.kafka`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from databus.core import SourceChanged


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """The next offset of each partition of a topic. id: the topic's own; empty where the cluster tells none."""

    id: str
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a topic holds: by partition the first offset, and the one behind the last."""

    id: str
    earliest: tuple[int, ...]
    latest: tuple[int, ...]


class Loss(NamedTuple):
    """Messages of a topic that were not read and are gone."""

    topic: str
    reason: str


class Places:
    """The next offset of each partition that is read."""

    def __init__(self, cluster: str, topics: Mapping[str, TopicPlace]) -> None:
        self.cluster = cluster
        self.topics = dict(topics)

    @classmethod
    def from_json(cls, position: Mapping[str, Any], physical: str) -> "Places":
        """Read what `to_json` wrote. Raises `SourceChanged` for a position of another kind of source."""
        try:
            topics = {
                str(name): TopicPlace(str(each["id"]), tuple(int(offset) for offset in each["offsets"]))
                for name, each in position["topics"].items()
            }
            return cls(str(position["cluster"]), topics)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceChanged(
                f"{physical}: the log ends at {str(dict(position))[:200]}, which is not a position in Kafka's topics"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """As a commit's position."""
        topics = {name: {"id": each.id, "offsets": list(each.offsets)} for name, each in sorted(self.topics.items())}
        return {"cluster": self.cluster, "topics": topics}

    @property
    def partitions(self) -> int:
        """How many there are."""
        return sum(len(each.offsets) for each in self.topics.values())

    def each(self) -> list[tuple[str, int, int]]:
        """(topic, partition, next offset) of all."""
        return [
            (name, number, offset) for name, topic in self.topics.items() for number, offset in enumerate(topic.offsets)
        ]

    def moved(self, ends: Mapping[tuple[str, int], int]) -> "Places":
        """With these next offsets, by topic and partition, in place of the ones before."""
        offsets = {name: list(each.offsets) for name, each in self.topics.items()}
        for (name, number), offset in ends.items():
            if name in offsets:
                offsets[name][number] = offset
        return Places(
            self.cluster, {name: TopicPlace(each.id, tuple(offsets[name])) for name, each in self.topics.items()}
        )

    def differs(self, there: Mapping[str, tuple[str, int]]) -> bool:
        """Whether there are other topics or partitions. there: id and number of partitions of each topic."""
        return {name: (each.id, len(each.offsets)) for name, each in self.topics.items()} != dict(there)

    def reconciled(self, there: Mapping[str, TopicState]) -> tuple["Places", list[Loss]]:
        """Where to go on with what is there now, and what has been lost. New topics and partitions begin at their first
        message.
        """
        found: dict[str, TopicPlace] = {}
        losses: list[Loss] = []
        for name, place in self.topics.items():
            state = there.get(name)
            if state is None:
                losses.append(Loss(name, f"the topic {name} is gone; it had been read up to {_told(place.offsets)}"))
            elif state.id != place.id and state.id and place.id:
                losses.append(
                    Loss(
                        name,
                        f"the topic {name} was deleted and created again; the one before had been read up to "
                        f"{_told(place.offsets)}",
                    )
                )
            else:
                kept = [
                    _offset(name, number, offset, state, losses)
                    for number, offset in enumerate(place.offsets[: len(state.earliest)])
                ]
                found[name] = TopicPlace(state.id, (*kept, *state.earliest[len(kept) :]))
        for name, state in there.items():
            found.setdefault(name, TopicPlace(state.id, state.earliest))
        return Places(self.cluster, found), losses


def _offset(name: str, number: int, offset: int, state: TopicState, losses: list[Loss]) -> int:
    earliest, latest = state.earliest[number], state.latest[number]
    if offset < earliest:
        losses.append(
            Loss(name, f"offsets {offset} to {earliest - 1} of {name}, partition {number}, have left the topic unread")
        )
        return earliest
    if offset > latest:
        losses.append(
            Loss(
                name,
                f"{name}, partition {number}, ends at offset {latest}, and had been read up to {offset}: the broker "
                "has lost messages, and others may have come in their places",
            )
        )
        return latest
    return offset


def _told(offsets: Sequence[int]) -> str:
    told = ", ".join(f"{number}: {offset}" for number, offset in enumerate(offsets[:8]))
    return f"offset {told}{', ...' if len(offsets) > 8 else ''}" if offsets else "nothing"
