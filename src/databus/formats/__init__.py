"""Rows in other people's words. JSON today; Avro rows, Debezium, Maxwell and Canal come here later."""

from databus.formats._json import from_json_value, json_lines, rows_of, to_json_value

__all__ = ["from_json_value", "json_lines", "rows_of", "to_json_value"]
