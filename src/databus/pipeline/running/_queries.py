"""The queries of a run: those that are wanted run, the others rest. Start with `Queries.look`.

What is wanted follows from the graph, the physical sources and what rests. `look` compares it with what runs, stops
what is not wanted between two batches, and starts what is missing, once nothing that it would meet in a target is left.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from databus.core import Clock, DatabusError, InputError, ServiceUnavailable, SystemClock, UnknownSource
from databus.operate import logger_of
from databus.pipeline.engine import Brought, OutputHandle, QueryPlan, QueryThread, RunSettings, plan_queries, way_of
from databus.pipeline.graph import Graph, Kind, NodeSpec, PipelineConfig
from databus.pipeline.running._published import Published
from databus.pipeline.running._reload_changes import Changes, changes
from databus.pipeline.telling import Reminders, Rest, Resting, Throttle, in_background, why_refused

Say = Callable[..., None]
_CUT_S_MAX: Final = 10.0
"""How long a query may take to end once its batch was cut off."""
_EVENTS: Final = {Rest.PAUSED: "paused", Rest.STOPPED: "output_stopped", Rest.REBUILDING: "paused"}


@dataclass(frozen=True)
class _Wanted:
    """A query that is to run."""

    plan: QueryPlan
    once: bool
    """Up to the relay's present end only."""
    throttle: Throttle | None

    @property
    def outputs(self) -> list[str]:
        return _names(self.plan)


@dataclass(eq=False)
class _Leaving:
    """An output as it was before a reload, until its queries have ended and it is closed."""

    handle: OutputHandle
    is_moved: bool
    """None has its options now, so that what it writes to may be what another is to write to."""
    cut_at_s: float
    """When the batch that is being written is cut off."""
    is_cut: bool = False
    is_closing: bool = False
    is_closed: bool = False

    def is_overdue(self, now_s: float) -> bool:
        """Whether it does not end although it was cut off."""
        return now_s > self.cut_at_s + _CUT_S_MAX and not self.is_closed


class Queries:
    """Used by one thread, which `on_end` tells of each query that has ended, for `ended` to be called.

    unfed: outputs that no query writes to, as an error; None where there are none. on_closed: is told, by any thread,
    that `look` has something to do.
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
        self._throttled: dict[str, Throttle] = {}  # by query, as was said
        self._leaving: list[_Leaving] = []
        self._waits: dict[str, list[_Leaving]] = {}  # by name of an output: what has to be closed before it starts
        self._logger = logger_of("databus.pipeline").bind(pipeline=graph.config.name)
        self.unfed: UnknownSource | None = None
        self.handles = {path: _handle(graph, path, self._clock) for path in _outputs_of(graph)}

    @property
    def threads(self) -> list[QueryThread]:
        """Those that run, and those that have ended by themselves."""
        return [*self._threads.values()]

    @property
    def all_handles(self) -> list[OutputHandle]:
        """Those of now, and those that a reload has left behind and that are not closed yet."""
        return [*self.handles.values(), *(each.handle for each in self._leaving)]

    @property
    def is_changing(self) -> bool:
        """Whether something that a reload has left behind is not closed yet."""
        return bool(self._leaving)

    @property
    def overdue_names(self) -> set[str]:
        """Outputs that a reload is to change, and whose batch does not even end when it is cut off."""
        return {each.handle.name for each in self._leaving if each.is_overdue(self._clock.monotonic_s())}

    @property
    def left(self) -> list[QueryThread]:
        """Those that have not ended, and are not given up."""
        return [each for each in self.threads if each not in self._ended and each not in self._given_up]

    @property
    def rests(self) -> bool:
        """Whether an output waits for somebody to resume it."""
        return bool(self._at_rest)

    @property
    def is_drained(self) -> bool:
        """Whether all that is wanted has been started, and has ended."""
        return self._settings is not None and not self.left and all(map(self._has, self._wanted().values()))

    def begin(self, settings: RunSettings, physicals: Sequence[str]) -> None:
        """From now on queries can run over these physical sources."""
        self._settings = settings
        self.found(physicals)

    def found(self, physicals: Sequence[str]) -> None:
        """There are these physical sources."""
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

    def change(self, graph: Graph) -> Changes:
        """Go over to another graph, without waiting for what has to end first; what has not changed goes on untouched.

        Raises `ServiceUnavailable` before `begin`, and changes nothing then.
        """
        if self._settings is None:
            raise ServiceUnavailable("the pipeline is starting; ask again when `databus status` shows its outputs")
        plans = plan_queries(graph, self._physicals)
        found = changes(self._graph, self._plans, graph, plans)
        new_paths = [f"outputs.{name}" for name in (*found.changed, *found.added)]
        made = {path: _handle(graph, path, self._clock) for path in new_paths}
        self._leave(found, graph)
        self._graph, self._plans = graph, plans
        self._settings = replace(self._settings, config=graph.config, graph=graph)
        self.handles = {path: made.get(path) or self.handles[path] for path in _outputs_of(graph)}
        for path in made:
            self._bring(path)
        new = [plan for plan in plans if any(feed.output in made for feed in plan.feeds)]
        kept = {plan.name for plan in plans if plan not in new}
        self._at_rest = {name: rest for name, rest in self._at_rest.items() if name in kept}
        self._published.change(graph.config, plans, new)
        self._say("reloaded", **found.to_json())
        self._look_for_unfed()
        self.look()
        return found

    def _leave(self, found: Changes, graph: Graph) -> None:
        """Have what has changed or is gone closed once its queries have ended, and what is new wait for it."""
        cut_at_s = self._clock.monotonic_s() + graph.config.sections.run.stop_batch_ms_max / 1e3
        old, new = self._graph.config.nodes, graph.config.nodes
        moved = [name for name in found.changed if _options(old[f"outputs.{name}"]) != _options(new[f"outputs.{name}"])]
        for name in (*found.changed, *found.removed):
            handle = self.handles[f"outputs.{name}"]
            self._leaving.append(_Leaving(handle, name in moved or name in found.removed, cut_at_s))
        for name in (*found.changed, *found.added):
            is_elsewhere = name in moved or name in found.added
            plugin = new[f"outputs.{name}"].plugin
            self._waits[name] = [
                each
                for each in self._leaving
                if each.handle.name == name
                or (is_elsewhere and each.is_moved and isinstance(each.handle.output, plugin))
            ]

    def look(self) -> None:
        """Have run what is wanted, and rest what is not; never blocks."""
        if self._settings is None:
            return
        wanted = self._wanted()
        for name, thread in self._threads.items():
            if thread not in self._ended and not self._is(thread, wanted.get(name)):
                thread.rest()
        self._see_off()
        self._forget(wanted)
        busy = {output for each in self.threads if each.is_resting for output in each.outputs}
        busy.update(self._waits)
        new = [each for each in wanted.values() if not self._has(each) and not busy.intersection(each.outputs)]
        if new:
            self._start(self._settings, new)
        self._tell_rest()

    def _see_off(self) -> None:
        """Close what a reload has left behind as soon as nothing writes to it; cut off what takes too long."""
        self._leaving = [each for each in self._leaving if not each.is_closed]
        self._waits = {name: left for name, each in self._waits.items() if (left := _open(each))}
        for each in self._leaving:
            mine = [thread for thread in self.threads if thread.writes_by(each.handle)]
            if not each.is_closing and not any(thread not in self._ended or thread.is_writing for thread in mine):
                each.is_closing = True
                in_background(f"close {each.handle.name}", partial(self._close, each))
            elif not each.is_cut and self._clock.monotonic_s() > each.cut_at_s:
                each.is_cut = True
                self._logger.warning("a batch is cut off; it comes again", output=each.handle.name)
                for thread in mine:
                    in_background(f"stop {thread.plan.name}", thread.stop)

    def _close(self, leaving: _Leaving) -> None:
        with suppress(DatabusError):  # its query has told of it already
            leaving.handle.close()
        leaving.is_closed = True
        self._on_closed()

    def ended(self, thread: QueryThread) -> None:
        """A query has ended; by itself, or as `look` had it."""
        self._ended.add(thread)
        if thread.error is None and not thread.is_resting:
            self._say("ended", query=thread.plan.name, outputs=thread.outputs)
            self._stop_what_is_drained()
        self.look()

    def retry(self, outputs: Collection[str]) -> None:
        """Forget what has failed that writes to these outputs, so that it is started again."""
        for thread in self.left:
            if set(thread.outputs).intersection(outputs):
                thread.try_tables_again()
        self._threads = {
            name: each
            for name, each in self._threads.items()
            if each.error is None or each not in self._ended or not set(each.outputs).intersection(outputs)
        }
        self.look()

    def idle(self, output: str) -> OutputHandle | None:
        """By which an output is written, if nothing writes by it, nor is about to. Raises `InputError` for one that is
        gone.
        """
        handle = self.handles.get(f"outputs.{output}")
        if handle is None:
            raise InputError(f"outputs.{output}: is not in the file any more")
        mine = [each for each in self.threads if each.writes_by(handle)]
        is_busy = output in self._waits or any(each not in self._ended or each.is_writing for each in mine)
        return None if is_busy else handle

    @property
    def refused(self) -> list[str]:
        """A line for each output and query with tables that the output refuses."""
        found = [(handle.name, each) for handle in self.handles.values() for each in handle.refused.values() if each]
        return [f"{name}: {why_refused(each)}" for name, each in found]

    def remind(self) -> None:
        """Have the log say again, now and again, what has failed."""
        for each in self.threads:
            each.remind()

    def give_up(self, thread: QueryThread, why: str) -> None:
        """Have a query failed that does not end."""
        self._given_up.add(thread)
        thread.give_up(why)

    def unfed_by(self, physicals: Sequence[str]) -> list[str]:
        """The outputs that no query over these physical sources writes to."""
        return _unfed_by(plan_queries(self._graph, physicals), self.handles)

    @property
    def unfed_names(self) -> list[str]:
        """The outputs that no query writes to."""
        return _unfed_by(self._plans, self.handles)

    def _wanted(self) -> dict[str, _Wanted]:
        assert self._settings is not None  # noqa: S101 - the caller looked
        found = {}
        for plan in self._plans:
            rest = self._resting.of(_names(plan))
            if rest in (None, Rest.DRAINING):
                throttle = self._resting.throttle_of(_names(plan))
                found[plan.name] = _Wanted(plan, self._settings.once or rest is Rest.DRAINING, throttle)
        return found

    def _has(self, wanted: _Wanted) -> bool:
        thread = self._threads.get(wanted.plan.name)
        return thread is not None and self._is(thread, wanted)

    def _is(self, thread: QueryThread, wanted: _Wanted | None) -> bool:
        """Whether a query is the one that is wanted."""
        if wanted is None or thread.is_resting or thread.plan != wanted.plan:
            return False
        if (thread.once, thread.throttle) != (wanted.once, wanted.throttle):
            return False
        return all(thread.writes_by(self.handles[feed.output]) for feed in wanted.plan.feeds)

    def _forget(self, wanted: Mapping[str, _Wanted]) -> None:
        """Forget what has ended and is not what is wanted under its name."""
        ended = [(name, each) for name, each in self._threads.items() if each in self._ended and not each.is_writing]
        gone = [name for name, each in ended if not self._is(each, wanted.get(name))]
        for name in gone:
            self._ended.discard(self._threads.pop(name))

    def _start(self, settings: RunSettings, wanted: Sequence[_Wanted]) -> None:
        self._published.expect([each.plan for each in wanted])
        for each in wanted:
            feeds = [(feed, self.handles[feed.output]) for feed in each.plan.feeds]
            thread = QueryThread(replace(settings, once=each.once), each.plan, feeds, self._on_end, each.throttle)
            self._tell_throttle(each)
            self._threads[each.plan.name] = thread
            self._at_rest.pop(each.plan.name, None)
            thread.start()
        self._say("running", queries=[each.plan.name for each in wanted])

    def _tell_throttle(self, wanted: _Wanted) -> None:
        """Say that a query is throttled otherwise than before."""
        name, throttle = wanted.plan.name, wanted.throttle
        if self._throttled.get(name) == throttle:
            return
        if throttle is None:
            del self._throttled[name]
        else:
            self._throttled[name] = throttle
        most = {} if throttle is None else throttle.to_json()
        listed = " and ".join(f"{count} {unit}" for unit, count in most.items())
        message = f"a batch has {listed} at most, until it is resumed" if most else "as the file says"
        self._say("throttled", query=name, outputs=wanted.outputs, throttle=most, message=message)

    def _stop_what_is_drained(self) -> None:
        """What was to go on up to the relay's end, and has come there, rests."""
        busy = {output for each in self.left for output in each.outputs}
        failed = {output for each in self.threads if each.errors for output in each.outputs}
        draining = [each for each in _names_of(self.handles) if self._resting.of([each]) is Rest.DRAINING]
        self._resting.stop([each for each in draining if each not in busy and each not in failed])

    def _tell_rest(self) -> None:
        """Say, once each, which queries rest."""
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
        """Say which outputs read no physical source that there is; a relay elsewhere may get one later."""
        unfed, self.unfed = self.unfed_names, None
        if unfed and self._settings is not None:
            places = ", ".join(f"outputs.{each}" for each in unfed)
            self.unfed = UnknownSource(
                f"{places}: no source to read; the relay at {self._settings.relay()} has {', '.join(self._physicals)}. "
                "See to `tables` of the inputs, or have the relay capture what they name"
            )
            self._say("no_source", outputs=unfed, message=str(self.unfed))
            self._logger.warning("no source to read", outputs=unfed, message=str(self.unfed))


def _open(leaving: Sequence[_Leaving]) -> list[_Leaving]:
    return [each for each in leaving if not each.is_closed]


def _names(plan: QueryPlan) -> list[str]:
    return [feed.output.partition(".")[2] for feed in plan.feeds]


def _names_of(handles: Mapping[str, OutputHandle]) -> list[str]:
    return [each.name for each in handles.values()]


def _unfed_by(plans: Sequence[QueryPlan], handles: Mapping[str, OutputHandle]) -> list[str]:
    fed = {feed.output for plan in plans for feed in plan.feeds}
    return sorted(handle.name for path, handle in handles.items() if path not in fed)


def _outputs_of(graph: Graph) -> list[str]:
    return [path for path, node in graph.config.nodes.items() if node.kind is Kind.OUTPUT]


def _options(node: NodeSpec) -> Any:
    """What an output is by itself, whatever comes to it."""
    return node.plugin, node.config.model_copy(update={"from_": [], "lane": None})


def _handle(graph: Graph, path: str, clock: Clock) -> OutputHandle:
    node: Any = graph.config.nodes[path]
    output = node.plugin(node.config, graph.config.context_of(node.name))
    return OutputHandle(node.name, output, graph.config.state, clock)


class Hanging:
    """Used by one thread. say: is told of each output that does not answer any longer, or again."""

    def __init__(self, queries: Queries, config: Callable[[], PipelineConfig], say: Callable[..., None]) -> None:
        self._queries = queries
        self._config = config
        self._say = say
        self._hanging: set[str] = set()
        self._reminders = Reminders()
        self._logger: Any = logger_of("databus.pipeline").bind(pipeline=config().name)

    def look(self) -> None:
        """Say which outputs do not answer any longer, or again; queries that were to end by themselves are given up."""
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
                self._say("hanging", output=name, since_us=time.time_ns() // 1000 - round(seconds * 1e6))
            elif not hangs and name in self._hanging:
                self._hanging.discard(name)
                self._reminders.end(name)
                self._logger.info("an output answers again", output=name)
                self._say("answered", output=name)
        for each in self._queries.left:
            if each.once and self._hanging.intersection(each.outputs):
                why = f"did not answer within run.write_ms_max={limit_s * 1e3:.0f}; what it was given comes again"
                self._queries.give_up(each, f"{', '.join(each.outputs)}: {why} at the next start")
