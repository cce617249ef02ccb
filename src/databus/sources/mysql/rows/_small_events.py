"""One small rows event, straight into the Arrow IPC stream that a frame carries, and from there a batch.

Where transactions are small, making an Arrow array for each column and having them written costs far more than
decoding. Here the stream is made by kernels, in the form that Arrow itself would give it, from a template for each
table: only lengths, places and bytes differ from one to the next. Tables with columns that are finished in Arrow
(members, JSON, text in other character sets) have no template.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from databus.core import BUS_COLUMNS
from databus.schema import frame_schema
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._decode import ROW_BYTES_MAX
from databus.sources.mysql.rows._plan import DecodePlan
from databus.sources.mysql.rows._row_errors import row_error

SMALL_BYTES: Final = 16 << 10  # of images; more of them cost more than their arrays
_ARENA_BYTES: Final = 256 << 10
_ENDS: Final = b"\xff\xff\xff\xff\0\0\0\0"
_BUS_BYTES_OF_IMAGE: Final = 8 * len(BUS_COLUMNS)
_FIELD_NODE, _BUFFER = 16, 16  # bytes of each in a message


@dataclass(frozen=True, slots=True)
class _Message:
    """The message of a record batch or of a dictionary, and where its fields stand in it."""

    text: bytes
    body_length_at: int
    rows_at: int
    """Where the number of rows stands."""
    nodes_at: int
    buffers_at: int


@dataclass(frozen=True, slots=True)
class SmallBatch:
    """A batch, and the same batch as an IPC stream."""

    batch: pa.RecordBatch
    body: pa.Buffer
    images: int
    """How many row images it holds."""


class SmallEvents:
    """Decodes events of one plan; see this module's first lines. One thread. Made by `small_events`."""

    def __init__(self, plan: DecodePlan) -> None:
        from databus.sources.mysql.rows import _image_kernels, _small_kernels

        self.plan = plan
        self._measure, self._write = _image_kernels.measure, _image_kernels.write
        self._place, self._pack = _small_kernels.place, _small_kernels.pack
        self._head, self._dictionary, self._batch = _template(plan)
        self._program = plan.program.copy()
        self._totals = np.zeros(len(plan.layouts), np.int64)
        self._status = np.zeros(ops.STATUS, np.int64)
        self._counts = np.zeros(1, np.int32)
        self._places = np.empty((len(plan.layouts), ops.ROWS_AT_ONCE), np.int64)
        self._arena: NDArray[np.uint8] = np.empty(_ARENA_BYTES, np.uint8)
        self._differences = np.empty((0, 2), np.int64)

    def decode(
        self,
        buffer: NDArray[np.uint8],
        kinds: NDArray[np.int8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        place: Callable[[int], str],
        *,
        numbers: tuple[int, int, int],
        txid: str,
        row_bytes_max: int,
    ) -> SmallBatch | None:
        """The images of one event, or None if it has none. numbers: SCN, the last `_seq` before it, commit time.

        Raises as `decode` does.
        """
        plan, status = self.plan, self._status
        self._totals.fill(0)
        images = self._measure(
            buffer, kinds, starts, ends, plan.mask, plan.program, plan.steps, plan.json_columns, row_bytes_max,
            self._totals, self._counts, status,
        )  # fmt: skip
        if images < 0:
            raise row_error(plan, status, starts, place, row_bytes_max)
        if not images:
            return None
        size = self._place(self._program, self._totals, images, self._arena.ctypes.data)
        if size > len(self._arena):
            self._arena = np.empty(2 * size, np.uint8)
            self._place(self._program, self._totals, images, self._arena.ctypes.data)
        change_types = np.empty(images, np.int8)
        wrong = self._write(
            buffer, kinds, starts, ends, plan.mask, plan.json_columns, images, self._program, self._places,
            change_types, self._differences, status,
        )  # fmt: skip
        if wrong:
            status[ops.EVENT] = 0
            raise row_error(plan, status, starts, place, ROW_BYTES_MAX)
        body = self._stream(change_types, size, numbers, txid.encode())
        return SmallBatch(ipc.open_stream(body).read_next_batch(), body, images)

    def _stream(
        self, change_types: NDArray[np.int8], arena_bytes: int, numbers: tuple[int, int, int], txid: bytes
    ) -> pa.Buffer:
        message, images = self._batch, len(change_types)
        before = self._head + _dictionary_of(self._dictionary, txid)
        at = len(before)
        body_at = at + len(message.text)
        out = np.empty(body_at + arena_bytes + _BUS_BYTES_OF_IMAGE * (images + 2) + len(_ENDS), np.uint8)
        view = out.data
        view[:at] = before
        view[at:body_at] = message.text
        struct.pack_into("<q", view, at + message.rows_at, images)
        size = self._pack(
            self._program, change_types, np.array(numbers, np.int64), out, at + message.nodes_at,
            at + message.buffers_at, body_at,
        )  # fmt: skip
        struct.pack_into("<q", view, at + message.body_length_at, size)
        view[body_at + size : body_at + size + len(_ENDS)] = _ENDS
        return pa.py_buffer(view[: body_at + size + len(_ENDS)])


def small_events(plan: DecodePlan) -> SmallEvents | None:
    """For a plan; None if its columns want more than the kernels."""
    is_plain = all(layout.is_finished or layout.shape == "skipped" for layout in plan.layouts)
    return SmallEvents(plan) if is_plain and plan.policies.omitter is None else None


def _dictionary_of(message: _Message, txid: bytes) -> bytes:
    """The message that says what the transaction is called: offsets, then the text."""
    body = struct.pack("<ii", 0, len(txid)) + txid + bytes(-len(txid) % 8)
    text = bytearray(message.text)
    struct.pack_into("<q", text, message.body_length_at, len(body))
    struct.pack_into("<qqqqqq", text, message.buffers_at, 0, 0, 0, 8, 8, len(txid))
    return bytes(text) + body


def _template(plan: DecodePlan) -> tuple[bytes, _Message, _Message]:
    """What Arrow writes for one row: the schema's message, the dictionary's and the batch's, without their bodies."""
    schema = frame_schema(plan.table)
    arrays = [pa.nulls(1, field.type) for field in schema]
    at = schema.get_field_index("_txid")
    arrays[at] = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["a"]))
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    stream = sink.getvalue().to_pybytes()
    head = _message_bytes(stream, 0)
    dictionary = _message(stream, head, path=(1,))
    dictionary_ends = head + len(dictionary.text) + _word(stream, head + dictionary.body_length_at)
    return stream[:head], dictionary, _message(stream, dictionary_ends, path=())


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _message_bytes(stream: bytes, at: int) -> int:
    """Of a message with what stands before it: a mark and its length."""
    return 8 + int.from_bytes(stream[at + 4 : at + 8], "little")


def _message(stream: bytes, at: int, path: tuple[int, ...]) -> _Message:
    """Find the places in a message. path: the fields that lead from its header to its record batch."""
    text = stream[at : at + _message_bytes(stream, at)]
    root = 8 + int.from_bytes(text[8:12], "little")
    table = _followed(text, _field(text, root, 2))
    for number in path:
        table = _followed(text, _field(text, table, number))
    vectors = [_followed(text, _field(text, table, number)) + 4 for number in (1, 2)]
    return _Message(text, _field(text, root, 3), _field(text, table, 0), *vectors)


def _followed(text: bytes, at: int) -> int:
    return at + int.from_bytes(text[at : at + 4], "little")


def _field(text: bytes, table: int, number: int) -> int:
    """Where a field of a FlatBuffers table stands; the field must be there."""
    fields = table - int.from_bytes(text[table : table + 4], "little", signed=True)
    offset = int.from_bytes(text[fields + 4 + 2 * number : fields + 6 + 2 * number], "little")
    if not offset:
        raise ValueError(f"Arrow left field {number} out of a message")
    return table + offset
