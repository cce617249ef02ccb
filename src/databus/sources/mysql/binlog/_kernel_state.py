"""What the scan kernel keeps between calls, and what its answers mean: indexes into plain int64 arrays.

`Scanner` owns the arrays and handles in Python what the kernel leaves to it; the kernel does the rest.
"""

from typing import Final

# --- S: one of each ---
POS: Final = 0  # where the next event begins in the buffer
OFFSET: Final = 1  # and in the file
AFTER: Final = 2  # the file offset right after the event at POS, once the kernel has looked at its header
SIZE: Final = 3  # that event's size
BODY_END: Final = 4  # where its body ends in the buffer
HAS_CHECKSUM: Final = 5
FLAVOR: Final = 6
SCHEME: Final = 7
IS_FILE: Final = 8  # nothing is dropped between two events
IS_INNER: Final = 9  # the buffer holds events taken out of a compressed transaction, and marks
TABLE_ID_BYTES: Final = 10
EVENT_BYTES_MAX: Final = 11
INFLATE_BYTES_MAX: Final = 12
INFLATE_BYTES: Final = 13
N_EVENTS: Final = 14
N_TX: Final = 15
N_SIDS: Final = 16
N_DOMAINS: Final = 17
SET_KNOWN: Final = 18
SET_SIZE: Final = 19  # MySQL: the size of the executed set; MariaDB: the sum of the last sequence numbers
SKIP_BELOW: Final = 20  # transactions that begin below this file offset precede the start; -1: it is not known
FILE_NUMBER: Final = 21
START_HAS_GTIDS: Final = 28  # then only transactions without one are skipped by offset
LAST_ORDINAL: Final = 22
LAST_TABLE: Final = 23  # the table entry used last
COUNT_BYTES: Final = 24
COUNT_SKIPPED: Final = 25
COUNT_TX: Final = 26
COUNT_TX_SKIPPED: Final = 27
# the open transaction
TX_STATE: Final = 32
TX_SKIP: Final = 33
TX_START: Final = 34
TX_COMMIT_US: Final = 35
TX_A: Final = 36  # MySQL: index of the server's uuid; MariaDB: of the domain; -1: anonymous
TX_B: Final = 37  # MySQL: number; MariaDB: sequence number
TX_C: Final = 38  # MariaDB: server id
TX_ORDINAL: Final = 39
TX_ROW: Final = 40  # its row in the output, or -1
TX_ROWS_EVENTS: Final = 41  # captured rows events, over all runs
TX_NUMBER: Final = 42  # counts transactions; stamps the table maps that are in force
TX_IS_XA: Final = 43  # it will be prepared: its rows are Python's to hold
TX_STANDALONE: Final = 44
TX_ROWS_SEEN: Final = 45  # rows events so far, captured or not
TX_GIVEN: Final = 46  # how many of them were seen when a run was last given out
N_MARKS: Final = 47  # savepoints that Python has not asked for yet
ERROR: Final = 48
HOLDS_SKIPPED: Final = 49  # rows to be prepared are held although their transaction is passed over
STATE_SIZE: Final = 64

# --- S[TX_STATE] ---
OUTSIDE: Final = 0
GROUP: Final = 1  # a GTID was seen; BEGIN or a statement of its own follows
INSIDE: Final = 2

# --- S[FLAVOR], S[SCHEME] ---
MYSQL: Final = 0
MARIADB: Final = 1
BY_GTID: Final = 0
BY_DOMAINS: Final = 1
BY_FILE: Final = 2

# --- EV: a row for each captured rows event ---
EV_TX: Final = 0
EV_SLOT: Final = 1
EV_KIND: Final = 2
EV_START: Final = 3
EV_END: Final = 4
EV_BEGIN: Final = 5  # where the event's header is in the buffer
EV_OFFSET: Final = 6  # and in the file
EV_INFLATED: Final = 7  # bytes once inflated; -1: not compressed
EV_NUMBER: Final = 8  # which of its transaction's rows events it is, captured or not, from 0
EV_COLUMNS: Final = 9

# --- TX: a row for each transaction ---
T_ORDINAL: Final = 0
T_COMMIT_US: Final = 1
T_END: Final = 2  # -1: unfinished
T_START: Final = 3
T_A: Final = 4
T_B: Final = 5
T_C: Final = 6
TX_COLUMNS: Final = 7

# --- M: a row for each savepoint that Python has not asked for yet; its name as written is in an array beside it ---
M_ROWS: Final = 0  # rows events before it
M_BYTES: Final = 1  # of its name
M_COLUMNS: Final = 2
MARKS_MAX: Final = 64
NAME_BYTES_MAX: Final = 400  # 64 characters of three bytes, each doubled, and quotes

# --- TT: a row for each known table id ---
TT_ID: Final = 0
TT_SLOT: Final = 1  # -1: not captured
TT_STAMP: Final = 2
TT_POOL: Final = 3
TT_LENGTH: Final = 4
TT_COLUMNS_N: Final = 5
TT_COLUMNS: Final = 6

# --- DOM: a row for each MariaDB domain ---
D_ID: Final = 0
D_SERVER: Final = 1
D_SEQ: Final = 2
D_START_SERVER: Final = 3
D_START_SEQ: Final = 4  # -1: the start has nothing of this domain
DOM_COLUMNS: Final = 5

# --- what `scan` answers ---
NEED_MORE: Final = 0
FULL: Final = 1  # an output array, or the bound of bytes to inflate, is full
ASK: Final = 2  # the event at POS is Python's
NEW_TABLE: Final = 3
NEW_SID: Final = 4
NEW_DOMAIN: Final = 5
GROW_SET: Final = 6
FAILED: Final = 7

# --- S[ERROR] ---
BAD_SIZE: Final = 1
TOO_LARGE: Final = 2
BAD_CHECKSUM: Final = 3
BAD_POSITION: Final = 4
SHORT_BODY: Final = 5
NO_TABLE_MAP: Final = 6
OUTSIDE_TX: Final = 7
INSIDE_TX: Final = 8
COLUMN_COUNT: Final = 9
ROW_IMAGE: Final = 10
BAD_COMPRESSION: Final = 11
NO_SET: Final = 12
REPEATED: Final = 13
NOT_RISING: Final = 14
ANONYMOUS: Final = 15
DIVERGED: Final = 16
OFFSET_TOO_LARGE: Final = 17
BAD_GTID: Final = 18
ORDINAL_TOO_LARGE: Final = 19
OTHER_FLAVOR: Final = 20

ORDINAL_LIMIT: Final = 1 << 55
"""Ordinals are below this."""

MARK_TYPE: Final = 250
"""In an inner buffer: a pseudo event whose body is the file offset that holds from here on."""

DUMMY_TABLE_ID: Final = 0xFFFFFF
"""The table id of a rows event without rows that only ends a statement."""

# --- P: what the packet kernel keeps ---
P_LEFT: Final = 0  # of the payload of the packet at hand
P_HEAD: Final = 1  # bytes of its header seen, and
P_HEAD_N: Final = 2  # how many
P_SEQUENCE: Final = 3  # the next packet's
P_CONTINUES: Final = 4  # the packet at hand is full: the next one belongs to it
P_STATUS: Final = 5  # the status byte of the message at hand, or -1
P_OUT: Final = 6  # where the next byte goes
P_WHOLE: Final = 7  # what precedes this is whole events
P_READ: Final = 8  # how much of the input was used
P_BEGIN: Final = 9  # where the last transaction's GTID is, or -1
P_KIND: Final = 10  # the last whole event's
P_SIZE: Final = 16

SPLIT_MORE: Final = 0
SPLIT_SEQUENCE: Final = 1
SPLIT_OTHER: Final = 2  # a message that is no event stands between P_WHOLE and P_OUT
SPLIT_LENGTH: Final = 3  # a message whose event says another size
