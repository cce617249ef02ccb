"""SCN: the logical clock of a physical source, and the order of rows inside it.

SCN = timeline (8 bits) << 55 | ordinal; 0 is before everything. (SCN, `_seq`) is a total order of a physical source.
"""

from typing import Final

TIMELINE_SHIFT: Final = 55
TIMELINE_MAX: Final = 255
ORDINAL_MAX: Final = (1 << TIMELINE_SHIFT) - 1

SEQ_DONE: Final = (1 << 40) - 1
"""What a checkpoint's `seq: null` compares as: after every logged row of its SCN, before what the bus adds to it."""

BUS_SEQ_MIN: Final = 1 << 40
"""Rows and controls that the bus makes itself take a `_seq` of at least this."""

Pair = tuple[int, int]
"""(SCN, `_seq`)."""


def make_scn(timeline: int, ordinal: int) -> int:
    """Join a timeline and an ordinal.

    >>> make_scn(1, 7) == (1 << 55) + 7
    True
    """
    if not 0 <= timeline <= TIMELINE_MAX:
        raise ValueError(f"timeline {timeline} is outside 0..{TIMELINE_MAX}")
    if not 0 <= ordinal <= ORDINAL_MAX:
        raise ValueError(f"ordinal {ordinal} is outside 0..{ORDINAL_MAX}")
    return timeline << TIMELINE_SHIFT | ordinal


def timeline_of(scn: int) -> int:
    """The timeline of an SCN."""
    return scn >> TIMELINE_SHIFT


def ordinal_of(scn: int) -> int:
    """The ordinal of an SCN inside its timeline."""
    return scn & ORDINAL_MAX


def next_bus_seq(last_seq: int, now_ns: int) -> int:
    """The `_seq` of a row or control that the bus makes itself, after `last_seq` of the same SCN.

    Nanoseconds since 1970 keep it increasing over chunks, restarts and logs; the maximum keeps it increasing when the
    clock stands still or goes back.
    """
    return max(last_seq + 1, now_ns, BUS_SEQ_MIN)
