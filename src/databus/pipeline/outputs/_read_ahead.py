"""Batches read by a thread of their own, a few ahead of who takes them.

Delta's engine takes batches to write in its own threads, in which it refuses to be asked for others: so what rewrites a
table of an object store from its own rows must read them elsewhere.
"""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

_AHEAD_BATCHES_MAX: Final = 2
_ASK_S: Final = 0.1


def read_ahead(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches. An error in reading one is raised in its place."""
    ready: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(_AHEAD_BATCHES_MAX)
    is_over = threading.Event()

    def give(each: pa.RecordBatch | BaseException | None) -> None:
        while not is_over.is_set():
            try:
                ready.put(each, timeout=_ASK_S)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            for each in batches:
                give(each)
                if is_over.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the batch would be; the engine's panics are such
            give(error)
        give(None)

    threading.Thread(target=read, name="reading a table ahead", daemon=True).start()
    try:
        while (each := ready.get()) is not None:
            if isinstance(each, BaseException):
                raise each
            yield each
    finally:
        is_over.set()
