"""Pipelines into an index, as users run them: what is searched for is what SQL selects."""

import base64
import json
import shutil
from typing import Any

import pytest

from databus.core import FatalError, PositionForeign
from databus.pipeline import load_pipeline, rename_output, run
from databus.pipeline.engine import Ledger
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.running._rebuild import rebuild
from databus.sinks.search._control import ControlIndex
from databus.sinks.search._indices import Indices
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

IN_PARTS = HEAD.replace("tables: [shop/main.*]", "tables: [shop/main.*], partitions: 2, max_rows_per_trigger: 300")
TABLES = ("customers", "stock", "orders", "order_lines")


@pytest.fixture
def opensearch(search_servers):
    found = search_servers("opensearch-2.19")
    found.ask("DELETE", "/_all")
    return found


def died(*_: object) -> None:
    raise FatalError("killed before the ledger")


def sections(server, **options):
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    given = {"type": "opensearch", "from": "shop", "url": server.url, "settings": settings, **options}
    return f"outputs: {{index: {json.dumps(given)}}}"


def assert_is_what_sql_selects(project: Project, server: Any) -> None:
    """Each table's documents, without the bus's fields, are its rows."""
    for table in TABLES:
        columns = [row[1] for row in project.select(f"SELECT cid, name FROM pragma_table_info('{table}')")]
        found = [[document.get(name) for name in columns] for document in server.documents(table).values()]
        rows = [[*map(as_json, row)] for row in project.select(f"SELECT {', '.join(columns)} FROM {table}")]
        assert sorted(found, key=repr) == sorted(rows, key=repr), table


def as_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def test_an_index_is_what_sql_selects_whatever_happens_to_rows_and_runs(
    tmp_path: Any, spark: Any, opensearch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, sections(opensearch), head=IN_PARTS)
    project.work(80)
    events = project.once(spark)
    assert {event["driver_row_bytes"] for event in events if event["event"] == "batch"} == {0}
    assert_is_what_sql_selects(project, opensearch)
    project.work(60)
    project.execute(
        "UPDATE customers SET id = id + 100000 WHERE id IN (SELECT min(id) FROM customers)",
        "DELETE FROM order_lines WHERE order_id IN (SELECT max(order_id) FROM order_lines)",
    )
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(spark)
    project.work(20)
    project.once(spark)
    assert_is_what_sql_selects(project, opensearch)
    project.execute("ALTER TABLE orders ADD COLUMN channel TEXT NOT NULL DEFAULT 'shop'")
    more = "SELECT max(id), 'open', 5, 'app' FROM customers"
    project.execute(f"INSERT INTO orders (customer_id, status, total_cents, channel) {more}")
    project.once(spark)
    assert_is_what_sql_selects(project, opensearch)
    assert {document["channel"] for document in opensearch.documents("orders").values()} == {"shop", "app"}
    rebuild(load_pipeline(project.path), "index", ["*orders"], confirm=lambda tables: True)
    assert opensearch.documents("orders") == {}
    project.once(spark)
    assert_is_what_sql_selects(project, opensearch)


@pytest.mark.nightly
def test_a_pipeline_of_the_same_name_over_another_database_is_told_before_it_writes(
    tmp_path: Any, engine: Any, opensearch: Any
) -> None:
    """Its rows have versions that say nothing beside those of the first one's."""
    events: list[Any] = []
    found: list[Any] = []
    for number in (1, 2):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        project = Project(folder, sections(opensearch), seed=number)
        project.work(20 * number)
        code = run(project.path, once=True, session=engine, on_event=events.append)
        found.append({table: opensearch.documents(table) for table in TABLES})
    assert code == PositionForeign.exit_code, events
    told = [event.get("message", "") for event in events]
    assert any("give one of them another name" in each and "databus rebuild FILE" in each for each in told), told
    assert found[0] == found[1]


def test_a_lost_ledger_does_no_harm_although_the_index_is_known_from_before(
    tmp_path: Any, engine: Any, opensearch: Any
) -> None:
    project = Project(tmp_path, sections(opensearch))
    project.work(20)
    project.once(engine)
    for name in ("ledgers", "queries"):
        shutil.rmtree(project.state / name)
    project.work(20)
    project.once(engine)
    assert_is_what_sql_selects(project, opensearch)


@pytest.mark.nightly
@pytest.mark.parametrize("killed", ["take_over", "remove", "come_from"])
def test_an_output_that_is_renamed_goes_on_in_its_indices_wherever_that_was_killed(
    tmp_path: Any, spark: Any, opensearch: Any, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Its last batch is in the index and not in the ledger; the index says how far it is by the old name."""
    project = Project(tmp_path, sections(opensearch))
    project.once(spark)
    project.work(40)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(spark)
    uuids = {table: opensearch.ask("GET", f"/{table}/_settings/index.uuid") for table in TABLES}
    project.write(sections(opensearch).replace("{index:", "{found:"))

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for owner in (Indices, ControlIndex, Ledger):
            if hasattr(owner, killed) and (owner is not Indices or killed == "take_over"):
                patch.setattr(owner, killed, end)
        with pytest.raises(KeyboardInterrupt):
            rename_output(load_pipeline(project.path), "index", "found")
    (renamed,) = rename_output(load_pipeline(project.path), "index", "found")
    assert (renamed.output, renamed.tables) == ("found", len(TABLES))
    project.work(20)
    project.once(spark)
    assert_is_what_sql_selects(project, opensearch)
    assert uuids == {table: opensearch.ask("GET", f"/{table}/_settings/index.uuid") for table in TABLES}
    control = opensearch.documents("databus-control")
    assert {name.split(":")[1] for name, each in control.items() if each != {"removed": True}} == {"shop/found"}
