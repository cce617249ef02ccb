"""Rows in other people's words, and the reading of configuration files.

Changes as JSON today, see `change_lines`; Avro rows, Debezium, Maxwell and Canal come here later.
"""

from databus.formats._changes import BigIntegers, ChangeLine, change_lines, change_text, control_line, json_line
from databus.formats._json import from_json_value, scalar_of, to_json_value
from databus.formats._mistakes import lines_of, path_of
from databus.formats._yaml import has_reference, line_of, lines_in, load_yaml, parse_yaml, substitute, validated

__all__ = [
    "BigIntegers",
    "ChangeLine",
    "change_lines",
    "change_text",
    "control_line",
    "from_json_value",
    "has_reference",
    "json_line",
    "line_of",
    "lines_in",
    "lines_of",
    "load_yaml",
    "parse_yaml",
    "path_of",
    "scalar_of",
    "substitute",
    "to_json_value",
    "validated",
]
