"""format("databus") behind the relay's filters."""

import json
from pathlib import Path

import pytest

from databus.core import ConfigError
from databus.spark._options import parse_options
from tests.relay.support import Database, order, published, sale, scripted
from tests.spark.conftest import load_batch

GOOD = {"relay": "http://127.0.0.1:11115", "shape": "typed", "sources": "main.orders"}


@pytest.mark.spark
def test_a_query_reads_the_rows_and_columns_that_it_names(spark, tmp_path: Path):
    with scripted(tmp_path, {"shop": Database(groups=[order(1), order(2, "b"), sale(3)])}) as relay:
        published(relay, "shop", 3)
        asked = {"shape": "typed", "sources": "main.orders"}
        found = load_batch(spark, relay, **asked, where="name = 'b'", columns="id")
        assert "name" not in found.columns
        assert sorted(row["id"] for row in found.collect()) == [2, 3]
        parts = [load_batch(spark, relay, **asked, partition=f"{part}/2").collect() for part in range(2)]
        assert sorted(row["id"] for rows in parts for row in rows) == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"where": "a ="}, "where: character 4"),
        ({"partition": "8/8"}, "partition.*0/8"),
        ({"filters": json.dumps({"orders": {"wher": "a"}})}, "filters: orders"),
    ],
)
def test_a_wrong_filter_is_named_before_anything_is_read(given: dict[str, str], says: str):
    with pytest.raises(ConfigError, match=says):
        parse_options({**GOOD, **given})
