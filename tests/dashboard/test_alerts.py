"""Alerts: what fires when, who is told, and that Prometheus is given the same rules."""

import json
import re
import time
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from databus.core import ConfigError, UnknownSource
from databus.dashboard import Form, Hook, Push, grafana_dashboard, part_of_file, prometheus_rules
from databus.dashboard._alert_rules import RULES, Is, Rule
from databus.dashboard._alerts import GROUP_S, REPEAT_S, Alerts, AlertState
from databus.dashboard._push import influx_lines
from databus.dashboard._samples import Sample
from tests.commands import databus, failed
from tests.dashboard.parts import FILE, WAIT_S, Pipeline, wait_until
from tests.dashboard.receiver import receiver
from tests.dashboard.running import Running, token_of
from tests.documents.pages import ROOT, blocks

__all__ = ["receiver"]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of the test
LAG = Rule("Lags", "lag", Is.ABOVE, 10, "look", 5)


def lag(value, name="a", project=None):
    return Sample("lag", {"output": name}, value, name, project)


def told(notices):
    return [(str(each.state), [alert.labels["output"] for alert in each.alerts]) for each in notices]


def test_an_alert_is_pending_fires_is_told_again_and_is_resolved():
    alerts = Alerts([LAG])
    assert told(alerts.step(0, [lag(11)])) == []
    assert [each.state for each in alerts.open_ones()] == [AlertState.PENDING]
    assert told(alerts.step(4.9, [lag(11)])) == []
    assert told(alerts.step(5, [lag(12)])) == [("firing", ["a"])]
    assert told(alerts.step(6, [lag(12)])) == []
    assert told(alerts.step(5 + REPEAT_S, [lag(12)])) == [("firing", ["a"])]
    assert told(alerts.step(6 + REPEAT_S, [lag(10)])) == [("resolved", ["a"])]
    assert told(alerts.step(7 + REPEAT_S, [])) == []
    assert (alerts.open_ones(), len(alerts.history())) == ([], 1)


def test_what_stops_before_its_time_was_nothing():
    alerts = Alerts([LAG])
    alerts.step(0, [lag(11)])
    alerts.step(4, [lag(9)])
    assert told(alerts.step(5, [lag(11)])) == []
    assert alerts.history() == []
    assert told(alerts.step(10, [lag(11)])) == [("firing", ["a"])], "it counts from its new beginning"


def test_above_the_bound_the_gravest_stay_and_one_alert_says_how_many_are_not_shown(monkeypatch):
    monkeypatch.setattr("databus.dashboard._alerts._ALERTS_MAX", 3)
    grave = Rule("Lost", "lost", Is.ABOVE, 0, "look", 0, "critical")
    alerts = Alerts([replace(LAG, for_s=0), grave])

    def step(now_s, minor, grave):
        samples = [lag(11, f"minor{each}", "shop") for each in range(minor)]
        notices = alerts.step(
            now_s, samples + [Sample("lost", {"output": f"grave{each}"}, 1.0) for each in range(grave)]
        )
        kept = {alert.labels.get("output", alert.rule.name): alert.value for alert in alerts.open_ones()}
        return kept, {(str(notice.state), notice.rule.name) for notice in notices}

    assert step(0, 3, 0)[0].keys() == {"minor0", "minor1", "minor2"}
    kept, told = step(1, 4, 2)
    assert kept == {"minor0": 11, "grave0": 1, "grave1": 1, "AlertsNotShown": 3}
    assert told == {("firing", "Lost"), ("firing", "AlertsNotShown")}, "what is not shown is not over"
    assert [alert.project for alert in alerts.open_ones() if not alert.labels.get("output")] == ["shop"]
    kept, told = step(100, 2, 1)
    assert kept.keys() == {"minor0", "minor1", "grave0"}
    assert ("resolved", "AlertsNotShown") in told


def test_what_comes_together_is_told_together():
    alerts = Alerts([LAG])
    alerts.step(0, [lag(11, "a"), lag(11, "b")])
    alerts.step(1, [lag(11, name) for name in "abcd"])
    assert told(alerts.step(5, [lag(11, name) for name in "abcd"])) == [("firing", ["a", "b"])]
    assert told(alerts.step(6, [lag(11, name) for name in "abcd"])) == []
    assert told(alerts.step(5 + GROUP_S, [lag(11, name) for name in "abcd"])) == [("firing", ["c", "d"])]


def test_a_clock_that_is_set_back_by_an_hour_holds_no_notice_back_for_an_hour():
    alerts = Alerts([LAG])
    alerts.step(10_000, [lag(11, "a"), lag(11, "b")])
    assert told(alerts.step(10_005, [lag(11, "a"), lag(11, "b")])) == [("firing", ["a", "b"])]
    heard = [*alerts.step(6_400, [lag(11, "b"), lag(11, "c")]), *alerts.step(6_430, [lag(11, "b"), lag(11, "c")])]
    assert ("resolved", ["a"]) in told(heard)
    assert ("firing", ["c"]) in told(heard)


def test_what_is_silenced_is_told_to_nobody_and_what_is_acknowledged_not_again():
    alerts = Alerts([LAG])
    alerts.step(0, [lag(11, "a"), lag(11, "b")])
    one, other = alerts.open_ones()
    alerts.silence(one.id, 100)
    assert told(alerts.step(5, [lag(11, "a"), lag(11, "b")])) == [("firing", ["b"])]
    alerts.acknowledge(other.id, "ann")
    assert told(alerts.step(101, [lag(11, "a"), lag(11, "b")])) == [("firing", ["a"])], "the silence is over"
    assert told(alerts.step(101 + REPEAT_S, [lag(11, "a"), lag(11, "b")])) == [("firing", ["a"])]
    with pytest.raises(UnknownSource):
        alerts.acknowledge("nothing", "ann")


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=40))
def test_whatever_comes_firing_and_resolved_alternate_and_firing_waits_its_time(steps):
    """Law: of one alert, notices are firing, then resolved, and so on; it fires exactly when it held for so long."""
    alerts, now, since, heard = Alerts([LAG]), 0, None, []
    for seconds, holds in steps:
        now += seconds
        since = (now if since is None else since) if holds else None
        notices = alerts.step(now, [lag(11)] if holds else [])
        heard += [str(each.state) for each in notices]
        is_firing = [each.state for each in alerts.open_ones()] == [AlertState.FIRING]
        assert is_firing == (since is not None and now - since >= LAG.for_s)
    alternating = ["firing", "resolved"] * len(heard)
    assert heard == alternating[: len(heard)]


def test_a_web_hook_is_told_until_it_takes_it_and_the_page_says_so(tmp_path, receiver):
    suspended = {"name": "shop_db", "status": "suspended", "state": "SUSPENDED_ON_ERROR", "message": "no", "type": "x"}
    hook = Hook.of(f"http://127.0.0.1:{receiver.server_port}/", SECRET)
    with (
        Pipeline(tmp_path) as shop,
        Running(
            tmp_path / "dashboard",
            [part_of_file(shop.file)],
            [{"name": "ann", "rights": ["see", "control"]}, {"name": "other", "projects": ["other"]}],
            hook=hook,
        ) as running,
    ):
        ann = {"token": token_of("ann")}
        wait_until(lambda: running.api("/status", **ann)[1]["outputs"])
        began = time.monotonic()
        shop.published.sources([suspended], "")
        heard = receiver.heard
        wait_until(lambda: heard)
        assert time.monotonic() - began < WAIT_S / 2
        wait_until(lambda: len(heard) > 1)
        assert heard[0][1] == heard[1][1]
        assert heard[0][0]["webhook-id"] == heard[1][0]["webhook-id"], "sent again, it is the same"
        body = Webhook(SECRET).verify(heard[1][1], {name.lower(): each for name, each in heard[1][0].items()})
        assert body == json.loads(heard[1][1])
        (alert,) = body["alerts"]
        assert (body["rule"], alert["labels"]["physical"]) == ("CaptureSuspended", "shop_db")
        assert "shop/sources.shop_db" in {each["node"] for each in running.api("/alerts", **ann)[1]["open"]}
        foreign = {"token": token_of("other")}
        assert running.api("/alerts", **foreign)[1]["open"] == []
        reason = {"reason": "I see to it"}
        assert running.api(f"/alerts/{alert['id']}/ack", reason, **ann)[0] == 200
        assert running.api(f"/alerts/{alert['id']}/silence", {**reason, "minutes": 30}, **ann)[0] == 200
        assert running.api(f"/alerts/{alert['id']}/silence", {**reason, "minutes": 10**6}, **ann)[0] == 400
        assert running.api(f"/alerts/{alert['id']}/ack", reason, **foreign)[0] == 403
        (found,) = [each for each in running.api("/alerts", **ann)[1]["open"] if each["id"] == alert["id"]]
        assert found["acked_by"] == "ann"
        assert found["silenced_until_us"] > time.time() * 1e6
        entries = running.api("/audit", **ann)[1]["entries"]
        assert {"alert ack", "alert silence"} <= {each["action"] for each in entries}


def test_what_people_have_said_of_alerts_outlives_a_restart():
    alerts = Alerts([LAG])
    alerts.step(0, [lag(11, "a"), lag(11, "b")])
    one, other = alerts.open_ones()
    alerts.silence(one.id, 10_000)
    alerts.step(5, [lag(11, "a"), lag(11, "b")])
    alerts.acknowledge(other.id, "ann")
    after = Alerts([LAG])
    after.remember(json.loads(json.dumps(alerts.remembered())), 100)
    after.step(100, [lag(11, "a"), lag(11, "b")])
    assert told(after.step(105, [lag(11, "a"), lag(11, "b")])) == [], "one is silenced, of the other somebody knows"
    assert {each.acked_by for each in after.open_ones()} == {"ann", ""}
    assert told(after.step(106, [lag(11, "a")])) == [("resolved", ["b"])]
    assert after.remembered()["acked"] == {}
    for wrong in ({}, [], {"v": 2, "silenced": {}, "acked": {}}, {"v": 1, "silenced": [], "acked": {}}):
        with pytest.raises(ValueError, match=r"."):
            after.remember(wrong, 0)


def test_a_silence_is_kept_in_a_file_and_a_file_that_is_none_is_passed_over(tmp_path):
    folder, people = tmp_path / "d", [{"name": "ann", "rights": ["see", "control"]}]
    suspended = {"name": "shop_db", "status": "suspended", "state": "SUSPENDED_ON_ERROR", "message": "no", "type": "x"}
    ann = {"token": token_of("ann")}
    with Pipeline(tmp_path) as shop:
        shop.published.sources([suspended], "")

        def of(running):
            found = running.api("/alerts", **ann)[1]["open"]
            return next((each for each in found if each["rule"] == "CaptureSuspended"), None)

        with Running(folder, [part_of_file(shop.file)], people) as running:
            alert = wait_until(lambda: of(running))
            asked = {"reason": "known", "minutes": 5}
            assert running.api(f"/alerts/{alert['id']}/silence", asked, **ann)[0] == 200
            until_us = of(running)["silenced_until_us"]
        with Running(folder, [part_of_file(shop.file)], people) as running:
            assert wait_until(lambda: of(running))["silenced_until_us"] == until_us
        (folder / "alerts.json").write_bytes(b"\xff{")
        with Running(folder, [part_of_file(shop.file)], people) as running:
            assert wait_until(lambda: of(running))["silenced_until_us"] is None


def test_a_hook_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="base64"):
        Hook.of("http://127.0.0.1/", "whsec_%%%")
    (tmp_path / "databus.yml").write_text(FILE.format(name="shop", project="billing"))
    for option, value in (("--webhook", "nowhere"), ("--push", "otlp=file:///etc/passwd"), ("--push", "graphite=x")):
        assert "expected" in failed(databus("dashboard", option, value, "--listen", "127.0.0.1:0", cwd=tmp_path), 2)


def test_numbers_are_pushed_in_both_forms_and_what_is_refused_is_dropped(tmp_path, receiver):
    url = f"http://127.0.0.1:{receiver.server_port}/"
    pushes = [Push(form, url, every_s=0.1) for form in Form]
    with Pipeline(tmp_path) as shop, Running(tmp_path / "d", [part_of_file(shop.file)], pushes=pushes):
        shop.batch(rows=7)
        heard = receiver.heard
        wanted = (b"databus_output_rows_total,output=copy,pipeline=shop value=7.0 ", b'"stringValue": "copy"')
        wait_until(lambda: all(any(each in body for _, body in heard) for each in wanted))
    otlp = next(json.loads(body) for _, body in heard if b"databus_output_rows_total" in body and body.startswith(b"{"))
    (scope,) = otlp["resourceMetrics"][0]["scopeMetrics"]
    kinds = {each["name"]: {*each} - {"name"} for each in scope["metrics"]}
    assert kinds["databus_output_rows_total"] == {"sum"}
    assert kinds["databus_output_state"] == {"gauge"}
    for _, body in heard:
        for line in [] if body.startswith(b"{") else body.decode().splitlines():
            assert re.fullmatch(r"[a-z_]+(,[a-z_]+=(\\.|[^ ,=])+)* value=-?[0-9.e+-]+ [0-9]{19}", line), line


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=6)), st.floats(allow_nan=False, allow_infinity=False))
def test_a_line_is_one_line_whatever_names_hold(labels, value):
    """Law: one sample is one line, whose tags are what they were but for line ends, and whose value is the same."""
    text = influx_lines([Sample("m", labels, value)], 1)
    assert text.endswith("\n")
    assert "\n" not in text[:-1]
    assert "\r" not in text
    tags, found, at = split_unescaped(text[:-1], " ")
    assert (float(found.removeprefix("value=")), at) == (value, "1")
    assert len(split_unescaped(tags, ",")) == 1 + sum(1 for each in labels.values() if each)


def split_unescaped(text, separator):
    """Parts between separators that no backslash stands before."""
    parts, is_escaped = [""], False
    for character in text:
        if character == separator and not is_escaped:
            parts.append("")
        else:
            parts[-1] += character
        is_escaped = character == "\\" and not is_escaped
    return parts


def test_prometheus_and_grafana_are_given_what_the_code_says(tmp_path):
    said = databus("dashboard", "--export", "prometheus", cwd=tmp_path)
    assert yaml.safe_load(said.stdout) == prometheus_rules()
    assert json.loads(databus("dashboard", "--export", "grafana", cwd=tmp_path).stdout) == grafana_dashboard()
    expressions = [target["expr"] for panel in grafana_dashboard()["panels"] for target in panel["targets"]]
    exported = "".join(
        path.read_text() for path in (ROOT / "src" / "databus").rglob("*.py") if path.parent.name != "dashboard"
    )
    for text in [*expressions, *(each.metric for each in RULES if each.metric != "up")]:
        name = text.removeprefix("rate(").partition("{")[0].partition("[")[0].removesuffix("_total")
        assert f'"{name}"' in exported or f'"{name.removeprefix("databus_")}"' in exported, name


def test_the_rules_of_the_pages_are_those_of_the_code():
    """docs/operations.md shows them for Prometheus; what it has too (of consumers, of the relay's job) is its own."""
    text = "\n".join(each.text for each in blocks(ROOT / "docs" / "operations.md") if "- alert:" in each.text)
    listed = {each["alert"]: each for block in text.split("groups:") for each in rules_in(block)}
    for rule in RULES:
        if rule.name == "Down":
            continue
        shown = listed[rule.name]
        minutes = f"{rule.for_s // 60:.0f}m" if rule.for_s else None
        assert shown.get("for") == minutes, rule.name
        numbers = shown["expr"].replace("== 1", "> 0").replace("== 0", "< 1").replace('="', '=~"').replace("=~~", "=~")
        assert numbers.replace("10e9", "10000000000") == rule.expression, rule.name


def rules_in(block):
    lines = [line for line in block.splitlines() if line.strip().startswith(("- alert", "expr", "for:"))]
    return yaml.safe_load("\n".join(lines)) or [] if lines else []
