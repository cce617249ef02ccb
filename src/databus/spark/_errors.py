"""What went wrong inside of Spark, as the error that it was before Spark wrapped it in text."""

import errno
import os
import re
from collections.abc import Iterator
from typing import Final

from databus.core import DatabusError, DiskFull, ServiceUnavailable
from databus.spark._private import FAILED_IN_JAVA, LOST_JAVA, SLOW_WORKERS

_NO_ROOM: Final = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""How Java says that a write failed for lack of room, behind the name of one of its exceptions."""
_RAISED_MAX: Final = 20
"""So many errors are looked at that were raised one while another was handled."""


def is_of_slow_workers(error: BaseException) -> bool:
    """Whether a query failed because Spark's Python processes did not come up in time, which no setting moves."""
    return SLOW_WORKERS in str(error)


def error_of(error: BaseException) -> DatabusError | None:
    """The databus error that made a query fail, with its class in the tree of `databus.core` and its message; None if
    it was something else.

    A full disk is one, also where Spark itself met it: Java writes a query's checkpoint. Spark runs sources in other
    processes and hands on their tracebacks as text; the last databus error there counts.
    """
    if isinstance(error, DatabusError):
        return error
    kinds = {f"{subclass.__module__}.{subclass.__qualname__}": subclass for subclass in _with_subclasses(DatabusError)}
    names = "|".join(map(re.escape, kinds))
    named = re.findall(rf"^(?:\S*\s)?({names}): (.*)$", str(error), re.MULTILINE)
    if not named:
        return _full_disk(str(error)) or _gone_java(error)
    name, message = named[-1]
    known: type[DatabusError] = next(kind for kind in kinds[name].__mro__ if kind.__module__ == DatabusError.__module__)
    return known(message)


def _with_subclasses(kind: type[DatabusError]) -> Iterator[type[DatabusError]]:
    """Those of outputs and of plugins too."""
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


def _gone_java(error: BaseException) -> ServiceUnavailable | None:
    """Whoever watches the process says how it ended: here, a traceback through py4j would say nothing more."""
    raised: BaseException | None = error
    for _ in range(_RAISED_MAX):  # a connection that was refused came after the one that was lost
        if raised is None:
            break
        if type(raised).__name__ == LOST_JAVA:
            return ServiceUnavailable("Spark's Java process does not answer")
        raised = raised.__context__
    return None


def _full_disk(said: str) -> DiskFull | None:
    reason = next((reason_text for reason_text in _NO_ROOM if f"{FAILED_IN_JAVA}{reason_text}" in said), None)
    if reason is None:
        return None
    return DiskFull(
        f"Spark says: {reason}. Free some room where its files are, in the pipeline's `state` and the folder for "
        f"temporary files; a pipeline that runs tries again by itself"
    )
