"""Running a pipeline: lock, relay, Spark, queries; and their end. Start with `run`."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from databus.core import Clock, ConfigError, DatabusError, InputError, ServiceUnavailable, SystemClock
from databus.filters import full_pattern, patterns_meet
from databus.operate import logger_of
from databus.pipeline.checks import check_renamed, load_pipeline
from databus.pipeline.engine import Engine, OutputHandle, QueryThread, RunSettings, SparkEngine
from databus.pipeline.graph import Graph, PipelineConfig, StateLock
from databus.pipeline.running._batch_reports import BatchReports
from databus.pipeline.running._commands import Commands, together
from databus.pipeline.running._control import ControlServer
from databus.pipeline.running._open_lineage import OpenLineage
from databus.pipeline.running._own_relay import OwnRelay, states_of
from databus.pipeline.running._physicals import Physicals
from databus.pipeline.running._published import Published
from databus.pipeline.running._queries import Hanging, Queries
from databus.pipeline.running._rebuild import rebuild_at_rest
from databus.pipeline.running._reload import Handed, Reloads
from databus.pipeline.running._reload_changes import Changes
from databus.pipeline.running._reports import Reports
from databus.pipeline.running._source_watch import SourceWatch, States, exit_code_of
from databus.pipeline.running._spark_start import Renewals, SparkStart, end_spark, engine_on, spark_start
from databus.pipeline.telling import (
    LET_GO_S_MAX,
    QUERIES_S_MAX,
    OnEvent,
    OnOverdue,
    Overdue,
    Resting,
    in_background,
    left_after,
    reporting,
    stopping,
)
from databus.pipeline.trying import dry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_LET_GO_UNASKED_S_MAX: Final = 25.0
"""How long the end takes at most where nobody asked for it, as with `once`: the relay alone has twenty seconds."""
_LOOK_S: Final = 0.5
_REST_LOOK_S: Final = 0.05
_RELAY_DIED: Final = "relay died"
_LOOK: Final = "something else is wanted of the outputs"


@dataclass(frozen=True)
class _Newcomers:
    """A relay elsewhere has these physical sources, more than before."""

    physicals: list[str]


@dataclass(frozen=True)
class _Retry:
    """What has failed that writes to these outputs is to be tried again."""

    outputs: Collection[str]


OnSources = Callable[[States, str], None]


def run(
    path: Path | str,
    *,
    master: str | None = None,
    once: bool = False,
    on_event: OnEvent | None = None,
    on_sources: OnSources | None = None,
    events_file: Path | None = None,
    session: "SparkSession | Engine | None" = None,
    stop: "SimpleQueue[Any] | None" = None,
    on_overdue: OnOverdue | None = None,
    http: str | None = None,
    dry_in: Path | None = None,
) -> int:
    """Run a pipeline until a signal, or, with `once`, until what is there now has been written. Returns an exit code.

    on_event: told of each batch, start, retry and failure, from several threads. events_file: the same as JSON lines.
    on_sources: told twice a second what the relay says of its physical sources, or why it says nothing.
    session: one to use instead of one of our own; it is left as it is. stop: what is put there ends the run.
    A batch that is being written when the run is stopped is waited for, but not for ever: after that the event
    `stopped` names its outputs as `abandoned`, the state stays locked, and the process should end; the batch comes
    again at the next start. What is not stopped in time itself, such as Spark, is named as `cut_off`.
    on_overdue: told where the run has not ended `STOP_S_MAX` after it was asked to, and of a second signal, which
    without it raises `KeyboardInterrupt`.
    dry_in: a folder for the state of a dry run: outputs are replaced by counters, one for each edge of the graph, whose
    names are those of outputs in events; neither targets nor the pipeline's own state are touched.
    http: HOST:PORT where health, metrics and status are served meanwhile; instead of `run.http` in the file.
    An output whose query fails for good does not stop the others; the code is then that of the worst error, which with
    `once` may be that of a source that the relay cannot capture. Raises `ConfigError` for a file with problems,
    `LockHeld` where the pipeline runs already, `ServiceUnavailable` if its own relay does not start.
    """
    graph = load_pipeline(path, master=master)
    if dry_in is not None:
        graph = dry(graph, dry_in)
    config = graph.config
    lock = StateLock(config.state, config.name)
    lock.take()
    is_abandoned = False
    try:
        published = Published(config, http)
        with (
            OpenLineage(graph) as lineage,
            reporting([published.take, on_event, lineage.take], events_file) as report,
            published,
        ):
            chosen = master or config.sections.spark.master
            resting = Resting(config.state)
            running = _Run(graph, chosen, report, published, resting, on_sources, on_overdue, once=once)
            running.is_dry = dry_in is not None
            lineage.graph = lambda: running.graph
            reloads = Reloads(Path(path), master, running)
            commands = Commands(running, resting, lambda asks: published.status(asks_relay=asks), reloads.reload)
            control = ControlServer(config.state, commands.answer)
            published.answer = commands.answer
            asked = stopping(stop or SimpleQueue(), running.ask_to_stop, running.overdue, reloads.hangup)
            with control, asked, reloads:
                code = running.run(session)
            is_abandoned = bool(running.abandoned)
            return code
    except KeyboardInterrupt:
        is_abandoned = True  # threads may be writing; the lock ends with the process
        raise
    finally:
        if not is_abandoned:
            lock.release()


def _close(handle: OutputHandle) -> None:
    """Close an output."""
    with suppress(DatabusError):  # its query has told of it already
        handle.close()


class _Run:
    """One run, in one thread; queries have theirs."""

    def __init__(
        self,
        graph: Graph,
        master: str,
        report: OnEvent,
        published: Published,
        resting: Resting,
        on_sources: OnSources | None,
        on_overdue: OnOverdue | None,
        *,
        once: bool,
    ) -> None:
        self._clock: Clock = SystemClock()
        self._graph = graph
        self._config = graph.config
        self._master = master
        self._report = report
        self._published = published
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._once = once
        self._resting = resting
        self._is_stopping = threading.Event()
        self._is_asked_to_stop = False
        self._doing = ""
        self._ends_when_drained = False
        self._uncaptured: States = ()
        self.is_dry = False
        self._cut_off: list[str] = []
        self.abandoned: list[str] = []
        self.overdue = Overdue(on_overdue, self._still_running, self._code)
        self._relay = (
            OwnRelay(self._config, lambda: self._events.put(_RELAY_DIED), self._is_stopping, self._clock)
            if self._config.embeds_relay
            else None
        )
        shows = [published.sources, *([] if on_sources is None else [on_sources])]
        self._sources = (
            None
            if self._config.relay.url is None and self._relay is None
            else SourceWatch(self._states_of_sources, self._say_source, shows)
        )
        self._spark: SparkStart | None = None
        self._lost_spark: DatabusError | None = None
        self._losing_spark = threading.Lock()
        self._logger = logger_of("databus.pipeline").bind(pipeline=self._config.name)
        self._queries = Queries(graph, resting, published, self._say, self._events.put, self.look, self._clock)
        self._hanging = Hanging(self._queries, lambda: self._config, self._say)
        self._renewals = Renewals(self._logger, self._clock)

    @property
    def config(self) -> PipelineConfig:
        """See `Run`."""
        return self._config

    @property
    def graph(self) -> Graph:
        """See `Run`."""
        return self._graph

    def look(self) -> None:
        """See `Run`."""
        self._events.put(_LOOK)

    def retry(self, outputs: Collection[str]) -> None:
        """See `Run`."""
        self._events.put(_Retry(outputs))

    def end_when_drained(self) -> None:
        """See `Run`."""
        self._ends_when_drained = True

    def rebuild(self, output: str, tables: Sequence[str]) -> list[str]:
        """See `Run`."""
        self.check_reloads()
        rebuilt = rebuild_at_rest(self._graph, output, tables, partial(self._at_rest, output))
        message = f"made anew: {', '.join(rebuilt)}"
        self._say("rebuilt", output=output, tables=rebuilt, message=message)
        return rebuilt

    @contextmanager
    def _at_rest(self, output: str) -> Iterator[OutputHandle]:
        """Have an output rest, with those that share its query. Raises `ServiceUnavailable` if that takes too long."""
        deadline = time.monotonic() + self._config.sections.run.stop_batch_ms_max / 1e3
        try:
            with self._resting.rebuilding(together(self._config, [output])):
                self.look()
                while (handle := self._handed(partial(self._queries.idle, output))) is None:
                    if self._is_stopping.wait(_REST_LOOK_S) or time.monotonic() > deadline:
                        raise ServiceUnavailable(
                            f"outputs.{output}: the batch that is being written has not ended; nothing was removed. "
                            f"Ask again, or give it more time by `run.stop_batch_ms_max`"
                        )
                yield handle
        finally:
            self.look()

    def _handed(self, do: Callable[[], T]) -> T:
        handed = Handed(do)
        self._events.put(handed)
        return handed.wait()

    def check_reloads(self) -> None:
        """See `databus.pipeline.running._reload.Run`."""
        if self._is_asked_to_stop or self._is_stopping.is_set() or self._ends_when_drained:
            raise InputError("the pipeline is ending; its next start reads the file as it is then")
        if self.is_dry:
            raise InputError("this is a dry run; end it, and start another")
        if self._once:
            raise InputError("the pipeline runs with --once, and ends by itself; its next start reads the file")

    def change(self, graph: Graph) -> Changes:
        """See `databus.pipeline.running._reload.Run`."""
        return self._handed(partial(self._change, graph))

    def _change(self, graph: Graph) -> Changes:
        self.check_reloads()
        changes = self._queries.change(graph)
        self._graph, self._config = graph, graph.config
        return changes

    def tell_reload(self, told: Mapping[str, Any]) -> None:
        """See `databus.pipeline.running._reload.Run`."""
        self._say("reload", **told)

    def _states_of_sources(self) -> States:
        """What the relay says of its sources: our own of all, one elsewhere of those that are read here."""
        if self._relay is not None:
            return self._relay.states()
        inputs = self._graph.inputs.values()  # those of the file as it was taken last
        patterns = [full_pattern(each) for node in inputs for each in node.choice().include]
        asked = states_of(self._config.relay.url or "", self._config.access)
        return [state for state in asked if any(patterns_meet(f"{state['name']}/*", other) for other in patterns)]

    @property
    def _relay_url(self) -> str | None:
        return self._config.relay.url if self._relay is None else self._relay.url

    def run(self, session: "SparkSession | Engine | None") -> int:
        """Everything, in order; what was started is stopped."""
        try:
            self._run(session)
        finally:
            self._let_go()
            self.overdue.end()
        code = self._code()
        failed = {name for thread in self._queries.threads if thread.errors for name in thread.outputs}
        failed.update([] if self._unfed is None else self._queries.unfed_names)
        self._say(
            "stopped",
            failed=sorted(failed),
            abandoned=self.abandoned,
            cut_off=self._cut_off,
            code=code,
            reasons=[reason for _, reason in self._reasons()],
            **({} if self._lost_spark is None else {"message": str(self._lost_spark)}),
            is_complete=self._once and code == 0 and not self._is_asked_to_stop,
        )
        return code

    def _start_spark(self) -> None:
        self._spark = spark_start(self._config, self._master, self._renewals, self._logger)

    def _run(self, session: "SparkSession | Engine | None") -> None:
        for each in check_renamed(self._graph):
            if not each.is_warning:  # some of what this name wrote may stand under the other one
                raise ConfigError(each.in_file(self._config.path))
            self._say("renamed", message=str(each))
            self._logger.warning(str(each))
        if session is None and not self._once:  # beside the relay; `once` may have nothing to read
            self._start_spark()
        if self._relay is not None:
            self._begin("starting the relay")
            self._relay.start()
            if self._is_stopping.is_set():
                return
            self._say("relay", url=self._relay.url, pid=self._relay.pid)
        if self._sources is not None:
            self._sources.start()
        physicals = Physicals(self._config, lambda: self._relay_url, self._is_stopping, self._clock)
        if self._once and not self._has_something_to_read(physicals, starts_spark=session is None):
            return
        self._begin("starting Spark")
        engine = None if session is None else engine_on(session)
        if self._spark is not None and (made := self._spark.wait(self._is_stopping)) is not None:
            engine = SparkEngine(made)
        if engine is not None:
            self._run_queries(engine, physicals)

    def _has_something_to_read(self, physicals: Physicals, *, starts_spark: bool) -> bool:
        """Wait until our own relay has captured what is there. Spark starts meanwhile, unless nothing can be read."""
        sources = self._sources
        unread = () if sources is None else sources.uncaptured_without_logs()
        if not unread or any(state["status"] == "retrying" for state in unread):
            self._names(physicals)  # of a relay elsewhere, which may be away, or have none yet
        if starts_spark and not unread:
            self._start_spark()
        if self._relay is not None:
            self._begin("waiting until the relay has captured what is there")
            if not self._relay.wait_until_caught_up(self._is_stopping):
                self._logger.warning(
                    "the relay has not captured all that is there; what it lacks is of the next run, or say a longer "
                    "run.start_ms_max"
                )
        self._uncaptured = () if sources is None else sources.uncaptured_without_logs()
        if starts_spark and self._spark is None and not self._uncaptured:
            self._start_spark()
        return not self._uncaptured

    def _let_go(self) -> None:
        """Stop everything that the queries needed, at once and within a bound."""
        names = {handle.name for handle in self._queries.all_handles}.difference(self.abandoned)
        ends: dict[str, Callable[[], object]]
        ends = {
            f"closing {handle.name}": partial(_close, handle)
            for handle in self._queries.all_handles
            if handle.name in names
        }
        spark = self._spark
        if self._relay is not None:
            ends["stopping the relay"] = self._relay.stop
        if spark is not None and (made := spark.end()) is not None:
            ends["stopping Spark"] = partial(end_spark, made)
        if spark is not None and spark.is_given_up:
            self._cut_off.append("starting Spark")
        if self._sources is not None:
            self._sources.stop()
        seconds_max = LET_GO_S_MAX if self._is_asked_to_stop else _LET_GO_UNASKED_S_MAX
        threads = [in_background(name, end) for name, end in ends.items()]
        left = left_after(seconds_max, threads, lambda left: self._begin(", ".join(each.name for each in left)))
        self._begin("")
        self._cut_off += sorted(each.name for each in left)
        if left:
            self.abandoned += [name for name in sorted(names) if f"closing {name}" in self._cut_off]
            self._logger.warning("not waited for any longer", cut_off=self._cut_off)

    def ask_to_stop(self, why: str) -> None:
        """Have the run end, from any thread; says what it waits for. Never blocks, and is callable more than once."""
        if self._is_asked_to_stop:
            return
        self._is_asked_to_stop = True
        waits_for = self._doing if self._is_stopping.is_set() else ""  # what comes before the end is not waited for
        self._is_stopping.set()
        self._events.put(None)
        self.overdue.begin()
        in_background("say-stopping", lambda: self._say("stopping", why=why, waits_for=waits_for))
        in_background("log-stopping", lambda: self._logger.info("stopping", why=why))

    def _begin(self, doing: str) -> None:
        """Say what is being done that may take a while."""
        if doing != self._doing:
            self._doing = doing
            self._say("doing", what=doing)

    def _names(self, physicals: Physicals) -> list[str]:
        self._begin(f"asking the relay at {self._relay_url} for its sources")
        return physicals.wait(lambda names: not (self._once and self._queries.unfed_by(names)))

    def _run_queries(self, engine: Engine, physicals: Physicals) -> None:
        settings = RunSettings(
            self._config,
            self._graph,
            engine,
            self._once,
            lambda: self._relay_url,
            self._report,
            self._clock.monotonic_s(),
            self._clock,
            is_stopping=self._is_stopping,
            has_lost_spark=self._has_lost_spark,
            renewed_s=lambda: self._renewals.last_s,
        )
        names = self._names(physicals)
        if self._is_stopping.is_set():
            return
        with BatchReports(lambda: self._graph, lambda: self._relay_url, self._report) as batches:
            self._published.look = batches.take
            self._run_until_told(settings, names, physicals)
        if self._once and self._sources is not None:
            self._uncaptured = self._sources.uncaptured()

    def _run_until_told(self, settings: RunSettings, names: list[str], physicals: Physicals) -> None:
        """Run the queries until there is nothing left to do, or somebody ends it."""
        self._queries.begin(settings, names)
        self._begin("")
        reports = Reports(settings, lambda: () if self.is_dry else self._queries.handles.values())
        if not self._once:
            physicals.watch(names, lambda names: self._events.put(_Newcomers(names)))
        try:
            self._watch()
        finally:
            self._is_stopping.set()
            self._end_queries()
            reports.end()

    def _has_lost_spark(self) -> bool:
        """Whether Spark's process has ended under the queries; from any thread. The run ends then, in order, so that a
        supervisor starts it again: nothing of a session lives on without its process.
        """
        with self._losing_spark:  # a query that is told of it ends when the run knows, and is not taken for drained
            lost = None if self._spark is None else self._spark.lost()
            if lost is not None and self._lost_spark is None and not self._is_asked_to_stop:
                self._lost_spark = lost
                self._logger.error(str(lost))
                self.ask_to_stop("Spark's Java process has ended")
            return lost is not None

    @property
    def _waits_for_sources(self) -> bool:
        return self._queries.unfed is not None and not self._once and self._relay is None

    def _end_queries(self) -> None:
        """Stop the queries, all at once, and wait for them within a bound; says which of them are waited for."""
        left = [thread for thread in self._queries.threads if thread.is_alive()]
        for each in left:
            in_background(f"stop {each.plan.name}", each.stop)
        try:
            left = left_after(QUERIES_S_MAX, left, lambda left: self._begin(_waited_for(left)))
        finally:  # also when a second signal ends the wait: an output that still writes cannot be closed
            self.abandoned = sorted({name for each in left for name in each.outputs})
        if left:
            self._logger.warning("not waited for any longer; it comes again", outputs=self.abandoned)

    @property
    def _unfed(self) -> DatabusError | None:
        return None if self._waits_for_sources else self._queries.unfed

    def _code(self) -> int:
        return max((code for code, _ in self._reasons()), default=0)

    def _reasons(self) -> list[tuple[int, str]]:
        """Why the run does not end well, with the exit code of each; the one that decides comes last."""
        failed = [
            (error.exit_code, f"{', '.join(thread.outputs)}: {error}")
            for thread in self._queries.threads
            for error in thread.errors
        ]
        unfed = [] if self._unfed is None else [(self._unfed.exit_code, str(self._unfed))]
        unread = [(exit_code_of([each]), f"source {each['name']}: {each['message']}") for each in self._uncaptured]
        refused = [(InputError.exit_code, each) for each in self._queries.refused]
        lost = [] if self._lost_spark is None else [(self._lost_spark.exit_code, str(self._lost_spark))]
        return sorted([*failed, *refused, *unfed, *unread, *lost], key=itemgetter(0))

    def _still_running(self) -> str:
        """What an end by force would cut off."""
        writing = {
            name
            for thread in self._queries.threads
            if thread.is_alive() and thread.is_writing
            for name in thread.outputs
        }
        outputs = f"; still writing: {', '.join(sorted(writing))}, whose batches come again" if writing else ""
        return f"{self._doing or 'ending'}{outputs}"

    @property
    def _has_to_do(self) -> bool:
        rests = self._queries.rests and not self._once  # somebody may resume it
        return bool(self._queries.left) or self._queries.is_changing or rests or self._waits_for_sources

    def _watch(self) -> None:
        """Wait until all queries have ended or the run is to stop; restart the relay meanwhile when it dies, and see to
        physical sources that come later and to what is asked by commands.
        """
        while self._has_to_do and not self._is_stopping.is_set():
            try:
                event = self._events.get(timeout=_LOOK_S)
            except Empty:
                self._hanging.look()
                self._renewals.look()
                self._queries.remind()
                self._has_lost_spark()
                if self._queries.is_changing:
                    self._queries.look()
            else:
                self._take(event)
            if self._ends_when_drained and self._queries.is_drained:
                self.ask_to_stop("drained")

    def _take(self, event: Any) -> None:
        if isinstance(event, QueryThread):
            self._queries.ended(event)
            if event.halts:
                self.ask_to_stop(f"{', '.join(event.outputs)} has failed, and says `on_failure: halt`")
        elif isinstance(event, _Newcomers):
            self._queries.found(event.physicals)
        elif isinstance(event, _Retry):
            self._queries.retry(event.outputs)
        elif isinstance(event, Handed):
            event.take()
        elif event is _LOOK:
            self._queries.look()
        elif event is _RELAY_DIED and self._relay is not None and not self._is_stopping.is_set():
            self._logger.warning("the pipeline's own relay died; it is started again")
            self._say("relay_died")
            self._relay.restart()
            self._say("relay", url=self._relay.url, pid=self._relay.pid)

    def _say_source(self, told: Mapping[str, Any]) -> None:
        self._say("source", **told)

    def _say(self, event: str, **more: Any) -> None:
        self._report({"event": event, "pipeline": self._config.name, "at_us": self._clock.now_ns() // 1000, **more})


def _waited_for(left: list[QueryThread]) -> str:
    writing = sorted({name for each in left if each.is_writing for name in each.outputs})
    if writing:
        return f"waiting for the batch that {', '.join(writing)} {'is' if len(writing) == 1 else 'are'} writing"
    return f"waiting for Spark to end the {'query' if len(left) == 1 else 'queries'} of " + ", ".join(
        sorted({name for each in left for name in each.outputs})
    )
