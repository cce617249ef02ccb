"""The queries of a run: which of them are to run, and which rest. Start with `Queries.look`.

Which are wanted follows from the graph, the physical sources and the outputs at rest. `look` compares that with what
runs, stops what is not wanted between two batches, and starts what is missing as soon as no earlier writer of the same
target is left.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from databus.core import Clock, InputError, ServiceUnavailable, SystemClock, UnknownSource
from databus.operate import logger_of
from databus.pipeline.engine import Brought, OutputHandle, QueryPlan, QueryThread, RunSettings, plan_queries, way_of
from databus.pipeline.graph import Graph, NodeSpec, PipelineConfig
from databus.pipeline.running._published import Published
from databus.pipeline.running._reload_changes import ReloadChanges, changes
from databus.pipeline.telling import Reminders, Rest, Resting, Throttle, in_background, why_refused

Say = Callable[..., None]
_CUT_S_MAX: Final = 10.0
"""How long a query may take to end after its batch was cut off."""
_EVENTS: Final = {Rest.PAUSED: "paused", Rest.STOPPED: "output_stopped", Rest.REBUILDING: "paused"}


@dataclass(frozen=True)
class _Wanted:
    """A query that shall run."""

    plan: QueryPlan
    once: bool
    """Up to the relay's present end only."""
    throttle: Throttle | None

    @property
    def outputs(self) -> list[str]:
        return _names(self.plan)


@dataclass(eq=False)
class _Leaving:
    """An output from before a reload, until its queries have ended and it is closed."""

    handle: OutputHandle
    is_moved: bool
    """No output has its options now, so another output may be about to write to its target."""
    cut_at_s: float
    """When the batch that is being written is cut off."""
    is_cut: bool = False
    is_closing: bool = False
    is_closed: bool = False

    def is_overdue(self, now_s: float) -> bool:
        """Whether it was cut off and still has not ended."""
        return now_s > self.cut_at_s + _CUT_S_MAX and not self.is_closed


class Queries:
    """Used by one thread.

    on_end: called, by any thread, with each query that has ended; has that one thread call `ended`. on_closed: called,
    by any thread, when `look` has something to do.
    """

    def __init__(
        self,
        graph: Graph,
        resting: Resting,
        published: Published,
        say: Say,
        on_end: Callable[[QueryThread], None],
        on_closed: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._graph = graph
        self._resting = resting
        self._published = published
        self._say = say
        self._on_end = on_end
        self._on_closed = on_closed
        self._settings: RunSettings | None = None
        self._physicals: Sequence[str] = ()
        self._plans: list[QueryPlan] = []
        self._threads: dict[str, QueryThread] = {}
        self._ended: set[QueryThread] = set()
        self._given_up: set[QueryThread] = set()
        self._at_rest: dict[str, Rest] = {}
        self._throttled: dict[str, Throttle] = {}  # by query, as reported last
        self._leaving: list[_Leaving] = []
        self._waits: dict[str, list[_Leaving]] = {}  # by output: what must be closed before it starts
        self._logger = logger_of("databus.pipeline").bind(pipeline=graph.config.name)
        self.unfed: UnknownSource | None = None
        """The outputs that no query writes to, as an error; None if there are none."""
        self.handles = {path: _handle(graph, path, self._clock) for path in _outputs_of(graph)}

    @property
    def threads(self) -> list[QueryThread]:
        """The queries that run, and those that have ended by themselves."""
        return [*self._threads.values()]

    @property
    def all_handles(self) -> list[OutputHandle]:
        """The outputs of now, and those from before a reload that are not closed yet."""
        return [*self.handles.values(), *(leaving.handle for leaving in self._leaving)]

    @property
    def is_changing(self) -> bool:
        """Whether an output from before a reload is not closed yet."""
        return bool(self._leaving)

    @property
    def overdue_names(self) -> set[str]:
        """Outputs from before a reload whose batch does not end although it was cut off."""
        return {leaving.handle.name for leaving in self._leaving if leaving.is_overdue(self._clock.monotonic_s())}

    @property
    def left(self) -> list[QueryThread]:
        """The queries that have not ended and are not given up."""
        return [thread for thread in self.threads if thread not in self._ended and thread not in self._given_up]

    @property
    def rests(self) -> bool:
        """Whether an output waits for somebody to resume it."""
        return bool(self._at_rest)

    @property
    def is_drained(self) -> bool:
        """Whether all that is wanted has been started, and has ended."""
        return (
            self._settings is not None and not self.left and all(map(self._has, self._wanted(self._settings).values()))
        )

    def begin(self, settings: RunSettings, physicals: Sequence[str]) -> None:
        """Start queries over these physical sources."""
        self._settings = settings
        self.take_physicals(physicals)

    def take_physicals(self, physicals: Sequence[str]) -> None:
        """These are the physical sources now."""
        self._physicals = physicals
        self._plans = plan_queries(self._graph, physicals)
        for path in self.handles:
            self._bring(path)
        self._look_for_unfed()
        self.look()

    def _bring(self, path: str) -> None:
        handle = self.handles[path]
        handle.brought = {
            plan.physical: Brought(feed, way_of(self._graph, feed, handle.output))
            for plan in self._plans
            if (feed := plan.feed_of(path)) is not None
        }

    def change(self, graph: Graph) -> ReloadChanges:
        """Take another graph, without waiting for what has to end first; outputs that have not changed continue.

        Raises `ServiceUnavailable` before `begin`; then nothing has changed.
        """
        if self._settings is None:
            raise ServiceUnavailable("the pipeline is starting; ask again when `databus status` shows its outputs")
        plans = plan_queries(graph, self._physicals)
        difference = changes(self._graph, self._plans, graph, plans)
        new_paths = [f"outputs.{name}" for name in (*difference.changed, *difference.added)]
        new_handles = {path: _handle(graph, path, self._clock) for path in new_paths}
        self._leave(difference, graph)
        self._graph, self._plans = graph, plans
        self._settings = replace(self._settings, config=graph.config, graph=graph)
        self.handles = {path: new_handles.get(path) or self.handles[path] for path in _outputs_of(graph)}
        for path in new_handles:
            self._bring(path)
        new = [plan for plan in plans if any(feed.output in new_handles for feed in plan.feeds)]
        kept = {plan.name for plan in plans if plan not in new}
        self._at_rest = {name: rest for name, rest in self._at_rest.items() if name in kept}
        self._published.change(graph.config, plans, new)
        self._say("reloaded", **difference.to_json())
        self._look_for_unfed()
        self.look()
        return difference

    def _leave(self, difference: ReloadChanges, graph: Graph) -> None:
        """Have changed and removed outputs closed once their queries have ended; new ones wait for that."""
        cut_at_s = self._clock.monotonic_s() + graph.config.sections.run.stop_batch_ms_max / 1e3
        old, new = self._graph.config.nodes, graph.config.nodes
        moved = [
            name for name in difference.changed if _options(old[f"outputs.{name}"]) != _options(new[f"outputs.{name}"])
        ]
        for name in (*difference.changed, *difference.removed):
            handle = self.handles[f"outputs.{name}"]
            self._leaving.append(_Leaving(handle, name in moved or name in difference.removed, cut_at_s))
        for name in (*difference.changed, *difference.added):
            is_elsewhere = name in moved or name in difference.added
            plugin = new[f"outputs.{name}"].plugin
            self._waits[name] = [
                leaving
                for leaving in self._leaving
                if leaving.handle.name == name
                or (is_elsewhere and leaving.is_moved and isinstance(leaving.handle.output, plugin))
            ]

    def look(self) -> None:
        """Start the queries that are wanted, and have the others rest; never blocks."""
        if self._settings is None:
            return
        wanted = self._wanted(self._settings)
        for name, thread in self._threads.items():
            if thread not in self._ended and not self._is(thread, wanted.get(name)):
                thread.rest()
        self._close_left()
        self._forget(wanted)
        busy = {output for thread in self.threads if thread.is_resting for output in thread.outputs}
        busy.update(self._waits)
        new = [query for query in wanted.values() if not self._has(query) and not busy.intersection(query.outputs)]
        if new:
            self._start(self._settings, new)
        self._report_rest()

    def _close_left(self) -> None:
        """Close outputs from before a reload as soon as nothing writes to them; cut off what takes too long."""
        self._leaving = [leaving for leaving in self._leaving if not leaving.is_closed]
        waits = {name: [output for output in outputs if not output.is_closed] for name, outputs in self._waits.items()}
        self._waits = {name: outputs for name, outputs in waits.items() if outputs}
        for leaving in self._leaving:
            threads = [thread for thread in self.threads if thread.writes_by(leaving.handle)]
            if not leaving.is_closing and not any(thread not in self._ended or thread.is_writing for thread in threads):
                leaving.is_closing = True
                in_background(f"close {leaving.handle.name}", partial(self._close, leaving))
            elif not leaving.is_cut and self._clock.monotonic_s() > leaving.cut_at_s:
                leaving.is_cut = True
                self._logger.warning("a batch is cut off; it comes again", output=leaving.handle.name)
                for thread in threads:
                    in_background(f"stop {thread.plan.name}", thread.stop)

    def _close(self, leaving: _Leaving) -> None:
        leaving.handle.close()
        leaving.is_closed = True
        self._on_closed()

    def ended(self, thread: QueryThread) -> None:
        """A query has ended, by itself or because `look` stopped it."""
        self._ended.add(thread)
        if thread.error is None and not thread.is_resting:
            self._say("ended", query=thread.plan.name, outputs=thread.outputs)
            self._stop_what_is_drained()
        self.look()

    def retry(self, outputs: Collection[str]) -> None:
        """Forget the failed queries of these outputs, so that they start again."""
        for thread in self.left:
            if set(thread.outputs).intersection(outputs):
                thread.try_tables_again()
        self._threads = {
            name: thread
            for name, thread in self._threads.items()
            if thread.error is None or thread not in self._ended or not set(thread.outputs).intersection(outputs)
        }
        self.look()

    def idle(self, output: str) -> OutputHandle | None:
        """The handle of an output if nothing writes to it, nor is about to. Raises `InputError` if it is gone."""
        handle = self.handles.get(f"outputs.{output}")
        if handle is None:
            raise InputError(f"outputs.{output}: is not in the file any more")
        threads = [thread for thread in self.threads if thread.writes_by(handle)]
        is_busy = output in self._waits or any(thread not in self._ended or thread.is_writing for thread in threads)
        return None if is_busy else handle

    @property
    def refused(self) -> list[str]:
        """A line for each output and query with tables that the target refuses."""
        refusals = [
            (handle.name, refused) for handle in self.handles.values() for refused in handle.refused.values() if refused
        ]
        return [f"{name}: {why_refused(refused)}" for name, refused in refusals]

    def remind(self) -> None:
        """Have the log repeat, from time to time, what has failed."""
        for thread in self.threads:
            thread.remind()

    def give_up(self, thread: QueryThread, why: str) -> None:
        """Count a query that does not end as failed."""
        self._given_up.add(thread)
        thread.give_up(why)

    def unfed_by(self, physicals: Sequence[str]) -> list[str]:
        """The outputs that no query over these physical sources writes to."""
        return _unfed_by(plan_queries(self._graph, physicals), self.handles)

    @property
    def unfed_names(self) -> list[str]:
        """The outputs that no query writes to."""
        return _unfed_by(self._plans, self.handles)

    def _wanted(self, settings: RunSettings) -> dict[str, _Wanted]:
        wanted = {}
        for plan in self._plans:
            rest = self._resting.of(_names(plan))
            if rest in (None, Rest.DRAINING):
                throttle = self._resting.throttle_of(_names(plan))
                wanted[plan.name] = _Wanted(plan, settings.once or rest is Rest.DRAINING, throttle)
        return wanted

    def _has(self, wanted: _Wanted) -> bool:
        thread = self._threads.get(wanted.plan.name)
        return thread is not None and self._is(thread, wanted)

    def _is(self, thread: QueryThread, wanted: _Wanted | None) -> bool:
        """Whether a query is what is wanted under its name."""
        if wanted is None or thread.is_resting or thread.plan != wanted.plan:
            return False
        if (thread.once, thread.throttle) != (wanted.once, wanted.throttle):
            return False
        return all(thread.writes_by(self.handles[feed.output]) for feed in wanted.plan.feeds)

    def _forget(self, wanted: Mapping[str, _Wanted]) -> None:
        """Forget queries that have ended and are not what is wanted under their names."""
        ended = [
            (name, thread) for name, thread in self._threads.items() if thread in self._ended and not thread.is_writing
        ]
        gone = [name for name, thread in ended if not self._is(thread, wanted.get(name))]
        for name in gone:
            self._ended.discard(self._threads.pop(name))

    def _start(self, settings: RunSettings, wanted: Sequence[_Wanted]) -> None:
        self._published.expect([query.plan for query in wanted])
        for query in wanted:
            feeds = [(feed, self.handles[feed.output]) for feed in query.plan.feeds]
            thread = QueryThread(replace(settings, once=query.once), query.plan, feeds, self._on_end, query.throttle)
            self._report_throttle(query)
            self._threads[query.plan.name] = thread
            self._at_rest.pop(query.plan.name, None)
            thread.start()
        self._say("running", queries=[query.plan.name for query in wanted])

    def _report_throttle(self, wanted: _Wanted) -> None:
        """Report a throttle that has changed."""
        name, throttle = wanted.plan.name, wanted.throttle
        if self._throttled.get(name) == throttle:
            return
        if throttle is None:
            del self._throttled[name]
        else:
            self._throttled[name] = throttle
        limits = {} if throttle is None else throttle.to_json()
        listed = " and ".join(f"{count} {unit}" for unit, count in limits.items())
        message = f"a batch has {listed} at most, until it is resumed" if limits else "as the file says"
        self._say("throttled", query=name, outputs=wanted.outputs, throttle=limits, message=message)

    def _stop_what_is_drained(self) -> None:
        """Outputs that drain and have reached the relay's end are stopped."""
        busy = {output for thread in self.left for output in thread.outputs}
        failed = {output for thread in self.threads if thread.errors for output in thread.outputs}
        names = [handle.name for handle in self.handles.values()]
        draining = [name for name in names if self._resting.of([name]) is Rest.DRAINING]
        self._resting.stop([name for name in draining if name not in busy and name not in failed])

    def _report_rest(self) -> None:
        """Report each query that rests, once."""
        for plan in self._plans:
            rest = self._resting.of(_names(plan))
            event = None if rest is None else _EVENTS.get(rest)
            if event is None or rest is None or plan.name in self._threads or self._at_rest.get(plan.name) is rest:
                continue
            self._at_rest[plan.name] = rest
            self._published.expect([plan])
            self._say(event, query=plan.name, outputs=_names(plan))
            self._logger.info("query rests", query=plan.name, outputs=_names(plan), rest=rest.value)

    def _look_for_unfed(self) -> None:
        """Report outputs without a physical source to read; a relay elsewhere may get one later."""
        unfed, self.unfed = self.unfed_names, None
        if unfed and self._settings is not None:
            places = ", ".join(f"outputs.{output}" for output in unfed)
            self.unfed = UnknownSource(
                f"{places}: no source to read; the relay at {self._settings.relay()} has {', '.join(self._physicals)}. "
                "See to `tables` of the inputs, or have the relay capture what they name"
            )
            self._say("no_source", outputs=unfed, message=str(self.unfed))
            self._logger.warning("no source to read", outputs=unfed, message=str(self.unfed))


def _names(plan: QueryPlan) -> list[str]:
    return [feed.output.partition(".")[2] for feed in plan.feeds]


def _unfed_by(plans: Sequence[QueryPlan], handles: Mapping[str, OutputHandle]) -> list[str]:
    fed = {feed.output for plan in plans for feed in plan.feeds}
    return sorted(handle.name for path, handle in handles.items() if path not in fed)


def _outputs_of(graph: Graph) -> list[str]:
    return [node.path for node in graph.config.outputs.values()]


def _options(node: NodeSpec) -> Any:
    """An output's own options, without those that say what it is sent."""
    return node.plugin, node.config.model_copy(update={"from_": [], "lane": None})


def _handle(graph: Graph, path: str, clock: Clock) -> OutputHandle:
    name = graph.config.nodes[path].name
    return OutputHandle(name, graph.config.output_of(name), graph.config.state, clock)


class Hanging:
    """Outputs that do not answer. Used by one thread. say: reports each that stops answering, or answers again."""

    def __init__(self, queries: Queries, config: Callable[[], PipelineConfig], say: Say, clock: Clock) -> None:
        self._queries = queries
        self._config = config
        self._say = say
        self._hanging: set[str] = set()
        self._clock = clock
        self._reminders = Reminders(clock)
        self._logger: Any = logger_of("databus.pipeline").bind(pipeline=config().name)

    def look(self) -> None:
        """Report changes. A query with an end that waits for an output that hangs is given up."""
        limit_s = self._config().sections.run.write_ms_max / 1e3
        busy_s: dict[str, float] = {}
        for handle in self._queries.all_handles:
            busy_s[handle.name] = max(handle.busy_s, busy_s.get(handle.name, 0.0))
        overdue = self._queries.overdue_names
        for name, seconds in busy_s.items():
            hangs = seconds > limit_s or name in overdue
            if hangs and self._reminders.is_due(name, ""):
                self._logger.error("an output does not answer", output=name, seconds=round(seconds))
            if hangs and name not in self._hanging:
                self._hanging.add(name)
                self._say("hanging", output=name, since_us=self._clock.now_ns() // 1000 - round(seconds * 1e6))
            elif not hangs and name in self._hanging:
                self._hanging.discard(name)
                self._reminders.end(name)
                self._logger.info("an output answers again", output=name)
                self._say("answered", output=name)
        for thread in self._queries.left:
            if thread.once and self._hanging.intersection(thread.outputs):
                why = f"did not answer within run.write_ms_max={limit_s * 1e3:.0f}; what it was given comes again"
                self._queries.give_up(thread, f"{', '.join(thread.outputs)}: {why} at the next start")
