"""What a table map carries beside names is held against the definition."""

from dataclasses import replace
from typing import Any

import pytest

from databus.core import SourceChanged
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.binlog import TableMap, TableMetadata
from databus.sources.mysql.tables import check_agreement

TABLE = TableDefinition(
    "d",
    "t",
    (
        ColumnDefinition("n", FieldType.LONG, 0, "int", is_nullable=False),
        ColumnDefinition("v", FieldType.VARCHAR, 20, "varchar(20)", charset="latin1"),
        ColumnDefinition("b", FieldType.VARCHAR, 20, "varbinary(20)", charset="binary"),
        ColumnDefinition("g", FieldType.GEOMETRY, 4, "geomcollection"),
        ColumnDefinition("y", FieldType.YEAR, 0, "year"),
    ),
    ("n",),
)
FITTING: dict[str, Any] = {
    "unsigned": (False, False, False, False, True),
    "collations": (None, 8, 63, None, None),
    "geometry_types": (None, None, None, 7, None),
}


def _map(nullable: tuple[bool, ...] = (False, True, True, True, True), **metadata: Any) -> TableMap:
    types = tuple(int(column.type) for column in TABLE.columns)
    metas = tuple(column.meta for column in TABLE.columns)
    return TableMap("d", "t", types, metas, nullable, TableMetadata(**metadata))


def test_a_map_of_the_same_table_agrees_whatever_it_carries() -> None:
    check_agreement(_map(), TABLE)
    check_agreement(_map(**FITTING), TABLE)
    check_agreement(_map(collations=(None, 1500, 1500, None, None)), TABLE)  # defined by the administrator


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        (
            {"unsigned": (True, False, False, False, True)},
            "as unsigned, but its definition at this position is int",
        ),
        ({"collations": (None, 255, 63, None, None)}, r"'v'\) as text in utf8mb4.*varchar\(20\) in latin1"),
        ({"collations": (None, 63, 63, None, None)}, r"'v'\) as bytes"),
        ({"collations": (None, 8, 8, None, None)}, r"'b'\) as text in latin1"),
        ({"geometry_types": (None, None, None, 1, None)}, r"'g'\) as point"),
        ({"nullable": (True, True, True, True, True)}, r"'n'\) as nullable"),
        ({"nullable": (False, False, True, True, True)}, r"'v'\) as NOT NULL"),
    ],
)
def test_a_map_of_another_table_is_refused_by_its_column(metadata: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceChanged, match=told):
        check_agreement(_map(**{**FITTING, **metadata}), TABLE)


def test_columns_that_only_the_server_sees_may_be_nullable_or_not() -> None:
    hidden = replace(TABLE.columns[0], is_hidden=True)
    check_agreement(_map((True, True, True, True, True)), replace(TABLE, columns=(hidden, *TABLE.columns[1:])))
