"""Lines for people and pipes: changes as JSON, in order."""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from databus.client._consumer import AnyWindow
from databus.core import COMMIT_VERSION, SOURCE, ChangeType
from databus.formats import BigIntegers, change_lines, control_line, json_line

_RESTART: Final = "_restart"


def tail_lines(
    windows: Iterable[AnyWindow], changes_max: int | None = None, big_integers: Literal["number", "string"] = "number"
) -> Iterator[str]:
    """Lines of JSON, without line feeds: those that the relay's `/stream` sends. docs/http.md, "Changes as JSON".

    changes_max: end after so many changes and controls; the two lines of an update count as one. big_integers: how
    integers beyond 2^53 are written. A line with `_restart` says that a transaction of which a part was printed comes
    again as a whole.
    """
    form = BigIntegers(big_integers)
    left = changes_max
    for window in windows:
        if window.restarts:
            yield json_line({SOURCE: window.physical, _RESTART: True, COMMIT_VERSION: window.scn}, form)
        for ends_change, line in _lines_of(window, form):
            yield line
            if left is not None and ends_change and (left := left - 1) <= 0:
                return


def _lines_of(window: AnyWindow, form: BigIntegers) -> Iterator[tuple[bool, str]]:
    """Each line, and whether the next belongs to another change."""
    control = window.control
    if control is not None:
        yield True, control_line(control.source, control.body, control.pair, form)
    for line in change_lines([(changes.source, changes.batch) for changes in window.changes()], form):
        yield line.change_type != ChangeType.UPDATE_PREIMAGE.label, line.text
