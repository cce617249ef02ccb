"""Which rows of a batch Kafka refuses, or a format cannot express, so that they are held back.

What Kafka's client refuses itself it names. Brokers refuse batches of records. Of one that is too large nobody knows
which message was; of one with invalid records the client names these if there are several, and all messages if there is
one. So after such a refusal each message is sent alone. A transaction ends with its first refusal, and is written again
without the rows that are held back by then.

There are at most twice as many attempts as rows: each holds back one row more at least, or is one after which messages
go alone. Two rules make them few. A message of at least the size of one that was refused for its size is refused too;
where the client compresses, what it makes of both is guessed, and a tenth more is asked. And of messages of one
partition that were reported invalid together all are, if two of them are refused alone as well.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from databus.core import UnrepresentableValue
from databus.flow import ChangeBatch, DeadLetters, Int, KeyChoice, Letters, Parking, TableRows, before_updates
from databus.sinks.kafka._cluster import NEIGHBOUR, TOO_LARGE, Cluster, Refused
from databus.sinks.kafka._encoding import Chunk, Encoding, Header
from databus.sinks.kafka._mirror import MirroredChunk, Mirroring
from databus.sinks.kafka._topics import TopicNames

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

Row = tuple[int, int]
"""Number of an item in the batch, and of a row in the item."""
Report = Callable[["KafkaError | None", "Message"], None]
_CODECS: Final = ("gzip", "lz4", "snappy", "zstd")
_COMPRESSED_MORE: Final = 1.1


@dataclass(frozen=True)
class Holding:
    """How refused rows are held back; travels to tasks."""

    letters: DeadLetters
    key: KeyChoice
    """By which rows are told apart; rows without a value in the column `keyless` have none."""
    keyless: str | None = None

    def parking(self, batch: ChangeBatch, replayed: Letters | None = None) -> Parking:
        """Which rows of a batch are held back."""
        return Parking(self.letters, self.key, batch, replayed, self.keyless)


class Interrupted(Exception):
    """The transaction cannot go on: a broker has refused messages of it."""


class Overtaken(Exception):
    """What was to be replayed is forgotten meanwhile."""


class Refusals:
    """Of one batch, over all attempts to write it.

    found_any: whether the attempt found rows that are refused. interrupts: whether a broker refused messages, so that a
    transaction cannot go on. has_others: whether messages failed that are not known to be at fault. is_alone: whether
    each message has to be sent alone.
    """

    def __init__(
        self, parking: Parking, batch: ChangeBatch, encoding: Encoding | Mirroring, topics: TopicNames, cluster: Cluster
    ) -> None:
        self.parking = parking
        self.is_alone = False
        self.interrupts = False
        self.has_others = False
        self._batch = batch
        self._encoding = encoding
        self._topics = topics
        self._cluster = cluster
        self._codec = _codec(dict(cluster.settings))
        self._too_large_together = False
        self._found: dict[Row, str] = {}
        self._by_size: list[Row] = []
        self._invalid: defaultdict[tuple[str | None, int | None], dict[Row, str]] = defaultdict(dict)
        self._suspects: list[dict[Row, str]] = []
        self._named: set[tuple[str | None, int | None]] = set()

    @property
    def found_any(self) -> bool:
        """See above."""
        return bool(self._found)

    def chunks(self, number: int, topic: str) -> Iterator[tuple[Chunk | MirroredChunk, list[int]]]:
        """The messages of an item's rows that are not held back, some at a time, each with the number of its row."""
        count = self._item(number).rows.num_rows
        rows = np.arange(count)
        yield from self._expressed(number, topic, rows[~self.parking.holds(np.full(count, number), rows)])

    def _expressed(self, number: int, topic: str, rows: Int) -> Iterator[tuple[Chunk | MirroredChunk, list[int]]]:
        """Rows that cannot be messages are found by halves."""
        if not len(rows):
            return
        item, done = self._item(number), 0
        given = item if len(rows) == item.rows.num_rows else replace(item, rows=item.rows.take(rows))
        try:
            for chunk in self._encoding.chunks(self._batch.physical, given, topic):
                yield chunk, rows[done:][chunk.message_rows].tolist()
                done += chunk.rows.num_rows
            return
        except UnrepresentableValue as error:
            why = str(error)
        left = rows[done:]
        middle = len(left) // 2
        middle += int(middle > 0 and before_updates(item.rows)[1][left[middle - 1]])  # both images stay together
        if middle in (0, len(left)):
            self._found[number, int(left[0])] = why
            return
        yield from self._expressed(number, topic, left[:middle])
        yield from self._expressed(number, topic, left[middle:])

    def takes(self, error: "KafkaError", report: Report) -> bool:
        """Take what the client said when it was given a message, by the message's `report`; whether it is about that
        message.
        """
        if not isinstance(report, RowReport) or not isinstance(self._cluster.error_of(error, ""), Refused):
            return False
        self._found[report.row] = _told(error)
        return True

    def reports(self, number: int, rows: Sequence[int], others: Report) -> Iterator[Report]:
        """What is called back for each message of these rows that did not arrive. others: for failures that are not
        about the message.
        """
        return (RowReport(self, (number, row), others) for row in rows)

    def note(self, row: Row, error: "KafkaError", message: "Message", others: Report) -> None:
        """Take what became of a message; see `reports`."""
        name, place = error.name(), (message.topic(), message.partition())
        if name == NEIGHBOUR:
            self.interrupts = self.has_others = True
            self._named.add(place)
        elif not isinstance(self._cluster.error_of(error, ""), Refused):
            others(error, message)
        elif self.is_alone:
            self.interrupts = True
            self._found[row] = _told(error)
            self._by_size += [row] if name in TOO_LARGE else []
        else:
            self.interrupts = self.has_others = True
            self._too_large_together |= name in TOO_LARGE
            if name not in TOO_LARGE:
                self._invalid[place][row] = _told(error)

    def note_control(self, error: "KafkaError", message: "Message", others: Report) -> None:
        """Take what became of a control, which may have been in one request with rows that are refused."""
        if self.is_alone or not isinstance(self._cluster.error_of(error, ""), Refused):
            others(error, message)
            return
        self.interrupts = self.has_others = True
        self._too_large_together |= error.name() in TOO_LARGE

    def control_report(self, others: Report) -> Report:
        """What is called back for a control."""

        def report(error: "KafkaError | None", message: "Message") -> None:
            if error is not None:
                self.note_control(error, message, others)

        return report

    def settle(self, *, comes_again: bool) -> None:
        """Hold back what the attempt has found. comes_again: whether there is to be another. Raises `LimitExceeded` as
        `Parking.refuse` does.
        """
        for together in self._suspects:
            if len(together.keys() & self._found.keys()) > 1:
                self._found.update(together)
        self._suspects.clear()
        for place, together in self._invalid.items():
            if place in self._named:
                self._found.update(together)
            else:
                self._suspects.append(together)
        for (number, row), why in sorted(self._found.items()):
            if not self._is_held(number, row):
                self.parking.refuse(number, row, why)
        for number in {number for number, _ in self._by_size} if comes_again else ():
            self._hold_back_larger(number)
        self.is_alone = self._too_large_together or bool(self._suspects) or not self._found
        self.interrupts = self.has_others = False
        self._found.clear()
        self._by_size.clear()
        self._invalid.clear()
        self._named.clear()

    def _hold_back_larger(self, number: int) -> None:
        """Hold back the rows with messages as large as the least one of this item that was refused for its size."""
        topic = self._topic(number)
        is_followed = before_updates(self._item(number).rows)[1]
        refused = np.array([row for each, row in self._by_size if each == number])
        whole = np.union1d(refused, [*(refused[is_followed[refused]] + 1), *(refused[is_followed[refused - 1]] - 1)])
        sizes = self._sizes(number, topic, whole.astype(np.int64))
        limit = min(sizes[row] for row in refused.tolist()) * (1.0 if self._codec is None else _COMPRESSED_MORE)
        for each, item in enumerate(self._batch.items):
            if not isinstance(item, TableRows) or self._topic(each) != topic:
                continue
            for row, size in self._sizes(each, topic, None).items():
                if size >= limit and not self._is_held(each, row):
                    self.parking.refuse(each, row, f"as large as a message that topic {topic} refuses")

    def _sizes(self, number: int, topic: str, rows: Int | None) -> dict[int, int]:
        """The size of the largest message of each row; of all that are not held back, without `rows`."""
        found: dict[int, int] = {}
        made = self.chunks(number, topic) if rows is None else self._expressed(number, topic, rows)
        for chunk, numbers in made:
            for row, key, value, headers in zip(numbers, chunk.keys, chunk.values, chunk.headers, strict=False):
                found[row] = max(found.get(row, 0), self._size(key, value, headers))
        return found

    def _size(self, key: bytes | None, value: bytes | None, headers: Header | None) -> int:
        if self._codec is None:
            return record_bytes(key, value, headers)
        texts = [text for header in headers or () for text in header]
        parts = [text.encode() if isinstance(text, str) else text or b"" for text in (key, value, *texts)]
        return int(self._codec.compress(b"".join(parts)).size)

    def _is_held(self, number: int, row: int) -> bool:
        return bool(self.parking.holds(np.array([number]), np.array([row]))[0])

    def _item(self, number: int) -> TableRows:
        item = self._batch.items[number]
        assert isinstance(item, TableRows)  # noqa: S101 - controls are not asked for
        return item

    def _topic(self, number: int) -> str:
        return self._topics.name(self._batch.physical, self._item(number).table.source)


@dataclass(slots=True)
class RowReport:
    """What Kafka's client calls back for a message of a row."""

    refusals: Refusals
    row: Row
    others: Report

    def __call__(self, error: "KafkaError | None", message: "Message") -> None:
        """The message did not arrive."""
        if error is not None:
            self.refusals.note(self.row, error, message, self.others)


def _codec(settings: Mapping[str, str]) -> pa.Codec | None:
    """How the client compresses."""
    name = settings.get("compression.type", settings.get("compression.codec", "none"))
    if name not in _CODECS:
        return None
    if "compression.level" not in settings or not pa.Codec.supports_compression_level(name):
        return pa.Codec(name)
    least, most = pa.Codec.minimum_compression_level(name), pa.Codec.maximum_compression_level(name)
    return pa.Codec(name, compression_level=min(max(int(settings["compression.level"]), least), most))


def record_bytes(key: bytes | None, value: bytes | None, headers: Header | None) -> int:
    """The size of a message as the only record of a batch, but for what is the same of each.

    >>> record_bytes(b"k", b"x" * 64, [("a", "b"), ("c", None)])
    76
    """
    texts: list[Any] = [key, value]
    for name, content in headers or ():
        texts += [name, content]
    return sum(map(_text_bytes, texts)) + _number_bytes(len(headers or ()))


def _text_bytes(text: "str | bytes | None") -> int:
    """With its length before it; that of none is -1."""
    count = 0 if text is None else len(text.encode() if isinstance(text, str) else text)
    return count + _number_bytes(count)


def _number_bytes(number: int) -> int:
    """Of a number in Kafka's zigzag coding."""
    return max(1, -(-(number << 1).bit_length() // 7))


def _told(error: "KafkaError") -> str:
    return f"{error.str()} ({error.name()})"


def rows_written(batch: ChangeBatch, refusals: Refusals | None) -> tuple[Counter[str], Counter[str]]:
    """How many rows of each source were, and how many are held back."""
    found, letters = Counter[str](), Counter[str]()
    for number, item in enumerate(batch.items):
        if isinstance(item, TableRows):
            held = 0 if refusals is None else len(refusals.parking.held(number))
            found[item.table.source] += item.rows.num_rows - held
            letters[item.table.source] += held
    return found, letters
