"""The journal of batches: for each batch of an output, from where to where it goes, and what was counted of it.

For `databus trace` and `databus audit`; nothing rests on it, and its loss costs only history.

    {"at_us": ..., "query": "q", "physical": "shop", "start": [7, 9], "end": [12, 3], "only": [], "ms": 31.0,
     "rows": {"main.orders": 5}, "counts": {"main.orders": {"in": 7, "dropped": {"filters.late": 2}}}, "bytes": 9113,
     "spent_ms": {"fetch": 3.1, "decode": 1.0, "filter": 0.4, "write": 8.2, "commit": 5.0}, "behind": {},
     "marks": {"shop/main.orders": "4"}, "epoch": 3, "choice": {...}}

`rows` were written. `counts` has the tables of which that was not all, with `already` (in the target) and `letters`
besides: of every table in = dropped + already + letters + rows. It is null where Spark alone has seen the rows. `only`
has the tables of a batch that lets some catch up, in a range of their own; `behind` those that stand below the end
after it, and where. `choice` stands where it is another one than before: the tables that the output takes. A line
stands here before the ledger of the output says the same. Nothing is recorded of a row.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from databus.operate import logger_of
from databus.pipeline.telling._journal import append_line, begins_anew, read_lines

FOLDER: Final = "batches"
_BYTES_MAX: Final = 32 << 20
"""Of one file. With the one before there are up to twice as many, of an output."""
_TAIL_BYTES: Final = 1 << 16
_NAMED: Final = frozenset({"event", "output"})

_logger = logger_of("databus.pipeline")


class BatchJournal:
    """Appends to the journals of one state folder, which its caller owns. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._choices: dict[tuple[str, str], Any] = {}  # by output and physical source, as the file says
        self._is_in_trouble = False

    def take(self, event: Mapping[str, Any]) -> None:
        """Note a batch; other events are nothing to it."""
        if event["event"] != "advanced":
            return
        output = event["output"]
        before, path = paths_of(self._folder, output)
        whose = output, event["physical"]
        try:
            self._folder.mkdir(exist_ok=True)
            text = self._text(event, with_choice=event.get("choice") != self._choices.get(whose))
            if begins_anew(path, len(text), _BYTES_MAX, before):
                self._choices = {each: found for each, found in self._choices.items() if each[0] != output}
                text = self._text(event, with_choice=True)  # a file is read without the one before it
            append_line(path, text, _BYTES_MAX, before)
            self._choices[whose] = event.get("choice")
            self._is_in_trouble = False
        except OSError as error:  # a full disk: outputs say so themselves
            if not self._is_in_trouble:
                _logger.warning("the journal of batches could not be written", path=str(path), message=str(error))
            self._is_in_trouble = True

    def _text(self, event: Mapping[str, Any], *, with_choice: bool) -> bytes:
        left_out = _NAMED if with_choice else {*_NAMED, "choice"}
        line = {name: value for name, value in event.items() if name not in left_out}
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def read_batches(state: Path, output: str) -> Iterator[dict[str, Any]]:
    """The batches of an output of a pipeline with this state, the oldest first."""
    return read_lines(paths_of(state / FOLDER, output))


def last_batches(state: Path, output: str) -> list[dict[str, Any]]:
    """Of each physical source, the last batch of an output over the tables that stand together, and what followed it,
    as far as the end of the journal has them.
    """
    _, path = paths_of(state / FOLDER, output)
    found: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines([path], _TAIL_BYTES):
        if not line["only"]:
            found[line["physical"]] = [line]
        elif line["physical"] in found:
            found[line["physical"]].append(line)
    return [line for lines in found.values() for line in lines]


def paths_of(folder: Path, output: str) -> tuple[Path, Path]:
    """The files of an output, the older one first."""
    return folder / f"{output}.1.jsonl", folder / f"{output}.jsonl"
