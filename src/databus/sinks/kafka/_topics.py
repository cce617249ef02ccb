"""Topics: what a table's is called, and that it is there."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from databus.core import ConfigError, DatabusError, InputError, ServiceUnavailable, name_parts
from databus.sinks.kafka._cluster import Cluster

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Producer
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types lack it
        AdminClient,
        TopicDescription,
    )

_FORBIDDEN: Final = re.compile(r"[^a-zA-Z0-9._-]")
_NAME_MAX: Final = 249
_POLL_MS: Final = 50
_TIMESTAMPS: Final = "message.timestamp.type"
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's `Uuid.ZERO_UUID`: of topics whose broker has none for them, as those before 2.8."""


@dataclass(frozen=True)
class NewTopics:
    """How topics are made."""

    partitions: int = -1
    """-1 for the broker's own default, as for `replication_factor`."""
    replication_factor: int = -1
    config: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Needs:
    """What messages want of the topic that they are written to."""

    partitions: int = 0
    """Least number; 0 for any."""
    is_exact: bool = True
    """Whether that is known to be enough, so that a topic is made with so many."""
    not_of: str = ""
    """Id of a cluster of which the topic must not be; empty for none."""
    or_else: str = ""
    """What would happen there."""
    keeps_timestamps: bool = False
    """Whether messages have to get there with their own."""

    def new(self, name: str, given: NewTopics) -> NewTopics:
        """How such a topic is made. Raises `ConfigError` where the number of partitions is unknown."""
        if given.partitions < 0 and not self.is_exact:
            raise ConfigError(
                f"topic {name} is not there, and how many partitions it has at its source cannot be seen behind a "
                f"filter that makes typed rows: say it with `create_topics.partitions`"
            )
        return replace(given, partitions=max(given.partitions, self.partitions or -1))


@dataclass(frozen=True)
class TopicNames:
    """What topics are called; travels to tasks."""

    template: str = "{physical}.{db}.{table}"
    """With `{physical}`, `{db}` and `{table}`."""
    own: tuple[tuple[str, str], ...] = ()
    """By `db.table`, in the place of the template."""

    def name(self, physical: str, source: str) -> str:
        """The topic of a source. Raises `InputError` for a name that no topic can have."""
        return topic_name(dict(self.own).get(source, self.template), physical, source)


def topic_name(template: str, physical: str, source: str) -> str:
    """The topic of a source, by a template. Raises `InputError` for a name that no topic can have."""
    db, table = name_parts(source)
    # A dot of the database's own is doubled, so that `{db}.{table}` is another topic for each pair of names.
    db, is_open = db.replace(".", ".."), "{db}" in template and table.startswith(".")
    name = template.replace("{physical}", physical).replace("{db}", db).replace("{table}", table)
    if is_open or _FORBIDDEN.search(name) or name in ("", ".", "..") or len(name) > _NAME_MAX:
        places = ". In braces there can be {physical}, {db} and {table} alone" if "{" in template else ""
        raise InputError(
            f"{physical}/{source}: no topic can be called {name!r}: its name is of letters, digits, `.`, `_` and `-`, "
            f"at most {_NAME_MAX}{places}. Give the table one with `topics`"
        )
    return name


class Topics:
    """Of a cluster, in one process. It remembers which are there, and how many partitions they have."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._partitions: dict[str, int] = {}
        self._seen: dict[str, list[int]] = {}
        self._with_timestamps: set[str] = set()

    def ready(self, name: str, new: NewTopics | None, needs: Needs = Needs()) -> int:
        """See to it that a topic is there; returns the number of its partitions. new: None if it is not made here.

        Raises `ConfigError` for one that is not there, or not as it is needed, and what `Cluster.error` says.
        """
        if needs.not_of and needs.not_of == self._cluster.id():
            raise ConfigError(f"{self._cluster.name}: {needs.or_else}")
        if name not in self._partitions:
            self._partitions[name] = self._made(name, new, needs)
        count = self._partitions[name]
        if count < needs.partitions:
            raise ConfigError(
                f"{self._cluster.name}: topic {name} has {count} partitions, and its messages come from "
                f"{needs.partitions}, which they keep. Give it as many (`kafka-topics.sh --alter --topic {name} "
                f"--partitions {needs.partitions}`), and start the output again"
            )
        if needs.keeps_timestamps and name not in self._with_timestamps:
            self._check_timestamps(name)
            self._with_timestamps.add(name)
        return count

    def _made(self, name: str, new: NewTopics | None, needs: Needs) -> int:
        count = self._look(name)
        if count is None:
            if new is None:
                raise ConfigError(
                    f"{self._cluster.name} has no topic {name}: make it, or have it made with `create_topics`"
                )
            self._make(name, needs.new(name, new))
        return count or self._wait_for(name)

    def forget(self) -> None:
        """Look again: something went wrong, and topics may be others."""
        self._partitions.clear()
        self._with_timestamps.clear()

    def _check_timestamps(self, name: str) -> None:
        """Raises `ConfigError` for a topic whose broker gives messages another timestamp than they have."""
        try:
            kind = self._cluster.topic_settings(name)[_TIMESTAMPS]
        except (DatabusError, KeyError) as error:
            logging.getLogger("databus.kafka").warning(
                "%s: whether topic %s keeps the timestamps of messages (%s) cannot be seen: %s. Allow the user to "
                "describe its configuration, or look yourself",
                self._cluster.name, name, _TIMESTAMPS, error,
            )  # fmt: skip
            return
        if kind != "CreateTime":
            raise ConfigError(
                f"{self._cluster.name}: topic {name} has {_TIMESTAMPS}={kind}, so the broker would replace the "
                f"timestamps of mirrored messages. Set it to CreateTime (`kafka-configs.sh --alter --topic {name} "
                f"--add-config {_TIMESTAMPS}=CreateTime`), or accept new timestamps with `timestamps: target`"
            )

    def ids(self, names: Collection[str], awaited: Collection[str]) -> Mapping[str, str]:
        """By which Kafka tells topics apart that had one name after another; empty where brokers do not say it.

        Without topics that are not there; `awaited` ones only where brokers do not know them for as long as a
        request may take: one that has just started, or lags, may not know a topic for a moment.
        """
        deadline = self._cluster.clock.monotonic_s() + self._cluster.request_s_max
        while True:
            ids = {name: str(topic.topic_id or _NO_ID) for name, topic in self._described(names).items()}
            known = {name: "" if topic_id == _NO_ID else topic_id for name, topic_id in ids.items()}
            if known.keys() >= set(awaited) or self._cluster.clock.monotonic_s() > deadline:
                return known
            # Brokers do not tell when they know a topic; `request_ms_max` bounds the wait.
            self._cluster.clock.sleep_ms(_POLL_MS)

    def partitions_seen(self, names: Collection[str]) -> list[tuple[str, int]]:
        """The same as they were when these topics were looked at last."""
        return [(name, number) for name in names for number in self._seen.get(name, ())]

    def partitions_of(self, names: Collection[str]) -> list[tuple[str, int]]:
        """Those of topics, as far as these are there."""
        return [
            (name, partition.id) for name, topic in self._described(names).items() for partition in topic.partitions
        ]

    def _look(self, name: str) -> int | None:
        """How many partitions it has; 0 while one has no leader, None without a topic."""
        topic = self._described([name]).get(name)
        if topic is None:
            return None
        return len(topic.partitions) if all(partition.leader is not None for partition in topic.partitions) else 0

    def _described(self, names: Collection[str]) -> "dict[str, TopicDescription]":
        """Those of these topics that are there, by one request."""
        from confluent_kafka import KafkaException, TopicCollection

        def ask(admin: "AdminClient", s_max: float) -> "Mapping[str, Future[TopicDescription]]":
            return admin.describe_topics(TopicCollection([*names]), request_timeout=s_max)

        topics = {}
        for name, answer in self._cluster.answers(ask):
            try:
                topics[name] = answer()
                self._seen[name] = [partition.id for partition in topics[name].partitions]
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise self._cluster.error(error, f"looking for topic {name}") from error
        return topics

    def _make(self, name: str, new: NewTopics) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        topic = NewTopic(name, new.partitions, new.replication_factor, config=dict(new.config))
        ((_, made),) = self._cluster.answers(lambda admin, s_max: admin.create_topics([topic], request_timeout=s_max))
        try:
            made()
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise self._cluster.error(error, f"making topic {name}") from error

    def _wait_for(self, name: str) -> int:
        """Brokers hear of a new topic one after the other; after an accident, of new leaders."""
        deadline = self._cluster.clock.monotonic_s() + self._cluster.request_s_max
        while not (count := self._look(name)):
            if self._cluster.clock.monotonic_s() > deadline:
                raise ServiceUnavailable(f"{self._cluster.name}: topic {name} is not there yet, or has no leader")
            self._cluster.clock.sleep_ms(_POLL_MS)
        return count


@lru_cache(maxsize=8)
def topics_of(cluster: Cluster) -> Topics:
    """The one for this process."""
    return Topics(cluster)


def as_settings(given: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Settings as they travel."""
    return tuple((name, str(value)) for name, value in given.items())


def partitions_now(cluster: Cluster, producer: "Producer", topic: str) -> Sequence[int]:
    """As the brokers say, which may have got more meanwhile; the producer knows them too then."""
    from confluent_kafka import KafkaException

    what = f"asking for the partitions of topic {topic}"
    try:
        metadata = producer.list_topics(topic, cluster.request_s_max).topics[topic]
    except KafkaException as error:
        raise cluster.error(error, what) from error
    if metadata.error is not None:
        raise cluster.error_of(metadata.error, what)
    return sorted(metadata.partitions)
