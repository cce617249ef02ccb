"""Rows dealt over shares, so that one share at a time can be looked at; those that are many are in files beside."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HELD_BYTES_MAX = 64 << 20

Numbers: TypeAlias = npt.NDArray[np.integer]


class RowShares:
    """A context manager, since there may be files."""

    def __init__(self) -> None:
        self._held: list[tuple[Numbers, pa.Table]] = []
        self._held_bytes = 0
        self._open = ExitStack()
        self._folder: Path | None = None
        self._writers: dict[int, tuple[pa.ipc.RecordBatchStreamWriter, BinaryIO]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, numbers: Numbers, rows: pa.Table) -> None:
        """Add rows, of one schema always. numbers: of each, the number of its share."""
        self._held.append((numbers, rows))
        self._held_bytes += rows.nbytes
        if self._held_bytes > HELD_BYTES_MAX:
            self._spill()

    def each(self) -> Iterator[tuple[int, pa.Table]]:
        """The shares that have rows, with their numbers; the rows are in the order in which they were added."""
        if self._folder is None:
            yield from self._dealt()
            return
        self._spill()
        for number, (writer, file) in sorted(self._writers.items()):
            writer.close()
            file.close()
            with Path(file.name).open("rb") as written:
                yield number, pa.ipc.open_stream(written).read_all()

    def _dealt(self) -> Iterator[tuple[int, pa.Table]]:
        if not self._held:
            return
        numbers = np.concatenate([part for part, _ in self._held])
        rows = pa.concat_tables([part for _, part in self._held])
        self._held, self._held_bytes = [], 0
        order = np.argsort(numbers, kind="stable")
        present, starts = np.unique(numbers[order], return_index=True)
        rows = rows.take(pa.array(order))
        for number, start, end in zip(
            present.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True
        ):
            yield number, rows.slice(start, end - start)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="databus-")))
        for number, rows in self._dealt():
            if number not in self._writers:
                file = self._open.enter_context((self._folder / str(number)).open("wb"))
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writers[number] = pa.ipc.new_stream(file, rows.schema, options=options), file
            self._writers[number][0].write_table(rows)
