"""Times that people write."""

import datetime as dt
import re
from typing import Final

_DIGITS: Final = re.compile(r"[0-9]{1,19}")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def us_of(at: dt.datetime) -> int:
    """A time as microseconds since 1970. Raises ValueError for one without a zone, which may mean any."""
    if at.tzinfo is None:
        raise ValueError(f"{at} names no time zone; say which, as datetime.now(UTC) does")
    return (at - _EPOCH) // dt.timedelta(microseconds=1)


def time_us(text: str) -> int:
    """A time as microseconds since 1970: it is written as those, or in ISO 8601, UTC where it names no zone.

    Raises ValueError for anything else, with a message that says what was expected.

    >>> time_us("1970-01-01T01:00:00.000001+01:00")
    1
    """
    if _DIGITS.fullmatch(text):
        return int(text)
    try:
        at = dt.datetime.fromisoformat(text)
        return us_of(at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:100]!r} is neither microseconds since 1970 nor a time such as 2026-07-01T12:00:00Z"
        ) from None
