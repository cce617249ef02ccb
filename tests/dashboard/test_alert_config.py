"""Rules of one's own, and who else is told: a server of mail, Alertmanager, a heartbeat."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from email import message_from_bytes, policy

import pytest
import yaml

from databus.core import ConfigError
from databus.dashboard import Alerting, part_of_file, prometheus_rules
from databus.dashboard._alert_rules import RULES, Is, Rule
from databus.dashboard._alerts import Alert, Alerts, AlertState, Notice
from databus.dashboard._notices import RESENT_S, alertmanager_body, mail_of
from databus.dashboard._outbox import MailOutbox, MailServer
from databus.dashboard._samples import SAMPLED, Sample, samples_of
from tests.commands import databus, failed
from tests.dashboard.parts import HOSTILE, Pipeline, wait_until
from tests.dashboard.receiver import receiver
from tests.dashboard.running import Running, token_of

__all__ = ["receiver"]
OWN = """\
alerts:
  - {metric: databus_output_rows_total, labels: {output: "copy|hook"}, above: 5, for_ms: 500, text: look at it}
  - {name: Gone, metric: databus_output_state, labels: {output: nothing}, absent: true, text: where is it}
  - {name: OutputLags, metric: databus_output_lag_seconds, above: 1, severity: critical, text: ours}
"""


def alerting(text, folder) -> Alerting:
    return Alerting.of(yaml.safe_load(text), "alerts.yml", folder)


def test_rules_of_one_s_own_stand_beside_those_that_are_built_in_or_in_their_place(tmp_path):
    rules = {each.name: each for each in alerting(OWN, tmp_path).rules}
    assert len(rules) == len(RULES) + 2
    assert rules["OutputLags"].says == "ours"
    expressions = {each["alert"]: each for each in prometheus_rules(list(rules.values()))["groups"][0]["rules"]}
    assert expressions["OutputRowsTotal"]["expr"] == 'databus_output_rows_total{output=~"copy|hook"} > 5'
    assert expressions["OutputRowsTotal"]["for"] == "500ms"
    assert expressions["Gone"]["expr"] == 'absent(databus_output_state{output=~"nothing"})'


def test_rules_of_one_s_own_are_listed_for_who_sees_all_projects(tmp_path):
    who = [{"name": "ann"}, {"name": "sal", "projects": ["sales"]}]
    with Running(tmp_path, [], who, alerting=alerting(OWN, tmp_path)) as running:
        ann, sal = (
            {rule["name"] for rule in running.api("/alerts", token=token_of(name))[1]["rules"]}
            for name in ("ann", "sal")
        )
    assert {"Gone", "OutputRowsTotal"} <= ann
    assert sal < {rule.name for rule in RULES}


def test_what_is_absent_fires_once_it_is_so_for_long_enough():
    alerts = Alerts([Rule("Gone", "m", Is.ABSENT, 0, "look", 5, labels={"output": "a.*"})])
    assert alerts.step(0, [Sample("m", {"output": "ab"}, 1)]) == []
    alerts.step(1, [Sample("m", {"output": "b"}, 1), Sample("n", {"output": "ab"}, 1)])
    (notice,) = alerts.step(6, [])
    assert (notice.state, notice.alerts[0].labels) == (AlertState.FIRING, {})
    (notice,) = alerts.step(40, [Sample("m", {"output": "a"}, 0)])
    assert notice.state is AlertState.RESOLVED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{metric: databus_output_lag_second, above: 1, text: x}", "did you mean databus_output_lag_seconds"),
        ("{metric: up, text: x}", "say one of"),
        ("{metric: up, above: 1, below: 2, text: x}", "say one of"),
        ("{metric: up, absent: false, text: x}", "absent"),
        ("{metric: up, above: .nan, text: x}", "above"),
        ("{metric: up, below: 1, for_ms: -1, text: x}", "for_ms"),
        ("{metric: up, below: 1, labels: {relay: '('}, text: x}", "no regular expression"),
        ("{metric: up, below: 1, labels: {'a b': x}, text: x}", "labels"),
        ("{metric: up, below: 1, severity: loud, text: x}", "severity"),
        ('{metric: up, below: 1, text: "two\\nlines"}', "text"),
        ("{metric: up, below: 1, text: x}, {metric: up, below: 2, text: x}", "two are called Up"),
    ],
)
def test_a_rule_that_cannot_be_is_a_sentence(tmp_path, text, why):
    with pytest.raises(ConfigError, match=why):
        alerting(f"alerts: [{text}]", tmp_path)


def test_a_file_that_cannot_be_is_refused_at_the_command_line(tmp_path):
    (tmp_path / "alerts.yml").write_text("smtp: {host: h, from: a@b, to: [c@d], user: u}")
    said = failed(databus("dashboard", "--alerts", "alerts.yml", "--export", "prometheus", cwd=tmp_path), 2)
    assert "`user` and `password_file` go together" in said
    (tmp_path / "alerts.yml").write_text(OWN)
    told = databus("dashboard", "--alerts", "alerts.yml", "--export", "prometheus", cwd=tmp_path).stdout
    assert {"Gone", "DiskFull"} <= {each["alert"] for each in yaml.safe_load(told)["groups"][0]["rules"]}


@pytest.mark.parametrize("text", ['{host: h, from: "a@b\\n", to: [c@d]}', "{host: h, from: a@b, to: []}"])
def test_mail_that_cannot_be_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="smtp"):
        alerting(f"smtp: {text}", tmp_path)
    with pytest.raises(ConfigError, match="starttls or tls"):
        alerting("smtp: {host: h, security: none, from: a@b, to: [c@d], user: u, password_file: p}", tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        alerting("smtp: {host: h, from: a@b, to: [c@d], user: u, password_file: p}", tmp_path)


def test_every_sample_has_a_known_name(tmp_path):
    with Pipeline(tmp_path) as shop, Running(tmp_path / "d", [part_of_file(shop.file)]) as running:
        shop.batch()
        advanced(shop)
        wait_until(
            lambda: any(each.metric == "databus_output_rows_read_total" for each in samples_of(running.dashboard.board))
        )
        assert {each.metric for each in samples_of(running.dashboard.board)} <= SAMPLED


def advanced(shop: Pipeline, **more) -> None:
    """A batch of `copy`: ten rows came, of which a filter dropped four."""
    counts = {"main.events": {"in": 10, "dropped": {"filters.big": 4}}}
    told = {"event": "advanced", "output": "copy", "query": "q", "physical": "shop_db", "start": [1, 1], "end": [2, 1]}
    told |= {"only": [], "rows": {"main.events": 6}, "counts": counts, "bytes": 1000, "spent_ms": {"write": 7.4}}
    shop.published.take({**told, "at_us": 1, "ms": 1.0, "marks": {}, "epoch": 1, **more})


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs. The first message is refused for now."""

    def handle(self) -> None:
        def say(text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        say("220 mail.test")
        while line := self.rfile.readline().strip():
            verb = line.split(b":")[0].split()[0].upper()
            if verb == b"DATA":
                say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.heard.append(b"".join(lines))
                say("451 busy" if len(self.server.heard) == 1 else "250 taken")
            else:
                say("221 bye" if verb == b"QUIT" else "250 ok")
                if verb == b"QUIT":
                    return


@pytest.fixture
def mail() -> Iterator[socketserver.ThreadingTCPServer]:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail)
    server.heard = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_what_fires_is_mailed_sent_to_alertmanager_and_the_heart_beats(tmp_path, receiver, mail):
    receiver.heard.append(({}, b""))  # so that none is refused
    url = f"http://127.0.0.1:{receiver.server_port}"
    port = mail.server_address[1]
    made = alerting(
        f"alertmanager: {url}\nheartbeat_url: {url}/beat\n"
        f"smtp: {{host: 127.0.0.1, port: {port}, security: none, from: bus@example.com, to: [ops@example.com]}}\n{OWN}",
        tmp_path,
    )
    with (
        Pipeline(tmp_path) as shop,
        Running(tmp_path / "d", [part_of_file(shop.file)], alerting=made),
    ):
        shop.batch(rows=7)
        wait_until(lambda: any(b"OutputRowsTotal" in body for _, body in receiver.heard))
        wait_until(lambda: sum(b"OutputRowsTotal" in each for each in mail.heard))
        wait_until(lambda: len(mail.heard) > 1)
    assert any(body == b"" for _, body in receiver.heard[1:]), "the heart beats"
    sent = [json.loads(body) for _, body in receiver.heard if b"OutputRowsTotal" in body]
    (alert,) = [each for each in sent[-1] if each["labels"]["alertname"] == "OutputRowsTotal"]
    assert alert["labels"] == {
        "alertname": "OutputRowsTotal", "output": "copy", "pipeline": "shop", "severity": "warning",
    }  # fmt: skip
    assert alert["startsAt"] < alert["endsAt"]
    assert mail.heard[0] == mail.heard[1], "one that was not taken comes again"
    messages = [message_from_bytes(each, policy=policy.default) for each in mail.heard]
    found = next(each for each in messages if "OutputRowsTotal" in each["Subject"])
    assert found["To"] == "ops@example.com"
    assert "shop/outputs.copy" in found["Subject"]
    assert "look at it" in found.get_content()


def test_no_name_becomes_a_header_of_a_mail():
    rule = Rule("R", "m", Is.ABOVE, 1, f"says\r\nBcc: evil@example.com {HOSTILE}")
    alert = Alert(rule, {"output": "a\r\nBcc: x@y\udcff"}, "n\r\nBcc: x@y\udcff", None, 0.0, 2.0)
    message = mail_of(Notice(rule, AlertState.FIRING, [alert]), "a@b", ["c@d"])
    assert message["Bcc"] is None
    assert set(message_from_bytes(bytes(message))) == {
        "From", "To", "Subject", "Content-Type", "Content-Transfer-Encoding", "MIME-Version",
    }  # fmt: skip


def test_alertmanager_hears_the_end_and_forgets_what_it_hears_no_more_of():
    alerts = Alerts([Rule("R", "m", Is.ABOVE, 1, "look")])
    alerts.step(1_000, [Sample("m", {"output": "a"}, 2)])
    (now,) = json.loads(alertmanager_body(alerts, 1_000))
    assert now["endsAt"] == "1970-01-01T00:20:40.000Z"
    alerts.step(1_100, [])
    (ended,) = json.loads(alertmanager_body(alerts, 1_101))
    assert ended["endsAt"] == "1970-01-01T00:18:20.000Z"
    assert json.loads(alertmanager_body(alerts, 1_100 + 5 * RESENT_S)) == []


def test_a_server_of_mail_that_is_away_keeps_nobody_waiting():
    began = time.monotonic()
    box = MailOutbox(MailServer("127.0.0.1", "a@b", ("c@d",), "none", 1), 2)
    rule = Rule("R", "m", Is.ABOVE, 1, "look")
    for _ in range(5):
        box.put(mail_of(Notice(rule, AlertState.FIRING, []), "a@b", ["c@d"]))
    assert (box.dropped, time.monotonic() - began < 1) == (3, True)
