"""The journal of batches: for each batch of an output, from where to where it goes, and what was written.

For `databus trace` and `databus audit`; nothing rests on it, and its loss costs only history.

    {"at_us": ..., "query": "q", "physical": "shop", "start": [7, 9], "end": [12, 3], "only": [], "ms": 31.0,
     "rows": {"main.orders": 5}, "marks": {"shop/main.orders": "4"}, "epoch": 3}

`only` has the tables of a batch that lets some catch up, in a range of their own. A line stands here before the ledger
of the output says the same. Nothing is recorded of a row.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from databus.operate import logger_of
from databus.pipeline.telling._journal import append_line, read_lines

FOLDER: Final = "batches"
_BYTES_MAX: Final = 32 << 20
"""Of one file. With the one before there are up to twice as many, of an output."""
_NAMED: Final = frozenset({"event", "output"})

_logger = logger_of("databus.pipeline")


class BatchJournal:
    """Appends to the journals of one state folder, which its caller owns. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._is_in_trouble = False

    def take(self, event: Mapping[str, Any]) -> None:
        """Note a batch; other events are nothing to it."""
        if event["event"] != "advanced":
            return
        line = {name: value for name, value in event.items() if name not in _NAMED}
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        before, path = paths_of(self._folder, event["output"])
        try:
            self._folder.mkdir(exist_ok=True)
            append_line(path, text, _BYTES_MAX, before)
            self._is_in_trouble = False
        except OSError as error:  # a full disk: outputs say so themselves
            if not self._is_in_trouble:
                _logger.warning("the journal of batches could not be written", path=str(path), message=str(error))
            self._is_in_trouble = True


def read_batches(state: Path, output: str) -> Iterator[dict[str, Any]]:
    """The batches of an output of a pipeline with this state, the oldest first."""
    return read_lines(paths_of(state / FOLDER, output))


def paths_of(folder: Path, output: str) -> tuple[Path, Path]:
    """The files of an output, the older one first."""
    return folder / f"{output}.1.jsonl", folder / f"{output}.jsonl"
