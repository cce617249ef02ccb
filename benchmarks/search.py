"""A relay's rows as documents of OpenSearch, beside opensearch-py's parallel bulk helper with the same documents; and
one changed row until a search finds it. Run: python -m benchmarks.search [scale].

The server stands on the same two cores. The helper's documents are Python objects before its time begins; so is
its index, with our mapping and settings. Each way has as many senders and requests as large as the other.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opensearchpy import OpenSearch
from opensearchpy.helpers import parallel_bulk

from benchmarks._changes import insert_groups
from benchmarks.figures import Figure
from benchmarks.spark_delta import CONFIG, rate_of
from benchmarks.spark_latency import measure_lag, percentiles
from benchmarks.spark_tasks import log_of
from databus.pipeline import run
from databus.spark import tuned_session
from databus.testing import RelayProcess
from databus.testing.servers import open_search_server

ROWS = 240_000
ROWS_A_BATCH = 40_000
SENDERS = 2
BULK_ROWS = 2_000
RUNS = 3
CHANGES = 60
WARM_UP = 40
KIND = "opensearch-2.19"

PIPELINE = """
name: {name}
relay: {{url: "{relay}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], max_rows_per_trigger: {rows}, starting_version: {start}}}}}
outputs:
  index:
    type: opensearch
    from: shop
    url: "{url}"
    index: "{name}-{{table}}"
    buckets: {senders}
    bulk_rows_max: {bulk}
    refresh: {refresh}
    settings: {{number_of_shards: 1, number_of_replicas: 0}}
    on_gap: continue
"""


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    server = open_search_server(KIND, folder / "server")
    try:
        server.start()
        spark = tuned_session("search", "local[2]", folder=folder / "spark")
        try:
            yield from _bulk(spark, server.url, folder, scale)
            yield from _latency(spark, server.url, folder, max(int(CHANGES * scale), 5) + WARM_UP)
        finally:
            spark.stop()
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _pipeline(folder: Path, name: str, relay: str, url: str, **more: Any) -> Path:
    file = folder / f"{name}.yml"
    file.write_text(PIPELINE.format(name=name, relay=relay, url=url, senders=SENDERS, bulk=BULK_ROWS, **more))
    return file


def _bulk(spark: Any, url: str, folder: Path, scale: float) -> Iterator[Figure]:
    rows = max(int(ROWS * scale), 6_000)
    a_batch = min(ROWS_A_BATCH, rows // 6)
    sources = log_of(folder, insert_groups(0, rows, 1, 1_000), CONFIG)
    ours, peer = [], []
    with RelayProcess(folder, sources) as relay:
        for number in range(RUNS + 1):
            name = f"copy-{number}"
            events: list[Mapping[str, Any]] = []
            file = _pipeline(folder, name, relay.url, url, rows=a_batch, start="earliest", refresh="none")
            if code := run(file, once=True, on_event=events.append, session=spark):
                raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
            ours.append(rate_of([each for each in events if each["event"] == "batch" and each["rows"]]))
            peer.append(_by_helper(url, f"{name}-events", rows))
    rate, by_helper = statistics.median(ours[1:]), statistics.median(peer[1:])
    yield Figure("relay to OpenSearch", rate, "documents/s", "opensearch-py's parallel_bulk", by_helper)


def _by_helper(url: str, like: str, rows: int) -> float:
    """Documents a second, of an index that is made as ours was and filled with what stands in it."""
    client = OpenSearch(url, timeout=60)
    client.indices.refresh(index=like)
    found = [hit["_source"] for hit in _documents(client, like)]
    if len(found) != rows:
        raise RuntimeError(f"{len(found)} of {rows} documents stand in {like}")
    made = client.indices.get(index=like)[like]
    index = f"by-helper-{like}"
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    client.indices.create(index=index, body={"settings": settings, "mappings": made["mappings"]})
    actions = [
        {
            "_op_type": "index",
            "_index": index,
            "_id": str(each["id"]),
            "version": each["_commit_version"],
            "version_type": "external_gte",
            "_source": each,
        }
        for each in found
    ]
    started = time.perf_counter()
    for is_done, answer in parallel_bulk(client, actions, thread_count=SENDERS, chunk_size=BULK_ROWS):
        if not is_done:
            raise RuntimeError(f"the helper's document was refused: {answer}")
    seconds = time.perf_counter() - started
    client.indices.delete(index=f"{index},{like}")
    return rows / seconds


def _documents(client: OpenSearch, index: str) -> Iterator[dict[str, Any]]:
    page: dict[str, Any] = {"size": 5_000, "sort": [{"id": "asc"}]}
    while hits := client.search(index=index, body=page)["hits"]["hits"]:
        yield from hits
        page["search_after"] = hits[-1]["sort"]


def _latency(spark: Any, url: str, folder: Path, wanted: int) -> Iterator[Figure]:
    config = {
        "type": "mock",
        "rows_per_transaction": 1,
        "transactions_per_s": 2,
        "group_transactions_max": 1,
        "updates": 60,
        "deletes": 20,
    }
    with RelayProcess(folder / "live", {"shop": config}) as relay:
        file = _pipeline(folder, "live", relay.url, url, rows=1_000, start="latest", refresh="force")
        seen = sorted(measure_lag(spark, file, wanted)[WARM_UP:])
    yield from percentiles("one changed row until a search in OpenSearch finds it", seen)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
