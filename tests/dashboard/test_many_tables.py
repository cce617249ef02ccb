"""A source of 1,200 tables, and an output that writes them all: every page's answer is quick, and of bounded size."""

import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest

from databus.dashboard import part_of_file, part_of_relay
from databus.link import Access
from databus.schema import Column, TableSchema
from databus.wire import Group
from tests.dashboard.parts import Pipeline, now_us, wait_until
from tests.dashboard.running import Running, token_of
from tests.relay.support import Database, commit_of, published, rows_of, scripted

TABLES = 1_200
NAMED = 1_000
CPU_S_MAX = 0.5
SEARCHING_S_MAX = 2.0
"""Of what looks at each table, or at the log."""
BYTES_MAX = 400_000
FILE = """\
name: shop
relay: {{url: '{url}'}}
inputs: {{rows: {{type: databus, tables: [shop_db/*]}}}}
filters: {{big: {{type: where, from: rows, where: id > 1}}}}
outputs:
  copy: {{type: delta, from: big, mode: mirror, path: copy}}
  all: {{type: delta, from: rows, mode: history, path: all}}
"""
ANN = {"name": "ann", "rights": ["see", "rows", "control"]}


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    tables = [
        TableSchema(f"main.t{n:04}", (Column("id", "int64"), Column("name", "string")), ("id",)) for n in range(TABLES)
    ]
    database = Database(tables=tuple(tables))
    with scripted(folder / "relay", {"shop_db": database}) as relay:
        rows = (rows_of(table, 1, [{"id": n, "name": "a"}], first_seq=n + 1) for n, table in enumerate(tables))
        database.add(Group(commit_of(1, TABLES), tuple(rows)))
        published(relay, "shop_db", 1)
        (folder / "shop").mkdir()
        (folder / "shop" / "databus.yml").write_text(FILE.format(url=relay.url))
        with Pipeline(folder / "shop") as shop:
            for plan in shop._plans:
                name = plan.feeds[0].output.partition(".")[2]
                told = {"event": "batch", "query": plan.name, "output": name, "rows": TABLES, "at_us": now_us()}
                counts = {table.source: 1 for table in tables}
                shop.published.take({**told, "lag_ms": 1.0, "physical": "shop_db", "tables": counts, "changes": []})
            parts = [part_of_file(shop.file), ("relay", part_of_relay(relay.url, Access())[1])]
            with Running(folder / "dashboard", parts, [ANN]) as running:
                running.wait_for_outputs(2, token_of("ann"))
                wait_until(lambda: len(running.api("/graph", token=token_of("ann"))[1]["nodes"]) >= 5)
                yield lambda path: running.api(path, token=token_of("ann"))


def quickest(ask: Any) -> tuple[float, Any]:
    """Processor time of this process, which asks and answers; the least of three, since others use it too."""
    found = []
    for _ in range(3):
        before = time.process_time()
        answer = ask()
        found.append((time.process_time() - before, answer))
    return min(found, key=lambda each: each[0])


@pytest.mark.parametrize(
    "path",
    [
        "/status",
        "/graph",
        "/metrics",
        "/sources/relay/shop_db",
        "/journal",
        "/audit",
        "/letters",
        "/alerts",
        "/lineage",
        "/config?pipeline=shop",
        "/trace?" + urlencode({"pipeline": "shop", "table": "main.t0999", "key": "id=999", "since_s": 0}),
    ],
)
def test_a_page_of_many_tables_is_answered_soon_and_in_bounds(api, path):
    cpu_s, (status, found, _) = quickest(lambda: api(path))
    assert status == 200, found
    assert cpu_s < (SEARCHING_S_MAX if path.startswith(("/lineage", "/trace")) else CPU_S_MAX)
    if path in ("/status", "/graph", "/metrics"):  # these come each second, or with each page
        assert len(json.dumps(found)) < BYTES_MAX


def test_what_is_left_out_is_counted(api):
    written, captured = (
        api(path)[1] for path in ("/outputs/shop/all/tables?limit=100", "/sources/relay/shop_db?limit=100")
    )
    assert (len(written["tables"]), written["count"], written["more"]) == (100, NAMED, TABLES - NAMED)
    assert (len(captured["tables"]), captured["count"]) == (100, TABLES)
    lineage = api("/lineage")[1]["tables"]
    assert len(lineage) == 2 * TABLES
