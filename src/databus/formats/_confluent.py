"""How Confluent's serializers frame a message: a zero, the schema's id in four bytes, big-endian, then the message.

Source: Confluent's documentation, "Wire format" of the Schema Registry's serializers.
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import ConfigError, UnrepresentableValue
from databus.formats._avro_writing import joined_bytes
from databus.formats._buffers import bytes_without_nulls, places_of, spread, validity_of

_MAGIC: Final = 0
_HEADER_BYTES: Final = 5
_ID_MAX: Final = (1 << 31) - 1


def confluent_framed(values: pa.LargeBinaryArray, schema_id: int) -> pa.LargeBinaryArray:
    """Messages with the id of their schema before them; null stays null.

    Raises `ConfigError` for what is no id.
    """
    if not 0 <= schema_id <= _ID_MAX:
        raise ConfigError(f"{schema_id} is no id of a schema: 0 to {_ID_MAX}")
    return joined_bytes(struct.pack(">bi", _MAGIC, schema_id), values)


def confluent_unframed(values: pa.Array) -> tuple[npt.NDArray[np.int64], pa.LargeBinaryArray]:
    """The id of each message's schema, -1 where the message is null, and the messages without it.

    Raises `UnrepresentableValue` for a message that is not framed so.
    """
    large = values.cast(pa.large_binary())
    is_framed = pc.and_(pc.starts_with(large, b"\x00"), pc.greater_equal(pc.binary_length(large), _HEADER_BYTES))
    wrong = np.flatnonzero(~is_framed.fill_null(True).to_numpy(zero_copy_only=False))
    if len(wrong):
        raise UnrepresentableValue(
            f"message {wrong[0]} has no frame of a schema registry: a zero and four bytes of an id are to come first"
        )
    is_valid = large.is_valid().to_numpy(zero_copy_only=False)
    lengths = pc.binary_length(large).fill_null(0).to_numpy().astype(np.int64)
    starts, _ = places_of(lengths)
    held = np.frombuffer(bytes_without_nulls(large), np.uint8)
    ids = np.full(len(large), -1, np.int64)
    ids[is_valid] = held[(starts[is_valid, None] + np.arange(1, _HEADER_BYTES)).reshape(-1)].view(">i4")
    kept = np.where(is_valid, lengths - _HEADER_BYTES, 0)
    offsets = np.append(0, np.cumsum(kept))
    bodies = held[spread(starts + _HEADER_BYTES, kept)]
    buffers = [validity_of(large), pa.py_buffer(offsets), pa.py_buffer(bodies)]
    return ids, pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(large), buffers, large.null_count)
