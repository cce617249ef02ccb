"""Changes as JSON: one line for each row image and each control, the same wherever changes are written as JSON.

    {"_source":"shop/main.orders","id":1,"total":"9.95","_change_type":"insert","_commit_version":7,"_seq":1,
     "_commit_timestamp":"2026-07-01T12:00:00.000000Z","_txid":"...","_snapshot":false}
    {"_source":"shop/main.orders","_control":{"kind":"truncate","source":"main.orders"},"_commit_version":8,"_seq":1}

An update is two adjacent lines. Users read of them in docs/http.md, "Changes as JSON"; start with `change_lines`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, CONTROL, SEQ, SOURCE, ChangeType, Pair
from databus.formats._buffers import bytes_of
from databus.formats._column_text import SAFE_INTEGER_MAX, texts_of, time_texts
from databus.formats._json import to_json_value

_COLUMNS_ROWS_MIN: Final = 64  # below that, row by row is quicker
_LABELS: Final = {kind.value: kind.label for kind in ChangeType} | {kind.label: kind.label for kind in ChangeType}


class BigIntegers(StrEnum):
    """How integers beyond 2^53 - 1, either side of zero, are written; as doubles they would lose digits."""

    NUMBER = "number"
    STRING = "string"


class ChangeLine(NamedTuple):
    """One row image as a line of JSON, without a line feed."""

    pair: Pair
    change_type: str
    text: str


def change_lines(
    batches: Iterable[tuple[str, pa.RecordBatch]], big_integers: BigIntegers = BigIntegers.NUMBER
) -> list[ChangeLine]:
    """The lines of some rows, in the order of (`_commit_version`, `_seq`), in which each batch stands already.

    batches: full names of sources (`physical/db.table`), each with rows in its frame's schema or as users see them.
    Raises `UnrepresentableValue` for a time outside the years 0 to 9999.
    """
    by_batch = [lines_by_row(source, batch, big_integers) for source, batch in batches]
    if len(by_batch) == 1:
        return by_batch[0]
    return sorted((line for lines in by_batch for line in lines), key=lambda line: line.pair)


def change_text(
    batches: Sequence[tuple[str, pa.RecordBatch]],
    big_integers: BigIntegers = BigIntegers.NUMBER,
    after: Pair | None = None,
) -> bytes:
    """The same lines, each with a line feed, as UTF-8: in bulk, without a Python object a row.

    after: lines up to this pair are not wanted.
    """
    if sum(batch.num_rows for _, batch in batches) < _COLUMNS_ROWS_MIN:
        wanted = [line for line in change_lines(batches, big_integers) if after is None or line.pair > after]
        return "".join(f"{line.text}\n" for line in wanted).encode()
    text = pa.chunked_array([lines_by_column(source, batch, big_integers) for source, batch in batches])
    scns, seqs = (
        np.concatenate([batch.column(name).to_numpy() for _, batch in batches]) for name in (COMMIT_VERSION, SEQ)
    )
    order = None
    if len(batches) > 1:
        order = np.lexsort((seqs, scns))
        scns, seqs = scns[order], seqs[order]
    if after is not None:
        is_wanted = (scns > after[0]) | ((scns == after[0]) & (seqs > after[1]))
        if not is_wanted.all():
            order = np.flatnonzero(is_wanted) if order is None else order[is_wanted]
    if order is not None:
        text = text.take(pa.array(order))
    return b"".join(bytes_of(chunk) for chunk in text.chunks)


def lines_by_column(
    source: str, batch: pa.RecordBatch, big_integers: BigIntegers, *, line_end: str = "\n"
) -> pa.LargeStringArray:
    """The lines of a batch, each with its line feed, made column by column: what `lines_by_row` makes."""
    big_in_string = big_integers is BigIntegers.STRING
    pieces: list[pa.Array | pa.Scalar] = []
    before = f"{{{_dumps(SOURCE)}:{_dumps(source)}"
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = _labels_of(column) if name == CHANGE_TYPE else column
        text = texts_of(f"{source}.{name}", values, big_in_string=big_in_string)
        pieces += [pa.scalar(f"{before},{_dumps(name)}:", text.type), text]
        before = ""
    ends = [pa.scalar(end, pa.large_string()) for end in (f"}}{line_end}", "")]
    return pc.binary_join_element_wise(*pieces, *ends)


def _labels_of(kinds: pa.Array) -> pa.Array:
    """Change types by their names, whether they stand as numbers or as names."""
    distinct = kinds.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        distinct.indices, pa.array([_LABELS[kind] for kind in distinct.dictionary.to_pylist()], pa.string())
    )


def lines_by_row(source: str, batch: pa.RecordBatch, big_integers: BigIntegers) -> list[ChangeLine]:
    """The lines of a batch, made row by row: for a few, and for readers that want each by itself."""
    names = (SOURCE, *batch.schema.names)
    columns = {name: _values(f"{source}.{name}", batch.column(name)) for name in batch.schema.names}
    columns[CHANGE_TYPE] = [_LABELS[kind] for kind in columns[CHANGE_TYPE]]
    pairs = zip(batch.column(COMMIT_VERSION).to_pylist(), batch.column(SEQ).to_pylist(), strict=True)
    if big_integers is BigIntegers.STRING:
        columns = {name: [_in_string(value) for value in values] for name, values in columns.items()}
    rows = zip(*columns.values(), strict=True)
    return [
        ChangeLine(pair, kind, _dumps(dict(zip(names, (source, *row), strict=True))))
        for pair, kind, row in zip(pairs, columns[CHANGE_TYPE], rows, strict=True)
    ]


def control_line(
    source: str, body: Mapping[str, Any], pair: Pair, big_integers: BigIntegers = BigIntegers.NUMBER
) -> str:
    """A control as a line of JSON, without a line feed. body: as it stands in the frame."""
    scn, seq = pair
    return json_line({SOURCE: source, CONTROL: dict(body), COMMIT_VERSION: scn, SEQ: seq}, big_integers)


def json_line(value: Mapping[str, Any], big_integers: BigIntegers = BigIntegers.NUMBER) -> str:
    """An object as a line of JSON, without a line feed: `_position` and the like."""
    return _dumps(_in_strings(dict(value)) if big_integers is BigIntegers.STRING else value)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _in_string(value: Any) -> Any:
    is_big = isinstance(value, int) and not -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX
    return str(value) if is_big else value


def _in_strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_strings(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_strings(item) for item in value]
    return _in_string(value)


def _values(name: str, column: pa.Array) -> list[Any]:
    """A column as JSON's own types; only what JSON lacks is looked at value by value."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        texts: list[Any] = time_texts(name, column).to_pylist()
        return texts
    values: list[Any] = column.to_pylist()
    as_it_is: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_dictionary, pa.types.is_null
    )  # fmt: skip
    return values if any(holds(kind) for holds in as_it_is) else [to_json_value(value) for value in values]
