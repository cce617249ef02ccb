"""The numbers that the kernels of result sets and their callers agree on."""

from typing import Final

# Fields of a column's row in the program.
OP: Final = 0
OUT: Final = 1  # where its values begin in the arena
VALID: Final = 2  # where its validity bits begin
SCALE: Final = 3  # DECIMAL's digits after the point; BIT's bytes in the arena, 0 for a single bit
VAR: Final = 4  # its number among the columns of variable size; -1 for the others
NULLS: Final = 5  # counted
FIRST_NONE: Final = 6  # counted: the first row with an invalid date; -1 for none
FIELDS: Final = 7

# Operations; up to COPY64 a value has a fixed size, the others are behind their length.
COPY8: Final = 0
COPY16: Final = 1
COPY32: Final = 2
COPY64: Final = 3
DECIMAL: Final = 4
DATE: Final = 5
TIMESTAMP: Final = 6  # DATETIME too
TIME: Final = 7
BIT: Final = 8
BYTES: Final = 9

# What a kernel returns.
FINE: Final = 0
CUT_SHORT: Final = 1
BAD_LENGTH: Final = 2
NOT_A_DECIMAL: Final = 3
NOT_A_DATE: Final = 4
NOT_A_TIME: Final = 5
NO_DATE: Final = 6  # zero, or a day that its month does not have: not wrong, but no value either
NOT_A_ROW: Final = 7
OUT_OF_ORDER: Final = 8
ERROR: Final = 9  # an error packet comes next
LARGE: Final = 10  # a payload of 16 MiB and more comes next, in several packets

WORDS: Final = {
    CUT_SHORT: "a value ends behind its row",
    BAD_LENGTH: "a value's length is none of its type",
    NOT_A_DECIMAL: "a number is not a decimal of this scale",
    NOT_A_DATE: "a date has a length that is none",
    NOT_A_TIME: "a time is out of its range",
    NOT_A_ROW: "a packet is not a row of this table",
    OUT_OF_ORDER: "a packet is not the next one",
}

# Fields of a status.
CODE: Final = 0
ROWS: Final = 1  # decoded by this call
END: Final = 2
COLUMN: Final = 3
LAST_FROM: Final = 4  # the last row's payload
LAST_TO: Final = 5
SEQUENCE: Final = 6  # of the next packet; kept between calls
STATUS: Final = 7

ENDED: Final = 1
