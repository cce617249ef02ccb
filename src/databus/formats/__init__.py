"""Rows in other people's words, and the reading of configuration files.

JSON today; Avro rows, Debezium, Maxwell and Canal come here later.
"""

from databus.formats._json import from_json_value, json_lines, rows_of, to_json_value
from databus.formats._yaml import has_reference, lines_of, load_yaml, parse_yaml, path_of, substitute, validated

__all__ = [
    "from_json_value",
    "has_reference",
    "json_lines",
    "lines_of",
    "load_yaml",
    "parse_yaml",
    "path_of",
    "rows_of",
    "substitute",
    "to_json_value",
    "validated",
]
