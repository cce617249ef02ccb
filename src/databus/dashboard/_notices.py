"""Alerts as others take them: a web hook, Prometheus' Alertmanager, a mail. Pure."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any, Final

from databus.dashboard._alerts import Alert, Alerts, AlertState, Notice

RESENT_S: Final = 60.0
"""How often Alertmanager gets what still fires, as from Prometheus."""
_ENDS_AFTER_S: Final = 4 * RESENT_S
"""When an alert ends for Alertmanager if it is not sent again."""
_NAMED_MAX: Final = 5
"""Nodes in the subject of a mail."""
_IN_MAIL_MAX: Final = 100
"""Alerts in one mail."""


def hook_body(notice: Notice) -> bytes:
    """The body of a web hook."""
    return json.dumps(notice.to_json(), ensure_ascii=False).encode(errors="backslashreplace")


def firing(alerts: Alerts) -> list[Alert]:
    """The alerts that are sent: those that fire and are not silenced."""
    return [
        alert for alert in alerts.open_ones() if alert.state is AlertState.FIRING and not alerts.is_silenced(alert.id)
    ]


def alertmanager_body(alerts: Alerts, now_s: float) -> bytes:
    """What fires, and what has ended lately, for `POST /api/v2/alerts`; Alertmanager groups and repeats."""
    ended = [
        alert for alert in alerts.history() if alert.resolved_s is not None and now_s - alert.resolved_s < _ENDS_AFTER_S
    ]
    bodies = [_for_alertmanager(alert, alert.resolved_s or now_s) for alert in ended]
    bodies += [_for_alertmanager(alert, now_s + _ENDS_AFTER_S) for alert in firing(alerts)]
    return json.dumps(bodies, ensure_ascii=False).encode(errors="backslashreplace")


def _for_alertmanager(alert: Alert, ends_s: float) -> dict[str, Any]:
    labels: Mapping[str, str] = {**alert.labels, "alertname": alert.rule.name, "severity": alert.rule.severity}
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {"summary": alert.rule.says, "value": f"{alert.value:g}", "node": alert.node},
        "startsAt": _rfc3339(alert.fired_s or alert.since_s),
        "endsAt": _rfc3339(ends_s),
    }


def mail_of(notice: Notice, sender: str, to: Sequence[str]) -> EmailMessage:
    """A mail. A line break in a name is removed, so none becomes a header of its own."""
    nodes = list(dict.fromkeys(alert.node for alert in notice.alerts if alert.node))
    more = f" and {len(nodes) - _NAMED_MAX} more" if len(nodes) > _NAMED_MAX else ""
    listed = f": {', '.join(nodes[:_NAMED_MAX])}{more}" if nodes else ""
    message = EmailMessage()
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Subject"] = _line(f"[databus] {notice.rule.name} {notice.state}{listed}")
    lines = [notice.rule.says, ""]
    for alert in notice.alerts[:_IN_MAIL_MAX]:
        labels = ", ".join(f"{name}={value}" for name, value in alert.labels.items())
        lines.append(f"{_rfc3339(alert.fired_s or alert.since_s)} {labels or notice.rule.metric}: {alert.value:g}")
    lines += ["", f"severity {notice.rule.severity}; fires when {notice.rule.expression}"]
    message.set_content("\n".join(_line(line) for line in lines) + "\n")
    return message


def _line(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split())


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
