"""Messages in Avro: the id that their schema has in a registry stands before each, as Confluent's serializers do it.

A registry is asked once for each schema, topic and process. It judges whether a new schema may follow those that the
subject has; one that may not is used for no message.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from databus.formats import (
    DebeziumForm,
    Messages,
    confluent_framed,
    debezium_avro_key_schema,
    debezium_avro_schema,
    own_avro_schema,
    transaction_avro_schemas,
)
from databus.link import RegistryAccess
from databus.schema import TableSchema

AVRO_FORMATS: Final = ("avro", "debezium_avro")
_IDS_KEPT_MAX: Final = 4_096


@dataclass(frozen=True)
class AvroSubjects:
    """Where the schemas of messages are registered; travels to tasks."""

    access: RegistryAccess
    naming: str = "topic"
    """What subjects are called: by `topic`, by `record` or by both, `topic_record`."""
    is_new_allowed: bool = True
    """Whether schemas are put there that are not there."""

    def name(self, topic: str, schema: dict[str, Any], part: str) -> str:
        """What a subject is called. part: `key` or `value`."""
        record = ".".join(name for name in (schema.get("namespace"), schema["name"]) if name)
        return {"topic": f"{topic}-{part}", "record": record, "topic_record": f"{topic}-{record}"}[self.naming]

    def ids(self, format_name: str, table: TableSchema, physical: str, form: DebeziumForm, topic: str) -> "AvroIds":
        """The ids of the schemas of a table's messages, which are registered when this returns.

        Raises what `RegistryAccess.registered` does.
        """
        return _ids(self, format_name, table, physical, form, topic)

    def transaction_ids(self, topic: str) -> "AvroIds":
        """Those of a topic of transactions, likewise."""
        return _transaction_ids(self, topic)

    def registered(self, schema: dict[str, Any], part: str, topic: str) -> int:
        """The id of a schema. Raises what `RegistryAccess.registered` does."""
        name = self.name(topic, schema, part)
        return self.access.registered(name, schema, is_new_allowed=self.is_new_allowed)


class AvroIds(NamedTuple):
    """Ids of schemas."""

    value: int
    key: int | None
    """None where keys are not in Avro."""

    def framed(self, messages: Messages) -> Messages:
        """Messages with their ids before them; keys in headers are keys as well."""
        values = confluent_framed(messages.values, self.value)
        if self.key is None:
            return messages._replace(values=values)
        headers = {name: confluent_framed(header, self.key) for name, header in messages.headers.items()}
        return messages._replace(values=values, keys=confluent_framed(messages.keys, self.key), headers=headers)


@lru_cache(maxsize=_IDS_KEPT_MAX)
def _ids(
    subjects: AvroSubjects, format_name: str, table: TableSchema, physical: str, form: DebeziumForm, topic: str
) -> AvroIds:
    if format_name == "avro":
        return AvroIds(subjects.registered(own_avro_schema(table), "value", topic), None)
    key = None
    if table.key:
        key = subjects.registered(debezium_avro_key_schema(table, physical, form), "key", topic)
    return AvroIds(subjects.registered(debezium_avro_schema(table, physical, form), "value", topic), key)


@lru_cache(maxsize=_IDS_KEPT_MAX)
def _transaction_ids(subjects: AvroSubjects, topic: str) -> AvroIds:
    key, value = transaction_avro_schemas()
    at = subjects.registered(key, "key", topic)
    return AvroIds(subjects.registered(value, "value", topic), at)
