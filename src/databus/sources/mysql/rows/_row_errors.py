"""The errors for row images that cannot be decoded: the table, the column, the place in the log, what to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from databus.core import CorruptData, DatabusError, LimitExceeded, UnrepresentableValue
from databus.sources.mysql.rows import _program as ops

if TYPE_CHECKING:
    from databus.sources.mysql.rows._plan import DecodePlan

_EXCLUDE: Final = "or leave the column out with `columns: {{{table}: {{exclude: [{column}]}}}}`"
_DATE: Final = (
    "a date that is none (0000-00-00, or a month or day that does not exist), which no type of the bus can hold. Set "
    "`zero_dates: null` to have such values as null, `zero_dates: text` to have all dates as the text that the server "
    "shows, `types: {{{table}: {{{column}: string}}}}` to have this column so, " + _EXCLUDE
)
_DATE_IN_KEY: Final = (
    "a date that is none (0000-00-00, or a month or day that does not exist), and is part of the table's key: as nulls "
    "several such rows would have one key. Set `types: {{{table}: {{{column}: string}}}}`, or `zero_dates: text`, to "
    "have dates as the text that the server shows, give the row another date, or leave the table out with `exclude`"
)
_TEXT: Final = (
    "bytes that are no text in its character set {charset}. Set `invalid_text: replace` to have U+FFFD in their place "
    "(never in the table's key: values that differ would be one key; give the row another value there, or leave the "
    "table out with `exclude`), " + _EXCLUDE
)
_MEMBER: Final = (
    "its member {number}, which is no text in {charset}, or which nothing shows: the server's catalogue has a question "
    "mark for each character beyond U+FFFF. Set binlog_row_metadata = FULL on the server, so that the log itself names "
    "members (MySQL 5.7: let a row have that member), and start a new log; or set `invalid_text: replace` to have "
    "U+FFFD in the place of what is not known (never in the table's key), " + _EXCLUDE
)
_NOT_THIS_TABLE: Final = "; the log is damaged there, or the rows are of another definition of the table"
_CORRUPT: Final = {
    ops.CUT_SHORT: "a value that runs past the end of its event",
    ops.TOO_LONG: "a value longer than the column can hold",
    ops.NULL_REFUSED: "NULL, though it is NOT NULL",
    ops.NOT_A_DECIMAL: "bytes that are no DECIMAL",
    ops.NOT_A_TIME: "bytes that are no TIME",
    ops.ODD_IMAGES: "an update without its after image",
    ops.PARTIAL_UNKNOWN: "a partial update in a form that is unknown",
}


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """The rows of a run of rows events, counted through all events."""

    table: str
    starts: NDArray[np.int64]
    """Where the images of each event begin."""
    counts: NDArray[np.int32]
    """How many rows each event has."""
    place: Callable[[int], str]
    """Says where in the log such a beginning is."""

    def row(self, number: int) -> str:
        """The place of a row."""
        ends = np.cumsum(self.counts)
        event = int(np.searchsorted(ends, number, side="right"))
        first = int(ends[event - 1]) if event else 0
        return f"image {number - first + 1} of the rows event at {self.place(int(self.starts[event]))}"


def not_text(table: str, column: str, charset: str | None, place: str) -> UnrepresentableValue:
    """Bytes that are no text in the column's character set."""
    why = _TEXT.format(table=table, column=column, charset=charset)
    return UnrepresentableValue(f"{table}: column {column!r} at {place} holds {why}")


def unknown_member(table: str, column: str, charset: str | None, place: str, number: int) -> UnrepresentableValue:
    """A member of ENUM or SET that is not valid text, or that the server's catalogue does not show."""
    why = _MEMBER.format(table=table, column=column, charset=charset, number=number)
    return UnrepresentableValue(f"{table}: column {column!r} at {place} holds {why}")


def not_a_date(table: str, column: str, place: str, *, in_key: bool) -> UnrepresentableValue:
    """An invalid date. in_key: the column is part of the key, where no policy makes it null."""
    why = (_DATE_IN_KEY if in_key else _DATE).format(table=table, column=column)
    return UnrepresentableValue(f"{table}: column {column!r} at {place} holds {why}")


def not_this_table(table: str, column: str, place: str, what: str) -> CorruptData:
    """Bytes that no server writes for this column."""
    return CorruptData(f"{table}: column {column!r} at {place} holds {what}{_NOT_THIS_TABLE}")


def row_error(
    plan: "DecodePlan",
    status: NDArray[np.int64],
    starts: NDArray[np.int64],
    place: Callable[[int], str],
    row_bytes_max: int,
) -> DatabusError:
    """What a kernel's status says."""
    code, table = int(status[ops.CODE]), plan.table.source
    number = int(status[ops.COLUMN])
    column = plan.definition.columns[number] if number >= 0 else None
    event = place(int(starts[status[ops.EVENT]]))
    at = f"{place(int(status[ops.OFFSET]))} (image {status[ops.IMAGE] + 1} of the rows event at {event})"
    if code == ops.ROW_TOO_LARGE:
        return LimitExceeded(
            f"{table}: the row at {at} has more than row_bytes_max = {row_bytes_max} bytes; raise `row_bytes_max`"
        )
    if column is None:
        return CorruptData(f"{table}: {_CORRUPT[code]} at {at}{_NOT_THIS_TABLE}")
    if code == ops.NOT_A_DATE:
        return not_a_date(table, column.name, at, in_key=column.name in plan.definition.key)
    if code == ops.NOT_TEXT:
        return not_text(table, column.name, column.charset, at)
    return not_this_table(table, column.name, at, _CORRUPT[code])
