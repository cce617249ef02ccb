"""Bulk requests: rows as lines of an index's bulk API, and what its answer says of each row. No I/O.

    {"index":{"_index":"orders","_id":"17","version":8,"version_type":"external_gte"}}
    {"id":17,"total":"9.95","_commit_version":8,"_seq":1}
    {"delete":{"_index":"orders","_id":"18","version":8,"version_type":"external_gte"}}

One row a document: that of the last image of its key. `version` is the row's SCN, so that a server keeps what is newer,
and forgets nothing when the same comes twice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, Pair
from databus.flow import Int, RowMask, as_captured, key_ids
from databus.formats import documents, json_strings
from databus.schema import TableSchema
from databus.sinks.search._mapping import DELETED, last_rows

_PUTS: Final = (ChangeType.INSERT.label, ChangeType.UPDATE_POSTIMAGE.label)
_NO_ERRORS: Final = b'{"errors":false'
FILTER: Final = (
    "filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
)
_OR_EQUAL: Final = '"version_type":"external_gte"}}\n'  # its quotes and its line feed are in no value
_GREATER: Final = '"version_type":"external"}}\n'
_STATUS: Final = b'"status":'
_BUSY: Final = frozenset({429, 500, 502, 503, 504})
_SHUT: Final = ("cluster_block", "index_closed")
"""How reasons begin that are about the index, and not about the row: it was closed, or its disk is full."""
_STALE: Final = 409
NDJSON: Final = "application/x-ndjson"
_MISSING: Final = 404


@dataclass(frozen=True)
class BulkOperations:
    """Lines for rows of one table."""

    texts: pa.LargeStringArray
    """Of each row, with its line feeds."""
    ids: pa.LargeStringArray
    scns: Int
    seqs: Int
    rows: Int
    """Where each row stands in the table that the lines were made of."""

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, places: Int) -> "BulkOperations":
        """Those at these places."""
        chosen = pa.array(places)
        return BulkOperations(
            self.texts.take(chosen), self.ids.take(chosen), self.scns[places], self.seqs[places], self.rows[places]
        )

    def without_equals(self, places: RowMask) -> "BulkOperations":
        """The same, where those at these places take nothing over a document that has their version already."""
        texts = pc.if_else(pa.array(places), pc.replace_substring(self.texts, _OR_EQUAL, _GREATER), self.texts)
        return replace(self, texts=texts)

    def pair(self, place: int) -> Pair:
        """The pair of the row at this place."""
        return int(self.scns[place]), int(self.seqs[place])

    def requests(self, bytes_max: int, rows_max: int) -> Iterator[tuple[int, int, bytes]]:
        """Bodies of requests: the places of their first row and behind their last, and the bytes. A row that alone is
        larger than `bytes_max` has a request of its own.
        """
        if not len(self.texts):
            return
        offsets = np.frombuffer(self.texts.buffers()[1], np.int64)[self.texts.offset :][: len(self.texts) + 1]
        held = memoryview(self.texts.buffers()[2])
        begin = 0
        while begin < len(self.texts):
            end = int(np.searchsorted(offsets, offsets[begin] + bytes_max, "right")) - 1
            end = min(max(end, begin + 1), begin + rows_max, len(self.texts))
            yield begin, end, bytes(held[offsets[begin] : offsets[end]])
            begin = end


def operations(
    table: TableSchema, rows: pa.Table, key: Sequence[str], index: str, *, soft: bool = False, typed: bool = False
) -> BulkOperations:
    """The lines for rows of a table, which are in the order of their pairs. soft: whether a deleted row's document
    stays and says so. typed: whether the server wants a type with each.
    """
    batch = _one_batch(as_captured(table, rows))
    ids = key_ids([batch.column(name) for name in key])
    last = last_rows(ids)
    if len(last) < batch.num_rows:
        chosen = pa.array(last)
        batch, ids = batch.take(chosen), ids.take(chosen)
    is_put = pc.is_in(batch.column(CHANGE_TYPE).cast(pa.string()), pa.array(_PUTS)).to_numpy(zero_copy_only=False)
    actions = _Actions(index, typed=typed)
    if soft:
        texts = actions.puts(table, batch, ids, is_put)
        places = np.arange(len(ids))
    else:
        puts, deletes = np.flatnonzero(is_put), np.flatnonzero(~is_put)
        made = []
        if len(puts):
            is_all = not len(deletes)
            of = pa.array(puts)
            made.append(actions.puts(table, batch if is_all else batch.take(of), ids if is_all else ids.take(of)))
        if len(deletes):
            made.append(actions.deletes(batch.take(pa.array(deletes)), ids.take(pa.array(deletes))))
        texts = pa.concat_arrays(made) if made else pa.array([], pa.large_string())
        places = np.concatenate([puts, deletes])
        ids = ids if not len(deletes) else ids.take(pa.array(places))
    scns, seqs = (batch.column(name).to_numpy()[places] for name in (COMMIT_VERSION, SEQ))
    return BulkOperations(texts, ids, scns, seqs, last[places])


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    columns = []
    for column in rows.columns:
        whole = column.combine_chunks()
        columns.append(whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


class _Actions:
    """Makes the lines. typed: see `operations`."""

    def __init__(self, index: str, *, typed: bool) -> None:
        kind = '"_type":"_doc",' if typed else ""
        self._of = f'{{"_index":{json.dumps(index)},{kind}"_id":'

    def puts(
        self,
        table: TableSchema,
        batch: pa.RecordBatch,
        ids: pa.LargeStringArray,
        is_put: npt.NDArray[np.bool_] | None = None,
    ) -> pa.LargeStringArray:
        """Lines that put a row's document. is_put: with soft deletes, which rows are there."""
        columns = [(name, batch.column(name)) for name in (*table.names, COMMIT_VERSION, SEQ)]
        if is_put is not None:
            columns.append((DELETED, pa.array(~is_put)))
        return _joined('{"index":', *self._head(batch, ids), documents(table.source, columns), "\n")

    def deletes(self, batch: pa.RecordBatch, ids: pa.LargeStringArray) -> pa.LargeStringArray:
        """Lines that delete a row's document."""
        return _joined('{"delete":', *self._head(batch, ids))

    def _head(self, batch: pa.RecordBatch, ids: pa.LargeStringArray) -> list[Any]:
        versions = batch.column(COMMIT_VERSION).cast(pa.large_string())
        return [self._of, json_strings(ids), ',"version":', versions, f",{_OR_EQUAL}"]


def _joined(*pieces: "str | pa.LargeStringArray") -> pa.LargeStringArray:
    merged: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    kind = pa.large_string()
    given = (pa.scalar(piece, kind) if isinstance(piece, str) else piece for piece in merged)
    return pc.binary_join_element_wise(*given, pa.scalar("", kind))


def line(
    action: str,
    index: str,
    document_id: str,
    version: int,
    document: Mapping[str, Any] | None,
    *,
    typed: bool,
    version_type: str = "external_gte",
) -> str:
    """The lines for one document: for what is not bulk."""
    kind = {"_type": "_doc"} if typed else {}
    head = {action: {"_index": index, **kind, "_id": document_id, "version": version, "version_type": version_type}}
    lines = [head] if document is None else [head, document]
    return "".join(f"{json.dumps(line, ensure_ascii=False, separators=(',', ':'))}\n" for line in lines)


class Refusal(NamedTuple):
    """A row that a server will not take, however often it is sent."""

    place: int
    """Of the row in its request."""
    status: int
    reason: str


class Sorted(NamedTuple):
    """What has become of the rows of a request."""

    stale: tuple[int, ...] = ()
    """Places of those of which the server had something newer, or the same deleted."""
    busy: tuple[int, ...] = ()
    """Places of those to be sent again."""
    refused: tuple[Refusal, ...] = ()
    why: str = ""
    """What the server says of one of them."""


ALL_DONE: Final = Sorted()


def sort_answer(content: bytes, rows: int) -> Sorted:
    """What the answer to a bulk request of so many rows says of them. Raises `ValueError` for what is no such answer,
    is cut off, or says nothing of some rows: these may not have been written.
    """
    if content.startswith(_NO_ERRORS) and content.rstrip().endswith(b"]}") and content.count(_STATUS) == rows:
        return ALL_DONE
    stale, busy, refused, why = [], [], [], ""
    try:
        items = json.loads(content)["items"]
        if len(items) != rows:
            raise ValueError(f"it speaks of {len(items)} rows of {rows}")  # noqa: TRY301 - reported as one
        for place, item in enumerate(items):
            ((action, result),) = item.items()
            status = int(result["status"])
            if status < 300 or (status == _MISSING and action == "delete" and "error" not in result):
                continue
            if status == _STALE:
                stale.append(place)
                continue
            reason = _reason(result.get("error") or {})
            if status in _BUSY or reason.startswith(_SHUT):
                busy.append(place)
                why = f"status {status}: {reason}"
            else:
                refused.append(Refusal(place, status, reason))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no answer to a bulk request of {rows} rows ({error!r}): {content[:200]!r}") from error
    return Sorted(tuple(stale), tuple(busy), tuple(refused), why)


def _reason(error: Mapping[str, Any]) -> str:
    cause = (error.get("caused_by") or {}).get("reason")
    return ": ".join(str(text) for text in (error.get("type"), error.get("reason"), cause) if text)[:1000]
