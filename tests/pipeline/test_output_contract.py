"""What an output is told with a batch, and what becomes of its answer."""

from typing import ClassVar

import pytest

from databus.core import Checkpoint, CorruptData, InputError
from databus.pipeline import Delivery, Output, OutputConfig, OutputContext, Written
from databus.pipeline.engine._handle import OutputHandle
from databus.places import Held, Noted
from databus.testing._change_log import ORDERS
from tests.feeds import bring
from tests.outputs.harnesses import FROM, log_of

NAME = "shop/main.orders"


class Plain(Output):
    """What everybody writes who has nothing more to say."""

    config_model: ClassVar = OutputConfig
    delivery: ClassVar = Delivery.AT_LEAST_ONCE

    def write(self, batch):
        self.batch = batch


class Telling(Plain):
    """One that knows what it has."""

    mark = "one"

    def write(self, batch):
        super().write(batch)
        return Written({ORDERS.source: 1}, {NAME: Noted(batch.end.pair, self.mark)})

    def held(self, tables):
        return {NAME: Held(None, self.mark)} if self.mark else {}


def handle_of(kind, folder):
    output = kind(OutputConfig(type="mine", **FROM), OutputContext("shop", "copy", folder))
    handle = OutputHandle("copy", output, folder / "state")
    bring(handle, "shop/*", way_of=lambda name: f"way of {name}")
    handle.open()
    return handle


def test_a_batch_says_what_is_known_of_its_tables(tmp_path):
    """So that an output is told nothing by any other way, which an earlier batch could have left."""
    handle, batch = handle_of(Plain, tmp_path), log_of(1).batch(0, 1)
    handle.write(batch)
    assert (handle.output.batch.ways, handle.output.batch.seeds) == ({NAME: f"way of {NAME}"}, {})
    handle.advance(Checkpoint({"shop": batch.end}))
    handle.expect_snapshot("shop", [NAME])
    handle.write(log_of(1, 2).batch(1, 2))
    assert handle.output.batch.seeds == {NAME: "asked"}


def test_without_an_answer_all_rows_count_and_nothing_is_missed(tmp_path):
    handle = handle_of(Plain, tmp_path)
    assert handle.write(log_of(1, 2).batch(0, 2)).rows == {ORDERS.source: 2}
    assert handle.position("shop").marks == {}
    assert handle.held({NAME: None}) is None


def test_an_answer_says_the_rows_that_were_new_and_how_the_table_is_known_again(tmp_path):
    handle, log = handle_of(Telling, tmp_path), log_of(1, 2, 3)
    assert handle.write(log.batch(0, 2)).rows == {ORDERS.source: 1}
    assert handle.position("shop").marks == {NAME: Noted(log.position(2).pair, "one")}
    handle.output.mark = ""
    handle.close()
    handle.open()
    with pytest.raises(CorruptData, match=f"its copy of {NAME} is gone"):
        handle.write(log.batch(2, 3))


def test_what_an_output_cannot_do_is_refused_by_name(tmp_path):
    handle = handle_of(Plain, tmp_path)
    with pytest.raises(InputError, match=r"outputs.copy: Plain has no `remove`"):
        handle.rebuild([NAME])
