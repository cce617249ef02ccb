"""Which rows of a batch Kafka refuses, or a format cannot express, so that they are held back.

What Kafka's client refuses itself it names. Brokers refuse batches of records, each for one of two reasons:

- It is too large. The topic's own settings say then which rows are too large by themselves, and the next attempt makes
  no batch of several messages that is larger than the topic takes. Where the client compresses, only what is clearly
  too large is known beforehand; the broker says the rest, a message at a time.
- It has invalid records. The client names them if there are several and others beside them; else it names all messages
  of the batch, and each is sent alone in the next attempt.

A transaction ends with its first refusal, and is written again without the rows that are held back by then. Each
attempt holds back one row more at least, or makes smaller batches, so there is an end.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from databus.core import DatabusError, UnrepresentableValue
from databus.flow import ChangeBatch, DeadLetters, Int, KeyChoice, Letters, Parking, TableRows, before_updates
from databus.sinks.kafka._cluster import NEIGHBOUR, TOO_LARGE, Cluster, Refused, error_text
from databus.sinks.kafka._encoding import Chunk, Encoding, Header
from databus.sinks.kafka._mirror import MirroredChunk, Mirroring
from databus.sinks.kafka._topics import TopicNames

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

Row = tuple[int, int]
"""Number of an item in the batch, and of a row in the item."""
Report = Callable[["KafkaError | None", "Message"], None]
_CODECS: Final = ("gzip", "lz4", "snappy", "zstd")
_CLEARLY: Final = 1.1
"""So many times larger than the limit has to be what our codec makes of a message: the client's makes a little less."""
_LIMITS: Final = ("max.message.bytes", "segment.bytes")
_BATCH_BYTES: Final = 1_000_000
"""The client's own `batch.size`. A message that is larger than that is alone in its batch."""
_ALONE: Final = 1
"""As `batch.size`: no two messages are in one batch."""


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


class RefusedRows:
    """Of one batch, over all attempts to write it."""

    def __init__(
        self, parking: Parking, batch: ChangeBatch, encoding: Encoding | Mirroring, topics: TopicNames, cluster: Cluster
    ) -> None:
        self.parking = parking
        self.batch_bytes_max: int | None = None
        """Most bytes that several messages may have in one batch; None for what the client's settings say."""
        self.interrupts = False
        """Whether a broker refused messages of the attempt, so that a transaction cannot go on."""
        self.has_others = False
        """Whether messages failed that are not known to be at fault."""
        self._batch = batch
        self._encoding = encoding
        self._topics = topics
        self._cluster = cluster
        settings = dict(cluster.settings)
        self._own_batch_bytes = int(settings.get("batch.size", _BATCH_BYTES))
        self._codec = _codec(settings)
        self._found: dict[Row, str] = {}
        self._too_large_in: set[str] = set()
        """Topics that refused a batch of the attempt for its size."""
        self._invalid: defaultdict[tuple[str | None, int | None], dict[Row, str]] = defaultdict(dict)
        """By topic and partition: rows of the attempt of which one at least is invalid."""
        self._suspects: list[dict[Row, str]] = []
        """The same of earlier attempts, where it was not clear which."""
        self._named: set[tuple[str | None, int | None]] = set()
        """Where all rows in `_invalid` are invalid, since valid ones were reported beside them."""

    @property
    def found_any(self) -> bool:
        """Whether the attempt found rows that are refused."""
        return bool(self._found)

    @property
    def _batch_bytes(self) -> int:
        return self._own_batch_bytes if self.batch_bytes_max is None else self.batch_bytes_max

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
        self._found[report.row] = error_text(error)
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
        else:
            self._note_refusal(error, message)
            if self._was_alone(message):
                self._found[row] = error_text(error)
            elif name not in TOO_LARGE:
                self._invalid[place][row] = error_text(error)

    def _note_refusal(self, error: "KafkaError", message: "Message") -> None:
        self.interrupts = True
        self.has_others |= not self._was_alone(message)
        if error.name() in TOO_LARGE:
            self._too_large_in.add(message.topic() or "")

    def _was_alone(self, message: "Message") -> bool:
        """Whether it was the only one of its batch, so that it is the one at fault."""
        content_bytes = len(message.key() or b"") + len(message.value() or b"")
        return self._batch_bytes == _ALONE or content_bytes > self._batch_bytes

    def note_control(self, error: "KafkaError", message: "Message", others: Report) -> None:
        """Take what became of a control, which may have been in one batch with rows that are refused."""
        if self._was_alone(message) or not isinstance(self._cluster.error_of(error, ""), Refused):
            others(error, message)
        else:
            self._note_refusal(error, message)

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
        self._find_invalid()
        if comes_again:
            limits = [self._find_larger(topic) for topic in self._too_large_in]
            least = min([self._batch_bytes, *limits])
            is_clear = not self._suspects and (self._found or least < self._batch_bytes)
            self.batch_bytes_max = least if is_clear else _ALONE
        for (number, row), why in sorted(self._found.items()):
            if not self._is_held(number, row):
                self.parking.refuse(number, row, why)
        self.interrupts = self.has_others = False
        self._found.clear()
        self._too_large_in.clear()
        self._invalid.clear()
        self._named.clear()

    def _find_invalid(self) -> None:
        for rows in self._suspects:
            # Of a batch with several invalid records and a valid one, the client would have named the invalid ones.
            if len(rows.keys() & self._found.keys()) > 1:
                self._found.update(rows)
        self._suspects.clear()
        for place, rows in self._invalid.items():
            if place in self._named:
                self._found.update(rows)
            else:
                self._suspects.append(rows)

    def _find_larger(self, topic: str) -> int:
        """Find the rows with a message that a topic would not take, were it alone. Returns how large a batch of several
        messages may be there.
        """
        try:
            settings = self._cluster.topic_settings(topic)  # each time: somebody may change it while this runs
            limit = min(int(settings[name]) for name in _LIMITS)
        except (DatabusError, KeyError, ValueError) as error:
            logging.getLogger("databus.kafka").warning(
                "%s: how large messages topic %s takes cannot be seen: %s. Each is sent alone. Allow the user to "
                "describe its configuration: that takes less time",
                self._cluster.name, topic, error,
            )  # fmt: skip
            return _ALONE
        why = f"it is larger than topic {topic} takes, {limit} bytes (MSG_SIZE_TOO_LARGE)"
        for number, item in enumerate(self._batch.items):
            if isinstance(item, TableRows) and self._topic(number) == topic:
                for chunk, rows in self.chunks(number, topic):
                    for row, key, value, headers in zip(rows, chunk.keys, chunk.values, chunk.headers, strict=False):
                        if self._is_larger(limit, key, value, headers):
                            self._found.setdefault((number, row), why)
        return max(limit, _ALONE)

    def _is_larger(self, limit: int, key: bytes | None, value: bytes | None, headers: Header | None) -> bool:
        """Whether a message is larger than a limit for sure: its bytes, without what Kafka puts around them."""
        texts = [key, value, *(text for header in headers or () for text in header)]
        record = b"".join(text.encode() if isinstance(text, str) else text or b"" for text in texts)
        if len(record) <= limit:  # the client sends what compression does not make smaller as it is
            return False
        return self._codec is None or int(self._codec.compress(record).size) > limit * _CLEARLY

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

    refusals: RefusedRows
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


def rows_written(batch: ChangeBatch, refusals: RefusedRows | None) -> tuple[Counter[str], Counter[str]]:
    """How many rows of each source were, and how many are held back."""
    written, letters = Counter[str](), Counter[str]()
    for number, item in enumerate(batch.items):
        if isinstance(item, TableRows):
            held_count = 0 if refusals is None else len(refusals.parking.held(number))
            written[item.table.source] += item.rows.num_rows - held_count
            letters[item.table.source] += held_count
    return written, letters
