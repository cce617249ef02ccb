"""Numbers for databases of time series that are pushed to: InfluxDB's line protocol, and OpenTelemetry's JSON. Pure."""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from databus.dashboard._samples import Sample

_TOTALS: Final = ("_total", "_bucket", "_sum", "_count")
_CUMULATIVE: Final = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
_SPECIAL: Final = str.maketrans({",": "\\,", " ": "\\ ", "=": "\\=", "\n": "\\ ", "\r": "\\ ", "\\": "\\\\"})


class Form(StrEnum):
    """What they are written as."""

    INFLUX = "influx"
    OTLP = "otlp"


CONTENT_TYPES: Final[Mapping[Form, str]] = {Form.INFLUX: "text/plain; charset=utf-8", Form.OTLP: "application/json"}


def body_of(form: Form, samples: Iterable[Sample], at_ns: int) -> bytes:
    """All samples of one moment."""
    if form is Form.INFLUX:
        made = influx_lines(samples, at_ns)
    else:
        made = json.dumps(otlp_json(samples, at_ns), ensure_ascii=False)  # half a pair, escaped, spoils the whole
    return made.encode(errors="replace")


def influx_lines(samples: Iterable[Sample], at_ns: int) -> str:
    r"""A line each.

    >>> influx_lines([Sample("lag", {"output": "a b"}, 1.5)], 7)
    'lag,output=a\\ b value=1.5 7\n'
    """
    return "".join(_line(sample, at_ns) for sample in samples)


def _line(sample: Sample, at_ns: int) -> str:
    tags = "".join(
        f",{name.translate(_SPECIAL)}={value.translate(_SPECIAL)}"
        for name, value in sorted(sample.labels.items())
        if value  # an empty one is none there
    )
    return f"{sample.metric}{tags} value={sample.value!r} {at_ns}\n"


def otlp_json(samples: Iterable[Sample], at_ns: int) -> dict[str, Any]:
    """An ExportMetricsServiceRequest: what is called `_total` as sums, everything else as gauges."""
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
