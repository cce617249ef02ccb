"""Another number of buckets, or other names, which the driver sees to while nothing writes."""

from collections.abc import Mapping
from dataclasses import replace

from databus.core import UnsupportedFeature
from databus.places import Choice, Position
from databus.sinks.kafka._positions import NO_LEDGER, BucketId, Ledger, Record, of_output, positions_of
from databus.sinks.kafka._session import Session
from databus.sinks.kafka._writer import KafkaWriter


def switch_buckets(
    writer: KafkaWriter, pipeline: str, output: str, choice: Choice = (), ledger: Ledger = NO_LEDGER
) -> None:
    """Have an output's records be those of as many buckets as it has now. While nothing writes.

    All buckets have to stand alike in the tables that are chosen, as they do when no batch was broken off; for others
    see `Position.shared`. Whoever writes older buckets is shut out. ledger: as `Positions.read` takes
    it. Raises `UnsupportedFeature`.
    """
    from confluent_kafka import KafkaException

    topic = writer.control_topic
    if topic is None:
        return
    records = positions_of(writer.cluster, topic).read(ledger=ledger)
    for physical, by_number in of_output(records, pipeline, output).items():
        if {record.buckets for record in by_number.values()} == {writer.buckets}:
            continue
        before = max(record.buckets for record in by_number.values())
        numbers = sorted({*by_number, *range(before)})  # one without a record has written nothing yet
        sessions = [Session(writer.cluster, topic, BucketId(pipeline, output, physical, number)) for number in numbers]
        try:
            for session in sessions:
                session.begin()
            shared = _shared([session.record for session in sessions], choice, writer.buckets)
            if shared is None:
                raise UnsupportedFeature(
                    f"outputs.{output}: the buckets of {physical} do not stand at one place, so that there cannot be "
                    f"{writer.buckets} now: a batch was broken off. Say `buckets: {before}`, let it run until a batch "
                    f"is whole, and change the number then"
                )
            first = BucketId(pipeline, output, physical, 0)
            sessions[0].put(_messages(first, max(numbers[-1] + 1, writer.buckets), writer.buckets, shared.value))
        except KafkaException as error:
            raise writer.cluster.error(error, f"changing the number of buckets of {physical}") from error
        finally:
            for session in sessions:
                session.close()


def rename_buckets(writer: KafkaWriter, before: tuple[str, str], after: tuple[str, str]) -> int:
    """Give an output's records to the one of other names, in one transaction; returns how many there are. While nothing
    writes; whoever writes under the old names is shut out. Names are those of pipeline and output.
    """
    from confluent_kafka import KafkaException

    topic = writer.control_topic
    if topic is None:
        return 0
    records = positions_of(writer.cluster, topic).read()
    buckets = [
        BucketId(*before, physical, number)
        for physical, mine in of_output(records, *before).items()
        for number in sorted(mine)
    ]
    sessions = [Session(writer.cluster, topic, bucket) for bucket in buckets]
    try:
        messages: dict[bytes, bytes | None] = {}
        for session in sessions:
            session.begin()
            bucket, record = session.bucket, session.record
            if record is not None:
                pipeline, output = after
                messages[replace(bucket, pipeline=pipeline, output=output).key] = record.value
                messages[bucket.key] = None
        if messages:  # what is left of an earlier output of the new name goes
            left = of_output(records, *after).items()
            others = (BucketId(*after, physical, number).key for physical, mine in left for number in mine)
            sessions[0].put({**dict.fromkeys(others), **messages})
    except KafkaException as error:
        raise writer.cluster.error(error, f"renaming output {before[1]} of pipeline {before[0]}") from error
    finally:
        for session in sessions:
            session.close()
    return sum(value is not None for value in messages.values())


def _messages(first: BucketId, numbers: int, buckets: int, value: bytes) -> Mapping[bytes, bytes | None]:
    return {replace(first, number=number).key: value if number < buckets else None for number in range(numbers)}


def _shared(records: list[Record | None], choice: Choice, buckets: int) -> Record | None:
    known = [record for record in records if record is not None]
    shared = Position.shared([record.position for record in known], choice) if len(known) == len(records) else None
    if shared is None:
        return None
    counts = {repr(record.counts) for record in known}
    return Record(shared, buckets, known[0].counts if len(counts) == 1 else None)
