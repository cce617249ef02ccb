"""Tables that outputs of a query refuse, such as one without a key under a mirror; the others are still copied.

Checking every table costs requests. So a query checks after it has failed, and from then on at each start, also in
later runs: the ledger shows that tables were excluded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from databus.core import Clock, DatabusError, FatalError, InputError, SystemClock
from databus.operate import logger_of
from databus.pipeline.engine._handle import OutputHandle, Refused
from databus.pipeline.engine._plan import OutputFeed, QueryPlan
from databus.pipeline.engine._query_filters import Filters, into_output
from databus.pipeline.graph import Graph
from databus.pipeline.telling import Reminders, why_refused
from databus.plugins import RunContext
from databus.schema import TableSchema


class TableRefusals:
    """Of one query. report: takes an event with the tables that an output refuses, at each start of the query."""

    def __init__(
        self,
        plan: QueryPlan,
        feeds: Sequence[tuple[OutputFeed, OutputHandle]],
        report: Callable[[Mapping[str, Any]], None],
        clock: Clock | None = None,
    ) -> None:
        self._plan = plan
        self._feeds = feeds
        self._report = report
        self._has_more = False
        self._past: dict[str, Refused] = {}  # by output: tables refused for a past definition
        self._clock = clock or SystemClock()
        self._reminders = Reminders(self._clock)
        self._logger = logger_of("databus.pipeline").bind(query=plan.name)

    @property
    def accepted(self) -> Sequence[tuple[OutputFeed, OutputHandle]]:
        """The feeds without the tables that their outputs refuse."""
        return [(feed.without(self._of(handle)), handle) for feed, handle in self._feeds]

    def _of(self, handle: OutputHandle) -> Refused:
        return handle.refused.get(self._plan.physical or "", {})

    def look(self, filters: Filters, graph: Graph, context: RunContext) -> None:
        """Find the refused tables, before the query begins. Raises `ServiceUnavailable` while the relay does not know
        its tables.
        """
        for feed, handle in self._feeds:
            position, before = handle.known(self._plan.physical or ""), self._of(handle)
            is_narrower = position is not None and position.tables != feed.choice
            if not (before or is_narrower or self._has_more):
                continue
            refused = self._now(feed, handle, filters, graph, context)
            handle.refuse(self._plan.physical or "", refused)
            if refused or before:
                event = {"event": "refused", "query": self._plan.name, "output": handle.name, "tables": refused}
                message = why_refused(refused) if refused else "no table is refused any longer"
                at_us = self._clock.now_ns() // 1000
                self._report({**event, "outputs": [handle.name], "message": message, "at_us": at_us})
        self.log()

    def log(self) -> None:
        """Log the refused tables: at once, from time to time, and when there are none any more."""
        for _, handle in self._feeds:
            refused = self._of(handle)
            if not refused:
                if self._reminders.end(handle.name):
                    self._logger.info("no table is refused any longer", output=handle.name)
            elif self._reminders.is_due(handle.name, str(sorted(refused))):
                self._logger.warning("tables are refused", output=handle.name, message=why_refused(refused))

    def explain(self, error: DatabusError, filters: Filters, graph: Graph, context: RunContext) -> bool:
        """Whether the query failed because outputs refuse further tables, by their present or a past definition. It can
        continue without them: the next `look` finds them too.
        """
        if not isinstance(error, InputError | FatalError):
            return False
        try:
            self._has_more = any(
                self._now(feed, handle, filters, graph, context).keys() - self._of(handle)
                or self._note_past(str(error), feed, handle, filters, graph, context)
                for feed, handle in self._feeds
            )
        except DatabusError:  # the query's own error is reported
            return False
        return self._has_more

    def _now(
        self, feed: OutputFeed, handle: OutputHandle, filters: Filters, graph: Graph, context: RunContext
    ) -> Refused:
        """The tables that an output refuses, by their present definition, or a past one that it has met."""
        if self._plan.physical is None:
            return {}
        physical, tables, refused = self._plan.physical, dict[str, TableSchema](), dict[str, str]()
        for path in self._plan.inputs:
            origin = graph.inputs[path]
            origin.log_of(context, physical)  # raises while the source is starting and names no table
            tables_here = {
                name: table for name, table in origin.tables_now(context, physical).items() if _is_by(feed, path, name)
            }
            refused |= {
                name: why for name, table in tables_here.items() if (why := _why(feed, handle, filters, name, table))
            }
            tables |= tables_here
        past = {name: why for name, why in self._past.get(handle.name, {}).items() if name in tables}
        return {**past, **refused}

    def _note_past(
        self, message: str, feed: OutputFeed, handle: OutputHandle, filters: Filters, graph: Graph, context: RunContext
    ) -> bool:
        """Find tables that are accepted now, but refused by a past definition of which the log still has rows: they
        join at the query's next start, after those rows. Returns whether `message` is about one of them.
        """
        if self._plan.physical is None:
            return False
        reasons: dict[str, str] = {}
        for path in self._plan.inputs:
            origin = graph.inputs[path]
            for name in origin.tables_now(context, self._plan.physical).keys() - self._of(handle).keys():
                for table in origin.past_definitions(context, name) if _is_by(feed, path, name) else ():
                    reasons[name] = _why(feed, handle, filters, name, table) or reasons.get(name, "")
        reasons = {name: why for name, why in reasons.items() if why}
        if not any(why in message for why in reasons.values()):
            return False
        earlier = {
            name: f"{why}. That was its definition when rows came that are still to be read"
            for name, why in reasons.items()
        }
        self._past[handle.name] = {**self._past.get(handle.name, {}), **earlier}
        return True


def _is_by(feed: OutputFeed, path: str, name: str) -> bool:
    """Whether a table comes from this input, as a whole table."""
    way = feed.way(name)
    return way is not None and way.input == path and not way.is_typed


def _why(feed: OutputFeed, handle: OutputHandle, filters: Filters, name: str, table: TableSchema) -> str:
    """Why an output refuses a table of this definition; empty if it does not."""
    way = feed.way(name)
    if way is None:
        return ""
    result = into_output(table, filters.get(way.filters), handle.output.config)
    try:
        handle.check_table(result)
    except (InputError, FatalError) as error:
        return str(error)
    return ""
