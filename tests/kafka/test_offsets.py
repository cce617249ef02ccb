"""Messages are found again by the offsets that an output says after each batch."""

from databus.core import Pair
from databus.flow import Bucket, Here
from databus.testing._change_log import ORDERS, ChangeLog, Image
from databus.testing._staged_writes import opened, write_buckets
from tests.kafka.support import KafkaHarness


def test_changes_lie_between_the_offsets_before_and_behind_their_batch(kafka, tmp_path):
    log = ChangeLog().begin()
    for number in range(8):
        log.insert(ORDERS, {"id": number, "note": "x", "total": None})
        log.begin()
    output = opened(KafkaHarness(kafka, tmp_path).make())
    bucket = Bucket(output.context.pipeline, output.context.output, log.physical)
    try:
        written = [
            output.commit(each, Here()) for batch in log.batches([5]) for each in write_buckets(output, batch, bucket)
        ]
        ends = [each.offsets[f"{log.physical}/{ORDERS.source}"] for each in written]
        pairs: list[Pair] = [entry.pair for entry in log.entries if isinstance(entry, Image)]
        first, second = ends[0], ends[-1]
        assert output.find_between({}, first, pairs) == pairs[:5]
        assert output.find_between(first, second, pairs) == pairs[5:]
        assert output.find_between(first, second, pairs[:2]) == []
    finally:
        output.close()
