"""What rows of a key are called in texts, where people and targets read it."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.formats import base64url_texts
from databus.schema import key_bytes

_ID_BYTES_MAX: Final = 512
_HASHED: Final = "sha256:"


def key_ids(columns: Sequence[pa.Array]) -> pa.LargeStringArray:
    """The id of each row, of the columns of its key: equal keys have equal ids, and others have others.

    A key of one integer is its digits, one of one text that text; any other is its canonical bytes in base64url. What
    is no id, since it is empty, null, or longer than 512 bytes, is `sha256:` and a digest.
    """
    kind = columns[0].type
    is_text = len(columns) == 1 and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if is_text or (len(columns) == 1 and pa.types.is_integer(kind)):
        texts = columns[0].cast(pa.large_string())
    else:
        texts = base64url_texts(key_bytes(columns))
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    is_other = (lengths == 0) | (lengths > _ID_BYTES_MAX)
    if is_text:
        is_other |= pc.fill_null(pc.starts_with(texts, _HASHED), True).to_numpy(zero_copy_only=False)
    if not is_other.any():
        return texts
    mask = pa.array(is_other)
    return pc.replace_with_mask(texts, mask, pa.array(map(_hashed, texts.filter(mask).to_pylist()), pa.large_string()))


def _hashed(text: str | None) -> str:
    return f"{_HASHED}{'null' if text is None else sha256(text.encode()).hexdigest()}"
