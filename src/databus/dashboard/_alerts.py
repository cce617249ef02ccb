"""Alerts over time: pending, firing, resolved; who sees to them; and which notices are due. Pure: no clock, no I/O.

An alert is pending while its rule has held for less than `for_s`, fires then, and is resolved when the rule no longer
holds. A notice of the first alert of a rule is sent at once; alerts of that rule in the next half minute share one
notice; an alert that still fires is sent again after four hours. A silenced alert is not sent, an acknowledged one not
repeated. Start with `Alerts.step`.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from databus.core import TooManyRequests, UnknownSource
from databus.dashboard._alert_rules import RULES, Is, Rule
from databus.dashboard._samples import Sample

GROUP_S: Final = 30
"""The shortest time between two notices of one rule and state: a failure of many parts is one notice, not many."""
REPEAT_S: Final = 4 * 3_600
"""After this long a notice of what still fires is sent again."""
SILENCE_S_MAX: Final = 30 * 86_400
_ALERTS_MAX: Final = 1_000
_GRAVITIES: Final = ("critical", "warning", "info")
"""Severities, the gravest first."""
NOT_SHOWN: Final = Rule(
    "AlertsNotShown",
    "databus_alerts_not_shown",
    Is.ABOVE,
    0,
    f"More than {_ALERTS_MAX:,} alerts are open; so many, the least grave ones, are neither shown nor sent. Look for "
    "what they have in common, or make the rules fire less often.",
    severity="critical",
)
"""Of the dashboard itself: an alert that is not shown is never hidden in silence."""
_HISTORY_MAX: Final = 1_000
_SILENCED_MAX: Final = 1_000
_ACKED_BEFORE_S_MAX: Final = 3_600
"""How long after a start the acknowledgements of before it count."""
_VERSION: Final = 1


class AlertState(StrEnum):
    """How far an alert has come."""

    PENDING = "pending"
    """The rule holds, but not yet for `for_s`."""
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass
class Alert:
    """One rule that holds for one thing."""

    rule: Rule
    labels: Mapping[str, str]
    """Of the sample; with the rule they are its identity."""
    node: str
    """What it is about, such as `shop/outputs.copy`; empty where it is about no node of the graph."""
    project: str | None
    """Whose it is: who does not see this project does not see the alert."""
    since_s: float
    """Since when the rule has held."""
    value: float
    """The sample's newest value."""
    state: AlertState = AlertState.PENDING
    fired_s: float | None = None
    """When it began to fire; None while it is pending."""
    resolved_s: float | None = None
    """When it ended; None before that."""
    sent_s: float | None = None
    """When a notice had it last; None before the first."""
    is_end_sent: bool = False
    """Whether a notice said that it is resolved."""
    acked_by: str = ""
    """The principal who sees to it; empty where no one does yet."""
    id: str = field(init=False)
    """A hash of rule and labels: the same after a restart."""

    def __post_init__(self) -> None:
        self.id = _id_of(self.rule, self.labels)

    def to_json(self) -> dict[str, Any]:
        """For the API and for web hooks."""
        return {
            "id": self.id,
            "rule": self.rule.name,
            "severity": self.rule.severity,
            "says": self.rule.says,
            "state": self.state,
            "labels": dict(self.labels),
            "node": self.node,
            "value": self.value,
            "since_us": _us(self.since_s),
            "fired_us": _us(self.fired_s),
            "resolved_us": _us(self.resolved_s),
            "acked_by": self.acked_by,
        }


@dataclass(frozen=True)
class Notice:
    """One message to whoever gets alerts: alerts of one rule, all of them firing or all resolved."""

    rule: Rule
    state: AlertState
    """`FIRING` or `RESOLVED`."""
    alerts: Sequence[Alert]

    def to_json(self) -> dict[str, Any]:
        """The body of a web hook."""
        alerts = [alert.to_json() for alert in self.alerts]
        return {"rule": self.rule.name, "state": self.state, "severity": self.rule.severity, "alerts": alerts}


class Alerts:
    """Used by one thread. Times are seconds since 1970, as the caller has them."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = rules
        self._open: dict[str, Alert] = {}
        self._over: deque[Alert] = deque(maxlen=_HISTORY_MAX)
        self._silenced: dict[str, float] = {}  # by id of an alert: until when
        self._sent_s: dict[tuple[str, AlertState], float] = {}  # by rule and state: when the last notice was sent
        self._acked_before: dict[str, str] = {}  # by id of an alert: by whom, before the start
        self._acked_until_s = 0.0

    def step(self, now_s: float, samples: Iterable[Sample]) -> list[Notice]:
        """Take the samples of now; returns the notices that are due."""
        held: list[tuple[Rule, Sample]] = []
        by_metric: dict[str, list[Rule]] = {}
        for rule in self.rules:
            by_metric.setdefault(rule.metric, []).append(rule)
        absent = {rule.name: rule for rule in self.rules if rule.compared is Is.ABSENT}
        for sample in samples:
            for rule in by_metric.get(sample.metric, ()):
                if not rule.is_about(sample):
                    continue
                absent.pop(rule.name, None)  # one matching sample is enough, whatever its value
                if rule.holds(sample):
                    held.append((rule, sample))
        held += [(rule, Sample(rule.metric, {}, 0.0)) for rule in absent.values()]
        holding = {self._hold(now_s, rule, sample) for rule, sample in self._gravest(held)}
        for id_ in self._open.keys() - holding:
            self._end(now_s, self._open.pop(id_))
        if now_s >= self._acked_until_s:
            self._acked_before.clear()
        self._silenced = {id_: until_s for id_, until_s in self._silenced.items() if until_s > now_s}
        return self._due(now_s)

    def _gravest(self, held: Sequence[tuple[Rule, Sample]]) -> list[tuple[Rule, Sample]]:
        """The `_ALERTS_MAX` gravest; of equally grave ones those that are open already come first. For each project of
        which some were left behind, one more alert says how many.
        """
        if len(held) <= _ALERTS_MAX:
            return list(held)

        def order(candidate: tuple[str, tuple[Rule, Sample]]) -> tuple[int, bool]:
            id_, (rule, _) = candidate
            return _GRAVITIES.index(rule.severity), id_ not in self._open

        ordered = sorted(((_id_of(rule, sample.labels), (rule, sample)) for rule, sample in held), key=order)
        kept, others = dict(ordered[:_ALERTS_MAX]), dict(ordered[_ALERTS_MAX:])
        lacking = Counter(sample.project for id_, (_, sample) in others.items() if id_ not in kept)
        for id_ in others.keys() - kept.keys():
            # Taken away here, so that `step` does not take it for one that has ended, and sends no such notice.
            self._open.pop(id_, None)
        return [
            *kept.values(),
            *(
                (
                    NOT_SHOWN,
                    Sample(NOT_SHOWN.metric, {} if project is None else {"project": project}, count, "", project),
                )
                for project, count in lacking.items()
            ),
        ]

    def _hold(self, now_s: float, rule: Rule, sample: Sample) -> str:
        id_ = _id_of(rule, sample.labels)
        alert = self._open.get(id_)
        if alert is None:
            alert = self._open[id_] = Alert(rule, sample.labels, sample.node, sample.project, now_s, sample.value)
            if id_ in self._acked_before and now_s < self._acked_until_s:
                # A notice of it was sent before the restart: it is not news.
                alert.acked_by, alert.sent_s = self._acked_before.pop(id_), now_s
        alert.value, alert.project = sample.value, sample.project
        if alert.state is AlertState.PENDING and is_over(now_s, alert.since_s, rule.for_s):
            alert.state, alert.fired_s = AlertState.FIRING, now_s
        return id_

    def _end(self, now_s: float, alert: Alert) -> None:
        """Its rule no longer holds. One that was only pending leaves no trace: no notice of it was sent."""
        if alert.state is AlertState.FIRING:
            alert.state, alert.resolved_s = AlertState.RESOLVED, now_s
            self._over.append(alert)

    def _due(self, now_s: float) -> list[Notice]:
        wanted: dict[tuple[str, AlertState], list[Alert]] = {}
        for alert in self._open.values():
            if alert.state is AlertState.FIRING and self._wants_notice(now_s, alert):
                wanted.setdefault((alert.rule.name, AlertState.FIRING), []).append(alert)
        for alert in self._over:
            # The end is sent once, and only where the beginning was sent.
            if alert.sent_s is not None and not alert.is_end_sent and not self.is_silenced(alert.id):
                wanted.setdefault((alert.rule.name, AlertState.RESOLVED), []).append(alert)
        # What is not due yet is collected again in the next step, with what has come until then.
        due = [key for key in wanted if is_over(now_s, self._sent_s.get(key, float("-inf")), GROUP_S)]
        for key in due:
            self._sent_s[key] = now_s
            for alert in wanted[key]:
                alert.sent_s, alert.is_end_sent = now_s, key[1] is AlertState.RESOLVED
        return [Notice(wanted[key][0].rule, key[1], tuple(wanted[key])) for key in due]

    def _wants_notice(self, now_s: float, alert: Alert) -> bool:
        if self.is_silenced(alert.id):
            return False
        if alert.sent_s is None:
            return True
        return not alert.acked_by and is_over(now_s, alert.sent_s, REPEAT_S)

    def is_silenced(self, id_: str) -> bool:
        """Whether its notices are withheld now."""
        return id_ in self._silenced

    def find(self, id_: str) -> Alert:
        """One that is open. Raises `UnknownSource`."""
        if id_ not in self._open:
            raise UnknownSource(f"no alert {id_[:100]!r} is open")
        return self._open[id_]

    def acknowledge(self, id_: str, who: str) -> None:
        """Note who sees to it: its notice is not repeated while it fires."""
        self.find(id_).acked_by = who

    def silence(self, id_: str, until_s: float) -> None:
        """Send no notice of it until then, also if it ends and begins again. Raises `TooManyRequests`."""
        if len(self._silenced) >= _SILENCED_MAX and id_ not in self._silenced:
            raise TooManyRequests(f"{_SILENCED_MAX} alerts are silenced already")
        self._silenced[self.find(id_).id] = until_s

    def remembered(self) -> dict[str, Any]:
        """Silences and acknowledgements for the next start, as JSON."""
        acked = {alert.id: alert.acked_by for alert in self._open.values() if alert.acked_by}
        return {"v": _VERSION, "silenced": dict(self._silenced), "acked": {**self._acked_before, **acked}}

    def remember(self, value: Any, now_s: float) -> None:
        """Take what `remembered` made before a start. Raises `ValueError` for anything else."""
        try:
            if value["v"] != _VERSION:
                raise ValueError(f"version {value['v']}")
            silenced = {str(id_): float(until_s) for id_, until_s in value["silenced"].items()}
            acked = {str(id_): str(who) for id_, who in value["acked"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(repr(error)) from error
        # Bounded again: a file that was edited, or a clock that ran ahead, silences nothing for ever.
        self._silenced = {id_: min(until_s, now_s + SILENCE_S_MAX) for id_, until_s in silenced.items()}
        self._acked_before, self._acked_until_s = acked, now_s + _ACKED_BEFORE_S_MAX

    def open_ones(self) -> list[Alert]:
        """Those that are pending or firing, the firing ones first."""
        return sorted(self._open.values(), key=lambda alert: (alert.state is not AlertState.FIRING, alert.since_s))

    def history(self) -> list[Alert]:
        """Those that are over, the newest first."""
        return list(self._over)[::-1]

    def silenced_until_us(self, id_: str) -> int | None:
        """Until when it is silenced."""
        return _us(self._silenced.get(id_))


def is_over(now_s: float, since_s: float, span_s: float) -> bool:
    """Whether a span of time has passed. It has, too, if the clock was set back to before it began: otherwise notices
    would wait until the clock is again where it was, which may be hours.

    >>> is_over(29, 0, 30), is_over(30, 0, 30), is_over(-1, 0, 30)
    (False, True, True)
    """
    return not since_s <= now_s < since_s + span_s


def _id_of(rule: Rule, labels: Mapping[str, str]) -> str:
    text = "\0".join([rule.name, *(f"{name}={labels[name]}" for name in sorted(labels))])
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
