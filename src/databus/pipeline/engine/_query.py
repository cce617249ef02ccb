"""One query's life: built, started, waited for, started again; in a thread of its own, so that no other waits for it.

build ──► run ──► ends: done (`once`), stopped (by us), at rest (by us, at the end of a batch)
  ▲        │
  └────────┼─ TransientError, unknown ──► after a back-off that grows, and forgets where a batch was done
           └─ FatalError, InputError ───► failed: this query stays down, the others go on
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
from databus.pipeline.engine._plan import Feed, QueryPlan, Way
from databus.pipeline.engine._query_filters import check_output, check_tables, filters_over
from databus.pipeline.engine._refusals import Refusals
from databus.pipeline.engine._typed_steps import first_lines
from databus.pipeline.engine._typed_tables import TypedTable, TypedTables
from databus.pipeline.engine._writer import Report, Writer
from databus.pipeline.graph import Graph, Kind, NodeSpec, PipelineConfig, Problem, RunSection
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
    found: int | None = _said(outputs, "trigger_ms")
    return default if found is None else found


def on_failure_of(outputs: Iterable[OutputConfig]) -> Literal["stop", "retry", "halt"]:
    """What follows an error that does not pass by itself."""
    found: Literal["stop", "retry", "halt"] | None = _said(outputs, "on_failure")
    return found or "stop"


def can_throttle(origin: NodeSpec, throttle: Throttle) -> bool:
    """Whether an input knows such limits."""
    wanted = dict(zip(_LIMITS, (throttle.rows, throttle.bytes), strict=True))
    return all(name in type(origin.config).model_fields for name, most in wanted.items() if most is not None)


def limited(origin: InputT, outputs: Sequence[OutputConfig], throttle: Throttle | None = None) -> InputT:
    """The input with the limits that these outputs ask for, and somebody who throttles them; itself where nobody asks
    for one that it has.
    """
    said = {name: _said(outputs, name) for name in _LIMITS if name in type(origin.config).model_fields}
    asked = {name: value for name, value in said.items() if value is not None}
    most = {} if throttle is None else dict(zip(_LIMITS, (throttle.rows, throttle.bytes), strict=True))
    for name in said:
        before, wished = asked.get(name, getattr(origin.config, name)), most.get(name)
        if wished is not None:
            asked[name] = wished if before is None else min(before, wished)
    return type(origin)(origin.config.model_copy(update=asked)) if asked else origin


def check_options(config: PipelineConfig, inputs_of: Mapping[str, Sequence[NodeSpec]]) -> Iterator[Problem]:
    """Outputs of a lane that say different things, and limits that an input does not know. inputs_of: by output."""
    outputs = [node for node in config.nodes.values() if node.kind is Kind.OUTPUT]
    for node in outputs:
        for other in outputs[: outputs.index(node)]:
            if node.config.lane is None or node.config.lane != other.config.lane:
                continue
            for name in _OF_QUERY:
                values = _said([other.config], name), _said([node.config], name)
                if None not in values and values[0] != values[1]:
                    yield Problem(
                        f"{node.path}.{name}",
                        f"{values[1]}, and {other.path} says {values[0]}; outputs of one lane share a query: say the "
                        "same, or take one out of the lane",
                    )
        for origin in inputs_of.get(node.path, []):
            for name in _LIMITS:
                if _said([node.config], name) is not None and name not in type(origin.config).model_fields:
                    yield Problem(
                        f"{node.path}.{name}", f"{origin.path} ({origin.type}) has no such limit; leave it out"
                    )


def _said(outputs: Iterable[OutputConfig], name: str) -> Any:
    return next((getattr(each, name) for each in outputs if name in each.model_fields_set), None)


_TRACE_CHARS_MAX: Final = 4_000  # of Java's stack, whose end says the cause
_START_S_MAX: Final = 15.0
_SLOW_WORKERS_MS: Final = 5_000  # a busy machine is no less so after a back-off of milliseconds
_ASK_S: Final = 0.05  # nothing tells that a source is being read
_TROUBLE: Final = "its trouble"
_LOOK_S: Final = 1
"""How long a query waits at most until it looks whether a table has failed, and is to be tried again."""
_WELL_AFTER_S: Final = 60
"""How long a query that was in trouble runs until it is well again, if it has nothing to write meanwhile."""


class Retries:
    """When what has failed is tried again. wait_ms_min: not before that."""

    def __init__(self, run: RunSection) -> None:
        self._backoff = Backoff(run.retry_ms_min, run.retry_ms_max)
        self._failures = 0
        self.wait_ms_min = 0

    def next_ms(self, error: DatabusError, *, gives_up: Callable[[DatabusError, int], bool]) -> float | None:
        """How long to wait after one more failure; None if there is no other try."""
        if gives_up(error, self._failures + 1):
            return None
        self._failures += 1
        return max(self._backoff.next_ms(), self.wait_ms_min)


class Starts:
    """Lets so many queries start at a time, and fewer after Spark's Python processes did not come up in time.

    Each query starts Python processes of its own, and Spark gives each of those ten seconds, which many at once on a
    small machine do not keep.
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
        """Let half as many start from now on, one at least; returns how many."""
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
    """Where it answers now; it may change when an own relay is restarted."""
    report: Report
    began_s: float
    """When the run began, by the clock."""
    clock: Clock = field(default_factory=SystemClock)
    is_stopping: threading.Event = field(default_factory=threading.Event)
    starting: Starts = field(default_factory=lambda: Starts(os.cpu_count() or 1))
    """Lets as many queries start at a time as there are cores."""
    renewed_s: Callable[[], float | None] = lambda: None
    """When executors were last sent renewed files by which the relay is asked, by the monotonic clock."""
    has_lost_spark: Callable[[], bool] = lambda: False
    """Whether Spark's process has ended; the run ends then, and says why, once for all queries."""

    def context_of(self, path: str) -> RunContext:
        """What a node works with."""
        return RunContext(
            self.config.name,
            path.partition(".")[2],
            self.config.folder,
            self.relay(),
            self.config.access,
        )


class QueryThread(threading.Thread):
    """Runs one query until it is done, stopped or failed; `on_end` is told. `error` says what it failed with.

    once: it ends where the relay's log ended when it began. is_resting: it was asked to end between two batches.
    """

    def __init__(
        self,
        settings: RunSettings,
        plan: QueryPlan,
        feeds: Sequence[tuple[Feed, OutputHandle]],
        on_end: Callable[["QueryThread"], None],
        throttle: Throttle | None = None,
    ) -> None:
        super().__init__(name=f"query {plan.name}", daemon=True)
        self.plan = plan
        self.error: DatabusError | None = None
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
        self._refusals = Refusals(plan, feeds, settings.report, self._clock)
        self._logger = logger_of("databus.pipeline").bind(query=plan.name)

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs that it writes to."""
        return [handle.name for _, handle in self._feeds]

    @property
    def _output_configs(self) -> list[OutputConfig]:
        return [handle.output.config for _, handle in self._feeds]

    @property
    def halts(self) -> bool:
        """Whether the whole pipeline ends with what it has failed with."""
        return self.error is not None and on_failure_of(self._output_configs) == "halt"

    def writes_by(self, handle: OutputHandle) -> bool:
        """Whether it writes by this handle."""
        return any(mine is handle for _, mine in self._feeds)

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
        """Have it failed, from another thread, although what it does does not end."""
        self.error = ServiceUnavailable(why)
        self._say("failed", self.error)

    @property
    def _ends(self) -> bool:
        return self._is_ending.is_set() or self._settings.is_stopping.is_set()

    def stop(self) -> None:
        """End it, from another thread: what is being written is not waited for, and comes again."""
        self._is_ending.set()
        with self._lock:
            query = self._query
        if query is None:
            return
        try:
            query.stop()
        except Exception:  # py4j raises many kinds where nobody listens any more; the run says why, once
            if not self._settings.has_lost_spark():
                raise

    def rest(self) -> None:
        """End it once the batch that is being written, if any, is in the targets. Never blocks; callable twice."""
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
        """Build, start and wait; returns what it failed with, None if it ended as it should."""
        writer: Writer | None = None
        try:
            for _, handle in self._feeds:
                handle.open()
            with self._settings.starting:
                if self._ends:
                    return None
                rows, writer = self._build()
                writer.rest = 0 if self._settings.once else max(each.rest for each in self._output_configs)
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
        """Wait until the query has ended, and have tables that are behind come on meanwhile."""
        try:
            # A query that has failed begins again at once, not when the last table has caught up.
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
        """Wait a while; whether there may be something to do then."""
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
        """After a round that wrote so many batches: one forgets what failed before it."""
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
        """Wait until Spark has started what reads the source, or could not, or the time for it is over."""
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
        if plan.shape is Shape.TYPED:
            return self._build_typed(origin, context)
        assert plan.physical is not None  # noqa: S101 - the plan's promise
        offsets = Offsets(self.checkpoint, origin, plan.physical, "")
        filters = filters_over(settings.graph, plan, context)
        check_tables(settings.graph, plan, filters, context)  # before anything is removed, or asked for
        self._refusals.look(filters, settings.graph, context)

        def try_on(feed: Feed, handle: OutputHandle, names: Collection[str]) -> None:
            check_output(settings.graph, plan, filters, context, feed, handle, names)
            self._typed.check(feed, handle, names)

        after = self._after = begin(self._refusals.accepted, offsets, context, try_on)
        lacking = {each.way.table for each in self._typed if each.way.table and self._typed.goes_on_without(each)}
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
            given = settings.engine, writer, self._refusals.accepted, self._typed, reader, context, plan.physical
            self._catch_up = CatchUp(*given)
        return tables, writer

    def _context(self) -> RunContext:
        """What its inputs work with."""
        configs = [(feed, each.output.config) for feed, each in self._feeds]
        ways = [way for feed, _ in configs for way in feed.ways]
        return replace(
            self._settings.context_of(self.plan.inputs[0]),
            is_refilled=all(config.is_refilled for _, config in configs),
            chooses_rows=any(way.filters for way in ways)
            or any(bool(config.key_choice.chosen) for _, config in configs),
            every_change=len(self.plan.inputs) > 1 or any(way.is_typed for way in ways),
        )

    def _build_typed(self, origin: Input, context: RunContext) -> "tuple[DataFrame, Writer]":
        """Of an input that makes typed rows itself."""
        physical, _ = origin.schema_of(context, None)
        offsets = Offsets(self.checkpoint, origin, physical, origin.log_of(context, physical))
        rows = origin.typed(self._settings.engine.session, context)
        by = Writer(*self._written(offsets), typed=self._typed, ends_batch=self._ends_batch, clock=self._clock)
        return rows, by

    def _typed_tables(self, inputs: Mapping[str, Input]) -> TypedTables:
        """The tables that come by typed filters, each tried on no rows before anything is removed, or asked for."""
        settings, plan, feeds = self._settings, self.plan, self._feeds
        ways = dict.fromkeys(way for feed, _ in feeds for way in feed.typed)
        found = TypedTables(
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
        for typed in found:
            try:
                typed.look()
            except Exception as error:
                if not found.stays_behind(typed, error):
                    raise
        return found

    def _stops_on_filter_change(self, name: str) -> bool:
        ways = (way for feed, _ in self._feeds if (way := feed.way(name)) is not None)
        return any(self._settings.graph.inputs[way.input].stops_on_filter_change for way in ways)

    def _table_failed(self, typed: TypedTable, error: Exception) -> float | None:
        """Take note that a table behind typed filters cannot be written; see `TypedTables`."""
        typed.failure = failure = self._named(error, None)
        retries = self._table_retries.setdefault(typed.way, Retries(self._settings.config.sections.run))
        wait_ms = retries.next_ms(failure, gives_up=self._gives_up)
        self._say_of_table("table_failed" if wait_ms is None else "table_retry", typed, f"{typed.label}: {failure}")
        return None if wait_ms is None else wait_ms / 1e3

    def _stops(self) -> bool:
        """Whether the query is to end with whatever fails now."""
        is_halted = on_failure_of(self._output_configs) == "halt"
        return is_halted or self._ends or self._settings.has_lost_spark()

    def _table_is_well(self, typed: TypedTable) -> None:
        self._table_retries.pop(typed.way, None)
        self._say_of_table("table_well", typed, "")

    def _say_of_table(self, event: str, typed: TypedTable, message: str) -> None:
        error = "" if typed.failure is None else type(typed.failure).__name__
        said = {"event": event, "query": self.plan.name, "outputs": [handle.name for _, handle in typed.feeds]}
        more = {"table": typed.label, "at_us": self._clock.now_ns() // 1000, "error": error, "message": message}
        self._settings.report({**said, **more})
        if not message:
            if self._reminders.end(typed.label):
                self._logger.info("table is written again", table=typed.label)
        elif self._reminders.is_due(typed.label, message):
            self._logger.warning("a table is not written, while the others go on", table=typed.label, message=message)

    @property
    def errors(self) -> list[DatabusError]:
        """What it has failed with, or, where it has not, tables that are not tried again while the others go on."""
        return self._typed.errors if self.error is None else [self.error]

    def try_tables_again(self) -> None:
        """Have tables that could not be written be tried at once."""
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
        """What went wrong as one of our errors; anything unknown is tried again some times."""
        from databus.spark import error_of, is_of_slow_workers

        found = error_of(writer.error) if writer is not None and writer.error is not None else None
        found = found or error_of(error)
        cause = error if writer is None or writer.error is None else writer.error
        if found is None and is_of_slow_workers(cause):
            at_once = self._settings.starting.fewer()
            self._retries.wait_ms_min = _SLOW_WORKERS_MS
            found = ServiceUnavailable(
                "Spark's Python processes did not come up within its ten seconds: the machine is busy. From now on, "
                f"{at_once} of this pipeline's queries {'starts' if at_once == 1 else 'start'} at a time; nothing is "
                "lost. If it stays so, put outputs into one `lane`, which share a query"
            )
        if found is None:
            said = "".join(traceback.format_exception(cause))[-_TRACE_CHARS_MAX:]
            if self._reminders.is_due(_TROUBLE, said):
                self._logger.error("a query failed with an error that is not databus's own", trace=said)
            found = TransientError(f"{type(cause).__name__}: {first_lines(str(cause))}")
            found.__cause__ = cause
        return advised(found, self._feeds, resumed=self._after is not None)

    def _is_of_refused(self, error: DatabusError) -> bool:
        """Whether it failed for tables that an output refuses, and goes on without them."""
        if self.plan.shape is not Shape.TABLES or on_failure_of(self._output_configs) == "halt":
            return False
        settings, context = self._settings, self._settings.context_of(self.plan.inputs[0])
        filters = filters_over(settings.graph, self.plan, context)
        return self._refusals.explain(error, filters, settings.graph, context)

    def _waits_for(self, error: DatabusError) -> bool:
        """Wait before another try; False if there is none to be."""
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
        """Whether there is no other try after so many failures in a row."""
        is_schema, is_retried = isinstance(error, SchemaChanged), on_failure_of(self._output_configs) == "retry"
        may_wait = is_schema or is_retried or self._may_come(error) or self._showed_old_files(error)
        if isinstance(error, FatalError | InputError) and not may_wait:
            return True
        is_ours = (type(error) is not TransientError and not is_schema) or is_retried
        return failures > self._settings.config.sections.run.retries_max and (self._settings.once or not is_ours)

    def _showed_old_files(self, error: DatabusError) -> bool:
        """Whether the relay may have refused what was renewed meanwhile: each attempt of a task is given the files that
        were sent before its job began.
        """
        renewed_s = self._settings.renewed_s()
        return isinstance(error, AccessDenied) and renewed_s is not None and renewed_s > self._began_s

    def _may_come(self, error: DatabusError) -> bool:
        """Whether what is not there, a table or a column, may only not have been captured yet: our own relay has just
        begun.
        """
        config = self._settings.config
        waited_ms = (self._clock.monotonic_s() - self._settings.began_s) * 1e3
        is_missing = isinstance(error, UnknownSource | UnknownColumn)
        return is_missing and config.embeds_relay and waited_ms < config.sections.run.start_ms_max

    def _say(self, event: str, error: DatabusError | None, **more: Any) -> None:
        said: Mapping[str, Any] = {
            "event": event,
            "query": self.plan.name,
            "outputs": self.outputs,
            "at_us": self._clock.now_ns() // 1000,
            **({} if error is None else {"error": type(error).__name__, "message": str(error)}),
            **more,
        }
        self._settings.report(said)
        if error is None and self._reminders.is_known(_TROUBLE):
            return  # each new try starts it; that it is well again is said when it is
        self._log(event, said)

    def remind(self) -> None:
        """Say in the log once more with what it has failed, now and again; after its end."""
        self._refusals.log()
        if self.error is not None:
            self._log("failed", {"error": type(self.error).__name__, "message": str(self.error)})

    def _log(self, event: str, said: Mapping[str, Any]) -> None:
        """Say in the log what happened to it; of trouble that lasts not each try."""
        is_trouble = event in ("retry", "failed")
        if is_trouble and not self._reminders.is_due(_TROUBLE, f"{event} {said['message']}"):
            return
        log = self._logger.warning if is_trouble else self._logger.info
        log = self._logger.error if event == "failed" else log
        log(f"query {event}", **{name: said[name] for name in ("error", "message", "wait_ms") if name in said})


def _united(inputs: Mapping[str, Input], plan: QueryPlan) -> Input | None:
    """What reads all inputs of a query at once, where it has several."""
    if len(inputs) == 1:
        return None
    return next(iter(inputs.values())).united([(origin, plan.read_by(path)) for path, origin in inputs.items()])
