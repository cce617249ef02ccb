"""Running a pipeline: lock, relay, Spark, queries; and their end. Start with `run`."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import structlog

from databus.core import DatabusError, TryAgain
from databus.pipeline._config import PipelineConfig
from databus.pipeline._contract import OutputContext
from databus.pipeline._graph import Graph
from databus.pipeline._own_relay import OwnRelay
from databus.pipeline._plan import Feed, QueryPlan, plan_queries
from databus.pipeline._query import QueryThread, RunSettings
from databus.pipeline._registry import Kind
from databus.pipeline._source_watch import SourceWatch
from databus.pipeline._state import StateLock
from databus.pipeline._validate import load_pipeline
from databus.pipeline._writer import OutputHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STOP_S_MAX: Final = 30.0
_ASK_S: Final = 0.2
_RELAY_DIED: Final = "relay died"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

OnEvent = Callable[[Mapping[str, Any]], None]


def run(
    path: Path | str,
    *,
    master: str | None = None,
    once: bool = False,
    on_event: OnEvent | None = None,
    events_file: Path | None = None,
    session: "SparkSession | None" = None,
    stop: "SimpleQueue[Any] | None" = None,
) -> int:
    """Run a pipeline until a signal, or, with `once`, until what is there now has been written. Returns an exit code.

    on_event: told of each batch, start, retry and failure, from several threads. events_file: the same as JSON lines.
    session: one to use instead of one of our own; it is left as it is. stop: what is put there ends the run.
    An output whose query fails for good does not stop the others; the code is then that of the worst error, which with
    `once` may be that of a source that its own relay cannot capture. Raises `ConfigError` for a file with problems,
    `Held` where the pipeline runs already, `Unavailable` if its own relay does not start.
    """
    graph = load_pipeline(path, master=master)
    config = graph.config
    lock = StateLock(config.state, config.name)
    lock.take()
    try:
        with _reporting(on_event, events_file) as report, _signals(stop or SimpleQueue()) as events:
            return _Run(graph, master or config.sections.spark.master, report, events, once=once).run(session)
    finally:
        lock.release()


@contextmanager
def _reporting(on_event: OnEvent | None, events_file: Path | None) -> Iterator[OnEvent]:
    """One event at a time, to whoever wants to know."""
    lock = threading.Lock()
    out = None if events_file is None else events_file.open("a", encoding="utf-8", buffering=1)

    def report(event: Mapping[str, Any]) -> None:
        with lock:
            if on_event is not None:
                on_event(event)
            if out is not None:
                out.write(json.dumps(event, default=str) + "\n")

    try:
        yield report
    finally:
        if out is not None:
            out.close()


@contextmanager
def _signals(events: "SimpleQueue[Any]") -> Iterator["SimpleQueue[Any]"]:
    """The queue, into which SIGINT and SIGTERM put themselves; outside of the main thread they do not."""
    if threading.current_thread() is not threading.main_thread():
        yield events
        return

    def put(number: int, frame: FrameType | None) -> None:
        del frame
        events.put(signal.Signals(number))

    before = {each: signal.getsignal(each) for each in _SIGNALS}
    for each in _SIGNALS:
        signal.signal(each, put)
    try:
        yield events
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _stop(spark: "SparkSession") -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # a signal to the whole group may have ended the JVM before us
        spark.stop()


def _settled(session: "SparkSession") -> "SparkSession":
    """A session that somebody else made, in which queries may start at the same moment."""
    from databus.spark import settle_session

    settle_session(session)
    return session


class _Run:
    """One run, in one thread; queries have theirs."""

    def __init__(self, graph: Graph, master: str, report: OnEvent, events: "SimpleQueue[Any]", *, once: bool) -> None:
        self._graph = graph
        self._config: PipelineConfig = graph.config
        self._master = master
        self._report = report
        self._events = events
        self._once = once
        self._relay = OwnRelay(self._config, lambda: events.put(_RELAY_DIED)) if self._config.embeds_relay else None
        self._sources = None if self._relay is None else SourceWatch(self._relay.states, self._say_source)
        self._logger = structlog.get_logger("databus.pipeline").bind(pipeline=self._config.name)
        self._handles = self._make_handles()

    def _make_handles(self) -> dict[str, OutputHandle]:
        config = self._config
        return {
            node.path: OutputHandle(
                node.name, node.plugin(node.config, OutputContext(config.name, node.name, config.folder))
            )
            for node in config.nodes.values()
            if node.kind is Kind.OUTPUT
        }

    @property
    def _relay_url(self) -> str | None:
        return self._config.relay.url if self._relay is None else self._relay.url

    def run(self, session: "SparkSession | None") -> int:
        """Everything, in order; what was started is stopped."""
        try:
            if self._relay is not None:
                self._relay.start()
                self._say("relay", url=self._relay.url, pid=self._relay.pid)
            if self._sources is not None:
                self._sources.start()
            own_session = session is None
            spark = self._session() if session is None else _settled(session)
            try:
                self._rearm()
                return self._run_queries(spark)
            finally:
                if own_session:
                    _stop(spark)
        finally:
            for handle in self._handles.values():
                with suppress(DatabusError):  # its query has told of it already
                    handle.close()
            if self._sources is not None:
                self._sources.stop()
            if self._relay is not None:
                self._relay.stop()

    def _session(self) -> "SparkSession":
        from databus.spark import tuned_session

        spark = self._config.sections.spark
        name = f"databus {self._config.name}"
        return tuned_session(name, self._master, folder=self._config.state / "spark", settings=spark.settings)

    def _rearm(self) -> None:
        """Starting Spark sets a handler of its own for SIGINT, which would end its jobs and not us."""
        if threading.current_thread() is threading.main_thread():
            put = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGINT, put)

    def _run_queries(self, spark: "SparkSession") -> int:
        settings = RunSettings(self._config, self._graph, spark, self._once, lambda: self._relay_url, self._report)
        if self._once and self._relay is not None:
            self._relay.wait_until_caught_up(settings.is_stopping)
            if self._sources is not None and (code := self._sources.exit_code_without_logs()):
                self._say("stopped", failed=0)
                return code
        plans = plan_queries(self._graph, self._physicals())
        threads = [QueryThread(settings, plan, self._feeds(plan), self._events.put) for plan in plans]
        for each in threads:
            each.start()
        self._say("running", queries=[plan.name for plan in plans])
        try:
            self._watch(threads)
        finally:
            settings.is_stopping.set()
            for each in threads:
                each.stop()
            deadline = time.monotonic() + _STOP_S_MAX
            for each in threads:
                each.join(max(0.0, deadline - time.monotonic()))
        errors = [each.error for each in threads if each.error is not None]
        self._say("stopped", failed=len(errors))
        uncaptured = self._sources.exit_code() if self._once and self._sources is not None else 0
        return max((*(error.exit_code for error in errors), uncaptured))

    def _feeds(self, plan: QueryPlan) -> list[tuple[Feed, OutputHandle]]:
        return [(feed, self._handles[feed.output]) for feed in plan.feeds]

    def _physicals(self) -> list[str]:
        """The physical sources that there are: those of the file, or those that the relay names."""
        if self._config.sources or self._relay_url is None:
            return list(self._config.sources)
        from databus.link import RelayClient

        deadline = time.monotonic() + self._config.sections.run.start_ms_max / 1e3
        while True:
            try:
                client = RelayClient(self._relay_url, token_file=self._config.token_file)
                found = sorted({each.physical for each in client.sources()})
            except TryAgain:
                if time.monotonic() > deadline:
                    raise
                found = []
            if found or time.monotonic() > deadline:
                return found
            time.sleep(_ASK_S)  # a relay that is not there tells nothing

    def _watch(self, threads: list[QueryThread]) -> None:
        """Wait until all queries have ended or a signal came; restart the relay meanwhile when it dies."""
        left = set(threads)
        while left:
            event = self._events.get()
            if isinstance(event, QueryThread):
                left.discard(event)
            elif event is _RELAY_DIED and self._relay is not None:
                self._logger.warning("the pipeline's own relay died; it is started again")
                self._say("relay_died")
                self._relay.restart()
                self._say("relay", url=self._relay.url, pid=self._relay.pid)
            else:
                self._logger.info("stopping", why=event.name if isinstance(event, signal.Signals) else str(event))
                return

    def _say_source(self, told: Mapping[str, Any]) -> None:
        self._say("source", **told)

    def _say(self, event: str, **more: Any) -> None:
        self._report({"event": event, "pipeline": self._config.name, "at_us": time.time_ns() // 1000, **more})
