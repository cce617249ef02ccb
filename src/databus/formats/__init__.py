"""Rows in other people's words, and the reading of configuration files.

Our own words are JSON lines, see `change_lines`. `own_messages`, `debezium_messages`, `maxwell_messages`,
`canal_messages`, `cloudevents_messages` and `cloudevents_debezium_messages` make a batch of change rows into messages;
`own_rows`, `debezium_rows` and the like read them. `own_avro_messages` and `debezium_avro_messages` write Avro.
`elements` reads the objects that a JSON column holds.
"""

from databus.formats._avro_debezium import (
    debezium_avro_key_schema,
    debezium_avro_messages,
    debezium_avro_rows,
    debezium_avro_schema,
    transaction_avro_schemas,
)
from databus.formats._avro_own import own_avro_messages, own_avro_rows, own_avro_schema
from databus.formats._canal import canal_messages
from databus.formats._canal_reader import canal_rows
from databus.formats._changes import BigIntegers, ChangeLine, change_lines, change_text, control_line, json_line
from databus.formats._cloudevents import cloudevents_debezium_messages, cloudevents_messages
from databus.formats._cloudevents_reader import cloudevents_debezium_rows, cloudevents_rows
from databus.formats._confluent import confluent_framed, confluent_unframed
from databus.formats._debezium import debezium_messages
from databus.formats._debezium_reader import debezium_rows
from databus.formats._debezium_transactions import (
    COLLECTION_ORDER,
    TOTAL_ORDER,
    TransactionMarks,
    transaction_avro_messages,
    transaction_messages,
)
from databus.formats._debezium_types import DebeziumForm, DecimalForm, UnsignedForm
from databus.formats._documents import base64url_texts, documents, json_strings
from databus.formats._elements import Elements, elements
from databus.formats._images import check_whole_rows
from databus.formats._json import answer_in_json, from_json_value, scalar_of, to_json_value
from databus.formats._maxwell import maxwell_messages
from databus.formats._maxwell_reader import maxwell_rows
from databus.formats._message_formats import messages_in
from databus.formats._messages import Messages
from databus.formats._mistakes import hint_for, lines_of, path_of
from databus.formats._named_tables import TableWords, tables_named
from databus.formats._own import own_messages
from databus.formats._own_reader import own_rows
from databus.formats._read import ReadRows
from databus.formats._yaml import (
    has_reference,
    line_of,
    lines_in,
    load_yaml,
    parse_yaml,
    substitute,
    text_of_setting,
    validated,
)

__all__ = [
    "COLLECTION_ORDER",
    "TOTAL_ORDER",
    "BigIntegers",
    "ChangeLine",
    "DebeziumForm",
    "DecimalForm",
    "Elements",
    "Messages",
    "ReadRows",
    "TableWords",
    "TransactionMarks",
    "UnsignedForm",
    "answer_in_json",
    "base64url_texts",
    "canal_messages",
    "canal_rows",
    "change_lines",
    "change_text",
    "check_whole_rows",
    "cloudevents_debezium_messages",
    "cloudevents_debezium_rows",
    "cloudevents_messages",
    "cloudevents_rows",
    "confluent_framed",
    "confluent_unframed",
    "control_line",
    "debezium_avro_key_schema",
    "debezium_avro_messages",
    "debezium_avro_rows",
    "debezium_avro_schema",
    "debezium_messages",
    "debezium_rows",
    "documents",
    "elements",
    "from_json_value",
    "has_reference",
    "hint_for",
    "json_line",
    "json_strings",
    "line_of",
    "lines_in",
    "lines_of",
    "load_yaml",
    "maxwell_messages",
    "maxwell_rows",
    "messages_in",
    "own_avro_messages",
    "own_avro_rows",
    "own_avro_schema",
    "own_messages",
    "own_rows",
    "parse_yaml",
    "path_of",
    "scalar_of",
    "substitute",
    "tables_named",
    "text_of_setting",
    "to_json_value",
    "transaction_avro_messages",
    "transaction_avro_schemas",
    "transaction_messages",
    "validated",
]
