"""A pipeline that runs while another log of the same database takes the place of its relay's."""

import json
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from databus.pipeline import run
from tests.client.conftest import wait_for
from tests.log.make import ORDERS, STOCK, group
from tests.spark.test_other_log import relay_of

pytestmark = pytest.mark.spark

WAIT_S = 90.0
FILE = """
name: copy
relay: {{url: "{url}"}}
run: {{trigger_ms: 50, retry_ms_min: 50, retry_ms_max: 200}}
inputs: {{shop: {{type: databus, wait_ms: 100}}}}
filters: {{large: {{type: sql, from: shop, table: main.orders, where: "id >= 1"}}}}
outputs: {{lines: {{type: files, from: large, path: out, format: json}}}}
"""


def notes(folder: Path) -> set[str]:
    """What the files have of orders; what a commit does not name yet has a name that begins with a dot."""
    files = [each for each in folder.rglob("*.json*") if not each.name.startswith((".", "_"))]
    lines = [json.loads(line) for each in files for line in each.open()]
    return {line["note"] for line in lines if "note" in line}


def test_typed_rows_go_on_where_the_other_log_numbers_tables_otherwise(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "databus.yml"
    stop: SimpleQueue[Any] = SimpleQueue()
    events: list[Any] = []
    codes: list[int] = []
    before = relay_of(tmp_path / "before", [group(1, tables=(STOCK, ORDERS)), group(2, tables=(STOCK, ORDERS))])
    after = [group(1, tables=(ORDERS, STOCK)), group(2, tables=(ORDERS, STOCK)), group(3, count=2)]
    with before:
        path.write_text(FILE.format(url=before.url))
        ran = threading.Thread(
            target=lambda: codes.append(run(path, session=spark, stop=stop, on_event=events.append)), daemon=True
        )
        ran.start()

        wait_for(lambda: {"x-1-2", "x-2-2"} <= notes(tmp_path / "out"), "the rows")
        before.stop()
        with relay_of(tmp_path / "after", after, in_place_of=before):
            wait_for(lambda: {"x-3-1", "x-3-2"} <= notes(tmp_path / "out"), "the rows")
            stop.put("done")
            ran.join(WAIT_S)
    assert codes == [0]
    assert [each["event"] for each in events if each["event"] == "failed"] == []
