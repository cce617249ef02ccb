"""Tables whose rows of equal keys would take each other's place in a compacted topic are warned of."""

import pytest

from databus.pipeline import validate
from tests.pipeline.validated import pipeline, written

OUT = "outputs: {n: {type: kafka, from: %s, kafka: {bootstrap.servers: 'k:9092'}, topic: '%s', controls: none, %s}}\n"
TOMBSTONES = "deletes: tombstone"
COMPACTED = "create_topics: {config: {cleanup.policy: 'compact,delete'}}"
ONE = "inputs: {shop: {type: databus, tables: [shop/main.orders]}}\n"


@pytest.mark.parametrize(
    ("inputs", "topic", "more", "told"),
    [
        ("", "{table}", TOMBSTONES, "tables of hr and shop that have one name would meet"),
        ("", "{db}.{table}", COMPACTED, "tables of hr and shop that have one name would meet"),
        ("", "{physical}", COMPACTED, "several tables would meet"),
        ("", "{physical}.{table}", COMPACTED, None),
        ("", "{table}", "deletes: envelope", None),
        (ONE, "all", TOMBSTONES, None),
        ("", "{physical}.{table}", f"topics: {{main.orders: orders}}, {TOMBSTONES}", "put `{physical}` into orders"),
    ],
)
def test_topics_that_do_not_tell_tables_apart(tmp_path, inputs, topic, more, told):
    found = validate(written(tmp_path, pipeline(inputs + OUT % ("shop", topic, more))))
    assert len(found) == (told is not None), found
    for each in found:
        assert each.is_warning
        assert each.path == "outputs.n.topic"
        assert told in each.message
