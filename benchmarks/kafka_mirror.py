"""A topic mirrored into another, beside Spark's own Kafka source and sink, which has no transactions. Run:
python -m benchmarks.kafka_mirror [scale].

The broker stands on the same two cores, and both topics in it. Ours goes the whole way: the relay captures the topic
into its log while the pipeline writes. Spark takes all messages in one batch, which is its fastest. Either is measured
by what stands in the target: from the first tenth of the messages to the last.
"""

import queue
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.figures import Figure
from benchmarks.spark_delta import rate_of
from databus.pipeline import run
from databus.spark import tuned_session
from databus.testing import RelayProcess
from databus.testing.servers import Kafka, ServerMissing
from databus.testing.servers._fetch import kept
from databus.testing.servers._java_server import fetch_jars

MESSAGES = 600_000
VALUE_BYTES = 238
KEY_BYTES = 16
PARTITIONS = 2
RUNS = 2
WATCH_S = 0.02
S_MAX = 300
SOURCE = "source"
PEER = "Spark's own source and sink, without transactions"
WAYS = {True: "with transactions", False: "without transactions"}
CONNECTOR = "4.2.0"  # of Spark 4.2.1 there is none
JARS = ("commons-pool2", "kafka-clients", "spark-sql-kafka", "spark-token-provider")
SHA256 = "553b45f7d6c3978b8fc472e7c82c5a7368ca9cad129a3fb90fb9b31a25ef343b"

PIPELINE = """
name: {name}
relay: {{url: "{relay}"}}
inputs: {{east: {{type: databus, tables: ["east/*"], starting_version: earliest}}}}
outputs:
  west:
    type: kafka
    from: east
    format: message
    topic: "{name}"
    create_topics: {{replication_factor: 1}}
    transactions: {transactions}
    buckets: 2
    kafka: {{bootstrap.servers: "{bootstrap}"}}
"""


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    server = Kafka(folder / "server", heap_mb=768)
    try:
        server.start()
        jars = _jars()
        spark = tuned_session("mirror", "local[2]", folder=folder / "spark", settings={"spark.jars": ",".join(jars)})
        try:
            yield from _mirrors(spark, server.bootstrap, folder, max(int(MESSAGES * scale), 6_000), bool(jars))
        finally:
            spark.stop()
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _jars() -> list[str]:
    """Spark's connector and what it needs; nothing where it cannot be fetched."""
    try:
        folder = kept(f"spark-kafka-{CONNECTOR}-v1", _fetch)
    except ServerMissing:
        return []
    return [str(each) for each in sorted(folder.glob("*.jar")) if each.name.startswith(JARS)]


def _fetch(draft: Path) -> None:
    fetch_jars([f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}"], SHA256, draft)


def _mirrors(spark: Any, bootstrap: str, folder: Path, count: int, has_peer: bool) -> Iterator[Figure]:
    _fill(bootstrap, count)
    rates: dict[str, list[float]] = {way: [] for way in (*WAYS.values(), PEER)}
    behind: dict[str, list[float]] = {way: [] for way in WAYS.values()}
    for number in range(RUNS + 1):
        for transactions, way in WAYS.items():
            name = f"{way.partition(' ')[0]}-{number}"
            whole, alone = _by_databus(spark, bootstrap, folder / name, count, transactions)
            rates[way].append(whole)
            behind[way].append(alone)
        if has_peer:
            rates[PEER].append(_by_spark(spark, bootstrap, folder / f"spark-{number}", count))
    peer = _median(rates[PEER]) if has_peer else None
    for way in WAYS.values():
        yield Figure(f"Kafka to Kafka, {way}", _median(rates[way]), "messages/s", PEER, peer)
    for way in WAYS.values():
        rate = _median(behind[way])
        yield Figure(f"Kafka to Kafka, {way}, what the log has already", rate, "messages/s", PEER, peer)


def _median(rates: list[float]) -> float:
    """Without the first, which finds everything cold."""
    return statistics.median(rates[1:] or rates)


def _fill(bootstrap: str, count: int) -> None:
    _make_topic(bootstrap, SOURCE)
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000})
    body = b"x" * (VALUE_BYTES - 12)
    for number in range(count):
        value, key = b"%012d%b" % (number, body), b"%0*d" % (KEY_BYTES, number)
        while True:
            try:
                producer.produce(SOURCE, value, key, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if left := producer.flush(S_MAX):
        raise RuntimeError(f"{left} messages did not arrive")


def _make_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)


def _by_databus(spark: Any, bootstrap: str, folder: Path, count: int, transactions: bool) -> tuple[float, float]:
    """Messages a second: the whole way, and from a log that holds them all."""
    source = {"type": "kafka", "topics": [SOURCE], "kafka": {"bootstrap.servers": bootstrap}}
    relay = RelayProcess(folder, {"east": source})
    file = folder / "mirror.yml"
    folder.mkdir()

    def write(name: str) -> None:
        text = PIPELINE.format(name=name, relay=relay.url, bootstrap=bootstrap, transactions=str(transactions).lower())
        file.write_text(text)

    events: list[Mapping[str, Any]] = []
    stop: queue.SimpleQueue[Any] = queue.SimpleQueue()
    try:
        relay.start()
        write(f"{folder.name}-whole")
        whole = _rate(
            bootstrap,
            f"{folder.name}-whole",
            count,
            lambda: run(file, session=spark, stop=stop),
            lambda: stop.put("all is there"),
        )
        write(f"{folder.name}-alone")
        if code := run(file, once=True, on_event=events.append, session=spark):
            raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    finally:
        relay.stop()
    batches = [each for each in events if each["event"] == "batch" and each["rows"]]
    return whole, rate_of(batches) if len(batches) > 1 else whole


def _by_spark(spark: Any, bootstrap: str, folder: Path, count: int) -> float:
    name = folder.name
    _make_topic(bootstrap, name)

    def copy() -> None:
        read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        rows = read.option("subscribe", SOURCE).option("startingOffsets", "earliest").load()
        kept_columns = rows.select("key", "value", "partition")
        written = kept_columns.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        written = written.option("topic", name).option("checkpointLocation", str(folder)).trigger(availableNow=True)
        written.start().awaitTermination()

    return _rate(bootstrap, name, count, copy, lambda: None)


def _rate(bootstrap: str, topic: str, count: int, work: Callable[[], Any], done: Callable[[], None]) -> float:
    """Messages a second between the first tenth and the last in a topic that `work` fills; `done` ends it."""
    thread = threading.Thread(target=work)
    thread.start()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "watch", "allow.auto.create.topics": False})
    started, begun, at = time.perf_counter(), 0, 0.0
    try:
        while (there := _end(reader, topic)) < count:
            now = time.perf_counter()
            if not begun and there >= count // 10:
                begun, at = there, now
            if now - started > S_MAX:
                raise RuntimeError(f"{there} of {count} messages came to {topic} within {S_MAX} s")
            time.sleep(WATCH_S)
        seconds = time.perf_counter() - (at or started)
    finally:
        done()
        thread.join()
        reader.close()
    return (count - begun) / seconds


def _end(reader: Consumer, topic: str) -> int:
    """How many stand in a topic, markers of transactions among them."""
    if topic not in reader.list_topics(timeout=30).topics:
        return 0
    try:
        ends = [reader.get_watermark_offsets(TopicPartition(topic, number), timeout=30) for number in range(PARTITIONS)]
    except KafkaException:  # it has no leader yet
        return 0
    return sum(end for _, end in ends)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
