"""What a scrape of the service reads, by Prometheus's own parser."""

from prometheus_client.parser import text_string_to_metric_families

from databus.bootstrap import _metrics
from databus.bootstrap._metrics import metrics_text


def test_prometheus_reads_what_is_said_of_answers_and_of_stores_whatever_they_are_called():
    standing = {name: at for at, name in enumerate(_metrics._BY_PHYSICAL, 7)}
    text = metrics_text(3, {"state": 2, "since": 5}, 1_000, {'a "shop"': standing}).decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert found == {
        ("databus_bootstrap_open_answers",): 3,
        ("databus_bootstrap_answers_total", "state"): 2,
        ("databus_bootstrap_answers_total", "since"): 5,
        ("databus_bootstrap_sent_bytes_total",): 1_000,
        **{(f"databus_bootstrap_{name}", 'a "shop"'): value for name, value in standing.items()},
    }
