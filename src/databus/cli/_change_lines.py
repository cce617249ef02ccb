"""Changes as people read them: when, which table, what, its key, and what is otherwise than before; one line each."""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from databus.client import ControlEvent, Row, Window

_VALUE_CHARS_MAX: Final = 60
_WORDS: Final = {"update_postimage": "update"}


def change_lines(windows: "Iterable[Window]") -> Iterator[str]:
    """A line for each change and each control."""
    for window in windows:
        at = dt.datetime.fromtimestamp(window.commit_us / 1e6, dt.UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        if window.control is not None:
            yield f"{at}  {window.control.source}  {_said(window.control)}"
        for row in window.rows():
            word = "read" if window.is_snapshot else _WORDS.get(row.change_type.label, row.change_type.label)
            yield f"{at}  {row.source}  {word}  {_changed(row)}".rstrip()


def _said(control: "ControlEvent") -> str:
    told = {name: value for name, value in control.body.items() if name in ("ddl", "reason", "complete") and value}
    return f"{control.kind}  {_named(told)}".rstrip()


def _changed(row: "Row") -> str:
    """Key and values; of an update only what has changed, of a delete the key, where there is one."""
    values = row.values
    key = {name: values[name] for name in row.table.key}
    rest = {name: value for name, value in values.items() if name not in key}
    if row.before is not None and row.after is not None:
        before, after = row.before, row.after
        changed = [name for name in after if name not in before or before[name] != after[name]]
        rest_text = ", ".join(f"{name}: {_value(before.get(name))} → {_value(after[name])}" for name in changed)
    else:
        rest_text = "" if row.after is None and key else _named(rest)
    return "  ".join(each for each in (_named(key), rest_text) if each)


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    """As JSON, cut, and without what a terminal would take for a command."""
    from databus.formats import to_json_value

    text = json.dumps(to_json_value(value), ensure_ascii=False)
    if len(text) > _VALUE_CHARS_MAX:
        text = f"{text[:_VALUE_CHARS_MAX]}... ({len(text):,} characters)"
    return "".join(each if each.isprintable() else "?" for each in text)
