"""Transactions larger than a batch, as pipelines bring them into an index: what is searched for is what SQL selects."""

import json
from typing import Any

import pytest

from databus.core import FatalError
from databus.pipeline.engine._handle import OutputHandle
from tests.pipeline.projects import Project

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

HEAD = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db, group_bytes_max: 2048}}
inputs: {shop: {type: databus, tables: [shop/main.orders], max_bytes_per_trigger: 1}}
"""


@pytest.fixture
def opensearch(search_servers: Any) -> Any:
    found = search_servers("opensearch-2.19")
    found.ask("DELETE", "/_all")
    return found


def sections(server: Any, **options: Any) -> str:
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    given = {"type": "opensearch", "from": "shop", "url": server.url, "settings": settings, **options}
    return f"outputs: {{index: {json.dumps(given)}}}"


def one_large_transaction(project: Project) -> None:
    """Orders are updated several times, and at its end come rows of a table that the pipeline does not have."""
    name = "x" * 200
    customers = (f"INSERT INTO customers (id, name) VALUES ({number}, '{name}')" for number in range(10_000, 10_020))
    again = "UPDATE orders SET total_cents = total_cents + 1"
    project.execute(again, again, f"{again} WHERE id < 8", *customers)


def assert_is_what_sql_selects(project: Project, server: Any) -> None:
    assert "databus-parts" in server.ask("GET", "/databus-parts"), "no row had to wait"
    assert server.documents("databus-parts") == {}
    found = {(document["id"], document["total_cents"]) for document in server.documents("orders").values()}
    assert found == set(project.select("SELECT id, total_cents FROM orders"))


def test_rows_of_a_transaction_whose_end_brings_none_do_not_wait_for_ever(
    tmp_path: Any, spark: Any, opensearch: Any
) -> None:
    project = Project(tmp_path, sections(opensearch), head=HEAD, orders=10)
    project.once(spark)
    one_large_transaction(project)
    project.once(spark)
    assert_is_what_sql_selects(project, opensearch)


@pytest.mark.nightly
def test_an_output_may_come_into_another_lane_within_a_transaction(
    tmp_path: Any, spark: Any, opensearch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, sections(opensearch), head=HEAD, orders=10)
    project.once(spark)
    one_large_transaction(project)
    advance, orders = OutputHandle.advance, len(project.select("SELECT id FROM orders"))

    def die(*given: Any) -> None:
        if len(opensearch.documents("databus-parts")) == orders:
            raise FatalError("killed within the transaction")
        advance(*given)

    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", die)
        with pytest.raises(AssertionError, match="killed within"):
            project.once(spark)
    project.write(sections(opensearch, lane="other"), head=HEAD)
    project.once(spark)
    assert_is_what_sql_selects(project, opensearch)


@pytest.mark.nightly
def test_rows_that_come_typed_are_put_at_the_end_of_their_transaction(
    tmp_path: Any, spark: Any, opensearch: Any
) -> None:
    filters = "filters: {all: {type: sql, from: shop, table: main.orders, where: id > 0}}\n"
    text = filters + sections(opensearch, **{"from": "all"})
    project = Project(tmp_path, text, head=HEAD, orders=10)
    project.once(spark)
    one_large_transaction(project)
    project.once(spark)
    assert_is_what_sql_selects(project, opensearch)
