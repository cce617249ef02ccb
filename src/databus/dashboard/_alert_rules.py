"""The rules of alerts, declared once: the dashboard evaluates them, and Prometheus gets the same as a file. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from databus.dashboard._samples import UP, Sample


class Is(StrEnum):
    """How samples are compared with a rule's value."""

    ABOVE = ">"
    BELOW = "<"
    ABSENT = "absent"
    """There is none whose labels match."""


@dataclass(frozen=True)
class Rule:
    """Fires for each sample that meets its condition for `for_s`; one of `Is.ABSENT` fires once, without a sample."""

    name: str
    """Such as `CaptureLags`; Prometheus and Alertmanager have it as `alertname`."""
    metric: str
    """The metric whose samples it looks at."""
    compared: Is
    value: float
    """The bound that samples are compared with; `Is.ABSENT` has none."""
    says: str
    """What it means, and what to do."""
    for_s: float = 0
    """For how long the condition holds before the alert fires."""
    severity: str = "warning"
    """`critical`, `warning` or `info`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions by label; a sample whose labels do not match all of them is not looked at."""

    def is_about(self, sample: Sample) -> bool:
        """Whether it looks at a sample."""
        if sample.metric != self.metric:
            return False
        return all(re.fullmatch(pattern, sample.labels.get(name, "")) for name, pattern in self.labels.items())

    def holds(self, sample: Sample) -> bool:
        """Whether a sample that it looks at meets its condition."""
        if self.compared is Is.ABSENT:
            # A sample that is there is the opposite of the condition.
            return False
        return sample.value > self.value if self.compared is Is.ABOVE else sample.value < self.value

    @property
    def expression(self) -> str:
        """The same in PromQL."""
        chosen = ",".join(f"{name}=~{json.dumps(pattern, ensure_ascii=False)}" for name, pattern in self.labels.items())
        vector = f"{self.metric}{f'{{{chosen}}}' if chosen else ''}"
        return f"absent({vector})" if self.compared is Is.ABSENT else f"{vector} {self.compared} {self.value:.15g}"


RULES: Final[Sequence[Rule]] = (
    Rule(
        "Down",
        UP,
        Is.BELOW,
        1,
        "It does not answer. Is its process running? `systemctl status`, and its log, tell.",
        120,
        "critical",
    ),
    Rule(
        "CaptureSuspended",
        "databus_capture_state",
        Is.ABOVE,
        0,
        "Capture has stopped, and somebody has to decide. `databus status` has the reason and the command.",
        0,
        "critical",
        {"state": "SUSPENDED_ON_ERROR"},
    ),
    Rule(
        "CaptureRetrying",
        "databus_capture_state",
        Is.ABOVE,
        0,
        "The database cannot be read; it is tried again. `databus status` has the reason.",
        600,
        labels={"state": "ERROR_RETRY"},
    ),
    Rule("CaptureLags", "databus_capture_lag_seconds", Is.ABOVE, 300, "The relay is behind its database.", 600),
    Rule(
        "CaptureLagsInBytes",
        "databus_capture_lag_bytes",
        Is.ABOVE,
        10e9,
        "The relay is behind its database's log, or paused: `databus sources resume`.",
        600,
    ),
    Rule(
        "ServerPurgesSoon",
        "databus_capture_retention_left_seconds",
        Is.BELOW,
        21_600,
        "The database soon drops what is not captured: have it keep more, or find out why capture is behind.",
        0,
        "critical",
    ),
    Rule(
        "OutputNotWell",
        "databus_output_state",
        Is.ABOVE,
        0,
        "The output writes nothing. `databus status` has the reason; then `databus resume`.",
        300,
        "critical",
        {"state": "failed|hanging|retrying"},
    ),
    Rule(
        "SourceNotCaptured",
        "databus_pipeline_source_captured",
        Is.BELOW,
        1,
        "The relay that the pipeline reads cannot capture this source. `databus status` has the reason.",
        300,
        "critical",
    ),
    Rule(
        "RelayAway",
        "databus_pipeline_relay_answers",
        Is.BELOW,
        1,
        "The pipeline's relay does not answer it; how far outputs lag is not known meanwhile.",
        300,
        "critical",
    ),
    Rule(
        "DeadLetters",
        "databus_output_dead_letters",
        Is.ABOVE,
        0,
        "The target refused rows: `databus dead-letters list`, then `show`, then `replay`.",
    ),
    Rule("OutputLags", "databus_output_lag_seconds", Is.ABOVE, 900, "The output is behind its database.", 600),
    Rule(
        "OutputLosesItsPlace",
        "databus_output_held",
        Is.BELOW,
        1,
        "The relay no longer has what the output needs next; `databus status` has what to do.",
        0,
        "critical",
    ),
    Rule(
        "JournalBreak",
        "databus_journal_breaks",
        Is.ABOVE,
        0,
        "The batches of the output do not follow each other, or have not the rows that the log has: `databus audit`.",
        0,
        "critical",
    ),
    Rule(
        "DiskFull",
        "databus_disk_free_ratio",
        Is.BELOW,
        0.05,
        "The disk of a log, or of a pipeline's state, is nearly full; capture waits when it is. Make room on it.",
        60,
        "critical",
    ),
)
"""The rules that are built in, over what the dashboard sees. docs/operations.md has them for Prometheus, with those of
consumers."""


def prometheus_rules(rules: Sequence[Rule] = RULES) -> dict[str, Any]:
    """A file of rules for Prometheus."""
    entries = [
        {
            "alert": rule.name,
            "expr": rule.expression,
            **(
                {"for": f"{rule.for_s * 1e3:.0f}ms"}
                if rule.for_s % 1
                else {"for": f"{rule.for_s:.0f}s"}
                if rule.for_s
                else {}
            ),
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.says},
        }
        for rule in rules
    ]
    return {"groups": [{"name": "databus", "rules": entries}]}


_PANELS: Final = (
    ("Rows written a second", "rate(databus_output_rows_total[1m])", "rowsps"),
    ("Output lag", "databus_output_lag_seconds", "s"),
    ("Rows that outputs have not written", "databus_output_lag_rows", "short"),
    ("Rows captured a second", "rate(databus_capture_rows_total[1m])", "rowsps"),
    ("Capture lag", "databus_capture_lag_seconds", "s"),
    ("Time until the database drops what is not captured", "databus_capture_retention_left_seconds", "s"),
    ("Outputs that are not well", 'databus_output_state{state=~"failed|hanging|retrying"}', "short"),
    ("Size of the relay's logs", "databus_log_bytes", "bytes"),
)
_WIDTH: Final = 12
_HEIGHT: Final = 8


def grafana_dashboard() -> dict[str, Any]:
    """A dashboard for Grafana over the metrics of relays and pipelines, from a data source that is chosen there."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {
                "h": _HEIGHT, "w": _WIDTH, "x": _WIDTH * (number % 2), "y": _HEIGHT * (number // 2),
            },
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [{"refId": "A", "datasource": source, "expr": expression}],
        }
        for number, (title, expression, unit) in enumerate(_PANELS)
    ]  # fmt: skip
    variable = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "databus",
        "uid": "databus",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [variable]},
        "panels": panels,
    }
