"""Rows as the documents of a search index: an object of JSON each, made a whole column at a time."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from databus.formats._base64 import base64_texts
from databus.formats._column_text import escaped, quoted, texts_of
from databus.formats._messages import joined, object_pieces


def documents(source: str, columns: Iterable[tuple[str, pa.Array]]) -> pa.LargeStringArray:
    """One object a row, its members in the order of the columns, which are at least one and of one length.

    source: for errors. Raises `UnrepresentableValue` for a time outside the years 0 to 9999.
    """
    named = list(columns)
    texts = [texts_of(f"{source}.{name}", column, big_in_string=False) for name, column in named]
    return joined(*object_pieces([name for name, _ in named], texts))


def json_strings(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Texts as JSON strings, with their quotes; null stays null."""
    return quoted(escaped(texts))


def base64url_texts(values: pa.Array) -> pa.LargeStringArray:
    """Binary values in base64 with `-` and `_`, as addresses may have it, without `=`."""
    texts = base64_texts(values)
    for plain, other in (("+", "-"), ("/", "_"), ("=", "")):
        texts = pc.replace_substring(texts, plain, other)
    return texts
