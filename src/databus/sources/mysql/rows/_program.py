"""The program that the kernels run: one row of numbers for each column of a table, in the log's order.

`_plan` writes the constant fields, `_decode` the places in its arena, the kernels count in the last two.
"""

from typing import Final

# Fields of a column's row in the program.
OP: Final = 0
WIDTH: Final = 1  # bytes of a value of fixed size, else 0
LENGTH_BYTES: Final = 2  # bytes of the length before a value of variable size, else 0
LIMIT: Final = 3  # the most bytes that such a value may have
IS_NULLABLE: Final = 4
IS_JSON: Final = 5  # may be a difference in a partial update
A: Final = 6  # what the operation needs: digits, padded length, bytes of a fraction
B: Final = 7
C: Final = 8
D: Final = 9
SLOT: Final = 10  # bytes of a value in the arena; 0 for bits and text
VALID: Final = 11  # where the column's validity bits begin
OUT: Final = 12  # where its values begin, or the offsets of its text
TEXT: Final = 13  # where its text begins
NULLS: Final = 14  # counted: nulls so far
AT: Final = 15  # counted: bytes of text so far
FIELDS: Final = 16

# Operations. The order is that of the kernels' branches.
SKIP: Final = 0
COPY8: Final = 1
COPY16: Final = 2
COPY32: Final = 3
COPY64: Final = 4
INT24: Final = 5
UINT24: Final = 6
YEAR: Final = 7
UNSIGNED: Final = 8  # WIDTH bytes, little-endian, into 64 bits: members of ENUM and SET
BIT: Final = 9
BITS: Final = 10  # WIDTH bytes, big-endian
DECIMAL: Final = 11  # A leading digits, B groups of nine before the point and C after it, D last digits; to 18 digits
DECIMAL_WIDE: Final = 12  # the same, to 38 digits
DATE: Final = 20
DATETIME: Final = 21  # A bytes of fraction; B whether an invalid date becomes null, as for all of these
TIMESTAMP: Final = 22
TIME: Final = 23
DATETIME_OLD: Final = 24
TIMESTAMP_OLD: Final = 25
TIME_OLD: Final = 26
DATETIME_HIRES: Final = 27  # MariaDB's own before 10.1: A digits of fraction
TIMESTAMP_HIRES: Final = 28
TIME_HIRES: Final = 29
BYTES: Final = 40
UTF8: Final = 41
ASCII: Final = 42
PADDED: Final = 43  # zeros to A bytes
DECIMAL_TEXT: Final = 44  # as DECIMAL, any number of digits, written out

# What is wrong, as a kernel returns it; details are in the status.
FINE: Final = 0
CUT_SHORT: Final = 1
TOO_LONG: Final = 2
NULL_REFUSED: Final = 3
NOT_A_DECIMAL: Final = 4
NOT_A_TIME: Final = 5
NOT_A_DATE: Final = 6
NOT_TEXT: Final = 7
ODD_IMAGES: Final = 8
ROW_TOO_LARGE: Final = 9
PARTIAL_UNKNOWN: Final = 10

ROWS_AT_ONCE: Final = 128  # so many go through the columns together: they and their places stay in the nearest cache

# Fields of a status.
CODE: Final = 0
EVENT: Final = 1
IMAGE: Final = 2
COLUMN: Final = 3
OFFSET: Final = 4
STATUS: Final = 5

# Kinds of rows events.
WRITE_ROWS: Final = 1
UPDATE_ROWS: Final = 2
DELETE_ROWS: Final = 3
PARTIAL_UPDATE_ROWS: Final = 4
