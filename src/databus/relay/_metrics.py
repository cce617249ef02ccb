"""Metrics for Prometheus: capture, log, serving, and lag three ways. Read at each scrape; they hold no secrets."""

import platform
import time
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from databus import __version__
from databus.core import DatabusError, SourceCheckpoint
from databus.disk import free_ratio
from databus.log import Log
from databus.relay._capture import Capture
from databus.relay._capture_state import State
from databus.relay._catalog import Catalog
from databus.relay._grant import Grant
from databus.relay._group_lag import Lags
from databus.relay._group_pages import visible_groups
from databus.relay._stats import Stats
from databus.relay.groups import Group, GroupKeeper
from databus.wire import VERSION

_BY_SOURCE: Final = ("physical",)
_BY_GROUP: Final = ("group",)
_BY_PARTITION: Final = ("group", "partition", "physical")
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

    def __init__(self, catalog: Catalog, stats: Stats, groups: GroupKeeper) -> None:
        self._catalog = catalog
        self._stats = stats
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        of = (__version__, platform.python_version(), str(VERSION))
        families.gauge(
            "build_info", "1, with the versions of databus, Python and the wire format as labels.",
            ("version", "python", "wire"), of, 1.0,
        )  # fmt: skip
        for capture in self._catalog.captures.values():
            _capture(families, capture, self._catalog.grant)
            if capture.log is not None:
                _log(families, capture.log)
        _serving(families, self._stats, self._catalog)
        families.counter(
            "group_guards_ended",
            "Times since the relay started that the log could not be kept for a group.",
            (),
            (),
            self._groups.guards_ended,
        )
        lags = Lags(self._catalog.captures)
        for group in visible_groups(self._groups.seen, self._catalog.grant):
            _group(families, group, lags)
        yield from families.all()


def _capture(families: _Families, capture: Capture, grant: Grant) -> None:
    of = (capture.physical,)
    counters, lag, status = capture.counters, capture.lag, capture.status
    for state in State:
        families.gauge(
            "capture_state",
            "1 for the state that capture of this physical source is in, 0 for the others.",
            ("physical", "state"),
            (*of, state.name),
            float(status.state is state),
        )
    left_s = None if lag.retention_left_ms is None else lag.retention_left_ms / 1e3
    families.gauge(
        "capture_lag_seconds",
        "Age of the oldest change that the database has committed and the relay has not captured.",
        _BY_SOURCE,
        of,
        _behind_s(capture),
    )
    families.gauge(
        "capture_lag_changes",
        "Changes that the database has committed and the relay has not captured.",
        _BY_SOURCE,
        of,
        lag.changes,
    )
    families.gauge(
        "capture_lag_bytes",
        "Bytes of the database's log that the relay has not captured.",
        _BY_SOURCE,
        of,
        lag.bytes,
    )
    families.gauge(
        "capture_retention_left_seconds",
        "Time until the database purges something that the relay has not captured yet.",
        _BY_SOURCE,
        of,
        left_s,
    )
    for table, count in lag.values_omitted.items():
        if not grant.sees(capture.physical, table):
            continue
        families.counter(
            "capture_values_omitted",
            "Values left out of captured rows because the row was too large.",
            ("physical", "table"),
            (*of, table),
            count,
        )
    families.counter(
        "capture_statements_unknown",
        "Statements that changed captured tables and were not understood, so that the tables are read again.",
        _BY_SOURCE,
        of,
        lag.statements_unknown,
    )
    families.counter(
        "capture_groups",
        "Groups (whole transactions, or parts of large ones) captured since the relay started.",
        _BY_SOURCE,
        of,
        counters.groups,
    )
    families.counter(
        "capture_rows",
        "Row images captured since the relay started, those read by snapshots included.",
        _BY_SOURCE,
        of,
        counters.rows,
    )
    families.counter(
        "capture_snapshot_rows",
        "Row images read by snapshots since the relay started.",
        _BY_SOURCE,
        of,
        counters.snapshot_rows,
    )
    families.gauge(
        "capture_snapshots",
        "Tables whose snapshot has begun and not ended.",
        _BY_SOURCE,
        of,
        float(len(capture.reading)),
    )
    families.counter(
        "capture_controls",
        "Control messages (schema changes, snapshots, gaps) captured since the relay started.",
        _BY_SOURCE,
        of,
        counters.controls,
    )
    families.counter(
        "capture_bytes", "Bytes of frames written to the log since the relay started.", _BY_SOURCE, of, counters.bytes
    )
    families.counter(
        "capture_errors",
        "Errors that capture of this physical source met since the relay started.",
        _BY_SOURCE,
        of,
        counters.errors,
    )
    families.counter(
        "capture_restarts",
        "Times that the physical source was opened again after an error.",
        _BY_SOURCE,
        of,
        counters.restarts,
    )


def _log(families: _Families, log: Log) -> None:
    of, head = (log.physical,), log.head()
    families.gauge("log_bytes", "Size of the log on disk.", _BY_SOURCE, of, head.bytes)
    families.gauge("log_segments", "Files that the log consists of.", _BY_SOURCE, of, head.segments)
    families.gauge(
        "disk_free_ratio",
        "How much of the disk is free that holds the log: 1 is all.",
        _BY_SOURCE,
        of,
        free_ratio(log.folder),
    )
    families.gauge(
        "log_unsynced_bytes",
        "Bytes appended to the log and not yet synced to disk.",
        _BY_SOURCE,
        of,
        head.unsynced_bytes,
    )
    families.gauge(
        "log_published_scn", "SCN of the last transaction that consumers can read.", _BY_SOURCE, of, head.published.scn
    )
    families.gauge(
        "log_oldest_scn",
        "SCN after which the log holds everything; a consumer further behind cannot go on.",
        _BY_SOURCE,
        of,
        head.oldest.scn,
    )
    families.gauge(
        "log_published_timestamp_seconds",
        "Commit time of the last transaction that consumers can read, in seconds since 1970.",
        _BY_SOURCE,
        of,
        head.published.ts_us / 1e6,
    )


def _serving(families: _Families, stats: Stats, catalog: Catalog) -> None:
    total = stats.total
    for command, count in total.calls.items():
        families.counter(
            "requests", "HTTP requests answered since the relay started, by command.", ("command",), (command,), count
        )
    for command, count in total.errors.items():
        families.counter(
            "request_errors",
            "HTTP requests answered with an error since the relay started, by command.",
            ("command",),
            (command,),
            count,
        )
    families.counter(
        "sent_bytes", "Bytes of changes sent to consumers since the relay started.", (), (), total.sent_bytes
    )
    families.gauge("streams", "Streams that consumers have open now.", (), (), len(stats.streams))
    _clients(families, stats, catalog)


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
        lags = [each for each in (lag_s, known[0]) if each is not None]
        worst[key] = max(lags, default=None), max(lag_scn, known[1]), min(left_s, known[2])
    for key, (lag_s, lag_scn, left_s) in worst.items():
        families.gauge(
            "client_lag_seconds",
            "Age of the oldest change that the database has committed and the client was not sent.",
            _BY_CLIENT,
            key,
            lag_s,
        )
        families.gauge(
            "client_lag_scn", "SCNs between what was sent to a client and the end of the log.", _BY_CLIENT, key, lag_scn
        )
        families.gauge(
            "client_retention_left_seconds",
            "Time until what a client needs next leaves the log.",
            _BY_CLIENT,
            key,
            left_s,
        )


def _members(families: _Families, group: Group) -> None:
    of, partitions = (group.name,), dict(group.partitions)
    held = sum(each.holder is not None for each in partitions.values())
    families.gauge("group_members", "Members that call, of a group.", _BY_GROUP, of, float(len(group.members)))
    families.gauge("group_partitions", "Partitions of a group.", _BY_GROUP, of, float(len(partitions)))
    families.gauge("group_partitions_held", "Partitions of a group that a member holds.", _BY_GROUP, of, float(held))
    families.gauge(
        "group_guard",
        "1 while the log is kept for the group beyond its retention, 0 otherwise or once that has ended.",
        _BY_GROUP,
        of,
        float(group.guard),
    )
    families.gauge(
        "group_paused", "1 if an operator has paused the group, 0 otherwise.", _BY_GROUP, of, float(group.is_paused)
    )


def _group(families: _Families, group: Group, lags: Lags) -> None:
    if not group.is_reported:
        _members(families, group)
    for number, partition in dict(group.partitions).items():
        for physical, lag in lags.of(partition.checkpoint).items():
            key = (group.name, str(number), physical)
            families.gauge(
                "group_lag_seconds",
                "Age of the oldest change that the database has committed and a partition of a group has not saved.",
                _BY_PARTITION,
                key,
                lag.seconds,
            )
            families.gauge(
                "group_lag_changes",
                "Changes of the physical source behind what a partition of a group has saved; many are estimated.",
                _BY_PARTITION,
                key,
                lag.changes,
            )
            families.gauge(
                "group_lag_bytes",
                "Bytes of log behind what a partition of a group has saved.",
                _BY_PARTITION,
                key,
                lag.bytes,
            )
            families.gauge(
                "group_retention_left_seconds",
                "Time until what a partition of a group needs next leaves the log.",
                _BY_PARTITION,
                key,
                lag.retention_left_s,
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
    registry.register(_Collector(catalog, stats, groups))
    return generate_latest(registry), CONTENT_TYPE_LATEST
