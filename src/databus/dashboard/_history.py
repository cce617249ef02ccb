"""Numbers of nodes over days, in one file of a fixed size, which survives a restart and a kill.

    64 bytes        magic and version
    512 a node      its name
    590 KiB a node  8,640 points, one each 10 s, and 21,600, one each 2 min: the last 24 hours, and the last 30 days

A point is a second and four numbers, NaN where one is unknown. Its place follows from its second, so a new point
overwrites that of a day (a month) ago; a point whose second does not belong to its place is ignored. No place in the
file refers to another, so whatever a kill leaves is valid. When the file is full, the node that was not written for
longest makes room. The file is sparse: it takes space as it is written.
"""

import fcntl
import math
import os
import struct
import threading
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from databus.operate import logger_of

MEASURES: Final = ("rows_s", "bytes_s", "lag_s", "lag_rows")
FINE_S: Final = 10
COARSE_S: Final = 120
BYTES_MAX: Final = 64 << 20
POINTS_MAX: Final = 2_000
"""In one answer, for one node."""
_FINE: Final = 24 * 3_600 // FINE_S
_COARSE: Final = 30 * 86_400 // COARSE_S
_POINT: Final = struct.Struct(f"<I{len(MEASURES)}f")
_NODE_BYTES: Final = (_FINE + _COARSE) * _POINT.size
_NAME_BYTES: Final = 512
_MAGIC: Final = b"databus history 1\n".ljust(64)
NODES_MAX: Final = (BYTES_MAX - len(_MAGIC)) // (_NODE_BYTES + _NAME_BYTES)
_POINTS_AT: Final = len(_MAGIC) + NODES_MAX * _NAME_BYTES

Values = tuple[float, ...]

_logger = logger_of("databus.dashboard")


class History:
    """Safe in any thread. folder: where the file is. With None, or if another dashboard uses that file, the history is
    in a temporary file that ends with the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._lock = threading.Lock()
        self._file = _opened(folder) or TemporaryFile(buffering=0)  # noqa: SIM115 - `close` does
        self._fd = self._file.fileno()
        self.trouble = ""
        """Why nothing is written; empty while all is well."""
        self._numbers = self._names()
        self._written_s: dict[str, int] = {}  # since the start

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def put(self, node: str, at_s: int, values: Mapping[str, float | None]) -> None:
        """Note a point; every 10 seconds, or less often."""
        point = tuple(math.nan if values.get(name) is None else float(values[name] or 0.0) for name in MEASURES)
        if all(math.isnan(value) for value in point):
            return
        with self._lock:
            try:
                number = self._number_of(node, at_s)
                if number is None:
                    return
                second = at_s - at_s % FINE_S
                self._write(number, second // FINE_S % _FINE, second, point)
                before = self._written_s.get(node, second) // COARSE_S
                if before != second // COARSE_S:
                    self._put_coarse(number, before * COARSE_S)
                self._written_s[node] = second
                self.trouble = ""
            except OSError as error:  # such as of a full disk: charts have a gap there
                if not self.trouble:
                    _logger.warning("the history of charts is not written", why=str(error))
                self.trouble = f"the history of charts is not written: {error}"

    def of(self, node: str, since_s: int, until_s: int) -> dict[str, Any] | None:
        """Columns: `at_us`, and one for each measure that has a value; at most `POINTS_MAX` points, each the mean of a
        span of time. None for a node without a point.
        """
        with self._lock:
            number = self._numbers.get(node)
            if number is None:
                return None
            is_fine = until_s - since_s <= 24 * 3_600
            points = self._read(number, since_s, until_s, is_fine=is_fine)
        every_s = FINE_S if is_fine else COARSE_S
        return _columns(points, every_s * max(-(-(until_s - since_s) // (POINTS_MAX * every_s)), 1))

    def _put_coarse(self, number: int, second: int) -> None:
        """Write the mean of the points of two minutes."""
        points = self._read(number, second, second + COARSE_S - 1, is_fine=True)
        if points:
            self._write(number, _FINE + second // COARSE_S % _COARSE, second, _mean([values for _, values in points]))

    def _write(self, number: int, at: int, second: int, values: Values) -> None:
        os.pwrite(self._fd, _POINT.pack(second, *values), _POINTS_AT + number * _NODE_BYTES + at * _POINT.size)

    def _read(self, number: int, since_s: int, until_s: int, *, is_fine: bool) -> list[tuple[int, Values]]:
        """The points from a time on up to another, in their order."""
        every_s, count, begin = (FINE_S, _FINE, 0) if is_fine else (COARSE_S, _COARSE, _FINE)
        first, last = max(since_s, until_s - every_s * count + 1, 0) // every_s, until_s // every_s
        pieces, offset = [], _POINTS_AT + number * _NODE_BYTES + begin * _POINT.size
        at = first
        while at <= last:
            run = min(last - at + 1, count - at % count)
            pieces.append((at, os.pread(self._fd, run * _POINT.size, offset + at % count * _POINT.size)))
            at += run
        points = []
        for begins, piece in pieces:
            whole = piece[: len(piece) // _POINT.size * _POINT.size]  # the file may end before
            for slot, (second, *values) in enumerate(_POINT.iter_unpack(whole), begins):
                if second and second // every_s == slot and since_s <= second <= until_s:
                    points.append((second, tuple(values)))
        return points

    def _number_of(self, node: str, at_s: int) -> int | None:
        """The number of a node's place. A new node takes a free one, or that of the node not written for longest."""
        number = self._numbers.get(node)
        if number is not None:
            return number
        name = node.encode(errors="backslashreplace")
        if len(name) > _NAME_BYTES:
            return None
        taken = set(self._numbers.values())
        number = next((place for place in range(NODES_MAX) if place not in taken), None)
        if number is None:
            oldest = min(self._numbers, key=lambda known: self._last_s(known, at_s))
            if self._last_s(oldest, at_s) > at_s - 3_600:
                return None  # all are in use: a node of the last hour is not thrown away for a new one
            number = self._numbers.pop(oldest)
            self._written_s.pop(oldest, None)
            # Before the name: a kill in between leaves the old name without points, not the new one with its points.
            os.pwrite(self._fd, bytes(_NODE_BYTES), _POINTS_AT + number * _NODE_BYTES)
        os.pwrite(self._fd, name.ljust(_NAME_BYTES, b"\0"), len(_MAGIC) + number * _NAME_BYTES)
        self._numbers[node] = number
        return number

    def _last_s(self, node: str, now_s: int) -> int:
        """When a node was written last: exact since the start, else by the points of two minutes."""
        if node in self._written_s:
            return self._written_s[node]
        points = self._read(self._numbers[node], now_s - 30 * 86_400, now_s, is_fine=False)
        return points[-1][0] if points else 0

    def _names(self) -> dict[str, int]:
        table = os.pread(self._fd, NODES_MAX * _NAME_BYTES, len(_MAGIC))
        names = [table[at : at + _NAME_BYTES].rstrip(b"\0") for at in range(0, len(table), _NAME_BYTES)]
        return {name.decode(errors="replace"): number for number, name in enumerate(names) if name}


def _opened(folder: Path | None) -> "IO[bytes] | None":
    """The file, locked; None if it cannot be opened, or is another dashboard's. A file of another kind is renamed."""
    if folder is None:
        return None
    path = folder / "history.bin"
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
    except OSError as error:
        _logger.warning("the history of charts is kept until the end of this dashboard", path=str(path), why=str(error))
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        magic = os.pread(file.fileno(), len(_MAGIC), 0)
        if magic and magic != _MAGIC:
            path.replace(path.with_suffix(".unknown"))
            file.close()
            return _opened(folder)
        os.pwrite(file.fileno(), _MAGIC, 0)
    except OSError as error:
        why = "another dashboard has it" if isinstance(error, BlockingIOError) else str(error)
        _logger.warning("the history of charts is kept until the end of this dashboard", path=str(path), why=why)
        with suppress(OSError):
            file.close()
        return None
    return file


def _columns(points: list[tuple[int, Values]], every_s: int) -> dict[str, Any]:
    """Points as columns; those of the same `every_s` seconds become one."""
    near: dict[int, list[Values]] = {}
    for second, values in points:
        near.setdefault(second // every_s, []).append(values)
    means = [_mean(points) for points in near.values()]
    columns: dict[str, Any] = {"at_us": [slot * every_s * 1_000_000 for slot in near]}
    for number, name in enumerate(MEASURES):
        column = [None if math.isnan(mean[number]) else round(mean[number], 3) for mean in means]
        if any(value is not None for value in column):
            columns[name] = column
    return columns


def _mean(points: list[Values]) -> Values:
    if len(points) == 1:
        return points[0]
    means = array("d")
    for values in zip(*points, strict=True):
        known = [value for value in values if not math.isnan(value)]
        means.append(sum(known) / len(known) if known else math.nan)
    return tuple(means)
