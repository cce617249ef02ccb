"""A relay's rows as messages of Kafka, beside a `produce` loop of confluent-kafka with the same messages; and one
changed row until a reader of what is committed has it. Run: python -m benchmarks.kafka [scale].

The broker stands on the same two cores. The loop's messages are Python objects before its time begins: the bytes, keys
and headers that we wrote. It waits for all replicas, as we do, in one process and without transactions.
"""

import json
import queue
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks._changes import insert_groups
from benchmarks.figures import Figure
from benchmarks.spark_delta import CONFIG, rate_of
from benchmarks.spark_latency import percentiles
from benchmarks.spark_tasks import log_of
from databus.pipeline import run
from databus.spark import tuned_session
from databus.testing import RelayProcess
from databus.testing.servers import Kafka

ROWS = 800_000
ROWS_A_BATCH = 200_000  # about what the pipeline takes by default
LOOP_ROWS_MAX = 400_000
PARTITIONS = 2
RUNS = 2
CHANGES = 60
CHANGES_A_SECOND = 2
WARM_UP = 40
S_MAX = 300
WAYS = {True: "with transactions", False: "without transactions"}

PIPELINE = """
name: {name}
relay: {{url: "{relay}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], max_rows_per_trigger: {rows}, starting_version: {start}}}}}
outputs:
  topics:
    type: kafka
    from: shop
    topic: "{name}"
    create_topics: {{partitions: {partitions}}}
    transactions: {transactions}
    buckets: 2
    on_gap: continue
    kafka: {{bootstrap.servers: "{bootstrap}"}}
"""
Message = tuple[bytes | None, bytes | None, Any]


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    server = Kafka(folder / "server")
    try:
        server.start()
        spark = tuned_session("kafka", "local[2]", folder=folder / "spark")
        try:
            yield from _bulk(spark, server.bootstrap, folder, scale)
            yield from _latency(spark, server.bootstrap, folder, max(int(CHANGES * scale), 5))
        finally:
            spark.stop()
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _pipeline(folder: Path, name: str, relay: str, bootstrap: str, **more: Any) -> Path:
    file = folder / f"{name}.yml"
    file.write_text(PIPELINE.format(name=name, relay=relay, bootstrap=bootstrap, partitions=PARTITIONS, **more))
    return file


def _bulk(spark: Any, bootstrap: str, folder: Path, scale: float) -> Iterator[Figure]:
    rows = max(int(ROWS * scale), 6_000)
    a_batch = min(ROWS_A_BATCH, rows // 6)
    sources = log_of(folder, insert_groups(0, rows, 1, 1_000), CONFIG)
    rates: dict[str, list[float]] = {way: [] for way in (*WAYS.values(), "loop")}
    with RelayProcess(folder, sources) as relay:
        for number in range(RUNS + 1):
            for transactions, way in WAYS.items():
                name = f"{way.partition(' ')[0]}-{number}"
                more = {"rows": a_batch, "start": "earliest", "transactions": str(transactions).lower()}
                events: list[Mapping[str, Any]] = []
                file = _pipeline(folder, name, relay.url, bootstrap, **more)
                if code := run(file, once=True, on_event=events.append, session=spark):
                    raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
                rates[way].append(rate_of([each for each in events if each["event"] == "batch" and each["rows"]]))
            messages = _messages_in(bootstrap, name, rows)
            rates["loop"].append(_by_loop(bootstrap, f"loop-{number}", messages))
    found = {way: statistics.median(each[1:] or each) for way, each in rates.items()}
    for way in WAYS.values():
        yield Figure(f"relay to Kafka, {way}", found[way], "messages/s", "a loop of produce", found["loop"])


def _make_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)


def _reader(bootstrap: str, topic: str, offset: int) -> Consumer:
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, number, offset) for number in range(PARTITIONS)])
    return reader


def _messages_in(bootstrap: str, topic: str, rows: int) -> list[Message]:
    """The first of them; all are counted."""
    reader, found, count, ended = _reader(bootstrap, topic, 0), [], 0, 0
    while ended < PARTITIONS:
        for message in reader.consume(10_000, 1.0):
            if message.error() is not None:
                ended += 1
                continue
            count += 1
            if count <= LOOP_ROWS_MAX:
                found.append((message.value(), message.key(), message.headers()))
    reader.close()
    if count != rows:
        raise RuntimeError(f"{count} of {rows} messages stand in {topic}")
    return found


def _by_loop(bootstrap: str, topic: str, messages: list[Message]) -> float:
    """Messages a second."""
    _make_topic(bootstrap, topic)
    settings = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, **settings})
    started = time.perf_counter()
    for value, key, headers in messages:
        while True:
            try:
                producer.produce(topic, value, key, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    if left := producer.flush(S_MAX):
        raise RuntimeError(f"{left} messages of the loop did not arrive")
    return len(messages) / (time.perf_counter() - started)


def _latency(spark: Any, bootstrap: str, folder: Path, wanted: int) -> Iterator[Figure]:
    config = {
        "type": "mock",
        "rows_per_transaction": 1,
        "transactions_per_s": CHANGES_A_SECOND,
        "group_transactions_max": 1,
        "updates": 0,
        "deletes": 0,
    }
    name = "live"
    _make_topic(bootstrap, name)
    with RelayProcess(folder / name, {"shop": config}) as relay:
        file = _pipeline(folder, name, relay.url, bootstrap, rows=1_000, start="latest", transactions="true")
        seen = sorted(_lags(spark, file, _reader(bootstrap, name, OFFSET_END), wanted + WARM_UP)[WARM_UP:])
    yield from percentiles("one changed row until a reader of Kafka has it", seen)


def _lags(spark: Any, file: Path, reader: Consumer, wanted: int) -> list[float]:
    """Milliseconds from each commit until the reader holds the row's message."""
    waited_ms: list[float] = []
    stop: queue.SimpleQueue[Any] = queue.SimpleQueue()
    is_over = threading.Event()

    def read() -> None:
        while len(waited_ms) < wanted and not is_over.is_set():
            message = reader.poll(0.5)
            if message is None or message.error() is not None:
                continue
            now_ms = time.time() * 1e3
            row = json.loads(message.value() or b"{}")
            if "_change_type" in row:
                waited_ms.append(now_ms - datetime.fromisoformat(row["_commit_timestamp"]).timestamp() * 1e3)
        stop.put("that was enough")

    def note(event: Mapping[str, Any]) -> None:
        if event["event"] in ("retry", "failed"):
            stop.put("it went wrong")

    timer = threading.Timer(S_MAX, stop.put, ["it takes too long"])
    thread = threading.Thread(target=read)
    timer.start()
    thread.start()
    try:
        run(file, on_event=note, session=spark, stop=stop)
    finally:
        timer.cancel()
        is_over.set()
        thread.join()
        reader.close()
    if len(waited_ms) < wanted:
        raise RuntimeError(f"{len(waited_ms)} of {wanted} changes came to the reader")
    return waited_ms


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
