"""What others commit to Delta tables while a pipeline writes them."""

import pytest
from deltalake import DeltaTable

from tests.pipeline.projects import Project

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.usefixtures("relay_in_thread")]

SECTIONS = """
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
  history: {type: delta, from: shop, mode: history, path: lake/history}
"""


def test_a_pipeline_goes_on_after_a_nightly_optimize_and_vacuum(spark, tmp_path):
    project = Project(tmp_path, SECTIONS)
    orders = "SELECT id, status FROM orders"
    with project.running(spark) as running:
        running.event(event="batch", output="copy")
        for number in range(3):
            project.execute(f"UPDATE orders SET status = 'by {number}' WHERE id % 3 = {number}")
            running.wait_for(
                lambda: (
                    (tmp_path / "lake/copy/orders/_delta_log").exists()
                    and project.copied("lake/copy/orders", "id", "status") == project.select(orders)
                ),
                f"batch {number}",
            )
            for output in ("copy", "history"):
                table = DeltaTable(tmp_path / "lake" / output / "orders")
                table.optimize.compact()
                table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert not [each for each in running.events if each["event"] in ("failed", "retry")]
    project.assert_history_is_whole("lake/history", "orders", "id")
