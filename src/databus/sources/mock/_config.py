"""Options of the mock source."""

from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from databus.schema import Column, TableSchema
from databus.sources._config import SourceConfig, SourceName

KEY_TYPES: Final = ("int64", "string")


class MockTable(BaseModel):
    """A table that the mock source makes up."""

    model_config = ConfigDict(extra="forbid")

    columns: dict[str, str] = Field(
        description="Name and type of each column; the first one is the key, int64 or string.",
        examples=[{"id": "int64", "name": "string", "price": "decimal(12,2)"}],
        min_length=1,
    )
    nulls: bool = Field(True, description="Whether columns besides the key hold a null in one row of seventeen.")

    def schema_of(self, source: str) -> TableSchema:
        """The table's definition under the name `db.table`."""
        names = list(self.columns)
        return TableSchema(
            source,
            tuple(Column(name, kind, nullable=self.nulls and name != names[0]) for name, kind in self.columns.items()),
            (names[0],),
        )


def _default_tables() -> dict[str, MockTable]:
    columns = {"id": "int64", "source": "int64", "at": "timestamptz", "key": "string", "payload": "string"}
    return {"main.events": MockTable(columns=columns, nulls=False)}


class MockConfig(SourceConfig):
    """Rows made from a seed: transaction n is a function of these options and n alone, so every reader can check
    them.
    """

    type: Literal["mock"] = "mock"
    schemas: dict[SourceName, MockTable] = Field(
        default_factory=_default_tables, description="The tables, by `db.table`."
    )
    row_bytes: int = Field(254, ge=16, le=1 << 20, description="Roughly how many bytes a row of a table takes.")
    rows_per_transaction: int = Field(10, ge=1, le=100_000_000, description="Changes in each transaction.")
    transactions_per_s: float | None = Field(
        None, gt=0, le=1_000_000, description="Rate; without it, as fast as they are taken."
    )
    transactions_total: int | None = Field(None, ge=0, description="How many there are; without it, no end.")
    inserts: int = Field(60, ge=1, le=1000, description="Share of inserts.")
    updates: int = Field(30, ge=0, le=1000, description="Share of updates; each counts two rows.")
    deletes: int = Field(10, ge=0, le=1000, description="Share of deletes.")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Another seed, other values.")
    script: list[dict[str, Any]] | str | None = Field(
        None, description="Exact transactions instead, or a file with one as JSON on each line; see docs/sources.md."
    )
    group_bytes_max: int = Field(4 << 20, ge=1024, le=1 << 28, description="Where a group of frames ends, in bytes.")
    group_transactions_max: int = Field(
        1_000_000, ge=1, le=1_000_000, description="Where a group of frames ends, in transactions; 1 to never join two."
    )
    chunk_rows: int = Field(10_000, ge=1, le=1_000_000, description="Rows of a snapshot chunk.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.deletes > self.inserts:
            raise ValueError("deletes: more than inserts; a row is deleted once")
        for name, table in self.schemas.items():
            if next(iter(table.columns.values())) not in KEY_TYPES:
                raise ValueError(f"schemas.{name}: the key, its first column, is one of {', '.join(KEY_TYPES)}")
            table.schema_of(name)
        return self
