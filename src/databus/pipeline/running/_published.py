"""What a run publishes: its status file, its journals, and an HTTP server if one is configured."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from databus.core import Clock, ConfigError, CorruptData, DatabusError, ServiceUnavailable, SystemClock
from databus.disk import free_ratio
from databus.filters import names_for_relay
from databus.operate import hide_in_answer, hide_in_text
from databus.pipeline.checks import http_address, load_pipeline
from databus.pipeline.engine import QueryPlan, positions_of, with_positions
from databus.pipeline.graph import PipelineConfig, is_held, state_of
from databus.pipeline.running._dead_letters import with_letters
from databus.pipeline.running._own_relay import states_of
from databus.pipeline.running._source_watch import States, is_well
from databus.pipeline.telling import BatchJournal, Journal, OnEvent, RunProgress, StatusFile, read_status, with_backlog

if TYPE_CHECKING:
    from pathlib import Path

    from databus.pipeline.running._control import Handle
    from databus.pipeline.running._health import HealthServer


_STOPPED: Final = dict.fromkeys(("starting", "running"), "stopped")
"""States that an output cannot be in any more once the run has ended, and what is shown instead."""

ENDED: Final = "ended"
"""The state of a run with `once` that has written everything."""

_ENVELOPE: Final = frozenset({"event", "pipeline"})

_NOT_ASKED_YET: Final[Mapping[str, Any]] = {"is_well": True, "status": "", "message": ""}


class Published:
    """Takes every event. Use as a context manager; `http`: HOST:PORT to serve at, instead of the file's."""

    def __init__(self, config: PipelineConfig, http: str | None, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._http = http or config.sections.run.http
        self._is_option = bool(http)
        self._server: HealthServer | None = None
        self._progress = RunProgress(sorted(config.sections.outputs))
        self._file = StatusFile(config.state, lambda: self.status(asks_relay=False))
        self._journal = Journal(config.state)
        self._batches = BatchJournal(config.state)
        self._about = {**_about(config), "started_us": self._now_us()}
        self._sources = dict.fromkeys(config.sources, _NOT_ASKED_YET) if config.embeds_relay else {}
        self.answer: Handle | None = None
        """Carries out commands from HTTP; set once there is a run that takes them."""
        self.look: OnEvent = lambda _: None
        """Takes each event too, and returns quickly; set once there are queries."""

    def __enter__(self) -> Self:
        if self._http is not None:
            self._server = server = self._server_at(self._http)
            server.start()
            self._about["http"] = server.url
        self._file.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._about["ended_us"] = self._now_us()
        if self._about["state"] != ENDED:
            self._about["state"] = "stopped"
        if isinstance(error, DatabusError):
            failure = hide_in_text(str(error))
            self._about.update(code=error.exit_code, failure=failure)
            self._journal.take({"event": "stopped", "code": error.exit_code, "message": failure})
        self._file.stop()
        if self._server is not None:
            self._server.stop()

    def _now_us(self) -> int:
        return self._clock.now_ns() // 1000

    def _server_at(self, address: str) -> "HealthServer":
        from databus.pipeline.running._health import HealthServer
        from databus.relay import Tokens, tokens_in

        where = "--http" if self._is_option else "run.http"
        host, port = http_address(address, where, self._config)
        file = self._config.token_file
        tokens = Tokens(file, lambda: () if file is None else tokens_in(file, "relay.token_file"))
        return HealthServer(host, port, tokens, lambda asks_relay: self.status(asks_relay=asks_relay), self._handle)

    def _handle(self, verb: str, request: Mapping[str, Any], asker: str) -> Mapping[str, Any]:
        if self.answer is None:
            raise ServiceUnavailable("the pipeline is starting; ask again")
        return self.answer(verb, request, asker)

    def expect(self, plans: Sequence[QueryPlan]) -> None:
        """These queries are about to run."""
        for plan in plans:
            tables = []
            if plan.physical is not None and f"{plan.physical}/*" not in plan.patterns:
                tables = names_for_relay(plan.patterns, plan.physical)
            self._progress.expect(plan.name, [feed.output.partition(".")[2] for feed in plan.feeds], tables)

    def change(self, config: PipelineConfig, plans: Sequence[QueryPlan], new: Sequence[QueryPlan]) -> None:
        """A reload took another file: there are only its outputs, and only these queries, some of them new."""
        self._config = config
        self._progress.keep(sorted(config.sections.outputs), {plan.name for plan in plans if plan not in new})
        self.expect(new)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event."""
        self._journal.take(event)
        self._batches.take(event)
        self.look(event)
        if self._server is not None:
            self._server.events.put(event)
        match event["event"]:
            case "relay":
                self._about["relay"] = event["url"]
            case "doing":
                self._about["doing"] = event["what"]
            case "reload":
                self._about["reload"] = {name: value for name, value in event.items() if name not in _ENVELOPE}
            case "stopping":
                self._about["state"] = "stopping"
            case "stopped":
                self._about.update(code=event["code"], failure="; ".join(event["reasons"]) or None)
                if event["is_complete"]:
                    self._about["state"] = ENDED
            case _:
                self._progress.take(event)

    def sources(self, states: States, why_none: str) -> None:
        """Take the relay's states of the sources that this pipeline reads, or why it does not answer. The last known
        states stay then, beside the relay's error.
        """
        self._about["relay_error"] = hide_in_text(why_none)
        if not why_none:
            shown = hide_in_answer(states)
            self._sources = {str(state["name"]): {**state, "is_well": is_well(state)} for state in shown}

    def status(self, *, asks_relay: bool) -> dict[str, Any]:
        """The status of now; asks_relay: with positions and the backlog, which may take seconds."""
        outputs: Mapping[str, Any] = self._progress.to_json()
        if asks_relay:
            outputs = with_letters(self._config, with_positions(self._config, outputs))
            outputs = with_backlog(outputs, self._about["relay"], self._config.access, clock=self._clock)
        free = free_ratio(self._config.state)
        return {**self._about, "disk_free": free, "sources": self._sources, "outputs": outputs}


def status_of(path: "Path") -> dict[str, Any] | None:
    """The status of a pipeline's last run, by its file, with what its targets know; None if it never ran, and no target
    knows it.

    With the backlog, unless the relay ended with the run. If the pipeline does not run, `state` is `ended` after a run
    with `once` that has written everything, else `stopped`. Raises `ConfigError` for a file with problems; but if it
    runs by an earlier state of the file, returns its status file alone. Texts are without secrets.
    """
    shown: dict[str, Any] | None = hide_in_answer(_status_of(path))
    return shown


def _status_of(path: "Path") -> dict[str, Any] | None:
    try:
        config = load_pipeline(path).config
    except ConfigError:
        state = state_of(path)
        if not is_held(state):
            raise
        return read_status(state)
    status = read_status(config.state)
    is_running = is_held(config.state)
    if status is None:
        status = {**_about(config), "state": "stopped", "pid": None, "sources": {}, "outputs": {}}
        is_known = any(known.positions or isinstance(known.error, CorruptData) for known in positions_of(config))
        if not is_running and not is_known:
            return None
    outputs = with_letters(config, with_positions(config, status["outputs"]))
    if not is_running:
        status["state"] = ENDED if status["state"] == ENDED else "stopped"
        for output in outputs.values():
            output["state"] = _STOPPED.get(output["state"], output["state"])
        if config.embeds_relay:
            return {**status, "outputs": outputs}
    return {**status, "outputs": with_backlog(outputs, status["relay"], config.access)}


def relay_status_of(path: "Path") -> dict[str, Any]:
    """The state of a relay's sources, by its file, in the form of `status_of`; `state` is `stopped` if none runs.

    Its address is that in its folder, or, without the folder on this machine, that in its file. Texts are without
    secrets.
    """
    shown: dict[str, Any] = hide_in_answer(_relay_status_of(path))
    return shown


def _relay_status_of(path: "Path") -> dict[str, Any]:
    from databus.link import Access
    from databus.relay import load_relay, relay_url

    config = load_relay(path)
    url = relay_url(config)
    status: dict[str, Any] = {"state": "running", "relay": url, "relay_error": "", "sources": {}, "outputs": {}}
    status["token_file"] = None if config.token_file is None else str(config.token_file)
    if url is None:
        return {**status, "state": "stopped", "relay_error": f"{config.folder} names no address of one that runs"}
    try:
        states = states_of(url, Access(token_file=config.token_file).with_environment())
    except DatabusError as error:
        return {**status, "state": "stopped", "relay_error": str(error)}
    return {**status, "sources": {str(state["name"]): {**state, "is_well": is_well(state)} for state in states}}


def _about(config: PipelineConfig) -> dict[str, Any]:
    return {
        "pipeline": config.name,
        "project": config.sections.project,
        "pid": os.getpid(),
        "started_us": None,
        "state": "running",
        "doing": "",
        "relay": config.relay.url,
        "relay_error": "",
        "relay_is_own": config.embeds_relay,
        "token_file": None if config.token_file is None else str(config.token_file),
        "http": None,
        "reload": None,
        "ended_us": None,
        "code": None,
        "failure": None,
    }
