"""Reads Delta tables in folders, whoever has written them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_VERSION, SEQ, SOURCE, Pair
from databus.disk import Location, located

if TYPE_CHECKING:
    from deltalake import DeltaTable

BATCH_ROWS: Final = 65_536


def opened_delta(path: Location) -> "DeltaTable":
    """The table in a folder. Raises deltalake's TableNotFoundError if there is none."""
    from deltalake import DeltaTable

    return DeltaTable(path.engine_uri, storage_options=path.engine_options)


def dataset_of(table: "DeltaTable", path: Location, schema: pa.Schema | None = None) -> Any:
    """Its files, for Arrow to read. schema: of the rows that are to come."""
    from pyarrow.dataset import ParquetReadOptions

    options = ParquetReadOptions(coerce_int96_timestamp_unit="us")  # as `databus.flow` reads them
    return table.to_pyarrow_dataset(filesystem=path.arrow_files, schema=schema, parquet_read_options=options)


def read_delta(path: Location | Path, columns: Sequence[str] | None = None, *, source: str | None = None) -> pa.Table:
    """The rows of the Delta table in a folder, all at once; of one `source` (`physical/db.table`) if several share it.

    Raises deltalake's TableNotFoundError if there is none.
    """
    mine = None if source is None else pc.field(SOURCE) == source
    names = None if columns is None else [*columns]
    place = located(path)
    rows: pa.Table = dataset_of(opened_delta(place), place).to_table(columns=names, filter=mine)
    return rows


def delta_batches(path: Location | Path, *, source: str | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of the Delta table in a folder, a few at a time; see `read_delta`."""
    mine = None if source is None else pc.field(SOURCE) == source
    place = located(path)
    yield from (
        dataset_of(opened_delta(place), place)
        .scanner(filter=mine, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1)
        .to_batches()
    )


def pairs_in(dataset: Any, source: str, key: Mapping[str, Any]) -> list[Pair] | None:
    """The pairs of the rows of a key in an Arrow dataset; None where its rows do not say theirs. source: in full, of
    several that share it.
    """
    names = dataset.schema.names
    if not {COMMIT_VERSION, SEQ, *key} <= {*names}:
        return None
    mine = pc.field(SOURCE) == source if SOURCE in names else pc.scalar(True)
    for name, value in key.items():
        mine &= pc.field(name) == value.cast(dataset.schema.field(name).type)
    rows = dataset.to_table(columns=[COMMIT_VERSION, SEQ], filter=mine)
    return list(zip(*(rows.column(name).to_pylist() for name in (COMMIT_VERSION, SEQ)), strict=True))
