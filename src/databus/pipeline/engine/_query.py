"""The life of a query, in a thread of its own: built, started, waited for, restarted.

build ──► run ──► ends: done (`once`), stopped (by the run), at rest (by the run, at the end of a batch)
  ▲        │
  └────────┼─ TransientError, unknown ──► after a back-off that grows, and is reset by a finished batch
           └─ FatalError, InputError ───► failed: this query stays down, the others continue
"""

import math
import os
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from databus.core import (
    AccessDenied,
    Backoff,
    Checkpoint,
    Clock,
    DatabusError,
    FatalError,
    InputError,
    SchemaChanged,
    ServiceUnavailable,
    SystemClock,
    TransientError,
    UnknownColumn,
    UnknownSource,
)
from databus.operate import logger_of
from databus.pipeline.engine._batch_event import choice_of
from databus.pipeline.engine._begin import advised, begin
from databus.pipeline.engine._catch_up import CatchUp
from databus.pipeline.engine._engine import Engine
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import OutputFeed, QueryPlan, Way
from databus.pipeline.engine._query_filters import check_output, check_tables, filters_over
from databus.pipeline.engine._refusals import TableRefusals
from databus.pipeline.engine._typed_steps import first_lines
from databus.pipeline.engine._typed_tables import TypedTable, TypedTables
from databus.pipeline.engine._writer import Report, Writer
from databus.pipeline.graph import Graph, NodeSpec, PipelineConfig, Problem, RunSection
from databus.pipeline.telling import Reminders, Throttle, in_background
from databus.plugins import Input, OutputConfig, RunContext, Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery


_LIMITS: Final = ("max_rows_per_trigger", "max_bytes_per_trigger")
_OF_QUERY: Final = ("trigger_ms", *_LIMITS, "on_failure")

InputT = TypeVar("InputT", bound=Input)


def trigger_ms_of(outputs: Iterable[OutputConfig], default: int) -> int:
    """Least time between the starts of two micro-batches."""
    value: int | None = _option_of(outputs, "trigger_ms")
    return default if value is None else value


def on_failure_of(outputs: Iterable[OutputConfig]) -> Literal["stop", "retry", "halt"]:
    """What to do at an error that does not pass by itself."""
    policy: Literal["stop", "retry", "halt"] | None = _option_of(outputs, "on_failure")
    return policy or "stop"


def can_throttle(origin: NodeSpec, throttle: Throttle) -> bool:
    """Whether an input has such limits."""
    limits = dict(zip(_LIMITS, (throttle.rows, throttle.bytes), strict=True))
    return all(name in type(origin.config).model_fields for name, most in limits.items() if most is not None)


def limited(origin: InputT, outputs: Sequence[OutputConfig], throttle: Throttle | None = None) -> InputT:
    """The input with the limits of these outputs and of `databus throttle`; unchanged if there are none that it has."""
    options = {name: _option_of(outputs, name) for name in _LIMITS if name in type(origin.config).model_fields}
    limits = {name: value for name, value in options.items() if value is not None}
    most = {} if throttle is None else dict(zip(_LIMITS, (throttle.rows, throttle.bytes), strict=True))
    for name in options:
        configured, throttled = limits.get(name, getattr(origin.config, name)), most.get(name)
        if throttled is not None:
            limits[name] = throttled if configured is None else min(configured, throttled)
    return type(origin)(origin.config.model_copy(update=limits)) if limits else origin


def check_options(config: PipelineConfig, inputs_of: Mapping[str, Sequence[NodeSpec]]) -> Iterator[Problem]:
    """Different options of outputs of one lane, and limits that an input does not have. inputs_of: by output."""
    outputs = [*config.outputs.values()]
    for node in outputs:
        for other in outputs[: outputs.index(node)]:
            if node.config.lane is None or node.config.lane != other.config.lane:
                continue
            for name in _OF_QUERY:
                values = _option_of([other.config], name), _option_of([node.config], name)
                if None not in values and values[0] != values[1]:
                    yield Problem(
                        f"{node.path}.{name}",
                        f"{values[1]}, and {other.path} says {values[0]}; outputs of one lane share a query: say the "
                        "same, or take one out of the lane",
                    )
        for origin in inputs_of.get(node.path, []):
            for name in _LIMITS:
                if _option_of([node.config], name) is not None and name not in type(origin.config).model_fields:
                    yield Problem(
                        f"{node.path}.{name}", f"{origin.path} ({origin.type}) has no such limit; leave it out"
                    )


def _option_of(outputs: Iterable[OutputConfig], name: str) -> Any:
    """The value that the first of these outputs gives to an option; None if none does."""
    return next((getattr(config, name) for config in outputs if name in config.model_fields_set), None)


_TRACE_CHARS_MAX: Final = 4_000  # of Java's stack, whose end has the cause
_START_S_MAX: Final = 15.0
_SLOW_WORKERS_MS: Final = 5_000  # a busy machine needs more than a back-off of milliseconds
_ASK_S: Final = 0.05  # Spark does not notify when it reads a source
_TROUBLE: Final = "its trouble"
"""What reminders of the query itself are about; others are about its tables."""
_LOOK_S: Final = 1
"""How often a query with typed tables looks whether one has failed, or is to be tried again."""
_WELL_AFTER_S: Final = 60
"""After so long without an error a query counts as well again, even if it had nothing to write."""


class Retries:
    """When a failed query or table is tried again. wait_ms_min: not earlier."""

    def __init__(self, run: RunSection) -> None:
        self._backoff = Backoff(run.retry_ms_min, run.retry_ms_max)
        self._failures = 0
        self.wait_ms_min = 0

    def next_ms(self, error: DatabusError, *, gives_up: Callable[[DatabusError, int], bool]) -> float | None:
        """How long to wait after one more failure; None if it is not tried again."""
        if gives_up(error, self._failures + 1):
            return None
        self._failures += 1
        return max(self._backoff.next_ms(), self.wait_ms_min)


class Starts:
    """Limits how many queries start at the same time; fewer after Spark's Python processes did not start in time.

    Each query starts Python processes of its own, and Spark gives each of them ten seconds, which is not enough for
    many at once on a small machine.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._now = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._now < self._at_once)
            self._now += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._now -= 1
            self._changed.notify_all()

    def fewer(self) -> int:
        """Halve the limit, to one at least; returns the new limit."""
        with self._changed:
            self._at_once = max(self._at_once // 2, 1)
            return self._at_once


@dataclass
class RunSettings:
    """What all queries of a run share."""

    config: PipelineConfig
    graph: Graph
    engine: Engine
    once: bool
    relay: Callable[[], str | None]
    """Its present address; a pipeline's own relay may change it when it restarts."""
    report: Report
    began_s: float
    """When the run began, by the clock."""
    clock: Clock = field(default_factory=SystemClock)
    is_stopping: threading.Event = field(default_factory=threading.Event)
    starting: Starts = field(default_factory=lambda: Starts(os.cpu_count() or 1))
    """As many queries start at the same time as there are cores."""
    renewed_s: Callable[[], float | None] = lambda: None
    """When executors were last sent renewed certificates or tokens, by the monotonic clock."""
    has_lost_spark: Callable[[], bool] = lambda: False
    """Whether Spark's process has ended; then the run ends, and reports that once for all queries."""

    def context_of(self, path: str) -> RunContext:
        """The context of a node."""
        config = self.config
        return RunContext(config.name, path.partition(".")[2], config.folder, self.relay(), config.access)


class QueryThread(threading.Thread):
    """Runs one query until it is done, stopped or failed, and then calls `on_end`.

    once: it ends at the end that the relay's log had when it began. is_resting: it was asked to end between batches.
    """

    def __init__(
        self,
        settings: RunSettings,
        plan: QueryPlan,
        feeds: Sequence[tuple[OutputFeed, OutputHandle]],
        on_end: Callable[["QueryThread"], None],
        throttle: Throttle | None = None,
    ) -> None:
        super().__init__(name=f"query {plan.name}", daemon=True)
        self.plan = plan
        self.error: DatabusError | None = None
        """With which it has failed for good."""
        self._settings = settings
        self._feeds = feeds
        self._on_end = on_end
        self.once = settings.once
        self.throttle = throttle
        self.is_resting = False
        self._ends_batch = threading.Event()
        self._is_ending = threading.Event()
        self._query: StreamingQuery | None = None
        self._after: Checkpoint | None = None
        self._writer: Writer | None = None
        self._catch_up: CatchUp | None = None
        self._lock = threading.Lock()
        self._clock = settings.clock
        self._typed = TypedTables()
        self._retries = Retries(settings.config.sections.run)
        self._table_retries: dict[Way, Retries] = {}
        self._began_s = self._clock.monotonic_s()
        self._reminders = Reminders(self._clock)
        self._refusals = TableRefusals(plan, feeds, settings.report, self._clock)
        self._logger = logger_of("databus.pipeline").bind(query=plan.name)

    @property
    def outputs(self) -> list[str]:
        """The names of its outputs."""
        return [handle.name for _, handle in self._feeds]

    @property
    def _output_configs(self) -> list[OutputConfig]:
        return [handle.output.config for _, handle in self._feeds]

    @property
    def halts(self) -> bool:
        """Whether its failure ends the whole pipeline."""
        return self.error is not None and on_failure_of(self._output_configs) == "halt"

    def writes_by(self, handle: OutputHandle) -> bool:
        """Whether it writes through this handle."""
        return any(other is handle for _, other in self._feeds)

    @property
    def is_writing(self) -> bool:
        """Whether a batch is being written now."""
        writer = self._writer
        return writer is not None and not writer.is_idle.is_set()

    @property
    def checkpoint(self) -> Path:
        """The folder of its checkpoint."""
        return self._settings.config.state / "queries" / self.plan.name

    def run(self) -> None:
        """See the class."""
        try:
            while not self._ends:
                self._began_s = self._clock.monotonic_s()
                error = self._round()
                if error is None:
                    return
                if self._is_of_refused(error):
                    continue
                if not self._waits_for(error):
                    self.error = error
                    self._say("failed", error)
                    return
        except Exception as error:
            self.error = FatalError(f"{self.plan.name}: a defect: {type(error).__name__}: {error}")
            self._logger.exception("a query ended by a defect")
        finally:
            self._on_end(self)

    def give_up(self, why: str) -> None:
        """Count it as failed, from another thread, although its present call does not end."""
        self.error = ServiceUnavailable(why)
        self._say("failed", self.error)

    @property
    def _ends(self) -> bool:
        return self._is_ending.is_set() or self._settings.is_stopping.is_set()

    def stop(self) -> None:
        """End it, from another thread, without waiting for its batch, which is repeated."""
        self._is_ending.set()
        with self._lock:
            query = self._query
        if query is None:
            return
        try:
            query.stop()
        except Exception:  # py4j raises many kinds after Java has ended; the run reports that once
            if not self._settings.has_lost_spark():
                raise

    def rest(self) -> None:
        """End it after the batch that is being written, if any. Never blocks; callable twice."""
        if self.is_resting:
            return
        self.is_resting = True
        self._ends_batch.set()  # from here on no batch begins
        self._is_ending.set()
        in_background(f"rest {self.plan.name}", self._stop_between_batches)

    def _stop_between_batches(self) -> None:
        writer = self._writer
        if writer is not None:
            writer.is_idle.wait()
        self.stop()

    def _round(self) -> DatabusError | None:
        """Build, start and wait; returns the error, None if it ended as intended."""
        writer: Writer | None = None
        try:
            for _, handle in self._feeds:
                handle.open()
            with self._settings.starting:
                if self._ends:
                    return None
                rows, writer = self._build()
                writer.rest = 0 if self._settings.once else max(config.rest for config in self._output_configs)
                self._writer = writer
                query = self._start(rows, writer)
                self._say("started", None)
                self._wait_until_reading(query)
            try:
                self._wait_for_end(query)
            finally:
                self._ended(writer.batches)
        except Exception as error:  # noqa: BLE001 - Spark raises many kinds; each becomes one of ours below
            return None if self._ends or self._settings.has_lost_spark() else self._named(error, writer)
        return None

    def _wait_for_end(self, query: "StreamingQuery") -> None:
        """Wait until the query has ended; meanwhile tables that are behind catch up."""
        try:
            # A failed query restarts at once, not only when the last table has caught up.
            while not self._ends and query.exception() is None:
                if self._catch_up is not None and self._catch_up.step():
                    continue
                if not self._waits(query):
                    break
        except BaseException:
            query.stop()
            raise
        query.awaitTermination()

    def _waits(self, query: "StreamingQuery") -> bool:
        """Wait a while; returns whether there may be something to do then."""
        due_s = self._typed.due_s
        if not query.isActive:  # with `once`: tables that have failed are tried again
            return due_s is not None and not self._clock.wait(self._is_ending, max(due_s, _ASK_S))
        wait_s = _WELL_AFTER_S if due_s is None else min(due_s, _WELL_AFTER_S)
        is_over = query.awaitTermination(max(1, math.ceil(min(wait_s, _LOOK_S) if any(self._typed) else wait_s)))
        runs_s = self._clock.monotonic_s() - self._began_s
        if not is_over and runs_s > _WELL_AFTER_S and self._reminders.is_known(_TROUBLE):
            self._is_well()  # there may be nothing to write
        return True

    def _ended(self, batches: int) -> None:
        """A round has ended. If it has written batches, earlier failures no longer count."""
        if batches:
            self._retries = Retries(self._settings.config.sections.run)

    def _start(self, rows: "DataFrame", writer: Writer) -> "StreamingQuery":
        settings = self._settings
        trigger_ms = trigger_ms_of(self._output_configs, settings.config.sections.run.trigger_ms)
        start = partial(settings.engine.start, name=self.plan.name, checkpoint=self.checkpoint)
        with self._lock:
            self._query = query = start(rows, writer, trigger_ms=None if settings.once else trigger_ms)
        if self._ends:
            query.stop()
        return query

    def _wait_until_reading(self, query: "StreamingQuery") -> None:
        """Wait until Spark reads the source or has failed to, at most `_START_S_MAX`: other queries wait for their
        turn.
        """
        from databus.spark import is_starting

        deadline = self._clock.monotonic_s() + _START_S_MAX
        while query.isActive and is_starting(query):
            if self._clock.monotonic_s() > deadline or self._clock.wait(self._is_ending, _ASK_S):
                return

    def _build(self) -> "tuple[DataFrame, Writer]":
        settings, plan = self._settings, self.plan
        inputs = {
            path: limited(settings.graph.inputs[path], self._output_configs, self.throttle) for path in plan.inputs
        }
        origin, context = inputs[plan.inputs[0]], self._context()
        self._typed = self._typed_tables(inputs)
        if plan.physical is None:
            return self._build_typed(origin, context)
        offsets = Offsets(self.checkpoint, origin, plan.physical, "")
        filters = filters_over(settings.graph, plan, context)
        check_tables(settings.graph, plan, filters, context)  # before anything is removed, or a snapshot is asked for
        self._refusals.look(filters, settings.graph, context)

        def try_on(feed: OutputFeed, handle: OutputHandle, names: Collection[str]) -> None:
            check_output(settings.graph, plan, filters, context, feed, handle, names)
            self._typed.check(feed, handle, names)

        after = self._after = begin(self._refusals.accepted, offsets, context, try_on)
        lacking = {typed.way.table for typed in self._typed if typed.way.table and self._typed.goes_on_without(typed)}
        reader = _united(inputs, plan) or origin
        tables, decode = reader.tables(settings.engine.session, context, plan.physical, plan.patterns, after, lacking)
        writer = Writer(
            *self._written(offsets),
            decode=decode,
            filters=filters,
            typed=self._typed,
            after=after,
            read_anew=partial(origin.read_anew, context, plan.physical),
            stops_on_filter_change=self._stops_on_filter_change,
            wants_stop=settings.is_stopping,
            ends_batch=self._ends_batch,
            clock=self._clock,
            choices={
                handle.name: choice_of(settings.graph, feed, handle, plan.physical)
                for feed, handle in self._refusals.accepted
            },
        )
        if origin.resumes:
            parts = settings.engine, writer, self._refusals.accepted, self._typed, reader, context, plan.physical
            self._catch_up = CatchUp(*parts)
        return tables, writer

    def _context(self) -> RunContext:
        """The context of its inputs."""
        configs = [(feed, handle.output.config) for feed, handle in self._feeds]
        ways = [way for feed, _ in configs for way in feed.ways]
        return replace(
            self._settings.context_of(self.plan.inputs[0]),
            is_refilled=all(config.is_refilled for _, config in configs),
            chooses_rows=any(way.filters for way in ways)
            or any(bool(config.key_choice.chosen) for _, config in configs),
            every_change=len(self.plan.inputs) > 1 or any(way.is_typed for way in ways),
        )

    def _build_typed(self, origin: Input, context: RunContext) -> "tuple[DataFrame, Writer]":
        """For an input that makes typed rows itself."""
        physical, _ = origin.schema_of(context, None)
        offsets = Offsets(self.checkpoint, origin, physical, origin.log_of(context, physical))
        rows = origin.typed(self._settings.engine.session, context)
        writer = Writer(*self._written(offsets), typed=self._typed, ends_batch=self._ends_batch, clock=self._clock)
        return rows, writer

    def _typed_tables(self, inputs: Mapping[str, Input]) -> TypedTables:
        """The tables behind typed filters, each tried without rows before anything is removed or asked for."""
        settings, plan, feeds = self._settings, self.plan, self._feeds
        ways = dict.fromkeys(way for feed, _ in feeds for way in feed.typed)
        typed_tables = TypedTables(
            [
                TypedTable(
                    settings.graph,
                    way,
                    [(feed, handle) for feed, handle in feeds if way in feed.ways],
                    inputs[way.input],
                    settings.context_of(way.input),
                    plan.physical,
                    settings.engine.session,
                    self._clock,
                )
                for way in ways
            ],
            has_others=any(not way.is_typed for feed, _ in feeds for way in feed.ways),
            failed=self._table_failed,
            well=self._table_is_well,
            clock=self._clock,
            stops=self._stops,
        )
        for typed in typed_tables:
            try:
                typed.look()
            except Exception as error:
                if not typed_tables.stays_behind(typed, error):
                    raise
        return typed_tables

    def _stops_on_filter_change(self, name: str) -> bool:
        ways = (way for feed, _ in self._feeds if (way := feed.way(name)) is not None)
        return any(self._settings.graph.inputs[way.input].stops_on_filter_change for way in ways)

    def _table_failed(self, typed: TypedTable, error: Exception) -> float | None:
        """A table behind typed filters cannot be written; see `TypedTables`."""
        typed.failure = failure = self._named(error, None)
        retries = self._table_retries.setdefault(typed.way, Retries(self._settings.config.sections.run))
        wait_ms = retries.next_ms(failure, gives_up=self._gives_up)
        self._say_of_table("table_failed" if wait_ms is None else "table_retry", typed, f"{typed.label}: {failure}")
        return None if wait_ms is None else wait_ms / 1e3

    def _stops(self) -> bool:
        """Whether any failure now ends the query."""
        is_halted = on_failure_of(self._output_configs) == "halt"
        return is_halted or self._ends or self._settings.has_lost_spark()

    def _table_is_well(self, typed: TypedTable) -> None:
        self._table_retries.pop(typed.way, None)
        self._say_of_table("table_well", typed, "")

    def _say_of_table(self, event: str, typed: TypedTable, message: str) -> None:
        error = "" if typed.failure is None else type(typed.failure).__name__
        event_fields = {"event": event, "query": self.plan.name, "outputs": [handle.name for _, handle in typed.feeds]}
        details = {"table": typed.label, "at_us": self._clock.now_ns() // 1000, "error": error, "message": message}
        self._settings.report({**event_fields, **details})
        if not message:
            if self._reminders.end(typed.label):
                self._logger.info("table is written again", table=typed.label)
        elif self._reminders.is_due(typed.label, message):
            self._logger.warning("a table is not written, while the others go on", table=typed.label, message=message)

    @property
    def errors(self) -> list[DatabusError]:
        """Its error; or, if it runs, the errors of tables that are not tried again."""
        return self._typed.errors if self.error is None else [self.error]

    def try_tables_again(self) -> None:
        """Try tables that could not be written at once."""
        self._typed.try_again()

    def _written(self, offsets: Offsets) -> tuple[Any, ...]:
        return self.plan.name, self._refusals.accepted, self._report_batch, offsets

    def _report_batch(self, event: Mapping[str, Any]) -> None:
        self._settings.report(event)
        self._is_well()

    def _is_well(self) -> None:
        if self._reminders.end(_TROUBLE):
            self._logger.info("query runs again")

    def _named(self, error: Exception, writer: Writer | None) -> DatabusError:
        """An error as one of databus's; unknown ones become a `TransientError`, which is tried again some times."""
        from databus.spark import error_of, is_of_slow_workers

        named = error_of(writer.error) if writer is not None and writer.error is not None else None
        named = named or error_of(error)
        cause = error if writer is None or writer.error is None else writer.error
        if named is None and is_of_slow_workers(cause):
            at_once = self._settings.starting.fewer()
            self._retries.wait_ms_min = _SLOW_WORKERS_MS
            named = ServiceUnavailable(
                "Spark's Python processes did not start within its ten seconds: the machine is busy. From now on, "
                f"{at_once} of this pipeline's queries {'starts' if at_once == 1 else 'start'} at a time; nothing is "
                "lost. If it happens again, put outputs into one `lane`: they share a query"
            )
        if named is None:
            trace = "".join(traceback.format_exception(cause))[-_TRACE_CHARS_MAX:]
            if self._reminders.is_due(_TROUBLE, trace):
                self._logger.error("a query failed with an error that is not databus's own", trace=trace)
            named = TransientError(f"{type(cause).__name__}: {first_lines(str(cause))}")
            named.__cause__ = cause
        return advised(named, self._feeds, resumed=self._after is not None)

    def _is_of_refused(self, error: DatabusError) -> bool:
        """Whether it failed because an output refuses tables, and can continue without them."""
        if self.plan.shape is not Shape.TABLES or on_failure_of(self._output_configs) == "halt":
            return False
        settings, context = self._settings, self._settings.context_of(self.plan.inputs[0])
        filters = filters_over(settings.graph, self.plan, context)
        return self._refusals.explain(error, filters, settings.graph, context)

    def _waits_for(self, error: DatabusError) -> bool:
        """Wait before the next try; False if there is none."""
        wait_ms = self._retries.next_ms(error, gives_up=self._gives_up)
        if wait_ms is None:
            return False
        run = self._settings.config.sections.run
        waits = f"; the pipeline's own relay may not have read that far yet, and gets {run.start_ms_max} ms for it"
        message = f"{error}{waits if self._may_come(error) else ''}"
        self._say("retry", error, wait_ms=round(wait_ms), message=message)
        self._clock.wait(self._is_ending, wait_ms / 1e3)
        return True

    def _gives_up(self, error: DatabusError, failures: int) -> bool:
        """Whether it is not tried again after so many failures in a row."""
        is_schema, is_retried = isinstance(error, SchemaChanged), on_failure_of(self._output_configs) == "retry"
        may_wait = is_schema or is_retried or self._may_come(error) or self._showed_old_files(error)
        if isinstance(error, FatalError | InputError) and not may_wait:
            return True
        is_ours = (type(error) is not TransientError and not is_schema) or is_retried
        return failures > self._settings.config.sections.run.retries_max and (self._settings.once or not is_ours)

    def _showed_old_files(self, error: DatabusError) -> bool:
        """Whether the relay may have refused a token or certificate that was renewed meanwhile: a task uses the files
        that were sent before its job began.
        """
        renewed_s = self._settings.renewed_s()
        return isinstance(error, AccessDenied) and renewed_s is not None and renewed_s > self._began_s

    def _may_come(self, error: DatabusError) -> bool:
        """Whether a missing table or column may not have been captured yet, because the pipeline's own relay has just
        started.
        """
        config = self._settings.config
        waited_ms = (self._clock.monotonic_s() - self._settings.began_s) * 1e3
        is_missing = isinstance(error, UnknownSource | UnknownColumn)
        return is_missing and config.embeds_relay and waited_ms < config.sections.run.start_ms_max

    def _say(self, event: str, error: DatabusError | None, **more: Any) -> None:
        fields: Mapping[str, Any] = {
            "event": event,
            "query": self.plan.name,
            "outputs": self.outputs,
            "at_us": self._clock.now_ns() // 1000,
            **({} if error is None else {"error": type(error).__name__, "message": str(error)}),
            **more,
        }
        self._settings.report(fields)
        if error is None and self._reminders.is_known(_TROUBLE):
            return  # a retry starts it too; `_is_well` logs when it is well again
        self._log(event, fields)

    def remind(self) -> None:
        """Log its failure again from time to time; also after its end."""
        self._refusals.log()
        if self.error is not None:
            self._log("failed", {"error": type(self.error).__name__, "message": str(self.error)})

    def _log(self, event: str, fields: Mapping[str, Any]) -> None:
        """Log what happened to it; of lasting trouble not each try."""
        is_trouble = event in ("retry", "failed")
        if is_trouble and not self._reminders.is_due(_TROUBLE, f"{event} {fields['message']}"):
            return
        log = self._logger.warning if is_trouble else self._logger.info
        log = self._logger.error if event == "failed" else log
        log(f"query {event}", **{name: fields[name] for name in ("error", "message", "wait_ms") if name in fields})


def _united(inputs: Mapping[str, Input], plan: QueryPlan) -> Input | None:
    """An input that reads all inputs of a query at once, if there are several."""
    if len(inputs) == 1:
        return None
    return next(iter(inputs.values())).united([(origin, plan.read_by(path)) for path, origin in inputs.items()])
