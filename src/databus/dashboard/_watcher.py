"""The watcher: once a second what the board shows becomes samples, samples alerts, and alerts go to a web hook."""

import asyncio
import json
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from databus.core import ConfigError
from databus.dashboard._alert_rules import Sample
from databus.dashboard._alerts import Alerts, Notice
from databus.dashboard._board import Board, lag_of
from databus.dashboard._parts import PipelinePart
from databus.dashboard._watch import LOOK_S, Watch
from databus.operate import logger_of
from databus.sinks.http import headers_of_request, key_of_secret

_WAITING_MAX: Final = 1_000
_ANSWER_S_MAX: Final = 10.0
_AGAIN_S: Final = (1.0, 60.0)
_SUCCESS: Final = range(200, 300)

_logger = logger_of("databus.dashboard")


@dataclass(frozen=True)
class Hook:
    """Where alerts go, and by what they are signed."""

    url: str
    keys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, url: str, secret: str | None) -> "Hook":
        """Raises `ConfigError` for an address or a secret that is none."""
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"{url}: expected the address of a web hook, such as https://hooks.example/databus")
        try:
            return cls(url, () if secret is None else (key_of_secret(secret),))
        except ValueError as error:
            raise ConfigError(f"the secret of the web hook: {error}") from None


class Watcher:
    """`run` until it is cancelled. All of it belongs to the loop's thread."""

    def __init__(self, board: Board, hook: Hook | None) -> None:
        self.alerts = Alerts()
        self._board = board
        self._hook = hook
        self._waiting: deque[Notice] = deque(maxlen=_WAITING_MAX)
        self._has_come = asyncio.Event()
        self.untold = ""
        """Why notices could not be sent; empty where they can."""

    async def run(self) -> None:
        """Look once a second, and send what there is to tell."""
        sending = asyncio.ensure_future(self._send())
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            sending.cancel()

    def _look(self) -> None:
        try:
            notices = self.alerts.step(time.time(), samples_of(self._board))
        except Exception:
            _logger.exception("looking for alerts ended by a defect")
            return
        for each in notices:
            names = [f"{name}={value}" for alert in each.alerts for name, value in alert.labels.items()]
            _logger.warning("alert", rule=each.rule.name, state=each.state, of=names[:20], says=each.rule.says)
            if self._hook is not None:
                self._waiting.append(each)
                self._has_come.set()

    async def _send(self) -> None:
        """Send notices one after the other; one that is not taken is sent again, with the same id."""
        if self._hook is None:
            return
        async with ClientSession(timeout=ClientTimeout(total=_ANSWER_S_MAX)) as session:
            while True:
                await self._has_come.wait()
                while self._waiting:
                    await self._send_one(session, self._hook, self._waiting.popleft())
                self._has_come.clear()

    async def _send_one(self, session: ClientSession, hook: Hook, notice: Notice) -> None:
        body = json.dumps(notice.to_json(), ensure_ascii=False).encode(errors="backslashreplace")
        request_id, wait_s = f"msg_{uuid.uuid4().hex}", _AGAIN_S[0]
        while True:
            headers = headers_of_request(request_id, round(time.time()), body, hook.keys)
            sent = {**headers, "Content-Type": "application/json"}
            with suppress(ClientError, TimeoutError, OSError):
                async with session.post(hook.url, data=body, headers=sent, allow_redirects=False) as answer:
                    if answer.status in _SUCCESS:
                        self.untold = ""
                        return
                    self.untold = f"the web hook answers {answer.status}"
            if not self.untold:
                self.untold = "the web hook does not answer"
                _logger.warning("alerts cannot be sent; tried again", url=urlsplit(hook.url).netloc)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _AGAIN_S[1])


def samples_of(board: Board) -> Iterator[Sample]:
    """What the board shows, by the names that relays and pipelines have for it in their `/metrics`."""
    for watch in board.watches.values():
        labels = {watch.part.kind: watch.name}
        up = float(not watch.seen.error) if watch.seen.at_us or watch.seen.error else None
        is_over = watch.seen.status.get("state") in ("stopped", "ended")
        if up is not None:
            yield Sample(
                "up",
                labels,
                0.0 if is_over and watch.seen.status["state"] == "stopped" else up,
                watch.name,
                watch.project,
            )
        if is_over:
            continue
        if isinstance(watch.part, PipelinePart):
            yield from _of_pipeline(watch, labels)
        yield from _of_sources(watch, labels)


def _of_pipeline(watch: Watch, labels: dict[str, str]) -> Iterator[Sample]:
    status, project = watch.seen.status, watch.project
    if status:
        answers = float(not status.get("relay_error"))
        yield Sample("databus_pipeline_relay_answers", labels, answers, watch.name, project)
    for name, output in status.get("outputs", {}).items():
        of, node = {**labels, "output": name}, f"{watch.name}/outputs.{name}"
        yield Sample("databus_output_state", {**of, "state": str(output["state"])}, 1.0, node, project)
        lag = lag_of(watch.seen.backlog.get(name, {}))
        for metric, value in (
            ("databus_output_lag_seconds", lag["lag_s"]),
            ("databus_output_lag_rows", lag["lag_rows"]),
            ("databus_output_held", lag["held"]),
            ("databus_output_dead_letters", lag["dead_letters"]),
        ):
            if value is not None:
                yield Sample(metric, of, float(value), node, project)


def _of_sources(watch: Watch, labels: dict[str, str]) -> Iterator[Sample]:
    for name, source in watch.seen.status.get("sources", {}).items():
        of, node = {**labels, "physical": name}, f"{watch.name}/sources.{name}"
        project = source.get("project") or watch.project
        if source.get("state"):
            yield Sample("databus_capture_state", {**of, "state": str(source["state"])}, 1.0, node, project)
        if isinstance(watch.part, PipelinePart):
            captured = float(bool(source.get("is_well", True)))
            yield Sample("databus_pipeline_source_captured", {**labels, "source": name}, captured, node, project)
        for metric, value, unit in (
            ("databus_capture_lag_seconds", source.get("lagMs"), 1e3),
            ("databus_capture_lag_bytes", source.get("lagBytes"), 1),
            ("databus_capture_retention_left_seconds", source.get("retentionLeftMs"), 1e3),
        ):
            if value is not None:
                yield Sample(metric, of, float(value) / unit, node, project)
