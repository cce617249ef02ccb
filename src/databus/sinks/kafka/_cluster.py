"""A Kafka cluster: its clients, made with the user's own settings, and what their errors mean."""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from databus.core import (
    AccessDenied,
    Backoff,
    Clock,
    ConfigError,
    DatabusError,
    FatalError,
    ServiceUnavailable,
    SystemClock,
    UnrepresentableValue,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

K = TypeVar("K")
T = TypeVar("T")
_ANSWER_S_MAX: Final = 5.0
"""Of one administrative request, of which some are repeated."""
_MARGIN_S: Final = 1.0  # behind the client's own time, which says more than ours
_LEADER_MS: Final = (100, 2_000)
"""Until a partition's leader is looked for again, by a new client each time: at first, and at most."""
_ADMINS_MAX: Final = 8
_FENCED: Final = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING")
_DENIED: Final = (
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)
TOO_LARGE: Final = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
NEIGHBOUR: Final = "_INVALID_DIFFERENT_RECORD"
"""Of a message that is in one batch with an invalid one."""
_UNTIMELY: Final = ("INVALID_TIMESTAMP",)
_MISSING: Final = ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION")
_WRONG: Final = (
    "INVALID_TRANSACTION_TIMEOUT",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_PARTITIONS",
    "INVALID_CONFIG",
    "POLICY_VIOLATION",
    "UNSUPPORTED_VERSION",
    "_UNSUPPORTED_FEATURE",
)
_SILENT: Final = ("_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TRANSPORT")
_WAIT: Final = (
    "_MSG_TIMED_OUT",
    "_NOENT",  # no partition that was asked for has a leader now
    "_PURGE_INFLIGHT",
    "_PURGE_QUEUE",
    "_RESOLVE",
    "_TIMED_OUT_QUEUE",
    "BROKER_NOT_AVAILABLE",
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "THROTTLING_QUOTA_EXCEEDED",
    "UNKNOWN_LEADER_EPOCH",
)
_ON_THE_WAY: Final = ("_AUTHENTICATION", "_RESOLVE", "_SSL", "_TRANSPORT")
"""What a client meets before it reaches a broker. Whoever asked it something hears of a timeout alone."""
# A client makes its next connection, which it needs for whatever it begins with, after half of this at the earliest:
# 50 ms by its own default. After failures it waits longer each time anyway.
_DEFAULTS: Final = {"reconnect.backoff.ms": "20"}
_SOCKET, _ACK = "socket.timeout.ms", "request.timeout.ms"
_SILENCE_MS_MAX: Final = 6_000
"""Of a request to a broker, which is sent again then; no message is there twice by that. A broker that stands still
keeps its connections, and another one leads in its place long before the client's own 60 s."""
_IN_FLIGHT: Final = "with more than one, a partition's first messages are lost where its leader was not ready for them"
OWN_SETTINGS: Final = {
    "acks": "all in-sync replicas have each message before it counts as written",
    "delivery.report.only.error": "all reports are looked at",
    "delivery.timeout.ms": "it is `transaction_ms_max`",
    "enable.auto.commit": "positions stand in `control_topic`",
    "enable.idempotence": "it is always on, so that the client's own retries neither repeat nor reorder messages",
    "group.id": "there is no group of consumers: positions stand in `control_topic`",
    "isolation.level": "positions are read as committed",
    "max.in.flight": _IN_FLIGHT,
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
    "message.timeout.ms": "it is `transaction_ms_max`",
    "partitioner": "it is `murmur2_random`, by which Kafka's own clients choose the partition of a key",
    "queue.buffering.max.kbytes": "it is `buffer_bytes_max`",
    "queue.buffering.max.messages": "`buffer_bytes_max` is the limit",
    "request.required.acks": "all in-sync replicas have each message before it counts as written",
    "transaction.timeout.ms": "it is `transaction_ms_max`",
    "transactional.id": "each bucket of keys has one of its own, by which older attempts are shut out",
}
"""Settings of Kafka's client that are not the user's, with the reason."""


class ProducerFenced(ServiceUnavailable):
    """Another attempt of this bucket has begun to write: perhaps one given up for dead, so it is tried again."""


class OtherBuckets(ServiceUnavailable):
    """A bucket was written as one of another number of them since its query began."""


class Refused(UnrepresentableValue):
    """The client or a broker refuses a message for what it is."""


class TooLarge(Refused):
    """Its size is what it is refused for."""


class InvalidRecord(Refused):
    """It has no key, for a compacted topic; or a timestamp that the topic does not take."""


class TopicMissing(ConfigError):
    """A topic is not there, or a partition of it."""


_BY_TIME: Final = (
    "timestamps are judged by the topic's `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`"
)
_MEANINGS: Final[tuple[tuple[tuple[str, ...], type[DatabusError], str], ...]] = (
    (_DENIED, AccessDenied, ". Look at the settings below `kafka`, and at what that user may do"),
    (TOO_LARGE, TooLarge, ". Raise `message.max.bytes` below `kafka` and the topic's `max.message.bytes`"),
    (_UNTIMELY, Refused, f". {_BY_TIME[0].upper()}{_BY_TIME[1:]}"),
    (("INVALID_RECORD",), InvalidRecord, f". A compacted topic takes no message without a key; {_BY_TIME}"),
    (_MISSING, TopicMissing, ". Make the topic, or say `create_topics`"),
    (_WRONG, ConfigError, ""),
    (_WAIT, ServiceUnavailable, ""),
)


@dataclass(frozen=True)
class Cluster:
    """How a cluster is reached; travels to tasks."""

    settings: tuple[tuple[str, str], ...] = field(repr=False)
    """Kafka's own, by its names; secrets among them."""
    request_ms_max: int = 30_000
    transaction_ms_max: int = 60_000
    buffer_bytes_max: int = 64 << 20
    clock: Clock = field(default_factory=SystemClock, repr=False, compare=False)
    """By which bounds of waits are measured that are not the client's own."""

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"Kafka at {dict(self.settings).get('bootstrap.servers', '?')}"

    @property
    def request_s_max(self) -> float:
        """Longest wait for an answer."""
        return self.request_ms_max / 1e3

    @property
    def _silence_ms_max(self) -> int:
        """The client takes no longer one than a transaction's."""
        return min(_SILENCE_MS_MAX, self.transaction_ms_max)

    def producer(
        self,
        transactional_id: str | None,
        batch_bytes_max: int | None = None,
        note_error: "Callable[[KafkaError], None] | None" = None,
    ) -> "Producer":
        """A producer of its own. batch_bytes_max: most bytes of several messages in one batch. note_error: called back
        where a broker is lost. Raises `ConfigError`.
        """
        from confluent_kafka import Producer

        own: dict[str, Any] = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "max.in.flight": 1,  # see docs/decisions/0027-one-request-in-flight.md: more lose messages in silence
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": max(self.buffer_bytes_max >> 10, 1),
        }
        if _ACK not in dict(self.settings):
            own[_ACK] = self._silence_ms_max
        if batch_bytes_max is not None:
            own["batch.size"] = batch_bytes_max
        if note_error is not None:
            own["error_cb"] = note_error
        if transactional_id is None:
            own["message.timeout.ms"] = self.transaction_ms_max
        else:
            own |= {"transactional.id": transactional_id, "transaction.timeout.ms": self.transaction_ms_max}
        made: Producer = self._made(Producer, own)
        return made

    def consumer(self, *, is_committed: bool = True) -> "Consumer":
        """One that reads what is committed, or all, and says where a partition ends."""
        from confluent_kafka import Consumer

        own = {
            "group.id": "databus",  # it is never joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 5,  # so soon it hears where a partition ends
        }
        made: Consumer = self._made(Consumer, own)
        return made

    def admin(self) -> "AdminClient":
        """The one for this process. Hold it until it has answered: without a reference it does not answer."""
        with _MAKING:  # of two that are made at once, one would be gone before it has answered
            made: AdminClient = _admin(self)[0]
        return made

    def answers(
        self, ask: "Callable[[AdminClient, float], Mapping[K, Future[Any]]]"
    ) -> "Iterator[tuple[K, Callable[[], Any]]]":
        """What brokers answer to a request: for each part, what gives the answer or raises `KafkaException`.

        ask: makes the request, which may take so many seconds. A client that was asked in the second after a broker's
        end may find no broker for this and all later requests, so after each timeout a new one is asked, for
        `request_ms_max` in all.
        """
        deadline = self.clock.monotonic_s() + self.request_s_max
        s_max = min(_ANSWER_S_MAX, self.request_s_max)
        while True:
            admin = self.admin()
            asked = {part: _settled(future, s_max) for part, future in ask(admin, s_max).items()}
            if not any(_is_late(answer) for answer in asked.values()):
                break
            self.renew_admin()
            if self.clock.monotonic_s() > deadline:
                break
        for part, future in asked.items():
            yield part, future.result

    def ends(self, partitions: Collection[tuple[str, int]], *, is_committed: bool) -> dict[tuple[str, int], int]:
        """The same as `ends_now`; a leader that has just changed, or is not ready yet, is asked again for
        `request_ms_max`.
        """
        waits = Backoff(*_LEADER_MS, total_ms=self.request_ms_max, clock=self.clock)
        while True:
            try:
                return self.ends_now(partitions, is_committed=is_committed)
            except ServiceUnavailable:
                if waits.is_over:
                    raise
            waits.sleep()  # brokers do not tell when a leader is ready

    def ends_now(self, partitions: Collection[tuple[str, int]], *, is_committed: bool) -> dict[tuple[str, int], int]:
        """Where partitions of topics end now, for readers of what is committed, or of all.

        Raises what `error` says, and `ServiceUnavailable` where a leader does not answer.
        """
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, number): latest for topic, number in partitions}
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED

        def ask(admin: "AdminClient", s_max: float) -> "Mapping[TopicPartition, Future[Any]]":
            return admin.list_offsets(wanted, isolation_level=level, request_timeout=s_max)

        names = ", ".join(sorted({name.topic for name in wanted}))
        try:
            ends = {(at.topic, at.partition): answer().offset for at, answer in self.answers(ask)}
        except KafkaException as error:
            named = self.error(error, f"looking for the end of {names}")
            if isinstance(named, ServiceUnavailable):
                self.renew_admin()  # it would ask the leader that it knows
            raise named from error
        if min(ends.values(), default=0) < 0:  # so the client says, without an error, that a leader cannot be reached
            self.renew_admin()  # as above
            raise ServiceUnavailable(
                f"{self.name}: the leader of a partition of {names} does not answer, and another one is not known yet"
            )
        return ends

    def renew_admin(self) -> None:
        """Ask another client from now on: this one has not found a broker, or a leader."""
        with _MAKING:
            client, met = _admin(self)
            client.poll(0)  # calls back for what was met
            del _ADMINS[self]
            _admin(self, met)

    def _unanswered(self, message: str) -> ServiceUnavailable:
        """With what the client has met on its way: a wrong password too, for a broker says that as well where it cannot
        look passwords up.
        """
        with _MAKING:
            client, met = _admin(self)
        client.poll(0)  # calls back for what was met
        if not met:
            return ServiceUnavailable(message)
        advice = "Look at `bootstrap.servers`, `security.protocol` and the password below `kafka`"
        return ServiceUnavailable(f"{message} ({met.popleft()}). {advice}")

    def topic_settings(self, topic: str) -> dict[str, str]:
        """What holds for a topic now, by Kafka's names, brokers' defaults included. Raises what `error` says."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # its types lack it

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        ((_, answer),) = self.answers(lambda admin, s_max: admin.describe_configs([resource], request_timeout=s_max))
        try:
            return {name: str(entry.value) for name, entry in answer().items()}
        except KafkaException as error:
            raise self.error(error, f"asking for the settings of topic {topic}") from error

    def id(self) -> str:
        """By which a cluster knows itself; asked for once in a process. Raises what `error` says."""
        return _id(self)

    def _made(self, kind: Any, own: dict[str, Any]) -> Any:
        """Settings that are another kind of client's are ignored by the client itself, with a word in its log."""
        from confluent_kafka import KafkaException

        logger = logging.getLogger("databus.kafka")
        try:
            return kind({**_DEFAULTS, _SOCKET: self._silence_ms_max, **dict(self.settings), **own}, logger=logger)
        except KafkaException as error:
            raise ConfigError(f"`kafka`: {error_text(error.args[0])}") from error

    def error(self, error: BaseException, what: str) -> DatabusError:
        """What an error of the client's means. what: what it was doing, such as `committing`."""
        return self.error_of(error.args[0], what) if error.args else ServiceUnavailable(f"{self.name}: {what}: {error}")

    def error_of(self, error: "KafkaError", what: str) -> DatabusError:
        """See `error`."""
        name = str(error.name())
        message = f"{self.name}: {what}: {error_text(error)}"
        if name in _FENCED:
            return ProducerFenced(f"{message}. Another attempt of this bucket has begun to write; this one ends")
        if name in _SILENT:
            return self._unanswered(message)
        for names, kind, advice in _MEANINGS:
            if name in names:
                return kind(f"{message}{advice}")
        if error.retriable() or error.txn_requires_abort():
            return ServiceUnavailable(message)
        return FatalError(message)


_MAKING: Final = threading.Lock()
_ADMINS: Final[OrderedDict[Cluster, tuple[Any, deque[str]]]] = OrderedDict()


def _admin(cluster: Cluster, met: deque[str] | None = None) -> tuple[Any, deque[str]]:
    """The client, and what it has met last; `met` by those before it."""
    from confluent_kafka.admin import AdminClient

    if cluster not in _ADMINS:
        last: deque[str] = deque(maxlen=1) if met is None else met

        def note(error: "KafkaError") -> None:
            if error.name() in _ON_THE_WAY:
                last.append(error.str())

        _ADMINS[cluster] = cluster._made(AdminClient, {"error_cb": note}), last  # noqa: SLF001 - of this module
    _ADMINS.move_to_end(cluster)
    if len(_ADMINS) > _ADMINS_MAX:
        _ADMINS.popitem(last=False)
    return _ADMINS[cluster]


def _settled(future: "Future[T]", s_max: float) -> "Future[T]":
    """The same, once it is done; a late one if that does not come in time."""
    from confluent_kafka import KafkaError, KafkaException

    if not wait([future], s_max + _MARGIN_S).not_done:
        return future
    late: Future[T] = Future()
    late.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))  # noqa: SLF001 - its name
    return late


def _is_late(future: "Future[Any]") -> bool:
    error = future.exception()
    return error is not None and bool(error.args) and getattr(error.args[0], "name", str)() == "_TIMED_OUT"


@lru_cache(maxsize=8)
def _id(cluster: Cluster) -> str:
    from confluent_kafka import KafkaException

    def ask(admin: "AdminClient", s_max: float) -> "Mapping[str, Future[Any]]":
        return {"": admin.describe_cluster(request_timeout=s_max)}

    ((_, answer),) = cluster.answers(ask)
    try:
        return str(answer().cluster_id)
    except KafkaException as error:
        raise cluster.error(error, "asking for the cluster's id") from error


def error_text(error: Any) -> str:
    """What Kafka's client says of an error, and its name."""
    return f"{error.str()} ({error.name()})" if hasattr(error, "str") else str(error)
