"""Places: how far each partition has been read, and what became of them meanwhile. No I/O.

The position of a commit is `{"cluster": ID, "topics": {NAME: {"id": ID, "offsets": [NEXT, ...]}}}`, the next offset of
each partition by its number; beside `offsets` stand `epochs`, `tails` and `gone` where they are known. A topic's id
differs from that of every topic before it that had its name. Mirrors read it too, for the cluster and the number of
partitions (`databus.sinks.kafka`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from databus.core import SourceChanged

Partition = tuple[str, int]
_UNKNOWN: Final = -1


class Next(NamedTuple):
    """Where a partition goes on."""

    offset: int
    epoch: int = _UNKNOWN
    """Epoch of the leader that wrote the last message that was read: by it a broker knows whether it still has that
    message; -1 where it is unknown."""
    tail: int = 0
    """How many offsets behind that message hold markers and aborted messages only."""
    gone: str = ""
    """Hash of that message's key where the message deletes a row: a tombstone behind it says nothing new; else empty.
    """

    def behind(self, end: int) -> "Next":
        """This, once the partition was read to its end without another message."""
        return self._replace(offset=end, tail=max(end - self.offset + self.tail, 0))


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """The next offset of each partition of a topic."""

    id: str
    """The topic's own id; empty where the cluster has none."""
    offsets: tuple[int, ...]
    epochs: tuple[int, ...] = ()
    """See `Next.epoch`; empty where all are unknown."""
    tails: tuple[int, ...] = ()
    """See `Next.tail`; empty where all are 0."""
    gone: tuple[str, ...] = ()
    """See `Next.gone`; empty where all are."""

    @classmethod
    def of(cls, id_: str, nexts: Sequence[Next]) -> "TopicPlace":
        """A topic whose partitions go on there."""
        offsets, epochs, tails, gone = zip(*nexts, strict=True) if nexts else ((), (), (), ())
        has_epochs = any(epoch != _UNKNOWN for epoch in epochs)
        tails = tails if has_epochs and any(tails) else ()
        return cls(id_, offsets, epochs if has_epochs else (), tails, gone if any(gone) else ())

    @property
    def nexts(self) -> list[Next]:
        """Where its partitions go on."""
        count = len(self.offsets)
        epochs, tails, gone = self.epochs or [_UNKNOWN] * count, self.tails or [0] * count, self.gone or [""] * count
        return [Next(*values) for values in zip(self.offsets, epochs, tails, gone, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """As a position has it."""
        value: dict[str, Any] = {"id": self.id, "offsets": list(self.offsets)}
        more = {"epochs": self.epochs, "tails": self.tails, "gone": self.gone}
        return value | {name: list(values) for name, values in more.items() if values}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "TopicPlace":
        """Read what `to_json` wrote. Raises what is raised for anything else."""
        offsets, epochs, tails = (
            tuple(int(number) for number in value.get(name, ())) for name in ("offsets", "epochs", "tails")
        )
        gone = tuple(map(str, value.get("gone", ())))
        if len(offsets) != len(value["offsets"]) or {len(epochs), len(tails), len(gone)} - {0, len(offsets)}:
            raise ValueError("one for each partition")
        return cls(str(value["id"]), offsets, epochs, tails, gone)


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
            topics = {str(name): TopicPlace.from_json(place) for name, place in position["topics"].items()}
            return cls(str(position["cluster"]), topics)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceChanged(
                f"{physical}: the log ends at {str(dict(position))[:200]}, which is not a position in Kafka's topics"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """As a commit's position."""
        return {
            "cluster": self.cluster,
            "topics": {name: place.to_json() for name, place in sorted(self.topics.items())},
        }

    @property
    def partitions(self) -> int:
        """How many there are."""
        return sum(len(place.offsets) for place in self.topics.values())

    def next_offsets(self) -> list[tuple[str, int, int]]:
        """(topic, partition, next offset) of all."""
        return [
            (name, number, offset) for name, topic in self.topics.items() for number, offset in enumerate(topic.offsets)
        ]

    def assigned(self) -> list[tuple[str, int, int, int]]:
        """(topic, partition, offset, epoch) from where all are read: behind the last message, of which brokers know
        whether they still have it. What follows up to the next offset is passed over again.
        """
        return [
            (name, number, place.offset - place.tail, place.epoch)
            for name, topic in self.topics.items()
            for number, place in enumerate(topic.nexts)
        ]

    def gone(self) -> dict[Partition, str]:
        """Of partitions whose last message says that a row is gone: see `Next`."""
        return {(name, at): place.gone for name, topic in self.topics.items() for at, place in enumerate(topic.nexts)}

    def only(self, is_selected: Callable[[str], bool]) -> "Places":
        """Of the topics that are still to be read: one that is not is no loss."""
        return Places(self.cluster, {name: place for name, place in self.topics.items() if is_selected(name)})

    def moved(self, ends: Mapping[Partition, Next], idle: Mapping[Partition, int]) -> "Places":
        """With these in place of the ones before. idle: where partitions end that had no message; those of `ends` are
        passed over.
        """
        by_topic = {name: place.nexts for name, place in self.topics.items()}
        for (name, number), end in idle.items():
            if name in by_topic:
                by_topic[name][number] = by_topic[name][number].behind(end)
        for (name, number), place in ends.items():
            if name in by_topic:
                by_topic[name][number] = place
        topics = {name: TopicPlace.of(place.id, by_topic[name]) for name, place in self.topics.items()}
        return Places(self.cluster, topics)

    def differs(self, topics: Mapping[str, tuple[str, int]]) -> bool:
        """Whether there are other topics or partitions. topics: id and number of partitions of each topic."""
        return {name: (place.id, len(place.offsets)) for name, place in self.topics.items()} != dict(topics)

    def unknown(self, topics: Mapping[str, TopicState]) -> list[str]:
        """Topics that brokers do not know, or not with all partitions that they have."""
        return [name for name, place in self.topics.items() if name not in topics or _lags(place, topics[name])]

    def reconciled(
        self,
        topics: Mapping[str, TopicState],
        cut: Mapping[Partition, int | None] | None = None,
        awaited: Collection[str] = (),
    ) -> tuple["Places", list[Loss]]:
        """Where to go on with what is there now, and what has been lost. New topics and partitions begin at their first
        message. cut: partitions of which brokers say that they do not have the last message that was read any more, and
        up to where they have the same, if they say that. awaited: topics that are not gone where they are not there.
        """
        places: dict[str, TopicPlace] = {}
        losses: list[Loss] = []
        for name, place in self.topics.items():
            state = topics.get(name)
            if name in awaited if state is None else _lags(place, state):
                places[name] = place
            elif state is None:
                losses.append(
                    Loss(name, f"the topic {name} is gone; it had been read up to {_offsets_text(place.offsets)}")
                )
            elif (state.id != place.id and state.id and place.id) or len(state.earliest) < len(place.offsets):
                losses.append(
                    Loss(
                        name,
                        f"the topic {name} was deleted and created again; the one before had been read up to "
                        f"{_offsets_text(place.offsets)}",
                    )
                )
            else:
                kept = [
                    _next((name, number), before, state, losses, cut or {}) for number, before in enumerate(place.nexts)
                ]
                places[name] = TopicPlace.of(state.id, [*kept, *map(Next, state.earliest[len(kept) :])])
        for name, state in topics.items():
            places.setdefault(name, TopicPlace(state.id, state.earliest))
        return Places(self.cluster, places), losses


def _lags(place: TopicPlace, state: TopicState) -> bool:
    """Whether a broker's answer is out of date: a topic's partitions become more, never fewer."""
    return bool(place.id) and state.id == place.id and len(state.earliest) < len(place.offsets)


def _next(
    partition: Partition, before: Next, state: TopicState, losses: list[Loss], cut: Mapping[Partition, int | None]
) -> Next:
    name, number = partition
    offset, earliest, latest = before.offset, state.earliest[number], state.latest[number]
    if offset < earliest:
        losses.append(
            Loss(name, f"offsets {offset} to {earliest - 1} of {name}, partition {number}, have left the topic unread")
        )
        return Next(earliest)
    if partition in cut:
        same = cut[partition]
        where = "" if same is None else f" from offset {same} on"
        losses.append(
            Loss(
                name,
                f"{name}, partition {number}, had been read up to {offset}, and has other messages now{where}: the "
                "broker has lost messages, and others have come in their places",
            )
        )
        return Next(max(min(offset if same is None else same, offset, latest), earliest))
    if offset > latest:
        losses.append(
            Loss(
                name,
                f"{name}, partition {number}, ends at offset {latest}, and had been read up to {offset}: the broker "
                "has lost messages, and others may have come in their places",
            )
        )
        return Next(latest)
    return Next(offset, gone=before.gone) if offset - before.tail < earliest else before


def _offsets_text(offsets: Sequence[int]) -> str:
    parts = ", ".join(f"{number}: {offset}" for number, offset in enumerate(offsets[:8]))
    return f"offset {parts}{', ...' if len(offsets) > 8 else ''}" if offsets else "nothing"
