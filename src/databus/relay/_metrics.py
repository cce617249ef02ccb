"""Metrics for Prometheus: capture, log, serving, and lag three ways. Read at each scrape; they hold no secrets."""

import time
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from databus.log import Log
from databus.relay._capture import Capture, State
from databus.relay._catalog import Catalog
from databus.relay._stats import Stats

_BY_SOURCE: Final = ("physical",)
_BY_CLIENT: Final = ("client", "physical")


class _Families:
    """Metric families that samples are added to, by name."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def gauge(
        self, name: str, help_: str, labels: tuple[str, ...], values: tuple[str, ...], value: float | None
    ) -> None:
        if value is None:
            return
        family = self._families.setdefault(name, GaugeMetricFamily(f"databus_{name}", help_, labels=labels))
        family.add_metric(values, value)  # type: ignore[attr-defined]

    def counter(self, name: str, help_: str, labels: tuple[str, ...], values: tuple[str, ...], value: float) -> None:
        family = self._families.setdefault(name, CounterMetricFamily(f"databus_{name}", help_, labels=labels))
        family.add_metric(values, value)  # type: ignore[attr-defined]

    def all(self) -> Iterable[Metric]:
        return self._families.values()


class _Collector:
    """What one scrape sees."""

    def __init__(self, catalog: Catalog, stats: Stats) -> None:
        self._catalog = catalog
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        for capture in self._catalog.captures.values():
            _capture(families, capture)
            if capture.log is not None:
                _log(families, capture.log)
        _serving(families, self._stats, self._catalog)
        yield from families.all()


def _capture(families: _Families, capture: Capture) -> None:
    of = (capture.physical,)
    counters, lag, status = capture.counters, capture.lag, capture.status
    for state in State:
        families.gauge(
            "capture_state", "1 for the state that capture is in.", ("physical", "state"), (*of, state.name),
            float(status.state is state),
        )  # fmt: skip
    behind_s = None if lag.behind_ms is None else lag.behind_ms / 1e3
    left_s = None if lag.retention_left_ms is None else lag.retention_left_ms / 1e3
    families.gauge("capture_lag_seconds", "Age of the oldest change not captured.", _BY_SOURCE, of, behind_s)
    families.gauge("capture_lag_changes", "Changes that wait in the source.", _BY_SOURCE, of, lag.changes)
    families.gauge(
        "capture_retention_left_seconds", "Until the source drops what is not captured.", _BY_SOURCE, of, left_s
    )
    for table, count in lag.values_omitted.items():
        families.counter(
            "capture_values_omitted", "Values left out of rows that were too large.", ("physical", "table"),
            (*of, table), count,
        )  # fmt: skip
    families.counter("capture_groups", "Groups captured.", _BY_SOURCE, of, counters.groups)
    families.counter("capture_rows", "Rows captured.", _BY_SOURCE, of, counters.rows)
    families.counter("capture_snapshot_rows", "Of them, read by snapshots.", _BY_SOURCE, of, counters.snapshot_rows)
    families.gauge("capture_snapshots", "Tables that are being read.", _BY_SOURCE, of, float(len(capture.reading)))
    families.counter("capture_controls", "Controls captured.", _BY_SOURCE, of, counters.controls)
    families.counter("capture_bytes", "Bytes of frames captured.", _BY_SOURCE, of, counters.bytes)
    families.counter("capture_errors", "Errors met.", _BY_SOURCE, of, counters.errors)
    families.counter(
        "capture_restarts", "Times the source was opened anew after one.", _BY_SOURCE, of, counters.restarts
    )


def _log(families: _Families, log: Log) -> None:
    of, head = (log.physical,), log.head()
    families.gauge("log_bytes", "Length of the log.", _BY_SOURCE, of, head.bytes)
    families.gauge("log_segments", "Segments of the log.", _BY_SOURCE, of, head.segments)
    families.gauge("log_unsynced_bytes", "Appended and not yet fsynced.", _BY_SOURCE, of, head.unsynced_bytes)
    families.gauge("log_published_scn", "SCN of the published end.", _BY_SOURCE, of, head.published.scn)
    families.gauge("log_oldest_scn", "SCN before the oldest group held.", _BY_SOURCE, of, head.oldest.scn)
    families.gauge(
        "log_published_timestamp_seconds", "Commit time of the last transaction.", _BY_SOURCE, of,
        head.published.ts_us / 1e6,
    )  # fmt: skip


def _serving(families: _Families, stats: Stats, catalog: Catalog) -> None:
    total = stats.total
    for command, count in total.calls.items():
        families.counter("requests", "Requests answered.", ("command",), (command,), count)
    for command, count in total.errors.items():
        families.counter("request_errors", "Of them, with an error.", ("command",), (command,), count)
    families.counter("sent_bytes", "Bytes of changes sent.", (), (), total.sent_bytes)
    families.gauge("streams", "Streams that are open.", (), (), len(stats.streams))
    _clients(families, stats, catalog)


def _clients(families: _Families, stats: Stats, catalog: Catalog) -> None:
    """How far each client is behind: the furthest of its streams of a physical source."""
    worst: dict[tuple[str, str], tuple[float, float, float]] = {}
    for stream in list(stats.streams):
        capture = catalog.captures.get(stream.physical)
        if capture is None or capture.log is None:
            continue
        head = capture.log.head()
        lag_scn = float(max(head.published.scn - stream.position.scn, 0))
        lag_s = max(head.published.ts_us - stream.position.ts_us, 0) / 1e6 if lag_scn else 0.0
        expires_s = capture.log.config.retention_ms_max / 1e3 - (time.time() - stream.position.ts_us / 1e6)
        left_s = expires_s if lag_scn else capture.log.config.retention_ms_max / 1e3
        key = (stream.client, stream.physical)
        known = worst.get(key, (0.0, 0.0, left_s))
        worst[key] = max(lag_s, known[0]), max(lag_scn, known[1]), min(left_s, known[2])
    for key, (lag_s, lag_scn, left_s) in worst.items():
        families.gauge("client_lag_seconds", "Commit time between a client and the log's end.", _BY_CLIENT, key, lag_s)
        families.gauge("client_lag_scn", "SCNs between a client and the log's end.", _BY_CLIENT, key, lag_scn)
        families.gauge(
            "client_retention_left_seconds", "Until what it needs next leaves the log.", _BY_CLIENT, key, left_s
        )


def render_metrics(catalog: Catalog, stats: Stats) -> tuple[bytes, str]:
    """The text of /metrics, and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector(catalog, stats))
    return generate_latest(registry), CONTENT_TYPE_LATEST
