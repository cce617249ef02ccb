"""Rows as people use them: by column, by what happened, and as objects of their own classes."""

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa
import pydantic
import pytest

from databus.client import Splitter, WindowBatch
from databus.core import ChangeType, InputError, SourceCheckpoint, UnrepresentableValue
from databus.schema import Column, TableSchema, frame_schema
from databus.wire import Rows
from tests.client.test_window import Group, commit_of, parsed

ORDERS = TableSchema(
    "main.orders",
    (
        Column("id", "int64", nullable=False),
        Column("total", "decimal(12,2)"),
        Column("note", "string"),
        Column("at", "timestamptz"),
    ),
    ("id",),
)
AT = dt.datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=dt.UTC)


@pytest.fixture
def window():
    """An insert, an update and a delete."""
    kinds = [ChangeType.INSERT, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE]
    columns = [
        pa.array([1, 2, 2, 3], pa.int64()),
        pa.array([Decimal("1.50"), Decimal("2.00"), Decimal("2.50"), None], pa.decimal128(12, 2)),
        pa.array(["a", "b", "c", None]),
        pa.array([AT] * 4, pa.timestamp("us", "UTC")),
        pa.array([int(kind) for kind in kinds], pa.int8()),
        pa.array([7] * 4, pa.int64()),
        pa.array([1, 2, 3, 4], pa.int64()),
        pa.array([70] * 4, pa.timestamp("us", "UTC")),
        pa.array(["tx7"] * 4).dictionary_encode(),
        pa.array([False] * 4),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=frame_schema(ORDERS))
    group = Group(commit_of(7, 4), (Rows(ORDERS, batch),))
    (window,) = Splitter("shop", SourceCheckpoint(), lambda _: ORDERS).split(parsed([group])[0])
    return window


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    total: Decimal | None
    at: dt.datetime
    tags: list[str] = field(default_factory=list)


class Checked(pydantic.BaseModel):
    number: int = pydantic.Field(alias="id")
    note: str | None


def test_a_row_is_read_by_column_as_it_is_now_or_as_it_was(window):
    rows = window.rows()
    assert [(row.op, row["id"], row["note"]) for row in rows] == [
        ("insert", 1, "a"), ("update", 2, "c"), ("delete", 3, None),
    ]  # fmt: skip
    assert dict(rows[1]) == {"id": 2, "total": Decimal("2.50"), "note": "c", "at": AT}
    assert "note" in rows[0]
    assert "nota" not in rows[0]
    with pytest.raises(KeyError, match=r"shop/main.orders has no column totel; did you mean total"):
        rows[0]["totel"]


def test_a_row_becomes_a_dataclass_or_a_pydantic_model(window):
    first, _, gone = window.rows()
    assert first.into(Order) == Order(1, Decimal("1.50"), AT)
    assert gone.into(Order) == Order(3, None, AT)
    assert first.into(Checked) == Checked(id=1, note="a")


def test_a_value_of_another_type_is_an_error_that_names_column_and_field(window):
    @dataclass
    class Loose:
        id: str

    class Floats(pydantic.BaseModel):
        total: float

    class Never(pydantic.BaseModel):
        note: str

    first, _, gone = window.rows()
    with pytest.raises(
        UnrepresentableValue, match=r"main.orders: column id \(int64\) does not fit Loose.id: .*; it is 1"
    ):
        first.into(Loose)
    with pytest.raises(UnrepresentableValue, match=r"column total \(decimal\(12,2\)\) does not fit Floats.total"):
        first.into(Floats)
    with pytest.raises(UnrepresentableValue, match=r"column note \(string\) does not fit Never.note: .*; it is None"):
        gone.into(Never)


def test_a_model_that_no_row_can_become_is_an_error_that_says_why(window):
    @dataclass
    class Other:
        id: int
        price: int

    class Wants(pydantic.BaseModel):
        price: int

    class Judges(pydantic.BaseModel):
        id: int

        @pydantic.model_validator(mode="after")
        def judge(self):
            raise ValueError("no such order")

    row = window.rows()[0]
    for model in (Other, Wants):
        with pytest.raises(
            InputError, match=rf"{model.__name__}.price has no default, and .* it has id, total, note, at"
        ):
            row.into(model)
    with pytest.raises(UnrepresentableValue, match=r"the row is no Judges: .*no such order"):
        row.into(Judges)
    with pytest.raises(InputError, match="dataclass or a pydantic model"):
        row.into(dict)


def test_a_window_says_when_it_was_committed(window):
    at = dt.datetime(1970, 1, 1, 0, 0, 0, 70, tzinfo=dt.UTC)
    assert window.committed_at == at
    assert WindowBatch([window]).committed_at == at
