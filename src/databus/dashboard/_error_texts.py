"""Free text of parts, such as messages of errors: all of it leaves the dashboard through this module.

A message may hold a row, a password, or an address that is a secret. So a string of a part is shown as it is only
under a name that is known to be safe (`WORDS`). Of any other string, a principal with the right `rows` gets the text,
without what looks like a secret; one without it gets the class of the error, and its place. Start with `seen_by`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from databus.core import ConfigError, DatabusError, FatalError, InputError, ServiceUnavailable
from databus.dashboard._rights import DashboardRight, Principal
from databus.operate import WORDS, hide_in_text

_PLACE: Final = re.compile(
    r"((?:outputs|inputs|filters|sources)\.[\w.-]{1,100}|[\w$.-]{1,100}/[\w$.-]{1,200})(?=[:,]? |:?$)"
)
_ERROR: Final = re.compile(r"[A-Z]\w{0,60}")
_STATEMENT: Final = re.compile(
    r"\s*((?:create|alter|drop|rename|truncate)(?:\s+(?:temporary|table|index|view)){1,2})\b", re.I
)
"""The words with which a DDL statement begins, before the first name."""
_OWN_WORDS: Final = frozenset({"throttled", "rebuilt"})
"""Events whose messages name only tables and limits."""
_CONFIG_ERROR: Final = ConfigError.__name__
_CHARS_MAX: Final = 2_000
_LOOK_BEHIND_CHARS: Final = 2_000
"""A secret that begins before the cut may end so far behind it, and is still found."""


def text_for(principal: Principal, error: str, message: str) -> str:
    """An error's message, if the principal may see it; else its class, and the first place that it names. Who may see a
    pipeline's file may see its mistakes too.

    >>> from databus.dashboard._rights import OWNER
    >>> ann = Principal("ann", frozenset({DashboardRight.SEE}), frozenset())
    >>> text_for(ann, "Unrepresentable", "shop/main.t: 'secret' is no date")
    'Unrepresentable at shop/main.t (the right `rows` shows the message)'
    >>> text_for(OWNER, "Unrepresentable", "shop/main.t: 'secret' is no date")
    "shop/main.t: 'secret' is no date"
    >>> text_for(OWNER, "ServiceUnavailable", "mysql://root:hunter2@db: refused")
    'mysql://(hidden)@db: refused'
    """
    if not message:
        return message
    if DashboardRight.ROWS in principal.rights or (
        error == _CONFIG_ERROR and DashboardRight.CONTROL in principal.rights
    ):
        return _bounded(hide_in_text(message[: _CHARS_MAX + _LOOK_BEHIND_CHARS]), len(message))
    place = _PLACE.match(message)
    where = f" at {place[1]}" if place is not None else ""
    return f"{error if _ERROR.fullmatch(error) else 'an error'}{where} (the right `rows` shows the message)"


def statement_for(principal: Principal, ddl: str) -> str:
    """A DDL statement, if the principal may see rows: its defaults, comments and checks may hold values. Else its first
    words; the table is beside it.

    >>> ann = Principal("ann", frozenset({DashboardRight.SEE}), frozenset())
    >>> statement_for(ann, "ALTER TABLE t ADD c text DEFAULT 'secret'")
    'ALTER TABLE (the right `rows` shows the statement)'
    """
    if DashboardRight.ROWS in principal.rights:
        return text_for(principal, "", ddl)
    words = _STATEMENT.match(ddl)
    first = "a statement" if words is None else " ".join(words[1].upper().split())
    return f"{first} (the right `rows` shows the statement)"


def seen_by(principal: Principal, value: Any, name: str = "", error: str = "") -> Any:
    """A value of a part's answer, with each string of a field that is not safe as `text_for` returns it; long ones are
    cut.

    >>> ann = Principal("ann", frozenset({DashboardRight.SEE}), frozenset())
    >>> seen_by(ann, {"refused": 1, "error": "Refused", "reasons": {"'secret'": 1}, "message": "row 'secret'"})
    {'refused': 1, 'error': 'Refused', 'message': 'Refused (the right `rows` shows the message)'}
    """
    if isinstance(value, str):
        if name == "ddl":
            return statement_for(principal, value)
        error = _CONFIG_ERROR if name == "problem" else error  # a mistake in the file: who may reload it may see it
        return _bounded(value, len(value)) if name in WORDS else text_for(principal, error, value)
    if isinstance(value, list):
        return [seen_by(principal, inner, name, error) for inner in value]
    if not isinstance(value, Mapping):
        return value
    error = str(value.get("error") or error)
    return {
        _bounded(str(key), len(str(key))): seen_by(principal, inner, str(key), error)
        for key, inner in value.items()
        if key != "reasons" or DashboardRight.ROWS in principal.rights  # of a target; its keys may quote rows
    }


def _bounded(text: str, chars: int) -> str:
    """Text cut to what goes to each tab once a second: a message may quote a whole row. chars: its full length."""
    return text if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]}… ({chars} characters)"


def event_for(principal: Principal, event: Mapping[str, Any]) -> Any:
    """An event of a journal."""
    if event.get("event") in _OWN_WORDS:
        return event
    return seen_by(principal, event)


def entry_for(principal: Principal, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry of an audit log, whose result is `done`, or an error with its class before it."""
    error, colon, message = str(entry.get("result", "")).partition(": ")
    if not colon:
        return entry
    text = text_for(principal, error, message)
    return {**entry, "result": f"{error}: {text}" if DashboardRight.ROWS in principal.rights else text}


def error_for(principal: Principal, error: Exception) -> DatabusError:
    """An error of a part, or of asking it, in the words that a principal may see.

    An error about the request quotes nothing else, so it stays; a mistake in a configuration may quote the file.
    """
    is_of_request = isinstance(error, InputError) and not isinstance(error, ConfigError)
    name, message = type(error).__name__, str(error)
    text = hide_in_text(message) if is_of_request else text_for(principal, name, message)
    if isinstance(error, DatabusError) and text == message:
        return error
    kind = FatalError if isinstance(error, DatabusError) and not error.retryable else ServiceUnavailable
    status = error.http_status if isinstance(error, DatabusError) else kind.http_status
    # A new class of the same name and status: the constructor of the original may need more than a text.
    shown: DatabusError = type(name, (kind,), {"http_status": status})(text)
    return shown
