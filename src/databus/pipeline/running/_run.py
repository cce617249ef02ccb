"""Running a pipeline: lock, relay, Spark, queries; and their end. Start with `run`."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from databus.pipeline.running._reload_changes import ReloadChanges
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
from databus.pipeline.trying import STARTING_SPARK, check_filter_tests, dry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_LET_GO_UNASKED_S_MAX: Final = 25.0
"""How long the end may take if no stop was asked for, as with `once`: the relay alone may take twenty seconds."""
_LOOK_S: Final = 0.5
_REST_LOOK_S: Final = 0.05
_RELAY_DIED: Final = "relay died"
_LOOK: Final = "look at the queries"


@dataclass(frozen=True)
class _Newcomers:
    """A relay elsewhere now has these physical sources, more than before."""

    physicals: list[str]


@dataclass(frozen=True)
class _Retry:
    """Failed queries of these outputs shall be tried again."""

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
    lock: StateLock | None = None,
) -> int:
    """Run a pipeline until a signal, or, with `once`, until what is there now has been written. Returns an exit code.

    on_event: called with each batch, start, retry and failure, by several threads. events_file: the same as JSON lines.
    on_sources: called twice a second with the relay's states of its sources, or with the error if it does not answer.
    session: one to use instead of an own one; it is not stopped. stop: whatever is put there ends the run.
    on_overdue: called if the run has not ended `STOP_S_MAX` after it was asked to, and at a second signal, which
    otherwise raises `KeyboardInterrupt`. http: HOST:PORT of health, metrics and status, instead of the file's
    `run.http`. dry_in: a folder for the state of a dry run: outputs are replaced by counters, one for each edge of the
    graph, which events name instead of outputs; neither targets nor the pipeline's own state are touched. lock: of the
    pipeline's state, if the caller has taken it already, who lets go of it.

    When the run is stopped, it waits for the batch that is being written, up to a bound. After that the event `stopped`
    names its outputs as `abandoned`, the state stays locked, and the process should end; the next start repeats the
    batch. `cut_off` names what else did not stop in time, such as Spark.

    An output whose query fails for good does not stop the others. The exit code is that of the worst error, which with
    `once` may be that of a source that the relay cannot capture. Raises `ConfigError` for a file with problems,
    `LockHeld` if the pipeline runs already, `ServiceUnavailable` if its own relay does not start.
    """
    graph = load_pipeline(path, master=master)
    if dry_in is not None:
        graph = dry(graph, dry_in)
    config = graph.config
    held = lock or StateLock(config.state, config.name)
    held.take()
    try:
        clock = SystemClock()
        published = Published(config, http, clock)
        with (
            OpenLineage(graph) as lineage,
            reporting([published.take, on_event, lineage.take], events_file) as report,
            published,
        ):
            chosen = master or config.sections.spark.master
            resting = Resting(config.state)
            running = _Run(graph, chosen, report, published, resting, on_sources, on_overdue, clock, once=once)
            running.is_dry = dry_in is not None
            lineage.graph = lambda: running.graph
            reloads = Reloads(Path(path), master, running)
            commands = Commands(running, resting, lambda asks: published.status(asks_relay=asks), reloads.reload)
            control = ControlServer(config.state, commands.answer)
            published.answer = commands.answer
            asked = stopping(stop or SimpleQueue(), running.ask_to_stop, running.overdue, reloads.hangup)
            with control, asked, reloads:
                code = running.run(session)
            if running.abandoned:
                held.keep()
            return code
    except KeyboardInterrupt:
        held.keep()
        raise
    finally:
        if held is not lock:
            held.release()


def _check_databases_here(config: PipelineConfig) -> None:
    """Raises `ConfigError` for a database that is a file of this machine and is not there: its own relay would wait for
    it for ever.
    """
    for name, source in config.sources.items():
        try:
            source.tables_here(config.folder)
        except ConfigError as error:
            raise ConfigError(f"{config.path.name}: sources.{name}.{error}") from error


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
        clock: Clock,
        *,
        once: bool,
    ) -> None:
        self._clock = clock
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
        self.overdue = Overdue(on_overdue, self._still_running, self._code, self._clock)
        self._relay = (
            OwnRelay(self._config, lambda: self._events.put(_RELAY_DIED), self._is_stopping, self._clock)
            if self._config.embeds_relay
            else None
        )
        shows = [published.sources, *([] if on_sources is None else [on_sources])]
        self._sources = (
            None
            if self._config.relay.url is None and self._relay is None
            else SourceWatch(self._states_of_sources, lambda event: self._say("source", **event), shows, self._clock)
        )
        self._spark: SparkStart | None = None
        self._lost_spark: DatabusError | None = None
        self._losing_spark = threading.Lock()
        self._logger = logger_of("databus.pipeline").bind(pipeline=self._config.name)
        self._queries = Queries(graph, resting, published, self._say, self._events.put, self.look, self._clock)
        self._hanging = Hanging(self._queries, lambda: self._config, self._say, self._clock)
        self._renewals = Renewals(self._logger, self._clock)

    @property
    def config(self) -> PipelineConfig:
        """See `SteeredRun`."""
        return self._config

    @property
    def graph(self) -> Graph:
        """See `SteeredRun`."""
        return self._graph

    def look(self) -> None:
        """See `SteeredRun`."""
        self._events.put(_LOOK)

    def retry(self, outputs: Collection[str]) -> None:
        """See `SteeredRun`."""
        self._events.put(_Retry(outputs))

    def end_when_drained(self) -> None:
        """See `SteeredRun`."""
        self._ends_when_drained = True

    def rebuild(self, output: str, tables: Sequence[str]) -> list[str]:
        """See `SteeredRun`."""
        self.check_reloads()
        rebuilt = rebuild_at_rest(self._graph, output, tables, partial(self._at_rest, output))
        self._say("rebuilt", output=output, tables=rebuilt, message=f"rebuilt: {', '.join(rebuilt)}")
        return rebuilt

    @contextmanager
    def _at_rest(self, output: str) -> Iterator[OutputHandle]:
        """Have an output and those that share its query rest. Raises `ServiceUnavailable` if a batch does not end."""
        deadline = self._clock.monotonic_s() + self._config.sections.run.stop_batch_ms_max / 1e3
        try:
            with self._resting.rebuilding(together(self._config, [output])):
                self.look()
                while (handle := self._handed(partial(self._queries.idle, output))) is None:
                    if self._clock.wait(self._is_stopping, _REST_LOOK_S) or self._clock.monotonic_s() > deadline:
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
        """See `databus.pipeline.running._reload.ReloadedRun`."""
        if self._is_asked_to_stop or self._is_stopping.is_set() or self._ends_when_drained:
            raise InputError("the pipeline is ending; its next start reads the file as it is then")
        if self.is_dry:
            raise InputError("this is a dry run; end it, and start another")
        if self._once:
            raise InputError("the pipeline runs with --once, and ends by itself; its next start reads the file")

    def change(self, graph: Graph) -> ReloadChanges:
        """See `databus.pipeline.running._reload.ReloadedRun`."""
        return self._handed(partial(self._change, graph))

    def _change(self, graph: Graph) -> ReloadChanges:
        self.check_reloads()
        changes = self._queries.change(graph)
        self._graph, self._config = graph, graph.config
        return changes

    def report_reload(self, outcome: Mapping[str, Any]) -> None:
        """See `databus.pipeline.running._reload.ReloadedRun`."""
        self._say("reload", **outcome)

    def _states_of_sources(self) -> States:
        """The relay's states of its sources; of a relay elsewhere only of those that are read here."""
        if self._relay is not None:
            return self._relay.states()
        inputs = self._graph.inputs.values()  # of the file as it was last taken
        patterns = [full_pattern(pattern) for node in inputs for pattern in node.choice().include]
        states = states_of(self._config.relay.url or "", self._config.access)
        return [state for state in states if any(patterns_meet(f"{state['name']}/*", other) for other in patterns)]

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

    def _warn(self) -> None:
        """Say what may be wrong with the file; raise what is."""
        for problem in check_renamed(self._graph):
            if not problem.is_warning:  # some of what this output wrote may be under another name
                raise ConfigError(problem.in_file(self._config.path))
            self._say("renamed", message=str(problem))
            self._logger.warning(str(problem))
        _check_databases_here(self._config)
        if mistakes := list(check_filter_tests(self._graph)):
            message = f"`databus test` cannot run {len(mistakes)} of the file's tests, which the pipeline does without"
            self._say("untested", message=f"{message}: {mistakes[0]}")
            self._logger.warning(message, first=str(mistakes[0]))

    def _run(self, session: "SparkSession | Engine | None") -> None:
        self._warn()
        if session is None and not self._once:  # while the relay starts; with `once` there may be nothing to read
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
        self._begin(STARTING_SPARK)
        engine = None if session is None else engine_on(session)
        if self._spark is not None and (own_session := self._spark.wait(self._is_stopping)) is not None:
            engine = SparkEngine(own_session)
        if engine is not None:
            self._run_queries(engine, physicals)

    def _has_something_to_read(self, physicals: Physicals, *, starts_spark: bool) -> bool:
        """Wait until our own relay has captured what is there. Spark starts meanwhile, unless nothing can be read."""
        sources = self._sources
        unread = () if sources is None else sources.uncaptured_without_logs()
        if not unread or any(state["status"] == "retrying" for state in unread):
            self._names(physicals)  # waits for a relay elsewhere, which may be away or have no sources yet
        if starts_spark and not unread:
            self._start_spark()
        if self._relay is not None:
            self._begin("waiting until the relay has captured what is there")
            if not self._relay.wait_until_caught_up(self._is_stopping):
                self._logger.warning(
                    "the relay has not captured all that is there; the next run gets the rest, or give it a longer "
                    "run.start_ms_max"
                )
        self._uncaptured = () if sources is None else sources.uncaptured_without_logs()
        if starts_spark and self._spark is None and not self._uncaptured:
            self._start_spark()
        return not self._uncaptured

    def _let_go(self) -> None:
        """Stop everything that the queries needed, all at the same time and within a bound."""
        names = {handle.name for handle in self._queries.all_handles}.difference(self.abandoned)
        ends: dict[str, Callable[[], object]]
        ends = {f"closing {handle.name}": handle.close for handle in self._queries.all_handles if handle.name in names}
        spark = self._spark
        if self._relay is not None:
            ends["stopping the relay"] = self._relay.stop
        if spark is not None and (session := spark.end()) is not None:
            ends["stopping Spark"] = partial(end_spark, session)
        if spark is not None and spark.is_given_up:
            self._cut_off.append("starting Spark")
        if self._sources is not None:
            self._sources.stop()
        seconds_max = LET_GO_S_MAX if self._is_asked_to_stop else _LET_GO_UNASKED_S_MAX
        threads = [in_background(name, end) for name, end in ends.items()]
        unended = left_after(
            seconds_max, threads, lambda waited_for: self._begin(", ".join(thread.name for thread in waited_for))
        )
        self._begin("")
        self._cut_off += sorted(thread.name for thread in unended)
        if unended:
            self.abandoned += [name for name in sorted(names) if f"closing {name}" in self._cut_off]
            self._logger.warning("not waited for any longer", cut_off=self._cut_off)

    def ask_to_stop(self, why: str) -> None:
        """Have the run end, from any thread, and report what it waits for. Never blocks; callable more than once."""
        if self._is_asked_to_stop:
            return
        self._is_asked_to_stop = True
        waits_for = self._doing if self._is_stopping.is_set() else ""  # what runs before the end is not waited for
        self._is_stopping.set()
        self._events.put(None)
        self.overdue.begin()
        in_background("say-stopping", lambda: self._say("stopping", why=why, waits_for=waits_for))
        in_background("log-stopping", lambda: self._logger.info("stopping", why=why))

    def _begin(self, doing: str) -> None:
        """Report what may take a while."""
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
            self._run_until_stopped(settings, names, physicals)
        if self._once and self._sources is not None:
            self._uncaptured = self._sources.uncaptured()

    def _run_until_stopped(self, settings: RunSettings, names: list[str], physicals: Physicals) -> None:
        """Run the queries until nothing is left to do, or the run is stopped."""
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
        """Whether Spark's process has ended while queries run; from any thread. Then the run ends in order, so that a
        supervisor restarts it: a session cannot continue without its process.
        """
        with self._losing_spark:  # the query that asks must not end before the run knows, or it counts as drained
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
        """Stop the queries, all at the same time, and wait for them within a bound; reports which are waited for."""
        left = [thread for thread in self._queries.threads if thread.is_alive()]
        for thread in left:
            in_background(f"stop {thread.plan.name}", thread.stop)
        try:
            left = left_after(QUERIES_S_MAX, left, lambda waited_for: self._begin(_waited_for(waited_for)))
        finally:  # also if a second signal ends the wait: an output that still writes cannot be closed
            self.abandoned = sorted({name for thread in left for name in thread.outputs})
        if left:
            self._logger.warning("not waited for any longer; the next run repeats the batch", outputs=self.abandoned)

    @property
    def _unfed(self) -> DatabusError | None:
        return None if self._waits_for_sources else self._queries.unfed

    def _code(self) -> int:
        return max((code for code, _ in self._reasons()), default=0)

    def _reasons(self) -> list[tuple[int, str]]:
        """The errors of the run, each with its exit code; the one that decides comes last."""
        failed = [
            (error.exit_code, f"{', '.join(thread.outputs)}: {error}")
            for thread in self._queries.threads
            for error in thread.errors
        ]
        unfed = [] if self._unfed is None else [(self._unfed.exit_code, str(self._unfed))]
        unread = [(exit_code_of([state]), f"source {state['name']}: {state['message']}") for state in self._uncaptured]
        refused = [(InputError.exit_code, message) for message in self._queries.refused]
        lost = [] if self._lost_spark is None else [(self._lost_spark.exit_code, str(self._lost_spark))]
        return sorted([*failed, *refused, *unfed, *unread, *lost], key=itemgetter(0))

    def _still_running(self) -> str:
        """What ending the process now would cut off."""
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
        rests = self._queries.rests and not self._once  # until `databus resume`
        return bool(self._queries.left) or self._queries.is_changing or rests or self._waits_for_sources

    def _watch(self) -> None:
        """Wait until all queries have ended or the run shall stop. Meanwhile restart the relay if it dies, and take new
        physical sources and commands.
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
            self._queries.take_physicals(event.physicals)
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

    def _say(self, event: str, **more: Any) -> None:
        self._report({"event": event, "pipeline": self._config.name, "at_us": self._clock.now_ns() // 1000, **more})


def _waited_for(waited_for: list[QueryThread]) -> str:
    writing = sorted({name for thread in waited_for if thread.is_writing for name in thread.outputs})
    if writing:
        return f"waiting for the batch that {', '.join(writing)} {'is' if len(writing) == 1 else 'are'} writing"
    return f"waiting for Spark to end the {'query' if len(waited_for) == 1 else 'queries'} of " + ", ".join(
        sorted({name for thread in waited_for for name in thread.outputs})
    )
