"""How mirrors were written before tasks did it, as a baseline: the driver reads the rows, and delta-rs merges them.

Named as a plugin by the pipelines of `spark_tasks`.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ
from databus.flow import Here, Stored, TableRows, log_number
from databus.sinks import DeltaConfig, DeltaOutput
from databus.sinks.delta import run_all
from databus.sinks.delta._table import DeltaTarget

_PUTS = pa.array(["insert", "update_postimage"])
_YOUNGER = (
    f"(source.{COMMIT_VERSION} > target.{COMMIT_VERSION} OR "
    f"(source.{COMMIT_VERSION} = target.{COMMIT_VERSION} AND source.{SEQ} > target.{SEQ}))"
)


class Config(DeltaConfig):
    """Of any name."""

    type: str


class InDriver(DeltaOutput):
    """Is given all rows."""

    config_model = Config

    def part_writer(self):
        return None

    def write(self, batch):
        stored = Stored(batch.end.pair, log_number(batch.end.log))
        for item in batch.items:
            if not isinstance(item, TableRows):
                continue
            target = self._copy(batch.physical, item.table.source).target
            if not target.exists:
                target.create(self._schema(item.table))
            if self.config.mode == "mirror":
                _merge(target, item.rows, self._key(item.table), stored)
            else:
                target.append(item.rows, stored)
            run_all([target.maintain(joins=self.config.mode == "history")], Here())


def _last_images(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    numbered = rows.select(list(key)).append_column("__row", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(list(key)).aggregate([("__row", "max")]).column("__row_max").to_numpy()
    return rows if len(last) == rows.num_rows else rows.take(pa.array(np.sort(last)))


def _merge(target: DeltaTarget, rows: pa.Table, key: tuple[str, ...], stored: object) -> None:
    images = _last_images(rows, key)
    puts = pc.is_in(images.column(CHANGE_TYPE), _PUTS)
    names = target.schema().names
    images = images.select(names)
    with target._committing("merge into"):
        if target.is_empty:
            write_deltalake(target.table, images.filter(puts), mode="append", commit_properties=target.commit(stored))
            return
        values = {f'"{name}"': f'source."{name}"' for name in names}
        prunes = all(pa.types.is_integer(images.column(name).type) for name in key)
        (
            target.table.merge(
                images.append_column("__put", puts),
                " AND ".join(f'(target."{name}" = source."{name}")' for name in key),
                source_alias="source",
                target_alias="target",
                streamed_exec=not prunes,
                commit_properties=target.commit(stored),
            )
            .when_matched_delete(f"NOT source.__put AND {_YOUNGER}")
            .when_matched_update(values, predicate=f"source.__put AND {_YOUNGER}")
            .when_not_matched_insert(values, predicate="source.__put")
            .execute()
        )
