"""What keeps a relay's sources from being captured, said beside what a verb prints: silence would look like quiet."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from databus.core import TransientError, split_physical

if TYPE_CHECKING:
    from databus.link import RelayClient

_LOOK_S: Final = 2.0
_WELL: Final = frozenset({"running", "shutdown"})


@contextmanager
def trouble_told(relay: "RelayClient", tables: Sequence[str] | None, say: Callable[[str], None]) -> Iterator[None]:
    """Say what each source's trouble is, at once, and whenever it changes until the block ends.

    tables: as the verb was given them; sources that none of them can be of are left out. Raises what asking the relay
    raises the first time; later it may be away, which who follows it finds out too.
    """
    client = relay.clone()
    told: dict[str, str] = {}
    _tell(client.states(), tables, told, say)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            try:
                _tell(client.states(), tables, told, say)
            except TransientError:
                continue

    threading.Thread(target=look, name="trouble", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _tell(
    states: Sequence[Mapping[str, Any]],
    tables: Sequence[str] | None,
    told: dict[str, str],
    say: Callable[[str], None],
) -> None:
    for state in states:
        name = str(state["name"])
        if tables is not None and not any(_may_be_of(each, name) for each in tables):
            continue
        now = trouble_of(state)
        before = told.get(name, "")
        if now != before:
            say(now or f"{name}: running again")
            told[name] = now


def _may_be_of(table: str, physical: str) -> bool:
    owner, _ = split_physical(table)
    return fnmatchcase(physical, owner or "*")


def trouble_of(state: Mapping[str, Any]) -> str:
    """One line about a source that is not captured now; empty for one that is."""
    status = str(state["status"])
    if status in _WELL:
        return ""
    reason = " ".join(str(state["message"] or "").split())
    return f"{state['name']}: {status}, so no changes come now{f': {reason}' if reason else ''}"
