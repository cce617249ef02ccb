"""Prometheus fires at the same samples as we do: the rules that it is given, tried by its own `promtool test rules`."""

import os
import random
import subprocess
from typing import Any

import pytest
import yaml

from databus.dashboard import Alerting, prometheus_rules
from databus.dashboard._alert_rules import Rule
from databus.dashboard._alerts import Alerts, AlertState
from databus.dashboard._samples import Sample
from databus.testing.servers import ServerMissing
from tests.dashboard.time_series import promtool

OWN = """\
alerts:
  - {name: Gone, metric: databus_output_rows_total, labels: {output: "c.*"}, absent: true, for_ms: 120000, text: gone}
  - {name: Quoted, metric: databus_output_lag_rows, labels: {output: 'a\\.b|"x"'}, above: 1234567.5, text: many}
"""
SERIES = ("copy", "a.b", "axb", '"x"')
STEPS = 40


def values_of(rule: Rule, rng: random.Random) -> list[float | None]:
    """Numbers that stay for a while on either side of the rule's value, and are away now and then."""
    found: list[float | None] = []
    while len(found) < STEPS:
        value = rng.choice([rule.value - 1, rule.value, rule.value + 1, None])
        found += [value] * rng.choice([1, 1, 2, 4, 12])
    return found[:STEPS]


def labels_of(rule: Rule, output: str) -> dict[str, str]:
    said = {name: pattern.partition("|")[0] for name, pattern in rule.labels.items() if name != "output"}
    return {**said, "output": output}


def series_of(
    rules: list[Rule], rng: random.Random
) -> dict[tuple[str, tuple[tuple[str, str], ...]], list[float | None]]:
    return {
        (rule.metric, tuple(sorted(labels_of(rule, output).items()))): values_of(rule, rng)
        for rule in rules
        for output in SERIES
    }


def fires_here(rules: list[Rule], series: Any) -> list[set[tuple[str, tuple[tuple[str, str], ...]]]]:
    """By minute, what fires as we evaluate the rules."""
    alerts, found = Alerts(rules), []
    for step in range(STEPS):
        samples = [
            Sample(name, dict(labels), values[step])
            for (name, labels), values in series.items()
            if values[step] is not None
        ]
        alerts.step(60 * step, samples)
        now = [each for each in alerts.open_ones() if each.state is AlertState.FIRING]
        found.append({(each.rule.name, tuple(sorted(each.labels.items()))) for each in now})
    return found


@pytest.mark.parametrize("seed", range(3))
def test_prometheus_fires_at_the_same_samples(tmp_path, seed):
    """Law: whatever a series does, an alert fires here in exactly the minutes in which it fires there."""
    try:
        program = promtool()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    rules = list(Alerting.of(yaml.safe_load(OWN), "alerts.yml", tmp_path).rules)
    series = series_of(rules, random.Random(seed))
    fires = fires_here(rules, series)
    fired = {name for now in fires for name, _ in now}
    assert len(fired) > len(rules) / 2, "else it tries nothing"
    by_name = {rule.name: rule for rule in rules}
    tests = [
        {
            "eval_time": f"{step}m",
            "alertname": rule.name,
            "exp_alerts": [
                {
                    "exp_labels": {**dict(labels), "severity": by_name[name].severity},
                    "exp_annotations": {"summary": by_name[name].says},
                }
                for name, labels in sorted(now)
                if name == rule.name
            ],
        }
        for step, now in enumerate(fires)
        for rule in rules
    ]
    written = [
        {
            "series": f"{name}{{{','.join(f'{label}={_quoted(value)}' for label, value in labels)}}}",
            "values": " ".join("stale" if value is None else f"{value:.15g}" for value in values),
        }
        for (name, labels), values in series.items()
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(prometheus_rules(rules), sort_keys=False))
    whole = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": written, "alert_rule_test": tests}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(whole, sort_keys=False))
    done = subprocess.run(
        [program, "test", "rules", "test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
