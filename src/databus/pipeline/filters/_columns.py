"""The bus's columns in typed rows with `meta=full`, and the rows of controls."""

from typing import TYPE_CHECKING, Final

from databus.core import BUS_COLUMNS, CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, CONTROL, SEQ, SNAPSHOT, TXID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CONTROL_LABEL: Final = "control"

META_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP, SEQ, TXID, SNAPSHOT, CONTROL)
"""In the order in which they follow the table's columns."""

assert set(BUS_COLUMNS) < set(META_COLUMNS)  # noqa: S101 - the two lists are one


def is_meta(name: str) -> bool:
    """Whether this is one of the bus's columns."""
    return name in META_COLUMNS


def is_control(rows: "DataFrame") -> "Column":
    """Whether a row is a control, which passes every filter."""
    return rows[CHANGE_TYPE] == CONTROL_LABEL


def meta_columns(rows: "DataFrame") -> "list[Column]":
    """The bus's columns, to carry along."""
    return [rows[name] for name in META_COLUMNS]
