"""What a dashboard pushes is held by databases of time series, and is of OpenTelemetry's form."""

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from databus.dashboard import Push, part_of_file
from databus.dashboard._alert_rules import Sample
from databus.dashboard._push import Form, body_of
from databus.testing.servers import ServerMissing
from tests.dashboard.parts import Pipeline, wait_until
from tests.dashboard.running import Running
from tests.dashboard.time_series import InfluxDb, VictoriaMetrics


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


NOW_NS = 1_700_000_000_000_000_000


def read(samples):
    """The metrics, as OpenTelemetry's own messages read them."""
    request = Parse(body_of(Form.OTLP, samples, NOW_NS), ExportMetricsServiceRequest())
    (scope,) = request.resource_metrics[0].scope_metrics
    return scope.metrics


def labels(point):
    return {each.key: each.value.string_value for each in point.attributes}


def test_otlp_is_what_opentelemetry_reads():
    rows, lag = read([Sample("rows_total", {"output": "a b"}, 7.0), Sample("lag", {}, 1.5)])
    assert (rows.sum.is_monotonic, rows.sum.data_points[0].as_double) == (True, 7.0)
    assert labels(rows.sum.data_points[0]) == {"output": "a b"}
    assert lag.gauge.data_points[0].time_unix_nano == NOW_NS


@pytest.mark.parametrize("name", ["\udcff", "\x00", "é", "<script>", '"\\', "x" * 100_000], ids=ascii)
def test_a_hostile_name_spoils_no_other_number_that_is_pushed(name):
    """One that is no text is read as near to it as text can be."""
    (found,) = read([Sample("lag", {"output": name}, 1.0), Sample("lag", {"output": "copy"}, 2.0)])
    hostile, copy = found.gauge.data_points
    assert labels(hostile) == {"output": name.replace("\udcff", "?")}
    assert (labels(copy), copy.as_double) == ({"output": "copy"}, 2.0)
