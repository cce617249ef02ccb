"""Lines for people and pipes: each change as one line of JSON, in order."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from databus.client._consumer import AnyWindow
from databus.client._window import ControlEvent
from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ
from databus.formats import to_json_value


def tail_lines(windows: Iterable[AnyWindow]) -> Iterator[str]:
    """One line of JSON for each control and each change, without a line feed; `before` only for an update.

    A line with the change type `restart` says that a transaction of which a part was printed comes again as a whole.
    """
    for window in windows:
        if window.restarts:
            yield _dumps({"source": window.physical, CHANGE_TYPE: "restart", COMMIT_VERSION: window.scn})
        if window.control is not None:
            yield _dumps(_of_control(window.control))
        for row in window.rows():
            line: dict[str, Any] = {
                "source": row.source,
                CHANGE_TYPE: row.change_type.label,
                COMMIT_VERSION: row.scn,
                SEQ: row.seq,
            }
            if row.before is not None and row.after is not None:
                line["before"] = {name: to_json_value(value) for name, value in row.before.items()}
            line["row"] = {name: to_json_value(value) for name, value in row.values.items()}
            yield _dumps(line)


def _of_control(control: ControlEvent) -> dict[str, Any]:
    return {
        "source": control.source,
        CHANGE_TYPE: "control",
        COMMIT_VERSION: control.pair[0],
        SEQ: control.pair[1],
        "control": dict(control.body),
    }


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
