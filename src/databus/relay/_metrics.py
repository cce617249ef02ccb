"""Metrics for Prometheus: capture, log, serving, and lag three ways. Read at each scrape; they hold no secrets."""

import platform
import time
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from databus import __version__
from databus.core import DatabusError, SourceCheckpoint
from databus.disk import free_ratio
from databus.log import Log
from databus.relay._capture import Capture
from databus.relay._capture_state import State
from databus.relay._catalog import Catalog
from databus.relay._grant import Grant
from databus.relay._group_pages import Lags, visible_groups
from databus.relay._stats import Stats
from databus.relay.groups import ConsumerGroup, GroupKeeper
from databus.wire import VERSION

GAUGES: Final = {
    "build_info": "1, with the versions of databus, Python and the wire format as labels.",
    "capture_state": "1 for the state that capture of this physical source is in, 0 for the others.",
    "capture_lag_seconds": "Age of the oldest change that the database has committed and the relay has not captured.",
    "capture_lag_changes": "Changes that the database has committed and the relay has not captured.",
    "capture_lag_bytes": "Bytes of the database's log that the relay has not captured.",
    "capture_retention_left_seconds": "Time until the database purges something that the relay has not captured yet.",
    "capture_snapshots": "Tables whose snapshot has begun and not ended.",
    "log_bytes": "Size of the log on disk.",
    "log_segments": "Files that the log consists of.",
    "disk_free_ratio": "How much of the disk is free that holds the log: 1 is all.",
    "log_unsynced_bytes": "Bytes appended to the log and not yet synced to disk.",
    "log_published_scn": "SCN of the last transaction that consumers can read.",
    "log_oldest_scn": "SCN after which the log holds everything; a consumer further behind cannot go on.",
    "log_published_timestamp_seconds": (
        "Commit time of the last transaction that consumers can read, in seconds since 1970."
    ),
    "streams": "Streams that consumers have open now.",
    "client_lag_seconds": "Age of the oldest change that the database has committed and the client was not sent.",
    "client_lag_scn": "SCNs between what was sent to a client and the end of the log.",
    "client_retention_left_seconds": "Time until what a client needs next leaves the log.",
    "group_members": "Members that call, of a group.",
    "group_partitions": "Partitions of a group.",
    "group_partitions_held": "Partitions of a group that a member holds.",
    "group_guard": "1 while the log is kept for the group beyond its retention, 0 otherwise or once that has ended.",
    "group_paused": "1 if an operator has paused the group, 0 otherwise.",
    "group_lag_seconds": (
        "Age of the oldest change that the database has committed and a partition of a group has not saved."
    ),
    "group_lag_changes": (
        "Changes of the physical source behind what a partition of a group has saved; many are estimated."
    ),
    "group_lag_bytes": "Bytes of log behind what a partition of a group has saved.",
    "group_retention_left_seconds": "Time until what a partition of a group needs next leaves the log.",
}
"""What each says, by its name without `databus_`."""
COUNTERS: Final = {
    "group_guards_ended": "Times since the relay started that the log could not be kept for a group.",
    "capture_values_omitted": "Values left out of captured rows because the row was too large.",
    "capture_statements_unknown": (
        "Statements that changed captured tables and were not understood, so that the tables are read again."
    ),
    "capture_groups": "Groups (whole transactions, or parts of large ones) captured since the relay started.",
    "capture_rows": "Row images captured since the relay started, those read by snapshots included.",
    "capture_snapshot_rows": "Row images read by snapshots since the relay started.",
    "capture_controls": "Control messages (schema changes, snapshots, gaps) captured since the relay started.",
    "capture_bytes": "Bytes of frames written to the log since the relay started.",
    "capture_errors": "Errors that capture of this physical source met since the relay started.",
    "capture_restarts": "Times that the physical source was opened again after an error.",
    "requests": "HTTP requests answered since the relay started, by command.",
    "request_errors": "HTTP requests answered with an error since the relay started, by command.",
    "sent_bytes": "Bytes of changes sent to consumers since the relay started.",
}
"""The same, of what only grows while the relay runs."""

_Family = GaugeMetricFamily | CounterMetricFamily


class _Families:
    """Metric families that samples are added to, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, _Family] = {}

    def add(self, labels: Mapping[str, str], *samples: tuple[str, float | None]) -> None:
        """Add samples with the same labels; an unknown value makes none."""
        for name, value in samples:
            if value is None:
                continue
            if name not in self.by_name:
                self.by_name[name] = _family(name, tuple(labels))
            self.by_name[name].add_metric(tuple(labels.values()), value)


def _family(name: str, labels: tuple[str, ...]) -> _Family:
    if name in COUNTERS:
        return CounterMetricFamily(f"databus_{name}", COUNTERS[name], labels=labels)
    return GaugeMetricFamily(f"databus_{name}", GAUGES[name], labels=labels)


class _RelayCollector:
    """What one scrape sees."""

    def __init__(self, catalog: Catalog, stats: Stats, groups: GroupKeeper) -> None:
        self._catalog = catalog
        self._stats = stats
        self._groups = groups

    def collect(self) -> Iterator[_Family]:
        families = _Families()
        versions = {"version": __version__, "python": platform.python_version(), "wire": str(VERSION)}
        families.add(versions, ("build_info", 1))
        for capture in self._catalog.captures.values():
            _capture(families, capture, self._catalog.grant)
            if capture.log is not None:
                _log(families, capture.log)
        _serving(families, self._stats)
        _clients(families, self._stats, self._catalog)
        families.add({}, ("group_guards_ended", self._groups.guards_ended))
        lags = Lags(self._catalog.captures)
        for group in visible_groups(self._groups.seen, self._catalog.grant):
            _group(families, group, lags)
        yield from families.by_name.values()


def _capture(families: _Families, capture: Capture, grant: Grant) -> None:
    of = {"physical": capture.physical}
    counters, lag, status = capture.counters, capture.lag, capture.status
    for state in State:
        families.add({**of, "state": state.name}, ("capture_state", status.state is state))
    families.add(
        of,
        ("capture_lag_seconds", _behind_s(capture)),
        ("capture_lag_changes", lag.changes),
        ("capture_lag_bytes", lag.bytes),
        ("capture_retention_left_seconds", None if lag.retention_left_ms is None else lag.retention_left_ms / 1e3),
        ("capture_statements_unknown", lag.statements_unknown),
        ("capture_groups", counters.groups),
        ("capture_rows", counters.rows),
        ("capture_snapshot_rows", counters.snapshot_rows),
        ("capture_snapshots", len(capture.reading)),
        ("capture_controls", counters.controls),
        ("capture_bytes", counters.bytes),
        ("capture_errors", counters.errors),
        ("capture_restarts", counters.restarts),
    )
    for table, count in lag.values_omitted.items():
        if grant.sees(capture.physical, table):
            families.add({**of, "table": table}, ("capture_values_omitted", count))


def _log(families: _Families, log: Log) -> None:
    head = log.head()
    families.add(
        {"physical": log.physical},
        ("log_bytes", head.bytes),
        ("log_segments", head.segments),
        ("disk_free_ratio", free_ratio(log.folder)),
        ("log_unsynced_bytes", head.unsynced_bytes),
        ("log_published_scn", head.published.scn),
        ("log_oldest_scn", head.oldest.scn),
        ("log_published_timestamp_seconds", head.published.ts_us / 1e6),
    )


def _serving(families: _Families, stats: Stats) -> None:
    total = stats.total
    for command, count in total.calls.items():
        families.add({"command": command}, ("requests", count), ("request_errors", total.errors[command]))
    families.add({}, ("sent_bytes", total.sent_bytes), ("streams", len(stats.streams)))


def _clients(families: _Families, stats: Stats, catalog: Catalog) -> None:
    """How far each client is behind: the furthest of its streams of a physical source. See `Stats.positions`."""
    worst: dict[tuple[str, str], tuple[float | None, float, float]] = {}
    for key, position in stats.positions(time.monotonic()):
        capture = catalog.captures.get(key[1])
        if capture is None or capture.log is None:
            continue
        if catalog.grant.is_limited and stats.known(key[0], catalog.grant) is None:
            continue
        head = capture.log.head()
        lag_scn = float(max(head.published.scn - position.scn, 0))
        lag_s = _age_s(capture, capture.log, position) if lag_scn else _behind_s(capture)
        expires_s = capture.log.config.retention_ms_max / 1e3 - (time.time() - position.ts_us / 1e6)
        left_s = expires_s if lag_scn else capture.log.config.retention_ms_max / 1e3
        known = worst.get(key, (lag_s, lag_scn, left_s))
        lags = [seconds for seconds in (lag_s, known[0]) if seconds is not None]
        worst[key] = max(lags, default=None), max(lag_scn, known[1]), min(left_s, known[2])
    for (client, physical), (lag_s, lag_scn, left_s) in worst.items():
        families.add(
            {"client": client, "physical": physical},
            ("client_lag_seconds", lag_s),
            ("client_lag_scn", lag_scn),
            ("client_retention_left_seconds", left_s),
        )


def _group(families: _Families, group: ConsumerGroup, lags: Lags) -> None:
    partitions = dict(group.partitions)
    if not group.is_reported:
        families.add(
            {"group": group.name},
            ("group_members", len(group.members)),
            ("group_partitions", len(partitions)),
            ("group_partitions_held", sum(partition.holder is not None for partition in partitions.values())),
            ("group_guard", group.guard),
            ("group_paused", group.is_paused),
        )
    for number, partition in partitions.items():
        for physical, lag in lags.of(partition.checkpoint).items():
            families.add(
                {"group": group.name, "partition": str(number), "physical": physical},
                ("group_lag_seconds", lag.seconds),
                ("group_lag_changes", lag.changes),
                ("group_lag_bytes", lag.bytes),
                ("group_retention_left_seconds", lag.retention_left_s),
            )


def _behind_s(capture: Capture) -> float | None:
    behind_ms = capture.lag.behind_ms
    return None if behind_ms is None else behind_ms / 1e3


def _age_s(capture: Capture, log: Log, position: SourceCheckpoint) -> float | None:
    """How old the first change behind a position is; where only commits are behind it, as old as what is captured."""
    try:
        oldest_us = log.locate(position).measure(rows_max=1).oldest_us
    except DatabusError:  # the log no longer has it, or never had
        oldest_us = position.ts_us
    return max(time.time() - oldest_us / 1e6, 0.0) if oldest_us else _behind_s(capture)


def render_metrics(catalog: Catalog, stats: Stats, groups: GroupKeeper) -> tuple[bytes, str]:
    """The text of /metrics, and its content type."""
    registry = CollectorRegistry()
    registry.register(_RelayCollector(catalog, stats, groups))
    return generate_latest(registry), CONTENT_TYPE_LATEST
