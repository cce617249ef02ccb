"""Metrics of the bootstrap service for Prometheus, as they are at a scrape."""

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

_BY_PHYSICAL: Final = {
    "log_scn": "Up to which SCN the log store is filled.",
    "log_lag_ms": "How far the log store is behind the relay, between their last commits.",
    "oldest_scn": "The SCN after which the log store holds everything.",
    "oldest_us": "Changes that were committed later than this are all in the log store, microseconds since 1970; 0 "
    "where nothing was removed from it (log_days).",
    "state_scn": "At which SCN the newest state stands.",
    "state_lag_ms": "How far the newest state is behind the relay, between their last commits.",
    "oldest_state_scn": "At which SCN the oldest state stands that is kept.",
    "states": "States that are kept.",
    "rows": "Rows of the newest state.",
    "log_bytes": "Size of the log store when the newest state was noted.",
    "state_bytes": "Size of the state store then, without files that only older states name.",
    "merge_ms": "How long the last merge took.",
}


def metrics_text(
    open_answers: int, given: Mapping[str, int], sent_bytes: int, physicals: Mapping[str, Mapping[str, Any]]
) -> bytes:
    """The text of /metrics. given: answers by kind. physicals: how the stores stand, by physical source."""
    registry = CollectorRegistry()
    Gauge("databus_bootstrap_open_answers", "Answers that are being given.", registry=registry).set(open_answers)
    answers = Counter("databus_bootstrap_answers", "Answers that were begun.", ["kind"], registry=registry)
    for kind, count in given.items():
        answers.labels(kind).inc(count)
    Counter("databus_bootstrap_sent_bytes", "Bytes of answers that were sent.", registry=registry).inc(sent_bytes)
    for name, help_ in _BY_PHYSICAL.items():
        gauge = Gauge(f"databus_bootstrap_{name}", help_, ["physical"], registry=registry)
        for physical, standing in physicals.items():
            if standing[name] is not None:  # what is unknown is absent
                gauge.labels(physical).set(standing[name])
    return generate_latest(registry)
