"""The formats of messages by the names that options give them."""

import pyarrow as pa

from databus.formats._avro_debezium import debezium_avro_messages
from databus.formats._avro_own import own_avro_messages
from databus.formats._canal import canal_messages
from databus.formats._changes import BigIntegers
from databus.formats._cloudevents import cloudevents_debezium_messages, cloudevents_messages
from databus.formats._debezium import debezium_messages
from databus.formats._debezium_types import DebeziumForm
from databus.formats._maxwell import maxwell_messages
from databus.formats._messages import Messages
from databus.formats._own import own_messages
from databus.schema import TableSchema


def messages_in(
    name: str,
    table: TableSchema,
    batch: pa.RecordBatch,
    *,
    physical: str,
    made_us: int,
    form: DebeziumForm,
    big_integers: BigIntegers = BigIntegers.NUMBER,
) -> Messages:
    """A batch of rows as messages. name: of the format. made_us: when they are made, for formats that say it.

    Raises what the format does.
    """
    make = {
        "own": lambda: own_messages(table, batch, physical=physical, big_integers=big_integers),
        "avro": lambda: own_avro_messages(table, batch, physical=physical),
        "debezium": lambda: debezium_messages(table, batch, physical=physical, made_us=made_us, form=form),
        "debezium_avro": lambda: debezium_avro_messages(table, batch, physical=physical, made_us=made_us, form=form),
        "maxwell": lambda: maxwell_messages(table, batch),
        "canal": lambda: canal_messages(table, batch, made_ms=made_us // 1_000),
        "cloudevents": lambda: cloudevents_messages(table, batch, physical=physical, big_integers=big_integers),
        "cloudevents_debezium": lambda: cloudevents_debezium_messages(table, batch, physical=physical, form=form),
    }
    return make[name]()
