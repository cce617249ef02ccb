"""What the bootstrap service costs: to fill its stores, to merge, to answer, beside who reads the same files.

python -m benchmarks.bootstrap [SCALE]

Stores are filled by the outputs of the service's own pipeline, without Spark; rows are of some 120 bytes. The server is
a process of its own, and clients decode into Arrow. Times are of the wall clock, of the best of three.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, show
from databus.bootstrap import Answer, Ask, BootstrapServer, answered, every_change, load_bootstrap, plan
from databus.bootstrap._kept_stores import PhysicalStores
from databus.bootstrap._noting import Noting, Stand
from databus.core import ChangeType, SourceCheckpoint
from databus.flow import user_rows_schema
from databus.link import RelayClient
from databus.log import SchemaVersion
from databus.pipeline import ChangeBatch, TableRows, load_pipeline
from databus.schema import Column, TableSchema
from databus.sinks import DeltaConfig, DeltaOutput

ROWS = 10_000_000
CHANGES = 1_000_000
BATCH_ROWS = 500_000
TABLE = TableSchema(
    "main.orders",
    (
        Column("id", "int64", nullable=False),
        Column("customer", "int64"),
        Column("amount", "int64"),
        Column("status", "string"),
        Column("payload", "string"),
    ),
    ("id",),
)
SOURCE = f"shop/{TABLE.source}"
FILE = "name: bench\nrelay: {url: 'http://127.0.0.1:9'}\nbootstrap: {path: lake, listen: '127.0.0.1:0'}\n"


class _Rows:
    """Makes batches of changes. Each row is of a transaction of its own."""

    def __init__(self) -> None:
        self._dice = np.random.default_rng(7)
        letters = self._dice.integers(97, 123, (4096, 90), np.uint8)
        self._texts = pa.array([bytes(row).decode() for row in letters])
        self._statuses = pa.array(["new", "paid", "sent", "done"])
        self.scn = 0

    def batch(self, ids: Any, kind: ChangeType) -> ChangeBatch:
        """A change of each of these ids; an update is its second image, since the first costs as much as that."""
        count = len(ids)
        scns = np.arange(self.scn + 1, self.scn + count + 1)
        values = {
            "id": pa.array(ids),
            "customer": pa.array(self._dice.integers(0, 1 << 20, count)),
            "amount": pa.array(self._dice.integers(0, 1 << 40, count)),
            "status": self._statuses.take(pa.array(self._dice.integers(0, 4, count))),
            "payload": self._texts.take(pa.array(self._dice.integers(0, 4096, count))),
            "_change_type": pa.repeat(kind.label, count),
            "_commit_version": pa.array(scns),
            "_seq": pa.repeat(pa.scalar(1, pa.int64()), count),
            "_commit_timestamp": pa.array(scns).cast(pa.timestamp("us", tz="UTC")),
            "_txid": pa.repeat("t", count),
            "_snapshot": pa.repeat(False, count),
        }
        schema = user_rows_schema(TABLE)
        rows = pa.table([values[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
        start, self.scn = SourceCheckpoint(uuid="u", scn=self.scn, log="l"), int(scns[-1])
        end = SourceCheckpoint(uuid="u", scn=self.scn, log="l", ts_us=self.scn)
        return ChangeBatch("shop", start, end, (TableRows(TABLE, rows),))


class Stores:
    """The two stores of a service in a folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "bootstrap.yml").write_text(FILE)
        self.config = load_bootstrap(folder / "bootstrap.yml")
        self._pipeline = load_pipeline(self.config.write_pipeline(())).config
        self._noting = Noting(self.config, "shop")
        self.rows = _Rows()

    def write(self, name: str, batches: list[ChangeBatch]) -> float:
        """Returns the seconds that it took."""
        node = self._pipeline.nodes[f"outputs.{name}"]
        output = node.plugin(node.config, self._pipeline.context_of(name))
        return _seconds(lambda: [output.write(each) for each in batches])

    def note(self) -> SourceCheckpoint:
        """Note a state of all that was written."""
        position = SourceCheckpoint(uuid="u", scn=self.rows.scn, log="l", ts_us=self.rows.scn)
        definitions = (SchemaVersion(1, 1, TABLE),)
        self._noting.look(position, Stand(position), definitions, "l")
        return position

    def files(self) -> list[Path]:
        """Those of the newest state."""
        look = PhysicalStores(self.config.root, "shop").look()
        folder = Path(self.config.folder) / "lake/state" / SOURCE
        return [folder / name for name, _ in look.kept.states[-1].tables[TABLE.source].files]


def figures(scale: float) -> Iterator[Figure]:
    """See the module."""
    with tempfile.TemporaryDirectory() as folder:
        stores, count = Stores(Path(folder)), max(int(ROWS * scale), 10_000)
        first = _batches(stores.rows, np.arange(count), ChangeType.INSERT)
        yield from _filled(stores, first[:4], Path(folder))
        stores.write("log", first)
        stores.write("state", first)
        del first
        old = stores.note()
        yield from _answers(stores, count)
        yield from _since(stores, old, count, max(int(CHANGES * scale), 1_000))


def _batches(rows: _Rows, ids: Any, kind: ChangeType) -> list[ChangeBatch]:
    return [rows.batch(ids[at : at + BATCH_ROWS], kind) for at in range(0, len(ids), BATCH_ROWS)]


def _filled(stores: Stores, batches: list[ChangeBatch], folder: Path) -> Iterator[Figure]:
    """The log store beside a plain history, of the same batches."""
    count = sum(item.rows.num_rows for batch in batches for item in batch.items if isinstance(item, TableRows))

    def write(**options: Any) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as path:
            config = DeltaConfig.model_validate({"mode": "history", "path": path, "from": ["x"], **options})
            output = DeltaOutput(config, stores._pipeline.context_of("bench"))
            return _seconds(lambda: [output.write(each) for each in batches])

    plain = min(write() for _ in range(3))
    store = min(write(controls="all", retype="new_column") for _ in range(3))
    yield Figure("log store filled", count / store, "rows/s", "a plain history", count / plain)


def _answers(stores: Stores, count: int) -> Iterator[Figure]:
    """All rows to a client, and the first of few."""
    files = stores.files()
    bare = _best(lambda: [pq.read_table(each, use_threads=False) for each in files])
    with _Served(stores.config.path) as server:
        server.ask(None, rows_max=1)  # the first one reads footers
        before = server.rss_mb
        took = _best(lambda: server.ask(None))
        yield Figure("all, to a client as Arrow", count / took, "rows/s", "PyArrow, one thread", count / bare)
        yield Figure("memory of the server, after", server.rss_mb, "MB", "before", before)
        end = SourceCheckpoint(uuid="u", scn=max(stores.rows.scn - 50, 1), log="gone")
        times = sorted(_seconds(lambda: server.ask(end, rows_max=1)) for _ in range(20))
        yield Figure("first row of a small answer, p50", times[10] * 1e3, "ms")


def _since(stores: Stores, old: SourceCheckpoint, count: int, changes: int) -> Iterator[Figure]:
    """Ten changes of each of some keys: merged, and answered since and one by one."""
    keys = np.arange(count - min(changes // 10, count), count)  # the newest rows, as it mostly is
    batches = [batch for _ in range(10) for batch in _batches(stores.rows, keys, ChangeType.UPDATE_POSTIMAGE)]
    stores.write("log", batches)
    took = stores.write("state", [_as_one(batches)])
    total = 10 * len(keys)
    yield Figure(f"merged at once, ten changes of {len(keys):,} keys of {count:,}", total / took, "changes/s")
    stores.note()
    look = PhysicalStores(stores.config.root, "shop").look()
    ask = Ask("shop", frozenset({TABLE.source}), (SOURCE,))
    found = plan(old, ask, look.kept)
    if not isinstance(found, Answer):
        raise TypeError(f"{found} is no answer from a state")
    end = look.kept.head.position
    since = _best(lambda: sum(map(len, answered(found, ask, look.stores, 0))))
    every = _best(lambda: sum(map(len, every_change(old, end, ask, look.stores, 0))))
    yield Figure(f"since, {total:,} changes, in the server", total / since, "changes/s", "every change", total / every)
    bytes_since = sum(map(len, answered(found, ask, look.stores, 0)))
    bytes_every = sum(map(len, every_change(old, end, ask, look.stores, 0)))
    yield Figure("since, sent", bytes_since / 1e6, "MB", "every change", bytes_every / 1e6)


def _as_one(batches: list[ChangeBatch]) -> ChangeBatch:
    rows = [item.rows for batch in batches for item in batch.items if isinstance(item, TableRows)]
    return ChangeBatch("shop", batches[0].start, batches[-1].end, (TableRows(TABLE, pa.concat_tables(rows)),))


class _Served:
    """The server, in a process of its own."""

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._urls = context.Queue()
        self._process = context.Process(target=_serve, args=(path, self._urls), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._client = RelayClient(self._urls.get(timeout=120))
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.join()

    @property
    def rss_mb(self) -> float:
        """Its memory."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    def ask(self, position: SourceCheckpoint | None, rows_max: int | None = None) -> int:
        """Take an answer, or its first rows."""
        count = 0
        with self._client.stream("shop", position or "beginning", sources=[SOURCE], follow=True) as stream:
            for groups in stream:
                count += sum(frame.batch.num_rows for group in groups for frame in group.rows)
                if rows_max is not None and count >= rows_max:
                    break
        return count


def _serve(path: Path, urls: Any) -> None:
    with BootstrapServer(load_bootstrap(path)) as server:
        urls.put(server.url)
        time.sleep(86_400)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _best(work: Callable[[], object]) -> float:
    return min(_seconds(work) for _ in range(3))


if __name__ == "__main__":
    show(figures)
