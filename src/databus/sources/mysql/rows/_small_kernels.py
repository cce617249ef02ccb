"""Kernels of one small rows event: places in an arena, and from there the body of an Arrow IPC message.

`program` is a plan's, as in `_program`; buffers of a body begin at multiples of 8, with zeros between them.
"""

import numpy as np
from numba import int8, int64, uint8
from numpy.typing import NDArray

from databus.sources.mysql._compile import kernel, part, read_only
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._memory import Bytes, Words, address, load8, store8, store32, store64

_ALIGNED = 64
_SLACK = 64  # as in `_decode`
_BYTES, _WORDS, _KINDS = read_only(uint8), read_only(int64), read_only(int8)


@part
def _padded(size: int) -> int:
    return (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED


@kernel(int64(int64[:, ::1], _WORDS, int64, int64))
def place(program: Words, totals: Words, images: int, base: int) -> int:
    """Give each column its places in an arena that begins at `base`; returns the bytes that it takes.

    totals: the bytes of each column of variable size, as `measure` returned them.
    """
    at = 0
    bits = _padded((images + 7) // 8)
    for column in range(program.shape[0]):
        op = program[column, ops.OP]
        if op == ops.SKIP:
            continue
        program[column, ops.VALID] = base + at
        at += bits
        program[column, ops.OUT] = base + at
        program[column, ops.NULLS] = program[column, ops.AT] = 0
        slot = program[column, ops.SLOT]
        if op == ops.BIT:
            at += bits
        elif slot:
            at += _padded(slot * images)
        else:
            at += _padded(4 * (images + 1))
            program[column, ops.TEXT] = base + at
            text = totals[column]
            if op == ops.PADDED:
                text = program[column, ops.A] * images
            elif op == ops.DECIMAL_TEXT:
                groups = program[column, ops.B] + program[column, ops.C]
                text = (program[column, ops.A] + 9 * groups + program[column, ops.D] + 3) * images
            at += _padded(text + _SLACK)
    return at


@part
def _copy(source: int, size: int, entry: int, body: int, at: int) -> int:
    """One buffer: its entry in the message, its bytes and the zeros behind them; returns where the next begins."""
    store64(entry, at)
    store64(entry + 8, size)
    for i in range(size):
        store8(body + at + i, load8(source + i))
    return _end(size, body, at)


@part
def _end(size: int, body: int, at: int) -> int:
    end = at + size
    while end % 8:
        store8(body + end, 0)
        end += 1
    return end


@part
def _node(nodes: int, images: int, nulls: int) -> int:
    store64(nodes, images)
    store64(nodes + 8, nulls)
    return nodes + 16


@kernel(int64(int64[:, ::1], _KINDS, _WORDS, uint8[::1], int64, int64, int64))
def pack(
    program: Words, change_types: NDArray[np.int8], numbers: Words, out: Bytes, nodes: int, entries: int, at: int
) -> int:
    """Write the message's nodes, its buffers' entries and its body, the columns and then the bus's; returns its size.

    numbers: SCN, the last `_seq` before the event, commit time. nodes, entries, at: where those vectors and the body
    begin in `out`.
    """
    images = change_types.size
    base, bits = address(out), (images + 7) // 8
    node, entry, body = base + nodes, base + entries, base + at
    size = 0
    for column in range(program.shape[0]):
        op = program[column, ops.OP]
        if op == ops.SKIP:
            continue
        nulls, values, slot = program[column, ops.NULLS], program[column, ops.OUT], program[column, ops.SLOT]
        node = _node(node, images, nulls)
        size = _copy(program[column, ops.VALID], bits if nulls else 0, entry, body, size)
        entry += 16
        if op == ops.BIT:
            size = _copy(values, bits, entry, body, size)
        elif slot:
            size = _copy(values, slot * images, entry, body, size)
        else:
            size = _copy(values, 4 * (images + 1), entry, body, size)
            entry += 16
            size = _copy(program[column, ops.TEXT], program[column, ops.AT], entry, body, size)
        entry += 16
    for buffer in range(6):
        node = _node(node, images, 0)
        store64(entry, size)
        store64(entry + 8, 0)
        entry += 16
        width = 1 if buffer == 0 else 4 if buffer == 4 else 8
        length = bits if buffer == 5 else width * images
        store64(entry, size)
        store64(entry + 8, length)
        entry += 16
        if buffer == 5:
            for i in range(bits):
                store8(body + size + i, 0)
        else:
            for i in range(images):
                if buffer == 0:
                    store8(body + size + i, change_types[i])
                elif buffer == 4:
                    store32(body + size + 4 * i, 0)
                elif buffer == 2:
                    store64(body + size + 8 * i, numbers[1] + 1 + i)
                else:
                    store64(body + size + 8 * i, numbers[0] if buffer == 1 else numbers[2])
        size = _end(length, body, size)
    return size
