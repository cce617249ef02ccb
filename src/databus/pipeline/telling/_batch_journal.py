"""The journal of batches: for each batch of an output, its range in the log and its counts.

`databus trace` and `databus audit` read it; the pipeline itself does not need it, so its loss costs only history.

    {"at_us": ..., "query": "q", "physical": "shop", "start": [7, 9], "end": [12, 3], "only": [], "ms": 31.0,
     "rows": {"main.orders": 5}, "counts": {"main.orders": {"in": 7, "dropped": {"filters.late": 2}}}, "bytes": 9113,
     "spent_ms": {"fetch": 3.1, "decode": 1.0, "filter": 0.4, "write": 8.2, "commit": 5.0}, "behind": {},
     "marks": {"shop/main.orders": "4"}, "epoch": 3, "choice": {...}}

`rows` were written. `counts` has the tables of which not all rows were written, with `already` (in the target) and
`letters` too, each as it was counted: if in = dropped + already + letters + rows does not hold, rows were lost. It is
null where only Spark saw the rows. `only` names the tables of a catch-up batch, which has a range of its own; `behind`
names the tables whose place is below the batch's end, and that place. `choice` is the tables that the output takes; it
is written when it changes. A line is written before the output's ledger says the same. Rows themselves are not
recorded.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from databus.operate import logger_of
from databus.pipeline.telling._journal import append_line, make_room, read_lines

FOLDER: Final = "batches"
_BYTES_MAX: Final = 32 << 20
"""Of one file. An output has two: this one, and the one before it."""
_TAIL_BYTES: Final = 1 << 16
_IMPLIED: Final = frozenset({"event", "output"})
"""Fields of the event that the file's name says already."""

_logger = logger_of("databus.pipeline")


class BatchJournal:
    """Appends to the journals of one state folder, which its caller owns. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._choices: dict[tuple[str, str], Any] = {}  # by output and physical source, as written last
        self._is_in_trouble = False

    def take(self, event: Mapping[str, Any]) -> None:
        """Write down a batch; other events are ignored."""
        if event["event"] != "advanced":
            return
        output = event["output"]
        before, path = paths_of(self._folder, output)
        chain = output, event["physical"]
        try:
            self._folder.mkdir(exist_ok=True)
            text = self._text(event, with_choice=event.get("choice") != self._choices.get(chain))
            if make_room(path, len(text), _BYTES_MAX, before):
                self._choices = {other: choice for other, choice in self._choices.items() if other[0] != output}
                text = self._text(event, with_choice=True)  # each file can be read by itself
            append_line(path, text, _BYTES_MAX, before)
            self._choices[chain] = event.get("choice")
            self._is_in_trouble = False
        except OSError as error:  # a full disk: outputs report that themselves
            if not self._is_in_trouble:
                _logger.warning("the journal of batches could not be written", path=str(path), message=str(error))
            self._is_in_trouble = True

    def _text(self, event: Mapping[str, Any], *, with_choice: bool) -> bytes:
        omitted = _IMPLIED if with_choice else {*_IMPLIED, "choice"}
        line = {name: value for name, value in event.items() if name not in omitted}
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def read_batches(state: Path, output: str) -> Iterator[dict[str, Any]]:
    """The batches of an output of a pipeline with this state, the oldest first."""
    return read_lines(paths_of(state / FOLDER, output))


def last_batches(state: Path, output: str) -> list[dict[str, Any]]:
    """For each physical source, the output's last main batch and the catch-up batches after it, as far as they are in
    the journal's last `_TAIL_BYTES`.
    """
    _, path = paths_of(state / FOLDER, output)
    lines_of: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines([path], _TAIL_BYTES):
        if not line["only"]:
            lines_of[line["physical"]] = [line]
        elif line["physical"] in lines_of:
            lines_of[line["physical"]].append(line)
    return [line for lines in lines_of.values() for line in lines]


def paths_of(folder: Path, output: str) -> tuple[Path, Path]:
    """The files of an output, the older one first."""
    return folder / f"{output}.1.jsonl", folder / f"{output}.jsonl"
