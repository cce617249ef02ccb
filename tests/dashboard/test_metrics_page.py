"""docs/metrics.md is complete: whatever is exported stands there, and whatever a rule can name is exported."""

import re

from prometheus_client.parser import text_string_to_metric_families

from databus.dashboard._samples import SAMPLED, UP
from databus.link import RelayClient
from tests.dashboard.parts import Pipeline, ask
from tests.dashboard.test_alert_config import advanced
from tests.documents.pages import ROOT
from tests.relay.support import Database, order, scripted

LISTED = set(re.findall(r"^\| `(databus_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))


def names_in(text: str) -> set[str]:
    families = list(text_string_to_metric_families(text))
    assert families
    return {f"{each.name}_total" if each.type == "counter" else each.name for each in families}


def test_what_a_relay_exports_stands_in_the_page(tmp_path):
    database = Database()
    with scripted(tmp_path, {"erp": database}) as relay:
        database.add(*(order(scn) for scn in range(1, 5)))
        RelayClient(relay.url, name="copy").states()
        exported = names_in(ask(relay.url, "/metrics")[1])
    assert "databus_disk_free_ratio" in exported
    assert exported - LISTED == set()


def test_what_a_pipeline_exports_stands_in_the_page_and_counts_what_came_and_what_was_dropped(tmp_path):
    with Pipeline(tmp_path, http="127.0.0.1:0") as shop:
        shop.batch(rows=7)
        for _ in range(2):
            advanced(shop)
        advanced(shop, counts=None)  # nobody counted these
        text = ask(shop.url, "/metrics")[1]
    assert names_in(text) - LISTED == set()
    for line in (
        'databus_output_rows_read_total{output="copy"} 20.0',
        'databus_output_bytes_read_total{output="copy"} 2000.0',
        'databus_output_rows_dropped_total{filter="big",output="copy"} 8.0',
        'databus_output_stage_seconds_total{output="copy",stage="write"} 0.014',
        'databus_output_commit_to_visible_seconds_bucket{le="0.1",output="copy"} 1.0',
        'databus_output_commit_to_visible_seconds_sum{output="copy"} 0.012',
        'databus_output_commit_to_visible_seconds_count{output="hook"} 0.0',
    ):
        assert line in text, text


def test_what_a_rule_can_name_is_exported():
    of_histograms = {re.sub(r"_(bucket|sum|count)$", "", each) for each in SAMPLED - {UP}}
    assert of_histograms - LISTED == set()
