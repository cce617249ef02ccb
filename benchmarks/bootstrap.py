"""What the bootstrap service costs: to fill its stores, to merge, to answer, beside who reads the same files.

python -m benchmarks.bootstrap [SCALE]

Stores are filled by the outputs of the service's own pipeline, without Spark; rows are of some 120 bytes. The server is
a process of its own, and clients decode into Arrow. Times are of the wall clock, of the best of three. SCALE 1 is ten
million rows, a million changes in one merge and ten million in ten.
"""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, show
from benchmarks.latency import RATE
from benchmarks.latency import run as late_ms
from databus.bootstrap import AnswerRequest, BootstrapServer, load_bootstrap
from databus.bootstrap._kept_stores import PhysicalStores
from databus.bootstrap._noting import Noting, Stand
from databus.bootstrap._parts import measured
from databus.core import ChangeType, SourceCheckpoint
from databus.filters import StreamFilter
from databus.flow import user_rows_schema
from databus.link import LookBack, RelayClient
from databus.log import SchemaVersion
from databus.pipeline import ChangeBatch, TableRows, load_pipeline
from databus.schema import Column, TableSchema
from databus.sinks import DeltaConfig, DeltaOutput
from databus.testing._staged_writes import write_batch

ROWS = 10_000_000
CHANGES = 1_000_000
TWO_DAYS = 2 * 86_400 * 1_500
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
        self.pipeline = load_pipeline(self.config.write_pipeline(())).config
        self._noting = Noting(self.config, "shop")
        self.rows = _Rows()

    def write(self, name: str, batches: list[ChangeBatch]) -> float:
        """Returns the seconds that it took."""
        node = self.pipeline.nodes[f"outputs.{name}"]
        output = node.plugin(node.config, self.pipeline.context_of(name))
        return _seconds(lambda: [write_batch(output, batch) for batch in batches])

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
    count, changes = max(int(ROWS * scale), 20_000), max(int(CHANGES * scale), 2_000)
    with tempfile.TemporaryDirectory() as small_folder, tempfile.TemporaryDirectory() as folder:
        small = _filled_stores(Path(small_folder), count // 10)
        stores = _filled_stores(Path(folder), count)
        yield from _filled(stores, scale)
        old = stores.note()
        small.note()
        yield from _answers(stores, small, count)
        yield from _key_range(stores, count)
        yield from _merged(stores, small, count, changes)
        yield from _since(stores, old, count, 10 * changes)
        yield from _beside_a_relay(stores, max(10.0, 60 * scale))


def _filled_stores(folder: Path, count: int) -> Stores:
    """Stores of a table of so many rows."""
    stores = Stores(folder)
    for batch in _batches(stores.rows, np.arange(count), ChangeType.INSERT):
        stores.write("log", [batch])
        stores.write("state", [batch])
    return stores


def _batches(rows: _Rows, ids: Any, kind: ChangeType) -> Iterator[ChangeBatch]:
    return (rows.batch(ids[at : at + BATCH_ROWS], kind) for at in range(0, len(ids), BATCH_ROWS))


def _filled(stores: Stores, scale: float) -> Iterator[Figure]:
    """The log store beside a plain history, of the same batches."""
    count = max(int(4 * BATCH_ROWS * min(scale, 1.0)), 20_000)
    batches = [*_batches(_Rows(), np.arange(count), ChangeType.INSERT)]

    def write(**options: Any) -> float:
        with tempfile.TemporaryDirectory() as path:
            config = DeltaConfig.model_validate({"mode": "history", "path": path, "from": ["x"], **options})
            output = DeltaOutput(config, stores.pipeline.context_of("bench"))
            return _seconds(lambda: [write_batch(output, batch) for batch in batches])

    plain = min(write() for _ in range(3))
    store = min(write(controls="all", retype="new_column") for _ in range(3))
    yield Figure("log store filled", count / store, "rows/s", "a plain history", count / plain)


def _answers(stores: Stores, small: Stores, count: int) -> Iterator[Figure]:
    """All rows to a client, and the first of few. small: stores of a tenth of the rows."""
    files = stores.files()
    bare = _best(lambda: [pq.read_table(each, use_threads=False) for each in files])
    with _Served(small.config.path) as server:
        server.ask(None)
        of_a_tenth = server.peak_mb
    with _Served(stores.config.path) as server:
        server.ask(None, rows_max=1)  # the first one reads footers
        took = _best(lambda: server.ask(None))
        yield Figure("all, to a client as Arrow", count / took, "rows/s", "PyArrow, one thread", count / bare)
        yield Figure("memory of the server, at most", server.peak_mb, "MB", "for a tenth of the rows", of_a_tenth)
        end = SourceCheckpoint(uuid="u", scn=max(stores.rows.scn - 50, 1), log="gone")
        times = sorted(_seconds(lambda: server.ask(end, rows_max=1)) for _ in range(20))
        yield Figure("first row of a small answer, p50", times[10] * 1e3, "ms")


def _key_range(stores: Stores, count: int) -> Iterator[Figure]:
    """A hundredth of the rows, by their keys. Bytes are those of the row groups that are read."""
    few, first = count // 100, count // 2
    wanted = StreamFilter.parse(f"id >= {first} AND id < {first + few}", None, {})
    look = PhysicalStores(stores.config.root, "shop").look()
    some, all_of_it = (
        measured(look.outline(None, AnswerRequest("shop", frozenset({TABLE.source}), (SOURCE,), choice))).bytes
        for choice in (wanted, StreamFilter())
    )
    yield Figure("1 % of a table by key range, read", some / 1e6, "MB", "all of it", all_of_it / 1e6)
    with _Served(stores.config.path) as server:
        server.ask(None, rows_max=1)
        rows: list[int] = []
        took = _best(lambda: rows.append(server.ask(None, wanted=wanted)))
        if {*rows} != {few}:
            raise ValueError(f"{rows} rows came, and {few} are there")
        yield Figure("1 % of a table by key range, to a client", took * 1e3, "ms")


def _merged(stores: Stores, small: Stores, count: int, changes: int) -> Iterator[Figure]:
    """Ten changes of each of some keys in one merge, each in a process of its own, whose memory is looked at."""
    _, small_mb = _merged_in(small, count // 10, changes)
    took, peak_mb = _merged_in(stores, count, changes)
    yield Figure(f"merged, {changes:,} changes into {count:,} rows", changes / took, "changes/s")
    yield Figure("memory of who merges, at most", peak_mb, "MB", "into a tenth of the rows", small_mb)
    stores.rows.scn += changes
    stores.note()


def _merged_in(stores: Stores, count: int, changes: int) -> tuple[float, float]:
    """Seconds, and the most megabytes that the merge took."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        return other.submit(_merge, stores.config.path.parent, stores.rows.scn, count, changes).result()


def _merge(folder: Path, scn: int, count: int, changes: int) -> tuple[float, float]:
    stores = Stores(folder)
    stores.rows.scn = scn
    keys = np.arange(count - min(changes // 10, count), count)  # the newest rows, as it mostly is
    batches = [batch for _ in range(10) for batch in _batches(stores.rows, keys, ChangeType.UPDATE_POSTIMAGE)]
    stores.write("log", batches)
    before = psutil.Process().memory_info().rss / 1e6
    took = stores.write("state", [_as_one(batches)])
    return took, max(_peak_mb("self") - before, 0.0)


def _since(stores: Stores, old: SourceCheckpoint, count: int, changes: int) -> Iterator[Figure]:
    """Ten changes of each of some keys: answered since and one by one, and what others make of the same files."""
    begin = stores.rows.scn
    keys = np.arange(count - min(changes // 10, count), count)
    for _ in range(10):
        batches = [*_batches(stores.rows, keys, ChangeType.UPDATE_POSTIMAGE)]
        stores.write("log", batches)
        stores.write("state", [_as_one(batches)])
    total, old = 10 * len(keys), replace(old, scn=begin)
    stores.note()
    look = PhysicalStores(stores.config.root, "shop").look()
    asks = [AnswerRequest("shop", frozenset({TABLE.source}), (SOURCE,), every=every) for every in (False, True)]
    since, every = (measured(look.outline(old, ask)).bytes / 1e6 for ask in asks)
    yield Figure("since, read", since, "MB", "every change", every)
    with _Served(stores.config.path) as server:
        server.ask(old, rows_max=1)
        took, one_by_one = _best(lambda: server.ask(old)), _seconds(lambda: server.ask(old, every=True))
    yield Figure(f"since, {total:,} changes, to a client", took, "s", "every change", one_by_one)
    log = [*(Path(stores.config.folder) / "lake/log" / SOURCE).glob("*.parquet")]
    name, last_rows = _last_rows(log, begin)
    yield Figure("since, to a client", took, "s", name, _best(last_rows))
    days = f"two days at 1,500 rows/s, since, extrapolated from {total:,} changes"
    yield Figure(days, took * TWO_DAYS / total / 60, "min", "every change", one_by_one * TWO_DAYS / total / 60)


def _last_rows(files: list[Path], after: int) -> tuple[str, Callable[[], object]]:
    """What finds the last row of each key in the log store's files, as DuckDB does it, or PyArrow without that."""
    names = [str(each) for each in files]
    try:
        import duckdb
    except ImportError:
        return "PyArrow's last row per key", lambda: _last_by_arrow(names, after)
    columns = ", ".join(f"arg_max({name}, _commit_version)" for name in TABLE.names)
    query = f"SELECT {columns} FROM read_parquet({names}) WHERE _commit_version > {after} GROUP BY id"
    return "DuckDB's last row per key", lambda: duckdb.sql(query).arrow()


def _last_by_arrow(names: list[str], after: int) -> pa.Table:
    rows = pq.read_table(names, filters=[("_commit_version", ">", after)], use_threads=False)
    codes = rows.column("id").combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((rows.column("_commit_version").to_numpy(), codes))
    is_last = np.append(codes[order][1:] != codes[order][:-1], True)
    return rows.take(pa.array(order[is_last]))


def _beside_a_relay(stores: Stores, seconds: float) -> Iterator[Figure]:
    """From commit to callback at a relay, while the past is served, and while two others work as hard on the files."""
    with _Served(stores.config.path) as server, _Busy((_ask_on, server.url)):
        served = late_ms(RATE, seconds, group_transactions_max=1)
        sent = server.sent_bytes / 1e9
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with _Busy((_read_on, stores.files(), ours), (_take_on, theirs)):
        beside = late_ms(RATE, seconds, group_transactions_max=1)
    p99 = [sorted(each)[len(each) * 99 // 100] for each in (served, beside)]
    yield Figure(
        f"p99 at the relay, {sent:.1f} GB of past served meanwhile", p99[0], "ms", "an equal other load", p99[1]
    )


def _ask_on(url: str) -> None:
    client = RelayClient(url)
    while True:
        with client.stream("shop", "beginning", sources=[SOURCE], follow=True) as stream:
            for groups in stream:
                sum(frame.batch.num_rows for group in groups for frame in group.rows)


def _read_on(files: list[Path], pipe: Any) -> None:
    while True:
        for each in files:
            for batch in pq.ParquetFile(each).iter_batches(20_000, use_threads=False):
                pipe.send_bytes(batch.serialize())


def _take_on(pipe: Any) -> None:
    while True:
        pipe.recv_bytes()


class _Busy:
    """Processes that work until they are ended."""

    def __init__(self, *works: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes = [context.Process(target=work, args=args, daemon=True) for work, *args in works]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def _as_one(batches: list[ChangeBatch]) -> ChangeBatch:
    rows = [item.rows for batch in batches for item in batch.items if isinstance(item, TableRows)]
    return ChangeBatch("shop", batches[0].start, batches[-1].end, (TableRows(TABLE, pa.concat_tables(rows)),))


def _peak_mb(process: int | str) -> float:
    """The most memory that a process has had."""
    (line,) = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


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
    def url(self) -> str:
        """Where it answers."""
        return self._client.url

    @property
    def peak_mb(self) -> float:
        """The most memory that it has had."""
        return _peak_mb(self._process.pid or 0)

    @property
    def sent_bytes(self) -> int:
        """So much of answers it has sent."""
        with urlopen(f"{self.url}/admin/status", timeout=60) as answer:  # noqa: S310 - our own
            return int(json.load(answer)["sent_bytes"])

    def ask(
        self,
        position: SourceCheckpoint | None,
        rows_max: int | None = None,
        wanted: StreamFilter | None = None,
        *,
        every: bool = False,
    ) -> int:
        """Take an answer, or its first rows."""
        count, client = 0, self._client if wanted is None else self._client.filtered(wanted)
        if every:
            client = client.clone()
            client.asks = LookBack(every=True).query()
        with client.stream("shop", position or "beginning", sources=[SOURCE], follow=True) as stream:
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
