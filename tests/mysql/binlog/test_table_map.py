"""Table maps, byte by byte: what servers write of a table besides its types."""

from databus.sources.mysql._definition import FieldType
from databus.sources.mysql.binlog._table_map import parse_table_map

VECTOR_BETWEEN_TEXTS = bytes.fromhex(
    "01000164000174000a0ff20ff5fffefcfcf2fe0e09000424000404fe03020204f701ff030309083ffcff0019103f3f0701000d0203020416"
    "016101620163016a016701650166017802763202656e0a0107060502016101620c02ffc0"
)
"""Of MySQL 9.7: a VARCHAR latin1, b VECTOR(3), c VARCHAR utf8mb4, j JSON, g GEOMETRY, e CHAR greek, f TEXT hebrew, x
BLOB, v2 VECTOR(2), en ENUM koi8r. A collation of each.
"""
DEFAULT_AMONG_TEXTS = bytes.fromhex(
    "0100016400017500040ff20f0305090004090007010100020308013f0d010304090161016201630269640801030c01f0"
)
"""Of MySQL 9.7: a VARCHAR latin1, b VECTOR(3), c VARCHAR latin1, id INT. A default, and what differs from it."""


def test_a_vector_has_a_collation_in_the_log_as_text_has() -> None:
    table = parse_table_map(VECTOR_BETWEEN_TEXTS)
    assert table.types[1] == FieldType.VECTOR
    assert table.metadata.collations == (8, None, 255, None, None, 25, 16, 63, None, 7)


def test_the_collations_behind_a_vector_are_those_of_their_columns() -> None:
    assert parse_table_map(DEFAULT_AMONG_TEXTS).metadata.collations == (8, None, 8, None)


def test_mysql_writes_no_collation_of_a_geometry_and_mariadb_does() -> None:
    head = b"\x01\x00\x01d\x00\x01t\x00\x02\xff\x0f\x03\x04\x09\x00\x03"  # t (g GEOMETRY, c VARCHAR(9))
    assert parse_table_map(head + b"\x03\x01\x08").metadata.collations == (None, 8)
    assert parse_table_map(head + b"\x03\x02\x3f\x08", is_mariadb=True).metadata.collations == (None, 8)
