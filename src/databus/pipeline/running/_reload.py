"""Reloading the pipeline's file while it runs: by a command, a signal, or when the file changes. Start with `Reloads`.

The thread that asks reads and checks the whole file; the run continues meanwhile. Then the run's own thread takes the
new graph, or nothing at all.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from databus.core import ConfigError, DatabusError, FatalError, ServiceUnavailable
from databus.operate import logger_of
from databus.pipeline.checks import examined_pipeline
from databus.pipeline.graph import Graph, PipelineConfig
from databus.pipeline.running._reload_changes import ReloadChanges, refusals
from databus.pipeline.telling import in_background

_OTHERS_S_MAX: Final = 60.0
_TAKE_S_MAX: Final = 30.0
_LOOK_S: Final = 1.0
_READS_MAX: Final = 3
"""An editor may write a file in several steps."""

T = TypeVar("T")

_logger = logger_of("databus.pipeline")


class ReloadedRun(Protocol):
    """The part of a run that a reload needs."""

    @property
    def config(self) -> PipelineConfig:
        """Of its file, as it was last taken."""

    def check_reloads(self) -> None:
        """Raises `InputError` if it does not take another graph."""

    def change(self, graph: Graph) -> ReloadChanges:
        """Take another graph, without `refusals`. Raises as `Handed.wait`; then nothing has changed."""

    def report_reload(self, outcome: Mapping[str, Any]) -> None:
        """Publish how a reload ended."""


class Handed(Generic[T]):
    """Work handed to another thread. Either that takes it in time, or it is withdrawn; never both."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._do = do
        self._lock = threading.Lock()
        self._is_taken = False
        self._is_withdrawn = False
        self._has_ended = threading.Event()
        self._done: T
        self._error: DatabusError | None = None

    def take(self) -> None:
        """Do it, unless it was withdrawn."""
        with self._lock:
            if self._is_withdrawn:
                return
            self._is_taken = True
        try:
            self._done = self._do()
        except DatabusError as error:
            self._error = error
        except Exception as error:  # such as in a plugin; the run continues
            _logger.exception("what was handed over ended by a defect")
            self._error = FatalError(f"a defect: {type(error).__name__}: {error}; see the pipeline's log")
        finally:
            self._has_ended.set()

    def wait(self) -> T:
        """The result. Raises what it raised, `ServiceUnavailable` if it was not taken in time."""
        if not self._has_ended.wait(_TAKE_S_MAX):
            with self._lock:
                self._is_withdrawn = not self._is_taken
            if self._is_withdrawn:
                raise ServiceUnavailable(
                    f"the pipeline is starting, or starts its relay again, and did not take the file within "
                    f"{_TAKE_S_MAX:.0f} s. Nothing has changed; ask again when `databus status` shows its outputs"
                )
            self._has_ended.wait()
        if self._error is not None:
            raise self._error
        return self._done


class Reloads:
    """Called by any thread; one reload at a time, the others wait."""

    def __init__(self, path: Path, master: str | None, run: ReloadedRun) -> None:
        self._path = path
        self._master = master
        self._run = run
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._hangups = threading.Semaphore(2)  # one at work, and one that waits and reads the newest file

    def __enter__(self) -> None:
        """Start to watch the file."""
        in_background("watch-file", self._watch)

    def __exit__(self, *_: object) -> None:
        self._ending.set()

    def reload(self, by: str) -> Mapping[str, Any]:
        """Take the file as it is now; returns the changes and the file's warnings.

        Raises `ConfigError` with a line for each problem, `InputError` or `ServiceUnavailable` if it cannot be taken
        now; then nothing has changed.
        """
        if not self._lock.acquire(timeout=_OTHERS_S_MAX):
            raise ServiceUnavailable("another reload is at work, and does not end; ask again later")
        try:
            outcome = self._reloaded()
        except DatabusError as error:
            _logger.warning("the file was not taken; nothing has changed", by=by, why=str(error))
            self._run.report_reload({"by": by, "problem": str(error)})
            raise
        finally:
            self._lock.release()
        _logger.info("the file was taken", by=by, **outcome)
        self._run.report_reload({"by": by, "problem": "", **outcome})
        return outcome

    def hangup(self) -> None:
        """Reload in the background, as SIGHUP asks for; never blocks."""
        in_background("reload", self._hangup)

    def _hangup(self) -> None:
        if self._hangups.acquire(blocking=False):
            try:
                self._reload_quietly("SIGHUP")
            finally:
                self._hangups.release()

    def _reload_quietly(self, by: str) -> DatabusError | None:
        """Reload; an error goes to the log and the status."""
        try:
            self.reload(by)
        except DatabusError as error:
            return error
        except Exception as error:
            _logger.exception("a reload ended by a defect", by=by)
            self._run.report_reload({"by": by, "problem": f"a defect: {type(error).__name__}: {error}"})
        return None

    def _reloaded(self) -> Mapping[str, Any]:
        self._run.check_reloads()
        graph, warnings = self._examined()
        refused = refusals(self._run.config, graph.config)
        if refused:
            raise ConfigError("\n".join(refusal.in_file(self._path) for refusal in refused))
        changes = self._run.change(graph)
        return {**changes.to_json(), "warnings": warnings}

    def _examined(self) -> tuple[Graph, list[str]]:
        """The file's graph; the file is read again if it was written meanwhile."""
        for _ in range(_READS_MAX):
            before = _fingerprint(self._path)
            try:
                graph, warnings = examined_pipeline(self._path, master=self._master)
            except ConfigError:
                if _fingerprint(self._path) == before:
                    raise
                continue
            if _fingerprint(self._path) == before:
                return graph, [warning.in_file(self._path) for warning in warnings]
        raise ServiceUnavailable(f"{self._path}: it is being written; ask again when that is done")

    def _watch(self) -> None:
        """Take the file when it has changed and is not being written, while `run.reload` is `on_change`."""
        taken = last = _fingerprint(self._path)
        while not self._ending.wait(_LOOK_S):
            now, before = _fingerprint(self._path), last
            last = now
            if self._run.config.sections.run.reload != "on_change":
                taken = now
            elif now not in (taken, None) and now == before:  # unchanged since the last look: it is complete
                error = self._reload_quietly("a change of the file")
                taken = taken if isinstance(error, ServiceUnavailable) else now


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """Differs if the file was changed; None if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
