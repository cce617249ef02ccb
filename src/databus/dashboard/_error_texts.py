"""Error texts for those who may not see values of rows: which error it is, and where; a message may hold a row."""

import re
from collections.abc import Mapping
from typing import Any, Final

from databus.dashboard._rights import Principal, Right

_PLACE: Final = re.compile(r"(?:outputs|inputs|filters|sources)\.[\w.-]{1,100}|[\w$.-]{1,100}/[\w$.-]{1,200}")
_OWN_WORDS: Final = frozenset({"throttled", "rebuilt"})
"""Events whose messages name tables and limits alone."""


def text_for(principal: Principal, error: str, message: str) -> str:
    """An error's message, for whom it may be shown to; else its class, and the first place that it names.

    >>> from databus.dashboard._rights import OWNER
    >>> ann = Principal("ann", frozenset({Right.SEE}), frozenset())
    >>> text_for(ann, "Unrepresentable", "shop/main.t: 'secret' is no date")
    'Unrepresentable at shop/main.t (the right `rows` shows the message)'
    >>> text_for(OWNER, "Unrepresentable", "shop/main.t: 'secret' is no date")
    "shop/main.t: 'secret' is no date"
    """
    if not message or Right.ROWS in principal.rights:
        return message
    place = _PLACE.match(message)
    where = f" at {place[0]}" if place is not None else ""
    return f"{error or 'an error'}{where} (the right `rows` shows the message)"


def result_for(principal: Principal, result: Any) -> Any:
    """What a part has answered to a command: states of sources and reasons of targets have messages in them.

    >>> from databus.dashboard._rights import OWNER
    >>> ann = Principal("ann", frozenset({Right.CONTROL}), frozenset())
    >>> result_for(ann, {"refused": 1, "reasons": {"'secret' is no date": 1}, "message": ""})
    {'refused': 1, 'message': ''}
    """
    if Right.ROWS in principal.rights:
        return result
    if isinstance(result, list):
        return [result_for(principal, each) for each in result]
    if not isinstance(result, Mapping):
        return result
    error = str(result.get("error") or "")
    return {
        name: text_for(principal, error, each) if name == "message" and isinstance(each, str) else each
        for name, each in result.items()
        if name != "reasons"
    }


def event_for(principal: Principal, event: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event of a journal."""
    if "message" not in event or event.get("event") in _OWN_WORDS:
        return event
    return {**event, "message": text_for(principal, str(event.get("error", "")), str(event["message"]))}


def entry_for(principal: Principal, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry of an audit log, whose result is `done`, or an error with its class before it."""
    error, colon, message = str(entry.get("result", "")).partition(": ")
    if not colon:
        return entry
    text = text_for(principal, error, message)
    return entry if text == message else {**entry, "result": text}
