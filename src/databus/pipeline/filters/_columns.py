"""The bus's columns in typed rows with `meta=full`, and the rows of controls, as Spark's expressions."""

from typing import TYPE_CHECKING

from databus.core import CHANGE_TYPE
from databus.flow import CONTROL_LABEL, META_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def is_control(rows: "DataFrame") -> "Column":
    """Whether a row is a control, which passes every filter."""
    return rows[CHANGE_TYPE] == CONTROL_LABEL


def meta_columns(rows: "DataFrame") -> "list[Column]":
    """The bus's columns, to carry along."""
    return [rows[name] for name in META_COLUMNS]
