"""Numbers in the forms of time series databases: InfluxDB's line protocol, and OpenTelemetry's JSON. Pure."""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from databus.dashboard._samples import Sample

_TOTALS: Final = ("_total", "_bucket", "_sum", "_count")
_CUMULATIVE: Final = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
_SPECIAL: Final = str.maketrans({",": "\\,", " ": "\\ ", "=": "\\=", "\n": "\\ ", "\r": "\\ ", "\\": "\\\\"})


class Form(StrEnum):
    """The format of the body."""

    INFLUX = "influx"
    OTLP = "otlp"


CONTENT_TYPES: Final[Mapping[Form, str]] = {Form.INFLUX: "text/plain; charset=utf-8", Form.OTLP: "application/json"}


def body_of(form: Form, samples: Iterable[Sample], at_ns: int) -> bytes:
    """All samples of one moment."""
    if form is Form.INFLUX:
        text = influx_lines(samples, at_ns)
    else:
        # A lone surrogate, escaped as \ud800, would make the whole body invalid; as it is, `encode` replaces it.
        text = json.dumps(otlp_json(samples, at_ns), ensure_ascii=False)
    return text.encode(errors="replace")


def influx_lines(samples: Iterable[Sample], at_ns: int) -> str:
    r"""One line for each sample.

    >>> influx_lines([Sample("lag", {"output": "a b"}, 1.5)], 7)
    'lag,output=a\\ b value=1.5 7\n'
    """
    return "".join(_line(sample, at_ns) for sample in samples)


def _line(sample: Sample, at_ns: int) -> str:
    tags = "".join(
        f",{name.translate(_SPECIAL)}={value.translate(_SPECIAL)}"
        for name, value in sorted(sample.labels.items())
        if value  # InfluxDB has no empty tags
    )
    return f"{sample.metric}{tags} value={sample.value!r} {at_ns}\n"


def otlp_json(samples: Iterable[Sample], at_ns: int) -> dict[str, Any]:
    """An ExportMetricsServiceRequest: metrics with a name of `_TOTALS` as sums, all others as gauges."""
    points: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        attributes = [{"key": name, "value": {"stringValue": value}} for name, value in sorted(sample.labels.items())]
        point = {"attributes": attributes, "timeUnixNano": str(at_ns), "asDouble": sample.value}
        points.setdefault(sample.metric, []).append(point)
    metrics = [
        {"name": name, "sum": {"dataPoints": data_points, "aggregationTemporality": _CUMULATIVE, "isMonotonic": True}}
        if name.endswith(_TOTALS)
        else {"name": name, "gauge": {"dataPoints": data_points}}
        for name, data_points in points.items()
    ]
    service = [{"key": "service.name", "value": {"stringValue": "databus"}}]
    scope = {"scope": {"name": "databus.dashboard"}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": {"attributes": service}, "scopeMetrics": [scope]}]}
