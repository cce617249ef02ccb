"""What went wrong inside of Spark, as the error that it was before Spark wrapped it in text."""

import re
from typing import Final

import databus.core
from databus.core import DatabusError

_SLOW_WORKERS: Final = "Python worker failed to connect back"
"""How Spark says that a Python process did not come up within its ten seconds."""

_LINE: Final = re.compile(r"^(?:\S*\s)?databus\.core\._errors\.(\w+): (.*)$", re.MULTILINE)


def is_of_slow_workers(error: BaseException) -> bool:
    """Whether a query failed because Spark's Python processes did not come up in time, which no setting moves."""
    return _SLOW_WORKERS in str(error)


def error_of(error: BaseException) -> DatabusError | None:
    """The databus error that made a query fail, with its class and message; None if it was something else.

    Spark runs sources in other processes and hands on their tracebacks as text; the last databus error there counts.
    """
    if isinstance(error, DatabusError):
        return error
    found = _LINE.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(databus.core, name, None)
    if isinstance(kind, type) and issubclass(kind, DatabusError):
        return kind(message)
    return None
