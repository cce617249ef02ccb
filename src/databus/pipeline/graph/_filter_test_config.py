"""`tests` in a pipeline's file: what a test of filters says. They are run by `_filter_tests`."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TESTS_MAX: Final = 1_000
ROWS_MAX: Final = 10_000

_Names = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class FilterTest(BaseModel):
    """Rows of a table, and what is to become of them on the way to an output or a filter; `databus test` runs it."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    table: str = Field(description="The table, as `db.table` or `physical/db.table`.", examples=["main.orders"])
    columns: dict[str, str] | None = Field(
        None,
        min_length=1,
        description="Name and type of each of its columns. Not needed of a table in a SQLite file that is there.",
        examples=[{"id": "int64", "status": "string"}],
    )
    key: _Names = Field(default_factory=list, description="With `columns`: the table's key.", examples=["id"])
    from_: str | None = Field(
        None, alias="from", description="Name of the input at which the rows begin, where several lead there."
    )
    to: str = Field(
        description="Where the rows are looked at: the name of an output, or of a filter (`name.branch` of a route).",
        examples=["copy", "large"],
    )
    rows: list[dict[str, Any]] = Field(
        max_length=ROWS_MAX,
        description="The rows, in order. `_change_type` is `insert` unless a row says otherwise; an update is two: "
        "`update_preimage` and `update_postimage`. Columns that a row does not name are NULL.",
        examples=[[{"id": 1, "status": "open"}, {"_change_type": "delete", "id": 1, "status": "open"}]],
    )
    expect: list[dict[str, Any]] = Field(
        max_length=ROWS_MAX,
        description="The rows that are to come out, in order, in the same form. Columns that a row does not name are "
        "NULL there; those of the bus are compared if some row names them.",
    )
