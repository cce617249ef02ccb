"""The mock output finds what it is there to find."""

import dataclasses
import json

import pytest

from databus.core import CorruptData, TransientError
from databus.flow import decode_frames
from databus.log import Resume
from databus.pipeline import ChangeBatch, TableRows
from databus.sinks._mock import MockOutput, MockOutputConfig
from databus.sources.mock import MockConfig, MockSource
from databus.testing._change_log import random_log
from tests.outputs.harnesses import FROM, context
from tests.outputs.test_decode import collected, encoded


def mock(tmp_path, **options):
    return MockOutput(MockOutputConfig(**options, **FROM), context(tmp_path))


def without_rows(batch, drop):
    """The batch without the row of this index in its first table."""
    first = batch.items[0]
    keep = [i for i in range(first.rows.num_rows) if i != drop]
    return dataclasses.replace(batch, items=(TableRows(first.table, first.rows.take(keep)), *batch.items[1:]))


def test_complete_log_passes_whole_and_cut_and_repeated(tmp_path):
    log = random_log(4, transactions=30)
    size = len(log.entries)
    output = mock(tmp_path, check="complete", report="counts.json")
    for start, end in ((0, 40), (20, 60), (60, size)):
        output.write(log.batch(start, end))
    assert output.counts.rows - output.counts.repeats == size
    assert output.counts.repeats == 20
    assert json.loads((tmp_path / "counts.json").read_text())["rows"] == size + 20


@pytest.mark.parametrize("drop", [0, 3, 9])
def test_missing_row_is_found(tmp_path, drop):
    log = random_log(4, transactions=30)
    with pytest.raises(CorruptData, match="missing or came twice"):
        mock(tmp_path, check="complete").write(without_rows(log.batch(0, len(log.entries)), drop))


def test_missing_batch_is_found(tmp_path):
    log = random_log(4, transactions=30)
    output = mock(tmp_path, check="complete")
    output.write(log.batch(0, 20))
    with pytest.raises(CorruptData, match="a batch begins after"):
        output.write(log.batch(30, 40))


def test_wrong_order_is_found(tmp_path):
    log = random_log(4, transactions=30)
    batch = log.batch(0, 30)
    first = batch.items[0]
    turned = TableRows(first.table, first.rows.take(list(range(first.rows.num_rows))[::-1]))
    with pytest.raises(CorruptData, match="came after"):
        mock(tmp_path).write(ChangeBatch(batch.physical, batch.start, batch.end, (turned,)))


def test_fails_at_a_chosen_row_once(tmp_path):
    log = random_log(4, transactions=30)
    output = mock(tmp_path, fail_at_row=25)
    output.write(log.batch(0, 20))
    with pytest.raises(TransientError, match="fails at row 25"):
        output.write(log.batch(20, 40))
    output.write(log.batch(20, 40))
    assert output.counts.rows == 40


def test_what_a_mock_source_makes_is_complete_and_as_many_as_it_says(tmp_path):
    source = MockSource("shop", MockConfig(transactions_total=50, rows_per_transaction=7))
    source.start(Resume())
    groups = []
    while (group := source.poll(0)) is not None:
        groups.append(group)
    tables = {table.fingerprint: table for table in source.tables()}
    output = mock(tmp_path, check="complete")
    for batch in decode_frames(collected([encoded(group) for group in groups], groups), tables.__getitem__):
        output.write(batch)
    assert output.counts.tables == {"shop/main.events": source.expected_rows("main.events", 50)}
