"""What a dashboard pushes is held by databases of time series, and is of OpenTelemetry's form."""

import importlib.util

import pytest

from databus.dashboard import Push, part_of_file
from databus.dashboard._alert_rules import Sample
from databus.dashboard._push import Form, body_of
from databus.testing.servers import InfluxDb, ServerMissing, VictoriaMetrics
from tests.dashboard.parts import Pipeline, wait_until
from tests.dashboard.running import Running


@pytest.mark.parametrize("kind", [InfluxDb, VictoriaMetrics])
def test_databases_hold_what_is_pushed(tmp_path, kind):
    folder = tmp_path / "database"
    folder.mkdir()
    try:
        kind(folder).prepare()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with kind(folder) as server, Pipeline(tmp_path / "shop") as shop:
        push = Push(Form.INFLUX, server.push_url, every_s=0.1)
        with Running(tmp_path / "dashboard", [part_of_file(shop.file)], pushes=[push]):
            shop.batch(rows=7)
            wanted = ({"output": "copy", "pipeline": "shop"}, 7.0)
            wait_until(lambda: wanted in server.samples("databus_output_rows_total"))
            states = server.samples("databus_output_state")
    assert ({"output": "hook", "pipeline": "shop", "state": "running"}, 1.0) in states


def test_otlp_is_what_opentelemetry_reads():
    """By its own reader of JSON, where the package is installed."""
    if importlib.util.find_spec("opentelemetry") is None:
        pytest.skip("opentelemetry-proto is not installed")
    from google.protobuf.json_format import Parse
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    samples = [Sample("rows_total", {"output": "a b"}, 7.0), Sample("lag", {}, 1.5)]
    found = Parse(body_of(Form.OTLP, samples, 1_700_000_000_000_000_000), ExportMetricsServiceRequest())
    rows, lag = found.resource_metrics[0].scope_metrics[0].metrics
    assert (rows.sum.is_monotonic, rows.sum.data_points[0].as_double) == (True, 7.0)
    assert lag.gauge.data_points[0].time_unix_nano == 1_700_000_000_000_000_000
