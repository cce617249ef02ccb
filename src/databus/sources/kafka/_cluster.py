"""What a cluster says of itself: its id, its topics, and where their partitions begin and end."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from databus.core import AccessDenied, ConfigError, DatabusError, ServiceUnavailable, time_us
from databus.sources.kafka._config import SERVERS, KafkaConfig, is_pattern
from databus.sources.kafka._places import TopicPlace, TopicState

T = TypeVar("T")
Client = TypeVar("Client")


def own_error(name: str) -> int:
    """The number of an error of the client's own; confluent-kafka names these with a leading underscore."""
    return int(getattr(KafkaError, name))


_DENIED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    own_error("_AUTHENTICATION"),
    KafkaError.SASL_AUTHENTICATION_FAILED,
}
_UNREACHABLE: Final = {
    own_error(name) for name in ("_ALL_BROKERS_DOWN", "_RESOLVE", "_SSL", "_TIMED_OUT", "_TRANSPORT")
}
_SAYS_WHY: Final = {own_error(name) for name in ("_AUTHENTICATION", "_RESOLVE", "_SSL", "_TRANSPORT")}
"""What the client's own thread meets on its way to a broker; these show no option but the brokers' names."""
_US_A_MS: Final = 1_000
_Spec: Final[Any] = OffsetSpec
_EARLIEST: Final = _Spec.earliest()
_LATEST: Final = _Spec.latest()


def made(config: KafkaConfig, make: Callable[[dict[str, Any]], Client], ours: Mapping[str, Any]) -> Client:
    """A client of librdkafka's. Raises `ConfigError` for options that it does not take."""
    try:
        return make({**config.client_options(), **ours})
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"kafka: {reason}") from error


def as_ours(error: KafkaError, what: str, met_error: str = "") -> DatabusError:
    """An error of Kafka's as one of ours. what: was being done, and where. met: by the client on its way there."""
    if error.code() in _DENIED:
        return AccessDenied(f"{what}: {error.str()}; see `kafka` in the options, and the cluster's ACLs")
    message = f"{what}: {error.str()}" + (f" ({met_error})" if met_error else "")
    if error.code() in _UNREACHABLE:
        message += f"; see `{SERVERS}` under `kafka`, and `security.protocol`, if brokers there want TLS or a password"
    return ServiceUnavailable(message)


class KafkaCluster:
    """One cluster; every answer is waited for at most `request_ms`, then `ServiceUnavailable` is raised."""

    def __init__(self, physical: str, config: KafkaConfig) -> None:
        self._where = f"{physical}: Kafka at {config.servers}"
        self._config = config
        self._wait_s = config.request_ms / 1e3
        self._met = ""
        self._client = made(config, AdminClient, {"error_cb": self._noted, "log_level": 0})

    def id(self) -> str:
        """The cluster's own."""
        return str(self._metadata().cluster_id)

    def topics(self) -> dict[str, tuple[str, int]]:
        """Id and number of partitions of each topic that is read and there."""
        named = [name for name in self._config.topics if not is_pattern(name)]
        if len(named) < len(self._config.topics):
            named = [name for name in self._metadata().topics if self._config.reads(name)]
        if not named:
            return {}
        topics: dict[str, tuple[str, int]] = {}
        asked = self._client.describe_topics(TopicCollection(sorted(set(named))), request_timeout=self._wait_s)
        for name, future in asked.items():
            described = self._answer(future, f"describing the topic {name}", absent=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if described is not None:
                topics[name] = str(described.topic_id or ""), len(described.partitions)
        partitions = sum(count for _, count in topics.values())
        if partitions > self._config.partitions_max:
            raise ConfigError(
                f"{self._where}: `topics` selects {partitions} partitions, more than "
                f"partitions_max={self._config.partitions_max}"
            )
        return topics

    def states(self, topics: Mapping[str, tuple[str, int]]) -> dict[str, TopicState]:
        """What topics hold, without topics that have gone meanwhile."""
        partitions = [(name, number) for name, (_, count) in topics.items() for number in range(count)]
        earliest = self._offsets(dict.fromkeys(partitions, _EARLIEST))
        latest = self._offsets(dict.fromkeys(partitions, _LATEST))
        return {
            name: TopicState(
                id_,
                tuple(earliest[name, number] for number in range(count)),
                tuple(latest[name, number] for number in range(count)),
            )
            for name, (id_, count) in topics.items()
            if all((name, number) in earliest and (name, number) in latest for number in range(count))
        }

    def started(self, states: Mapping[str, TopicState]) -> dict[str, TopicPlace]:
        """Where a new log begins, by `start`."""
        start = self._config.start
        if start == "earliest":
            return {name: TopicPlace(state.id, state.earliest) for name, state in states.items()}
        if start == "latest":
            ends = self._ends(states)
            return {name: TopicPlace(state.id, ends[name]) for name, state in states.items()}
        if isinstance(start, dict):
            return {
                name: TopicPlace(
                    state.id,
                    tuple(start.get(name, {}).get(number, first) for number, first in enumerate(state.earliest)),
                )
                for name, state in states.items()
            }
        spec = _Spec.for_timestamp(time_us(start) // _US_A_MS)
        wanted = {(name, number): spec for name, state in states.items() for number in range(len(state.earliest))}
        offsets, ends = self._offsets(wanted), self._ends(states)
        return {
            name: TopicPlace(  # -1: nothing is as late as that
                state.id,
                tuple(
                    offset if (offset := offsets.get((name, number), -1)) >= 0 else last
                    for number, last in enumerate(ends[name])
                ),
            )
            for name, state in states.items()
        }

    def _ends(self, states: Mapping[str, TopicState]) -> dict[str, tuple[int, ...]]:
        """Where what comes from now on begins: with a transaction that is open, which would be cut in two else."""
        level = IsolationLevel[self._config.isolation_level.upper()]
        wanted = {(name, number): _LATEST for name, state in states.items() for number in range(len(state.latest))}
        offsets = self._offsets(wanted, isolation_level=level)
        return {
            name: tuple(offsets.get((name, number), end) for number, end in enumerate(state.latest))
            for name, state in states.items()
        }

    def _offsets(self, wanted: Mapping[tuple[str, int], Any], **options: Any) -> dict[tuple[str, int], int]:
        if not wanted:
            return {}
        asked = self._client.list_offsets(
            {TopicPartition(name, number): spec for (name, number), spec in wanted.items()},
            request_timeout=self._wait_s,
            **options,
        )
        offsets = {}
        for place, future in asked.items():
            what = f"asking for offsets of {place.topic}, partition {place.partition}"
            answer = self._answer(future, what, absent=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if answer is not None and answer.offset == OFFSET_INVALID:  # which the client says without an error
                raise ServiceUnavailable(f"{self._where}: {what}: its leader cannot be reached")
            if answer is not None:
                offsets[place.topic, place.partition] = int(answer.offset)
        return offsets

    def _metadata(self) -> Any:
        try:
            return self._client.list_topics(timeout=self._wait_s)
        except KafkaException as error:
            raise self._failed(error.args[0], "asking for topics") from error

    def _answer(self, future: "Future[T]", what: str, *, absent: int) -> T | None:
        try:
            return future.result(timeout=self._wait_s + 1)
        except KafkaException as error:
            if error.args[0].code() == absent:
                return None
            raise self._failed(error.args[0], what) from error
        except TimeoutError as error:
            raise ServiceUnavailable(f"{self._where}: {what}: no answer in {self._wait_s} s") from error

    def _failed(self, error: KafkaError, what: str) -> DatabusError:
        """The error as one of ours, with what was met last."""
        self._met = ""
        self._client.poll(0)  # calls `_noted`
        return as_ours(error, f"{self._where}: {what}", self._met)

    def _noted(self, error: KafkaError) -> None:
        if error.code() in _SAYS_WHY:
            self._met = error.str()


def missing_topics(config: KafkaConfig, names: Sequence[str]) -> list[str]:
    """What `topics` asks for and is not there: names, and patterns that no topic fits."""
    known = set(names)
    return [
        entry
        for entry in config.topics
        if not (any(KafkaConfig.reads(config.model_copy(update={"topics": [entry]}), name) for name in known))
    ]
