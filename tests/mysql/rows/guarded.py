"""Memory with walls: whoever reads or writes one byte beyond it is killed by the system.

For kernels that work on addresses, where no compiler can add a check. `guarded` and `exact` are for what a kernel
reads; `Walls` puts all that the decoders of rows and of results allocate between walls too, each column's part of an
arena by itself, each with no more than the room that the kernels are promised.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from databus.sources.mysql.rows import DecodePlan, _decode, _json, _text
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.snapshot import _result_shape, _results

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NOTHING: Final = 0
_PAGE: Final = mmap.PAGESIZE
_ANY: Final = 0xA5  # what is in memory that nobody has written to


def _pages(size: int) -> int:
    return (size + _PAGE - 1) // _PAGE


def _protected(size: int, walls: list[int]) -> NDArray[np.uint8]:
    """Whole pages, those that begin at `walls` not to be touched."""
    whole = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    for wall in walls:
        if _LIBC.mprotect(ctypes.c_void_p(whole.ctypes.data + wall), ctypes.c_size_t(_PAGE), _NOTHING):
            raise OSError(ctypes.get_errno(), "mprotect")
    return whole


def _between(size: int, *, is_behind: bool) -> NDArray[np.uint8]:
    """So many bytes: a wall right behind them, or right in front."""
    pages = _pages(size)
    whole = _protected((pages + 2) * _PAGE, [0, (pages + 1) * _PAGE])
    start = (pages + 1) * _PAGE - size if is_behind else _PAGE
    return whole[start : start + size]


def guarded(data: bytes, *, is_behind: bool = True) -> NDArray[np.uint8]:
    """A copy of `data` with a wall right behind it, or right in front of it."""
    found = _between(len(data), is_behind=is_behind)
    found[:] = np.frombuffer(data, dtype=np.uint8)
    return found


def exact(raw: pa.Array, *, is_behind: bool = True) -> pa.Array:
    """The same array, with nothing that may be read behind its values: a kernel that writes some has room for words."""
    buffers = [each and pa.py_buffer(guarded(each.to_pybytes(), is_behind=is_behind)) for each in raw.buffers()]
    return pa.Array.from_buffers(raw.type, len(raw), buffers, raw.null_count, raw.offset)


class Walls:
    """What the decoders allocate stands between walls while `built`. is_behind: which end of it is exact."""

    def __init__(self) -> None:
        self.is_behind = True
        self._arena: list[int] = []

    @contextmanager
    def built(self) -> Iterator["Walls"]:
        """Everything that is decoded inside."""
        final_array: Any = _result_shape.final_array  # type: ignore[attr-defined]  # not its own: it is replaced where it is used
        array = _decode._array

        def after(raw: pa.Array) -> pa.Array:
            return exact(raw, is_behind=self.is_behind)

        with pytest.MonkeyPatch.context() as patch:
            for module in (_decode, _json, _text, _results, _result_shape):
                patch.setattr(module, "np", _Numpy(self))
            patch.setattr(pa, "allocate_buffer", self._allocate)
            patch.setattr(_decode, "_place_columns", self._place_columns)
            patch.setattr(_decode, "_array", lambda *words: after(array(*words)))
            patch.setattr(
                _result_shape,
                "final_array",
                lambda column, kind, raw, *more: final_array(column, kind, after(raw), *more),
            )
            yield self

    def items(self, shape: int | tuple[int, ...], kind: Any) -> NDArray[Any]:
        """An array, of what was in memory."""
        count = int(np.prod(shape))
        found = _between(count * np.dtype(kind).itemsize, is_behind=self.is_behind)
        found[:] = _ANY
        return found.view(kind).reshape(shape)

    def _allocate(self, size: int, *_: Any, resizable: bool = False) -> Any:
        if self._arena:
            walls, self._arena = self._arena, []
            return pa.py_buffer(_protected(size, walls))
        return _Resizable(self, size) if resizable else pa.py_buffer(self.items(size, np.uint8))

    def _place_columns(self, plan: DecodePlan, text_bytes: list[int], images: int) -> tuple[NDArray[np.int64], int]:
        """As the real one, but each part by itself."""
        end, walls = 0, []

        def part(size: int) -> int:
            nonlocal end
            walls.append(end)
            begin, end = end + _PAGE, end + _PAGE * (1 + _pages(size))
            return end - size if self.is_behind else begin

        program = plan.program.copy()
        for fields, layout, text in zip(program, plan.layouts, text_bytes, strict=True):
            bits = (images + 7) // 8
            if layout.shape == "skipped":
                continue
            fields[ops.VALID] = part(bits)
            sizes = {"bits": bits, "fixed": layout.slot * images, "text": 4 * (images + 1)}
            fields[ops.OUT] = part(sizes[layout.shape])
            if layout.shape == "text":
                fields[ops.TEXT] = part(text + _decode._SLACK)
        self._arena = [*walls, end]
        return program, end + _PAGE


class _Numpy:
    """NumPy, but for what is allocated."""

    def __init__(self, walls: Walls) -> None:
        self._walls = walls

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return self._walls.items(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        found = self._walls.items(shape, dtype)
        found[:] = 0
        return found

    def zeros_like(self, other: NDArray[Any]) -> NDArray[Any]:
        return self.zeros(other.shape, other.dtype)


class _Resizable:
    """As much of Arrow's resizable buffer as the decoders use."""

    def __init__(self, walls: Walls, size: int) -> None:
        self._walls = walls
        self._memory = walls.items(size, np.uint8)

    @property
    def address(self) -> int:
        return int(self._memory.ctypes.data)

    @property
    def size(self) -> int:
        return len(self._memory)

    def resize(self, size: int) -> None:
        memory, self._memory = self._memory, self._walls.items(size, np.uint8)
        self._memory[: len(memory)] = memory

    def slice(self, at: int, size: int) -> pa.Buffer:
        return pa.py_buffer(self._memory[at : at + size])
