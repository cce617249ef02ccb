"""The pipeline's own relay: a child process that lives as long as the pipeline, and is restarted when it dies.

However this process ends, the relay stops by itself in good order (`operate/_children.py`). It keeps the port of its
first start, so that queries reach it again.
"""

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

from databus.core import (
    Backoff,
    Clock,
    ConfigError,
    InputError,
    LockHeld,
    ServiceUnavailable,
    SystemClock,
    TransientError,
)
from databus.disk import FolderLock
from databus.operate import end_child, start_child
from databus.pipeline.graph import PipelineConfig

if TYPE_CHECKING:
    from databus.link import Access
    from databus.relay import RelayConfig

_ASK_S: Final = 0.02
_STOP_S_MAX: Final = 20.0
_RESTART_MS: Final = (50, 5_000)
_SETTLED_S: Final = 10.0
_LET_GO_S_MAX: Final = 5.0
"""How long the previous relay may still hold the port or the database. After that, a refusal is due to the options."""
_OWNED_S_MAX: Final = 20.0
"""How long it may still own the log: somewhat longer than `databus.relay.__main__` lets it take to stop."""
_LAG_S: Final = 1.5  # lag is measured once a second
_ANSWER_MS_MAX: Final = 10_000
_LOG_TAIL_BYTES: Final = 3_000  # of what is shown in an error
_CANNOT_CONTINUE: Final = ("SUSPENDED_ON_ERROR", "PAUSED")


class OwnRelay:
    """Start, watch, stop; `url` is where it answers. Used by one thread.

    on_death: called, by another thread, when it has ended by itself. wants_stop: ends a start that is under way.
    """

    def __init__(
        self,
        config: PipelineConfig,
        on_death: Callable[[], None],
        wants_stop: threading.Event | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._on_death = on_death
        self._wants_stop = wants_stop or threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._listen = config.relay.listen
        self._started_at = 0.0
        self._backoff = Backoff(*_RESTART_MS)
        self._last_error = ""
        self.url = ""
        self.log_file = config.state / "relay.log"
        self._log_begins = 0  # what is before it in the file is of earlier relays

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers, or until `wants_stop` is set.

        Raises `ServiceUnavailable` with the end of its log if it does not answer in time, `ConfigError` with the reason
        if it refuses its configuration, its port or its folder.
        """
        self._wait_for_previous()
        self._log_begins = self.log_file.stat().st_size if self.log_file.exists() else 0
        began = self._clock.monotonic_s()
        deadline = began + self._config.sections.run.start_ms_max / 1e3
        while True:
            process = self._spawn()
            if self._wait_until_it_answers(process, deadline):
                break
            if self._wants_stop.is_set():
                return
            code = self._drop()
            if code == InputError.exit_code and self._clock.monotonic_s() - began > _LET_GO_S_MAX:
                raise ConfigError(f"the pipeline's own relay refuses to start:\n{self._last_words()}")
            pause_s = self._backoff.next_ms() / 1e3
            if self._clock.monotonic_s() + pause_s >= deadline:
                raise ServiceUnavailable(
                    f"the pipeline's own relay did not start within start_ms_max="
                    f"{self._config.sections.run.start_ms_max}; if the machine is slow, give it more time by "
                    f"`run.start_ms_max`. {self._last_error}What it said, at the end of {self.log_file}:\n"
                    f"{self._log_end() or 'nothing'}"
                )
            self._clock.wait(self._wants_stop, pause_s)  # the previous one may still hold the port
        self._started_at = self._clock.monotonic_s()
        self._listen = f"{self._listen.rpartition(':')[0]}:{self.url.rstrip('/').rpartition(':')[2]}"
        threading.Thread(target=self._watch, args=(process,), name="relay-watch", daemon=True).start()

    def _wait_for_previous(self) -> None:
        """Let the previous relay end: after kill -9 of a pipeline it stops by itself, and releases its folder last.

        Without this wait the start would fail like one with a wrong file, and a supervisor would not try again.
        """
        deadline = self._clock.monotonic_s() + _OWNED_S_MAX
        while FolderLock.is_held(self._config.relay_folder) and self._clock.monotonic_s() < deadline:
            if self._clock.wait(self._wants_stop, _ASK_S):  # nothing signals that a lock is released
                return

    def restart(self) -> None:
        """Start it again after its death; the sooner it died, the longer the wait."""
        if self._clock.monotonic_s() - self._started_at > _SETTLED_S:
            self._backoff.reset()
        self._clock.wait(self._wants_stop, self._backoff.next_ms() / 1e3)
        self.start()

    def _drop(self) -> int | None:
        """Give up the process, which has ended; returns its exit code."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
        return None if process is None else process.returncode

    def stop(self) -> None:
        """Stop it in good order, or by force if that takes too long; callable twice."""
        self._is_stopping = True
        process, self._process = self._process, None
        if process is not None:
            end_child(process, _STOP_S_MAX)

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        if not self._is_stopping:
            self._on_death()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        self._config.state.mkdir(parents=True, exist_ok=True)
        with TemporaryFile() as config_file, self.log_file.open("ab") as log:  # unnamed: it may hold secrets
            pickle.dump(self._relay_config(), config_file)
            config_file.seek(0)
            self._process = process = start_child(
                [sys.executable, "-m", "databus.relay", "--configured", str(config_file.fileno())],
                stdout=log,
                stderr=log,
                pass_fds=(config_file.fileno(),),
                cwd=self._config.folder,
            )
        return process

    def _relay_config(self) -> "RelayConfig":
        """Raises `ConfigError`."""
        from databus.relay import checked_relay

        config, relay = self._config, self._config.relay
        sections = {"tls": relay.tls, "log": relay.log, "capture": relay.capture, "serve": relay.serve}
        return checked_relay(
            {
                "listen": self._listen,
                "folder": config.relay_folder,
                "token_file": config.token_file,
                "sources": config.sections.sources,
                **{name: section for name, section in sections.items() if section},
            },
            folder=config.folder,
            file=config.path,
        )

    def _wait_until_it_answers(self, process: "subprocess.Popen[bytes]", deadline: float) -> bool:
        while self._clock.monotonic_s() < deadline:
            if process.poll() is not None:
                return False
            if self._answers(process.pid):
                return True
            if self._clock.wait(self._wants_stop, _ASK_S):  # only a file in its folder says when it answers
                return False
        process.kill()
        process.wait()
        return False

    def _answers(self, pid: int) -> bool:
        try:
            address = json.loads((self._config.relay_folder / "relay.json").read_text(encoding="utf-8"))
            if address["pid"] != pid:
                return False
            self.url = str(address["url"])
            self.states()
        except (OSError, ValueError, KeyError):
            return False
        except TransientError as error:
            self._last_error = f"{error}; "
            return False
        return True

    def states(self) -> list[Mapping[str, Any]]:
        """The state of each physical source, as in /controlSources/status."""
        return states_of(self.url, self._config.access)

    def wait_until_caught_up(self, is_stopping: threading.Event) -> bool:
        """Wait until it has captured what the sources hold now, or cannot continue. Returns whether it has in time.

        The time is `start_ms_max`, and as long again whenever a snapshot has read more rows. A source that knows its
        backlog is asked; for others it must do that nothing new comes for a while.
        """
        began = self._clock.monotonic_s()
        patience_s = self._config.sections.run.start_ms_max / 1e3
        deadline = began + patience_s
        scns: dict[str, Any] = {}
        rows_read = 0
        while self._clock.monotonic_s() < deadline:
            states = self._states_if_there()
            gave_up_on_owners = self._clock.monotonic_s() - began > _LET_GO_S_MAX
            if states and all(_is_done(state) or (gave_up_on_owners and _is_owned(state)) for state in states):
                return True
            waiting = any(_is_behind(state, scns) for state in states)
            scns = {state["name"]: state["SCN"] for state in states}
            if (read := sum(state["snapshotRows"] for state in states)) > rows_read:
                rows_read, deadline = read, self._clock.monotonic_s() + patience_s
            if scns and not waiting and self._clock.monotonic_s() - began > _LAG_S:  # lag is measured once a second
                return True
            knows_backlog = bool(states) and all(_waiting(state) is not None for state in states)
            if self._clock.wait(is_stopping, _ASK_S if knows_backlog else _LAG_S / 3):
                return True
        return False

    def _states_if_there(self) -> list[Mapping[str, Any]]:
        try:
            return states_of(self.url, self._config.access, look=True)
        except ServiceUnavailable:
            return []  # it is restarting

    def _last_words(self) -> str:
        lines = self._log_end().strip().splitlines()
        return lines[-1] if lines else f"see {self.log_file}"

    def _log_end(self) -> str:
        try:
            log = self.log_file.read_bytes()[self._log_begins :]
            return log[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError as error:
            return str(error)


def states_of(url: str, access: "Access", *, look: bool = False) -> list[Mapping[str, Any]]:
    """The state of each physical source of a relay; look: with its lag of now. Raises what `RelayClient` does."""
    from databus.link import RelayClient

    return RelayClient(url, access=access, read_ms_max=_ANSWER_MS_MAX).states(look=look)


def _waiting(state: Mapping[str, Any]) -> int | None:
    """How many changes, or bytes of its log, a source has that are not captured; None if it does not know."""
    left: int | None = state["lagBytes"] if state["lagChanges"] is None else state["lagChanges"]
    return left


def _is_done(state: Mapping[str, Any]) -> bool:
    """Whether a source has nothing more to capture, as measured just now, or cannot continue."""
    if state["state"] == "RUNNING":
        is_known = state["lagIsNew"] and state["SCN"] is not None and _waiting(state) == 0
        return bool(is_known and not state["snapshots"])
    return state["state"] in _CANNOT_CONTINUE


def _is_owned(state: Mapping[str, Any]) -> bool:
    """Whether another log owns the database; it does until somebody follows the error message."""
    return bool(state["state"] == "ERROR_RETRY" and state["error"] == LockHeld.__name__)


def _is_behind(state: Mapping[str, Any], scns: Mapping[str, Any]) -> bool:
    """Whether a source has more to capture and can capture it; a stopped one is not waited for."""
    if state["state"] == "RUNNING":
        return bool(_waiting(state) or state["snapshots"]) or scns.get(state["name"], -1) != state["SCN"]
    return state["state"] not in _CANNOT_CONTINUE
