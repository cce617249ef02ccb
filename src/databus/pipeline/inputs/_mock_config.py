"""What input `mock` makes and what can be said of it."""

from typing import Literal

from pydantic import Field

from databus.plugins import InputConfig
from databus.schema import Column, TableSchema

PHYSICAL = "mock"
TABLE = TableSchema(
    "main.events",
    (
        Column("id", "int64", nullable=False),
        Column("source", "int64"),
        Column("at", "timestamptz"),
        Column("key", "string"),
        Column("payload", "string"),
    ),
    ("id",),
)
"""What it has rows of."""


class MockInputConfig(InputConfig):
    """Inserts into one made-up table `main.events` (id, source, at, key, payload): row n is a function of n alone."""

    type: Literal["mock"] = "mock"
    row_bytes: int = Field(254, ge=64, le=1 << 20, description="Bytes that a row takes, the bus's columns left aside.")
    rows_total: int | None = Field(None, ge=0, le=2**62, description="How many rows there are; without it, no end.")
    rows_per_s: float | None = Field(
        None, gt=0, le=1e9, description="Rate; without it, a full micro-batch after the other."
    )
    max_rows_per_trigger: int = Field(2_000_000, ge=1, le=2**31 - 1, description="Most rows in a micro-batch.")
    rows_per_transaction: int = Field(1_000, ge=1, le=2**31 - 1, description="Rows of one SCN.")
    partitions: int = Field(2, ge=1, le=1024, description="Into how many ranges a micro-batch is cut.")
