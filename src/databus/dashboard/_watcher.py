"""The watcher: once a second it makes samples of what the board shows, and from them alerts and numbers to send."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any, Final

from databus.core import ConfigError, DatabusError
from databus.dashboard._alert_config import Alerting
from databus.dashboard._alerts import Alerts, Notice, is_over
from databus.dashboard._board import Board
from databus.dashboard._notices import RESENT_S, alertmanager_body, firing, hook_body, mail_of
from databus.dashboard._outbox import HttpOutbox, MailOutbox, MailServer, Outbox, Request
from databus.dashboard._push import CONTENT_TYPES, Form, body_of
from databus.dashboard._samples import Sample, samples_of
from databus.dashboard._watch import next_turn_s
from databus.disk import replace_file
from databus.operate import logger_of
from databus.sinks.http import headers_of_request, key_of_secret

_NOTICES_MAX: Final = 1_000
"""Notices that wait for a web hook or a mail server; beyond it the oldest is dropped."""
_PUSHES_MAX: Final = 60
"""The same of numbers for a time series database."""
_FILE: Final = "alerts.json"
_JSON: Final = {"Content-Type": "application/json"}

_logger = logger_of("databus.dashboard")


@dataclass(frozen=True)
class Hook:
    """A web hook that gets alerts."""

    url: str
    keys: tuple[bytes, ...] = ()
    """What its requests are signed with; without keys they are not signed."""

    @classmethod
    def of(cls, url: str, secret: str | None) -> "Hook":
        """Raises `ConfigError` for an invalid secret."""
        try:
            return cls(url, () if secret is None else (key_of_secret(secret),))
        except ValueError as error:
            raise ConfigError(f"the secret of the web hook: {error}") from None


@dataclass(frozen=True)
class Push:
    """A time series database that numbers are sent to."""

    form: Form
    url: str
    every_s: float = 10.0
    """How often."""


class _Receivers:
    """The receivers of alerts, each with an outbox of its own. Call `look` after each step of the alerts."""

    def __init__(self, hook: Hook | None, alerting: Alerting) -> None:
        self.boxes: list[Outbox[Any]] = []
        self._looks: list[Callable[[Alerts, float, Sequence[Notice]], None]] = []
        self._sent: tuple[float, frozenset[str]] = (float("-inf"), frozenset())  # to Alertmanager: when, of what
        self._beat_s = float("-inf")
        if hook is not None:
            box = HttpOutbox("the web hook", hook.url, _NOTICES_MAX, gives_up=False)
            self._add(box, partial(self._to_hook, box, hook.keys))
        if alerting.mail is not None:
            mail = MailOutbox(alerting.mail, _NOTICES_MAX)
            self._add(mail, partial(self._to_mail, mail, alerting.mail))
        if alerting.alertmanager is not None:
            url = f"{alerting.alertmanager.rstrip('/')}/api/v2/alerts"
            box = HttpOutbox("Alertmanager", url, 1, gives_up=True)
            self._add(box, partial(self._to_alertmanager, box))
        if alerting.heartbeat_url is not None:
            box = HttpOutbox("the heartbeat's address", alerting.heartbeat_url, 1, gives_up=True)
            self._add(box, partial(self._beat, box))

    def _add(self, box: Outbox[Any], look: Callable[[Alerts, float, Sequence[Notice]], None]) -> None:
        self.boxes.append(box)
        self._looks.append(look)

    def look(self, alerts: Alerts, now_s: float, notices: Sequence[Notice]) -> None:
        """Put what is due into the outboxes. notices: those of this step."""
        for look in self._looks:
            look(alerts, now_s, notices)

    def _to_hook(
        self, box: HttpOutbox, keys: tuple[bytes, ...], alerts: Alerts, now_s: float, notices: Sequence[Notice]
    ) -> None:
        del alerts, now_s
        for notice in notices:
            body, request_id = hook_body(notice), f"msg_{uuid.uuid4().hex}"
            box.put(Request(body, partial(_signed, request_id, body, keys)))

    def _to_mail(
        self, box: MailOutbox, server: MailServer, alerts: Alerts, now_s: float, notices: Sequence[Notice]
    ) -> None:
        del alerts, now_s
        for notice in notices:
            message: EmailMessage = mail_of(notice, server.sender, server.to)
            box.put(message)

    def _to_alertmanager(self, box: HttpOutbox, alerts: Alerts, now_s: float, notices: Sequence[Notice]) -> None:
        del notices  # it groups and repeats by itself
        ids = frozenset(alert.id for alert in firing(alerts))
        sent_s, sent = self._sent
        if ids == sent and not is_over(now_s, sent_s, RESENT_S):
            # Nothing has changed, and Alertmanager still knows it.
            return
        self._sent = now_s, ids
        # Once more with no alert left, which brings the end of the last.
        if ids or sent:
            box.put(Request(alertmanager_body(alerts, now_s), partial(dict, _JSON)))

    def _beat(self, box: HttpOutbox, alerts: Alerts, now_s: float, notices: Sequence[Notice]) -> None:
        del alerts, notices
        if is_over(now_s, self._beat_s, RESENT_S):
            self._beat_s = now_s
            box.put(Request(b"", dict))


def _signed(request_id: str, body: bytes, keys: tuple[bytes, ...]) -> Mapping[str, str]:
    return {**headers_of_request(request_id, round(time.time()), body, keys), **_JSON}


class Watcher:
    """`run` until it is cancelled, in the loop's thread. folder: where it keeps silences and acknowledgements."""

    def __init__(
        self,
        board: Board,
        folder: Path,
        hook: Hook | None = None,
        alerting: Alerting | None = None,
        pushes: Sequence[Push] = (),
    ) -> None:
        """Raises `ConfigError` for an invalid address."""
        alerting = alerting or Alerting()
        self.alerts = Alerts(alerting.rules)
        self._board = board
        self._path = folder / _FILE
        self._saved: dict[str, Any] = {}
        self._trouble = ""
        self._receivers = _Receivers(hook, alerting)
        self._pushes = [
            (push, HttpOutbox(f"the {push.form} database", push.url, _PUSHES_MAX, gives_up=True)) for push in pushes
        ]
        self._pushed_s: dict[int, float] = {}
        self._load()

    @property
    def _boxes(self) -> list[Outbox[Any]]:
        return [*self._receivers.boxes, *(box for _, box in self._pushes)]

    @property
    def troubles(self) -> list[str]:
        """Why notices or numbers are not sent, with how many were dropped; why silences or charts are not kept."""
        sending = [f"{box.trouble}; {box.dropped} dropped" for box in self._boxes if box.trouble]
        return [*sending, *filter(None, (self._trouble, self._board.numbers.trouble))]

    async def run(self) -> None:
        """Look once a second, and send notices and numbers."""
        sending = [asyncio.ensure_future(box.run()) for box in self._boxes]
        try:
            while True:
                try:
                    self._look(list(samples_of(self._board)))
                    await self.save()
                except Exception:  # a defect; if this loop ended, no alert would be sent any more
                    _logger.exception("looking for alerts ended by a defect")
                await asyncio.sleep(next_turn_s(time.monotonic()))
        finally:
            for task in sending:
                task.cancel()

    async def save(self) -> None:
        """Keep silences and acknowledgements for the next start. If that fails, the log and `troubles` say so."""
        value = self.alerts.remembered()
        if value == self._saved:
            return
        self._saved = value
        try:
            await asyncio.to_thread(replace_file, self._path, [json.dumps(value).encode()], durable=True)
        except (DatabusError, OSError) as error:  # tried again with the next look
            what = "silences and acknowledgements are not kept over a restart"
            if not self._trouble:
                _logger.warning(what, why=str(error))
            self._saved, self._trouble = {}, f"{what}: {error}"
            return
        self._trouble = ""

    def _load(self) -> None:
        try:
            self.alerts.remember(json.loads(self._path.read_bytes()), time.time())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            _logger.warning("earlier silences and acknowledgements are lost", path=str(self._path), why=str(error))
        self._saved = self.alerts.remembered()

    def _look(self, samples: Sequence[Sample]) -> None:
        now_s = time.time()
        for number, (push, box) in enumerate(self._pushes):
            if is_over(now_s, self._pushed_s.get(number, 0.0), push.every_s):
                self._pushed_s[number] = now_s
                headers = {"Content-Type": CONTENT_TYPES[push.form]}
                box.put(Request(body_of(push.form, samples, round(now_s * 1e9)), partial(dict, headers)))
        if not all(watch.seen.at_us or watch.unseen for watch in self._board.watches.values()):
            return  # until each part was looked at, a sample that is missing may come with the next look
        notices = self.alerts.step(now_s, samples)
        for notice in notices:
            names = [f"{name}={value}" for alert in notice.alerts for name, value in alert.labels.items()]
            _logger.warning("alert", rule=notice.rule.name, state=notice.state, of=names[:20], says=notice.rule.says)
        self._receivers.look(self.alerts, now_s, notices)
