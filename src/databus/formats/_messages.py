"""Messages: what a batch of change rows is in a format, ready for a topic; and the pieces of their JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.formats._images import ChangeImages, rows_at

NO_HEADERS: Final[Mapping[str, pa.Array]] = MappingProxyType({})


class Messages(NamedTuple):
    """Messages in the order of their rows, in arrays of one length."""

    values: pa.LargeBinaryArray
    """The messages' bytes; null is a tombstone, by which a compacted topic forgets a key."""
    keys: pa.LargeBinaryArray
    """The keys' bytes; null where the format has none."""
    rows: pa.Int64Array
    """For each message its row in the batch, the last one of an update."""
    headers: Mapping[str, pa.LargeBinaryArray] = NO_HEADERS
    """The headers that the format itself needs, by name; null where a message does not have the header."""


def messages_of(texts: pa.LargeStringArray, keys: pa.LargeStringArray | None, rows: npt.NDArray[np.int64]) -> Messages:
    """Messages of text. keys: None where the format has none."""
    count = len(texts)
    return Messages(
        texts.cast(pa.large_binary()),
        pa.nulls(count, pa.large_binary()) if keys is None else keys.cast(pa.large_binary()),
        pa.array(rows),
    )


def dumps(value: Any) -> str:
    """A constant as JSON, without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def joined(*pieces: "str | pa.LargeStringArray") -> pa.LargeStringArray:
    """Constants and columns, one after the other: null where one of them is. At least one is a column."""
    merged: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    text = pa.large_string()
    return pc.binary_join_element_wise(
        *(pa.scalar(p, text) if isinstance(p, str) else p for p in merged), pa.scalar("", text)
    )


def object_pieces(names: Iterable[str], texts: Iterable[pa.LargeStringArray]) -> "list[str | pa.LargeStringArray]":
    """The pieces of an object with these members, for `joined`."""
    pieces: list[str | pa.LargeStringArray] = ["{"]
    for name, text in zip(names, texts, strict=True):
        pieces += [f"{',' if len(pieces) > 1 else ''}{dumps(name)}:", text]
    return [*pieces, "}"]


def old_texts(
    names: Sequence[str], texts: Sequence[pa.LargeStringArray], images: ChangeImages, begin: str, end: str, nothing: str
) -> pa.LargeStringArray:
    """Of each change what it replaced, as an object between two texts; `nothing` of all but updates that changed
    something. texts: the columns' values, by row.
    """
    none = pa.scalar(nothing, pa.large_string())
    updates = np.flatnonzero(images.has_before)
    if not len(updates):
        return pa.repeat(none, len(images.rows))
    before, after = ([rows_at(text, rows[updates]) for text in texts] for rows in (images.before, images.rows))
    objects = joined(begin, _changed_objects(names, before, after), end)
    places = np.full(len(images.rows), -1)
    places[updates] = np.arange(len(updates))
    return pc.coalesce(rows_at(objects, places), none)


def _changed_objects(
    names: Sequence[str], before: Sequence[pa.LargeStringArray], after: Sequence[pa.LargeStringArray]
) -> pa.LargeStringArray:
    """Objects of the members of `before` that are others in `after`; null where none is."""
    empty = pa.scalar("", pa.large_string())
    members = [
        pc.if_else(pc.not_equal(old, new), joined(f",{dumps(name)}:", old), empty)
        for name, old, new in zip(names, before, after, strict=True)
    ]
    text = pc.binary_join_element_wise(*members, empty)
    objects = joined("{", pc.utf8_slice_codeunits(text, 1), "}")
    return pc.if_else(pc.equal(text, empty), pa.scalar(None, pa.large_string()), objects)
