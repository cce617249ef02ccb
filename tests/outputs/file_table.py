"""A table of files as a mirror's rewrites leave it, and the dictionary that it is to be equal to."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from databus.disk import located
from databus.flow import DataFile
from databus.sinks.delta import Layout, LiveFile, divided, last_images, rewrite

PAIR = [pa.field("_commit_version", pa.int64()), pa.field("_seq", pa.int64())]
PUTS = ("insert", "update_postimage")


class FileTable:
    """Files in a folder; `apply` commits rewrites by changing the list of them."""

    def __init__(self, folder: Path, key_types, file_bytes_max: int, row_group_rows: int = 50) -> None:
        self.row_group_rows = row_group_rows
        self.folder = folder
        self.key = tuple(f"k{i}" for i in range(len(key_types)))
        fields = [pa.field(name, kind) for name, kind in zip(self.key, key_types, strict=True)]
        self.schema = pa.schema([*fields, pa.field("v", pa.string()), *PAIR])
        self.file_bytes_max = file_bytes_max
        self.files: list[LiveFile] = []
        self.rewritten: list[str] = []
        self.files_written = 0

    def layout(self, **more) -> Layout:
        return Layout(self.schema, self.key, sum(f.size_bytes for f in self.files), self.file_bytes_max, **more)

    def write(self, rows: pa.Table, mark: str) -> DataFile:
        self.files_written += 1
        name = f"rows-{mark}{self.files_written:06d}.parquet"
        pq.write_table(rows, self.folder / name, row_group_size=self.row_group_rows)
        return DataFile(name, (self.folder / name).stat().st_size, rows.num_rows, "")

    def live(self, file: DataFile) -> LiveFile:
        rows = pq.read_table(self.folder / file.name)
        return LiveFile(file.name, file.size_bytes, file.rows, tuple(map(_bounds, map(rows.column, self.key))))

    def apply(self, changes: pa.Table, *, parts_max: int = 1, buckets_min: int = 1, **more) -> int:
        layout = self.layout(buckets_min=buckets_min)
        parts = divided(self.files, layout, parts_max)
        assert sorted(f.name for part in parts.files for f in part) == sorted(f.name for f in self.files)
        numbers = parts.part_of(changes.select(self.key).cast(pa.schema([self.schema.field(k) for k in self.key])))
        self.rewritten, changed = [], 0
        added: list[DataFile] = []
        for number, mine in enumerate(parts.files):
            images = last_images(changes.filter(pa.array(numbers == number)), layout)
            done = rewrite(mine, images, layout, located(self.folder), self.write, **more)
            assert set(done.removed) <= {file.name for file in mine}
            added += done.added
            self.rewritten += done.removed
            changed += done.changed
        assert len(set(self.rewritten)) == len(self.rewritten)
        self.files = [f for f in self.files if f.name not in self.rewritten] + [self.live(file) for file in added]
        return changed

    def join_all(self) -> None:
        """What a user's OPTIMIZE does."""
        if self.files:
            rows = pa.concat_tables([self.rows_of(file) for file in self.files])
            self.files = [self.live(self.write(rows, ""))]

    def rows_of(self, file: LiveFile) -> pa.Table:
        return pq.read_table(self.folder / file.name, schema=self.schema)

    def rows(self) -> list[dict]:
        return [row for file in self.files for row in self.rows_of(file).to_pylist()]

    def check_marks(self) -> None:
        """Each row of a file with a mark is in that bucket."""
        layout = self.layout()
        for file in self.files:
            buckets, bucket = layout.bucket_of(file)
            hashes = layout.hashes_of(layout.keys_of(self.rows_of(file)))
            assert (hashes % buckets == bucket).all()


def _bounds(values: pa.ChunkedArray):
    if not pa.types.is_integer(values.type) or values.null_count or not len(values):
        return None
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


def changes_of(schema: pa.Schema, rows) -> pa.Table:
    """rows: (change type, key, value, pair)."""
    names = [name for name in schema.names if name.startswith("k")]
    columns = [pa.array([key[i] for _, key, _, _ in rows], schema.field(name).type) for i, name in enumerate(names)]
    return pa.table(
        [
            *columns,
            pa.array([value for _, _, value, _ in rows], pa.string()),
            pa.array([pair[0] for *_, pair in rows], pa.int64()),
            pa.array([pair[1] for *_, pair in rows], pa.int64()),
            pa.array([kind for kind, *_ in rows], pa.string()),
        ],
        names=[*schema.names, "_change_type"],
    )


def same_key(key):
    """A key as a dictionary tells it from others."""
    return tuple("nan" if isinstance(each, float) and math.isnan(each) else each for each in key)


class Model:
    """The mirror rule, one image after another."""

    def __init__(self) -> None:
        self.rows: dict = {}

    def apply(self, rows) -> None:
        last: dict = {}
        for image in sorted(rows, key=lambda each: each[3]):
            last[same_key(image[1])] = image
        for key, (kind, _, value, pair) in last.items():
            if key in self.rows and pair <= self.rows[key][1]:
                continue
            self.rows.pop(key, None)
            if kind in PUTS:
                self.rows[key] = value, pair

    def is_equal_to(self, rows, key) -> None:
        found = [
            (same_key(row[name] for name in key), (row["v"], (row["_commit_version"], row["_seq"]))) for row in rows
        ]
        assert len(found) == len(self.rows)
        assert dict(found) == self.rows
