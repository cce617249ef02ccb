"""What a bucket leaves out of a batch, by the position that it finds; no server."""

from types import SimpleNamespace

from databus.core import SourceCheckpoint
from databus.tasks import Bucket, TableChoice
from databus.tasks.kafka._positions import Position
from databus.tasks.kafka._writer import _BucketOfKafka
from tests.kafka.moving import log_of


def choice(*tables):
    return ((TableChoice(tuple(f"main.{each}" for each in tables)),),)


def bucket_at(position, *tables):
    """Of a query that brings these tables now, and whose ledger is lost."""
    bucket = Bucket("shop", "topics", "q", 0, 1, of="shop/*", selections=choice(*tables))
    return _BucketOfKafka(None, bucket, SimpleNamespace(position=position), False)


def ids_of(batch):
    return sorted(number for item in batch.items for number in item.rows["id"].to_pylist())


def test_what_a_query_did_not_bring_when_its_position_was_written_is_not_left_out():
    """It was, in silence, where a table was added and the ledger was gone: in a container, both are one event."""
    log = log_of("orders", "events", "orders", "events", "orders")
    position = Position(log.position(4), 1, None, "shop/*", choice("orders"))
    writer = bucket_at(position, "orders", "events")
    assert ids_of(writer._left(log.batch(0, 5))) == [2, 4, 5]
    moved = writer._position_at(log.position(2), None)
    assert (moved.at.scn, [(each.at.scn, each.has("shop/main.orders")) for each in moved.written]) == (2, [(4, True)])
    assert ids_of(bucket_at(moved, "orders", "events")._left(log.batch(0, 5))) == [4, 5]


def test_a_position_of_the_same_tables_leaves_out_all_up_to_it():
    log = log_of("orders", "orders", "orders")
    position = Position(log.position(2), 1, None, "shop/*", choice("orders"))
    assert ids_of(bucket_at(position, "orders")._left(log.batch(0, 3))) == [3]
    assert bucket_at(position, "orders")._left(log.batch(0, 2)) is None
    assert bucket_at(Position(SourceCheckpoint(), 1), "orders")._left(log.batch(0, 2)) is not None
