"""The watcher: once a second what the board shows becomes samples; of these come alerts and numbers, which are sent."""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from databus.core import ConfigError
from databus.dashboard._alert_rules import Sample
from databus.dashboard._alerts import Alerts, Notice
from databus.dashboard._board import Board, lag_of
from databus.dashboard._outbox import Outbox
from databus.dashboard._parts import PipelinePart
from databus.dashboard._push import CONTENT_TYPES, Form, body_of
from databus.dashboard._watch import LOOK_S, Watch
from databus.operate import logger_of
from databus.sinks.http import headers_of_request, key_of_secret

_NOTICES_MAX: Final = 1_000
_PUSHES_MAX: Final = 60

_logger = logger_of("databus.dashboard")


@dataclass(frozen=True)
class Hook:
    """Where alerts go, and by what they are signed."""

    url: str
    keys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, url: str, secret: str | None) -> "Hook":
        """Raises `ConfigError` for a secret that is none."""
        try:
            return cls(url, () if secret is None else (key_of_secret(secret),))
        except ValueError as error:
            raise ConfigError(f"the secret of the web hook: {error}") from None


@dataclass(frozen=True)
class Push:
    """A database of time series that numbers are sent to."""

    form: Form
    url: str
    every_s: float = 10.0


class Watcher:
    """`run` until it is cancelled. All of it belongs to the loop's thread."""

    def __init__(self, board: Board, hook: Hook | None, pushes: Sequence[Push] = ()) -> None:
        """Raises `ConfigError` for an address that is none."""
        self.alerts = Alerts()
        self._board = board
        self._hook = hook
        self._hooks = None if hook is None else Outbox("the web hook", hook.url, _NOTICES_MAX, gives_up=False)
        self._pushes = [
            (each, Outbox(f"the {each.form} database", each.url, _PUSHES_MAX, gives_up=True)) for each in pushes
        ]
        self._pushed_s: dict[int, float] = {}

    @property
    def troubles(self) -> list[str]:
        """Why notices or numbers are not sent, and how many were dropped."""
        boxes = [*([] if self._hooks is None else [self._hooks]), *(box for _, box in self._pushes)]
        return [f"{each.trouble}; {each.dropped} dropped" for each in boxes if each.trouble]

    async def run(self) -> None:
        """Look once a second, and send what there is to tell."""
        boxes = [*([] if self._hooks is None else [self._hooks]), *(box for _, box in self._pushes)]
        sending = [asyncio.ensure_future(each.run()) for each in boxes]
        try:
            while True:
                try:
                    self._look(list(samples_of(self._board)))
                except Exception:  # a defect is in the log; nobody would hear of an alert if this ended
                    _logger.exception("looking for alerts ended by a defect")
                await asyncio.sleep(LOOK_S)
        finally:
            for each in sending:
                each.cancel()

    def _look(self, samples: Sequence[Sample]) -> None:
        now_s = time.time()
        for number, (push, box) in enumerate(self._pushes):
            if now_s - self._pushed_s.get(number, 0.0) >= push.every_s:
                self._pushed_s[number] = now_s
                headers = {"Content-Type": CONTENT_TYPES[push.form]}
                box.put(body_of(push.form, samples, round(now_s * 1e9)), partial(dict, headers))
        for notice in self.alerts.step(now_s, samples):
            names = [f"{name}={value}" for alert in notice.alerts for name, value in alert.labels.items()]
            _logger.warning("alert", rule=notice.rule.name, state=notice.state, of=names[:20], says=notice.rule.says)
            self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        if self._hook is None or self._hooks is None:
            return
        body = json.dumps(notice.to_json(), ensure_ascii=False).encode(errors="backslashreplace")
        request_id, keys = f"msg_{uuid.uuid4().hex}", self._hook.keys

        def headers() -> Mapping[str, str]:
            signed = headers_of_request(request_id, round(time.time()), body, keys)
            return {**signed, "Content-Type": "application/json"}

        self._hooks.put(body, headers)


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
        for counted in ("rows", "batches", "retries"):
            yield Sample(f"databus_output_{counted}_total", of, float(output.get(counted) or 0), node, project)
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
            ("databus_capture_rows_total", source.get("rows"), 1),
            ("databus_capture_bytes_total", source.get("bytes"), 1),
            ("databus_capture_lag_bytes", source.get("lagBytes"), 1),
            ("databus_capture_retention_left_seconds", source.get("retentionLeftMs"), 1e3),
        ):
            if value is not None:
                yield Sample(metric, of, float(value) / unit, node, project)
