"""Errors: one tree, in which a caller tells *wrong input*, *transient* and *fatal* apart by type, or by `retryable`.

A general error ends in `Error`; a particular one is named by the thing and what is wrong with it.

DatabusError
├── InputError            the caller must change something            exit code 2
│   ├── ConfigError           a configuration file or option
│   ├── MalformedRequest      a request over HTTP (400)
│   ├── AccessDenied          no token, or a wrong one (401)
│   ├── UnknownSource         a name that the relay does not have (404)
│   ├── UnknownColumn         a column that a table does not have
│   ├── UnknownGroup          a group that the relay does not have (404)
│   ├── OtherCoordinator      groups are another relay's; the message names it (421)
│   └── LockHeld              another process owns this log or state (names it)
├── TransientError        waiting may be enough: `retryable`           exit code 75
│   ├── ServiceUnavailable    a relay or a database does not answer (503)
│   ├── TooManyRequests       a limit on connections or requests (429)
│   ├── StreamCut             a response ended inside a group
│   └── DiskFull              no room; capture waits for some
└── FatalError            somebody has to decide before it goes on     exit code 3
    ├── PositionPurged        what was asked for has left the log (410)
    ├── PositionForeign       another history than the one asked for (409)
    ├── GroupRefused          a group refused a call, which has changed nothing (409)
    │   ├── Fenced                somebody else holds a partition now
    │   ├── StaleCall             a newer call of the same member was handled before
    │   ├── GroupDiffers          sources or filters are not those of the group
    │   ├── GroupStateLost        where the group stood is not known
    │   └── GroupBusy             somebody is at work in the group
    ├── SourceChanged         the database is not the one that we knew
    ├── SourceSuspended       capture of a source has stopped on an error (409)
    ├── CorruptData           bytes that are not what was written; names the place
    ├── UnrepresentableValue  a value that its column cannot hold exactly
    ├── SchemaChanged         the shape of a table changed under a typed reader
    ├── UnsupportedFeature    a change, or a form of frames, that this version cannot follow
    └── LimitExceeded         a named bound was hit
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class DatabusError(Exception):
    """Anything that databus raises on purpose. The message says what happened, where, and what to do."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    """Whether the same may succeed later without anybody changing anything."""


class InputError(DatabusError):
    """The caller asked for something that cannot be; asking again changes nothing."""

    exit_code = 2
    http_status = 400


class ConfigError(InputError):
    """A configuration is wrong; the message names file and path in it."""


class MalformedRequest(InputError):
    """A request's parameters are wrong; the message names the parameter."""


class AccessDenied(InputError):
    """A request carries no token, or a wrong one."""

    http_status = 401


class RightMissing(InputError):
    """A request's token is known, and does not allow what is asked; the message names the right."""

    http_status = 403


class StateDiffers(InputError):
    """Somebody asked for a change of what they had seen in another state, so nothing was done."""

    http_status = 412

    @classmethod
    def between(cls, what: str, seen: object, now: object, said_by: str = "if_seen") -> "StateDiffers":
        """The error for what was seen as one thing and is another now. said_by: the parameter that has what was seen.

        >>> print(StateDiffers.between("output copy", "running", "paused"))  # doctest: +ELLIPSIS
        output copy was running when you looked, and is paused now. Nothing was done. Look at it again; if you still...
        """
        return cls(
            f"{what} was {str(seen)[:100]} when you looked, and is {now} now. Nothing was done. Look at it again; if "
            f"you still want this, repeat it (programs: with `{said_by}` as it is now)"
        )


class UnknownSource(InputError):
    """No source of that name or id; the message names the nearest ones."""

    http_status = 404


class UnknownColumn(InputError):
    """A filter names a column that its table does not have; the message names both."""


class UnknownGroup(InputError):
    """No group of that name; the message names the nearest one."""

    http_status = 404


class OtherCoordinator(InputError):
    """Another relay coordinates groups. coordinator: its address."""

    http_status = 421

    def __init__(self, message: str, *, coordinator: str | None = None) -> None:
        super().__init__(message)
        self.coordinator = coordinator

    @property
    def details(self) -> Mapping[str, Any]:
        """As the answer over HTTP says it."""
        return {"coordinator": self.coordinator}


class LockHeld(InputError):
    """Another process owns this log, database or pipeline state; the message names it."""

    http_status = 409


class TransientError(DatabusError):
    """It failed now and may work later without anybody changing anything."""

    exit_code = 75
    http_status = 503
    retryable = True


class ServiceUnavailable(TransientError):
    """A relay or a database does not answer.

    bootstrap: the address of a service that may have what was asked for, where another relay has lost it.
    """

    bootstrap: str | None = None
    is_silent: bool = False
    """Whether it accepted the question, and gave no answer for as long as a client waits."""


class TooManyRequests(TransientError):
    """A limit on connections or requests is reached."""

    http_status = 429


class StreamCut(TransientError):
    """A response ended before the group that it was in the middle of did."""


class DiskFull(TransientError):
    """There is no room to write; nothing was half-written."""


class FatalError(DatabusError):
    """Going on would lose or invent something; somebody has to decide first."""

    exit_code = 3


class PositionPurged(FatalError):
    """What comes after the position asked for is no longer held.

    physical: of which physical source. oldest: the SCN after which the log holds everything; None where it is unknown.
    bootstrap: the address of a service that may have it.
    """

    http_status = 410

    def __init__(
        self, message: str, *, physical: str | None = None, oldest: int | None = None, bootstrap: str | None = None
    ) -> None:
        super().__init__(message)
        self.physical = physical
        self.oldest = oldest
        self.bootstrap = bootstrap


class PositionForeign(FatalError):
    """The position belongs to another history: another transaction at its SCN, another timeline, another server.

    physical: of which physical source.
    """

    http_status = 409

    def __init__(self, message: str, *, physical: str | None = None) -> None:
        super().__init__(message)
        self.physical = physical


class GroupRefused(FatalError):
    """A group refused a call; nothing has changed. details: what the answer over HTTP says beside the message."""

    http_status = 409

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details: Mapping[str, Any] = details or {}


class Fenced(GroupRefused):
    """Partitions are not the caller's any more: `fenced` names them."""


class StaleCall(GroupRefused):
    """A call with a number that is not above the `last` one handled."""


class GroupDiffers(GroupRefused):
    """A member wants other sources or filters than its group has: `differs` has both."""


class GroupStateLost(GroupRefused):
    """The name is known, and where it stood is unknown: an operator has to say it. `reason`: `lost` or `forgotten`."""


class GroupBusy(GroupRefused):
    """What was asked needs a group at rest, and somebody holds partitions, or a resize is under way."""


class SourceChanged(FatalError):
    """The database is not the one that we knew, or lost what we knew of it."""


class SourceSuspended(FatalError):
    """Capture has stopped on an error, and waits for somebody; the message has the error."""

    http_status = 409


class CorruptData(FatalError):
    """Bytes are not what was written; the message names file or response and the offset in it."""


class UnrepresentableValue(FatalError):
    """A value cannot be held exactly by its column's type; the message names table, column and row."""


class SchemaChanged(FatalError):
    """A typed reader reached a change of its table's schema."""


class UnsupportedFeature(FatalError):
    """A change, or a form of frames, that this source, sink or reader cannot follow; the message says what to run."""


class LimitExceeded(FatalError):
    """A bound with a name was hit; the message names it and its value."""


class AnswerTooLarge(LimitExceeded):
    """A bootstrap service does not give an answer of that size; the message says how large it is."""

    http_status = 413


def how_to_install(extra: str) -> str:
    """What to say where a package of one of our extras is missing. databus is installed from a clone, from no registry.

    >>> how_to_install("kafka")
    "in your clone of databus, run pip install '.[kafka]'"
    """
    return f"in your clone of databus, run pip install '.[{extra}]'"
