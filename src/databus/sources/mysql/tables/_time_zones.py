"""Time zones: in which of them every moment has a local time of its own, so that a time may go there and back."""

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

_OFFSET: Final = re.compile(r"[+-]\d{1,2}:\d\d")
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = 25_000  # what a TIMESTAMP can hold, 1970 to 2038


def has_one_offset(time_zone: str, system_zone: str | None) -> bool:
    """Whether a session's time_zone is at the same distance from UTC at all times that a TIMESTAMP can hold.

    system_zone: the server's system_time_zone, which stands for SYSTEM; None if it is unknown.
    """
    if time_zone.upper() == "SYSTEM":
        return system_zone == "UTC"  # any other abbreviation may be one half of a zone's, such as GMT of London's
    return _OFFSET.fullmatch(time_zone) is not None or _is_fixed(time_zone)


@cache
def _is_fixed(name: str) -> bool:
    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # an administrator's own
        return False
    return len({(_FIRST + timedelta(days=day)).astimezone(zone).utcoffset() for day in range(_DAYS)}) == 1
