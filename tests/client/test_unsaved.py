"""A client whose checkpoints cannot be saved for a while."""

from dataclasses import replace

import pytest

from databus.client import Client, MemoryCheckpoints
from databus.core import Checkpoint, SourceCheckpoint
from tests.client.conftest import Collector, captured, mock, wait_for
from tests.client.test_client import QUICK


class Unwilling(MemoryCheckpoints):
    """A store that cannot save while a test says so."""

    def __init__(self, checkpoint=None):
        super().__init__(checkpoint)
        self.is_failing, self.tries = True, 0

    def save(self, checkpoint):
        self.tries += 1
        if self.is_failing:
            raise ConnectionError("the store is away")
        super().save(checkpoint)


ALL_OF_IT = Checkpoint({"shop": SourceCheckpoint()})


def test_a_client_outlives_a_store_that_cannot_save_and_saves_when_it_can(relay_of):
    relay = relay_of(shop=mock(transactions_total=100))
    captured(relay, 100)
    consumer, store = Collector(), Unwilling(ALL_OF_IT)
    client = Client(relay.url, consumer, checkpoints=store, config=QUICK)
    client.start()
    consumer.wait("shop", 100)
    wait_for(lambda: store.tries > 20, "more tries than there are retries for a window")
    assert isinstance(client.status()["shop"].last_error, ConnectionError)
    store.is_failing = False
    wait_for(lambda: store.checkpoint.sources["shop"].scn == 100, "the checkpoint")
    client.stop()
    assert consumer.scns["shop"] == list(range(1, 101))
    assert not consumer.errors


def test_a_client_that_cannot_save_for_long_waits_says_so_and_goes_on(relay_of):
    relay = relay_of(shop=mock(transactions_per_s=500))
    captured(relay, 20)
    consumer, store = Collector(), Unwilling(ALL_OF_IT)
    client = Client(relay.url, consumer, checkpoints=store, config=replace(QUICK, unsaved_ms_max=100))
    client.start()
    wait_for(lambda: client.state == "waiting", "the wait")
    given = consumer.scns["shop"][-1]
    tries = store.tries
    wait_for(lambda: store.tries > tries + 20, "more tries")
    assert consumer.scns["shop"][-1] == given, "called although nothing could be saved"
    captured(relay, given + 20)
    store.is_failing = False
    consumer.wait("shop", given + 20)
    assert client.state == "running"
    client.stop()


def test_nothing_is_given_out_before_the_start_is_saved(relay_of):
    """A crash would begin at a later `latest`, and what was not saved would be lost."""
    relay = relay_of(shop=mock(transactions_per_s=500))
    captured(relay, 20)
    consumer, store = Collector(), Unwilling()
    client = Client(relay.url, consumer, start="latest", checkpoints=store, config=QUICK)
    client.start()
    wait_for(lambda: store.tries > 20, "some tries")
    assert not consumer.scns
    store.is_failing = False
    wait_for(lambda: consumer.scns.get("shop"), "the first window")
    began = consumer.scns["shop"][0]
    client.stop()
    assert consumer.scns["shop"] == list(range(began, began + len(consumer.scns["shop"])))


def test_a_client_that_stops_without_its_last_checkpoint_says_so(relay_of):
    relay = relay_of(shop=mock(transactions_total=10))
    consumer, store = Collector(), Unwilling(ALL_OF_IT)
    client = Client(relay.url, consumer, checkpoints=store, config=QUICK)
    client.start()
    consumer.wait("shop", 10)
    with pytest.raises(ConnectionError, match="the store is away"):
        client.stop()
