"""What each output of a running pipeline does, gathered from events. Pure; no I/O.

A query writes to one or more outputs, and an output may have several queries: it is as well as the worst of them.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nlargest
from itertools import accumulate
from typing import Any, Final


class OutputState(StrEnum):
    """The state of an output, the worst first."""

    FAILED = "failed"
    HANGING = "hanging"
    RETRYING = "retrying"
    PAUSED = "paused"
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


_REASONS_MAX: Final = 5
"""Refused tables whose reason a message has."""
_TABLES_MAX: Final = 1_000
"""Tables of an output that its status names."""
_COUNTED_MAX: Final = 100_000
"""Tables of an output whose rows are counted; those beyond are not in the status at all."""
VISIBLE_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""Bounds of the buckets in which batches are counted, by the time from a commit until the target has it."""
UNWELL: Final = frozenset({OutputState.FAILED, OutputState.HANGING, OutputState.RETRYING})
"""States in which an output has an error to show."""

_WORST_FIRST: Final = tuple(OutputState)
_TABLE_AFTER: Final = {"table_retry": OutputState.RETRYING, "table_failed": OutputState.FAILED}
_STATE_AFTER: Final = {
    "started": OutputState.RUNNING,
    "retry": OutputState.RETRYING,
    "failed": OutputState.FAILED,
    "ended": OutputState.ENDED,
    "paused": OutputState.PAUSED,
    "output_stopped": OutputState.STOPPED,
}


@dataclass
class _Query:
    """A query, or one of its tables in `behind`, which has a state of its own."""

    outputs: Sequence[str]
    tables: Sequence[str]
    """What the relay is asked for; none for all."""
    state: OutputState = OutputState.STARTING
    since_us: int = 0
    error: str = ""
    message: str = ""
    behind: dict[str, "_Query"] = field(default_factory=dict)
    """Tables that cannot be written now while the others continue, by name."""

    @property
    def worst(self) -> "_Query":
        """The query itself or one of its tables, whichever is in the worst state."""
        return min([self, *self.behind.values()], key=lambda state: _WORST_FIRST.index(state.state))

    def to_json(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "state": worst.state,
            "since_us": worst.since_us,
            "error": worst.error,
            "message": worst.message,
            "tables": list(self.tables),
        }


@dataclass
class _Flow:
    """What an output was sent since the pipeline started, as tasks counted it."""

    rows: int = 0
    bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """By the path of a filter."""
    ms: Counter[str] = field(default_factory=Counter)
    """By stage, over all tasks together."""

    def take(self, event: Mapping[str, Any]) -> None:
        """A batch is in the target. `counts` has only the tables whose rows were not all written as they came."""
        counts: Mapping[str, Mapping[str, Any]] = event["counts"]
        self.rows += sum(counts_of_table.get("in", 0) for counts_of_table in counts.values())
        self.rows += sum(rows for table, rows in event["rows"].items() if table not in counts)
        self.bytes += event.get("bytes", 0)
        for counts_of_table in counts.values():
            self.dropped.update(counts_of_table.get("dropped", {}))
        for stage, ms in event.get("spent_ms", {}).items():
            self.ms[stage] += round(ms)

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "bytes": self.bytes, "dropped": dict(self.dropped), "ms": dict(self.ms)}


@dataclass
class _Visible:
    """Batches, by the time from the newest commit in them until the target had it."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(VISIBLE_S) + 1))
    sum_s: float = 0.0

    def take(self, lag_ms: float) -> None:
        self.counts[bisect_left(VISIBLE_S, lag_ms / 1e3)] += 1
        self.sum_s += max(lag_ms / 1e3, 0.0)

    def to_json(self) -> dict[str, Any]:
        """As Prometheus counts: each bucket includes those below it."""
        names = [*(f"{bound:g}" for bound in VISIBLE_S), "+Inf"]
        buckets = dict(zip(names, accumulate(self.counts), strict=True))
        return {"buckets": buckets, "sum_s": round(self.sum_s, 3), "count": sum(self.counts)}


@dataclass
class _Output:
    rows: int = 0
    batches: int = 0
    retries: int = 0
    last_batch_us: int = 0
    journal_breaks: int = 0
    hangs_since_us: int = 0
    """When the call began that does not return; 0 while it answers."""
    tables: Counter[str] = field(default_factory=Counter)
    """Rows written, by full name of a table."""
    flow: _Flow | None = None
    """None until something was counted."""
    visible: _Visible = field(default_factory=_Visible)
    throttle: Mapping[str, int] = field(default_factory=dict)
    """The limits of `databus throttle`: `rows` and `bytes` of a micro-batch; empty without one."""
    refused: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """By query: full names of the tables that the target refuses, and why."""
    queries: dict[str, _Query] = field(default_factory=dict)

    @property
    def state(self) -> OutputState:
        states = [query.worst.state for query in self.queries.values()] or [OutputState.STARTING]
        if self.hangs_since_us:
            states.append(OutputState.HANGING)
        return min(states, key=_WORST_FIRST.index)

    def to_json(self) -> dict[str, Any]:
        state = self.state
        worst = [query.worst for query in self.queries.values() if query.worst.state is state]
        return {
            "state": state,
            "error": worst[0].error if worst else "",
            "message": worst[0].message if worst else "",
            "rows": self.rows,
            "batches": self.batches,
            "retries": self.retries,
            "last_batch_us": self.last_batch_us,
            "throttle": dict(self.throttle),
            "tables": sorted(nlargest(_TABLES_MAX, sorted(self.tables), key=self.tables.__getitem__)),
            "tables_more": max(len(self.tables) - _TABLES_MAX, 0),
            "flow": None if self.flow is None else self.flow.to_json(),
            "visible": self.visible.to_json(),
            "journal_breaks": self.journal_breaks,
            "refused": {table: why for refused in self.refused.values() for table, why in sorted(refused.items())},
            "queries": {name: query.to_json() for name, query in self.queries.items()},
        }


class RunProgress:
    """Takes events from any thread, and answers any other."""

    def __init__(self, outputs: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._outputs = {name: _Output() for name in outputs}
        self._queries: dict[str, _Query] = {}

    def expect(self, query: str, outputs: Sequence[str], tables: Sequence[str]) -> None:
        """A query is about to run. tables: what a relay is asked for; none for all."""
        with self._lock:
            self._queries[query] = state = _Query(outputs, tables)
            for name in outputs:
                output = self._outputs.setdefault(name, _Output())
                output.queries[query] = state
                output.refused.pop(query, None)

    def keep(self, outputs: Collection[str], queries: Collection[str]) -> None:
        """From now on there are only these outputs; of the queries so far only these continue."""
        with self._lock:
            self._queries = {name: query for name, query in self._queries.items() if name in queries}
            self._outputs = {name: self._outputs.get(name) or _Output() for name in outputs}
            for output in self._outputs.values():
                output.queries = {name: query for name, query in output.queries.items() if name in queries}
                output.refused = {name: tables for name, tables in output.refused.items() if name in queries}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event; those that are not about outputs are ignored."""
        with self._lock:
            match event["event"]:
                case "batch":
                    self._batch(event)
                case "hanging" | "answered" | "refused" | "advanced" | "throttled" | "journal_break":
                    for name in event.get("outputs") or [event["output"]]:
                        if name in self._outputs:  # not if a reload has removed it
                            self._of_output(self._outputs[name], event)
                case "table_retry" | "table_failed" | "table_well":
                    self._table(event)
                case kind if kind in _STATE_AFTER:
                    self._query(kind, event)

    def _batch(self, event: Mapping[str, Any]) -> None:
        output = self._outputs.get(event["output"])
        if output is None:  # a reload has removed it
            return
        output.batches += 1
        output.rows += event.get("rows") or 0
        output.last_batch_us = event["at_us"]
        for table, rows in event.get("tables", {}).items():
            name = f"{event['physical']}/{table}"
            if name in output.tables or len(output.tables) < _COUNTED_MAX:
                output.tables[name] += rows
        if event.get("lag_ms") is not None:
            output.visible.take(event["lag_ms"])
        query = self._queries.get(event["query"])
        if query is None:
            return
        if query.state not in (OutputState.RUNNING, OutputState.STARTING):
            # A batch ends a retry; it may also come from the query before a restart.
            query.state, query.since_us, query.error, query.message = OutputState.RUNNING, event["at_us"], "", ""

    @staticmethod
    def _of_output(output: _Output, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "hanging" | "answered":
                output.hangs_since_us = event["since_us"] if event["event"] == "hanging" else 0
            case "refused":
                output.refused[event["query"]] = event["tables"]
            case "throttled":
                output.throttle = event["throttle"]
            case "advanced" if event.get("counts") is not None:
                output.flow = output.flow or _Flow()
                output.flow.take(event)

    def _table(self, event: Mapping[str, Any]) -> None:
        query = self._queries.get(event["query"])
        if query is None:
            return
        query.behind.pop(event["table"], None)
        state = _TABLE_AFTER.get(event["event"])
        if state is not None:
            why = event["error"], event["message"]
            query.behind[event["table"]] = _Query(event["outputs"], [event["table"]], state, event["at_us"], *why)

    def _query(self, kind: str, event: Mapping[str, Any]) -> None:
        query = self._queries.get(event["query"])
        if query is None:
            return
        if kind == "retry":
            for name in query.outputs:
                self._outputs[name].retries += 1
        if kind == "started":
            query.behind.clear()  # a table that still cannot be written is reported again
        query.state, query.since_us = _STATE_AFTER[kind], event["at_us"]
        query.error, query.message = event.get("error", ""), event.get("message", "")

    def to_json(self) -> dict[str, Any]:
        """Each output by name."""
        with self._lock:
            return {name: output.to_json() for name, output in sorted(self._outputs.items())}


def unwell(status: Mapping[str, Any]) -> list[str]:
    """A line, with the reason, for each output that is not well or refuses tables, each source that the relay cannot
    capture, and a relay that does not answer.
    """
    outputs = [
        (name, output["state"], output["message"] or output["error"])
        for name, output in status["outputs"].items()
        if output["state"] in UNWELL
    ]
    outputs += [
        (name, "refuses tables", why_refused(output["refused"]))
        for name, output in status["outputs"].items()
        if output.get("refused")  # a status of an earlier version has none
    ]
    sources = [
        (f"source {name}", source["status"], source["message"])
        for name, source in status.get("sources", {}).items()  # a status of an earlier version has none
        if not source["is_well"]
    ]
    relay = [("relay", "does not answer", why)] if (why := status.get("relay_error")) else []
    problems = relay + sources + outputs
    return [f"{name}: {state}: {' '.join(str(why).split())}".rstrip(": ") for name, state, why in problems]


def why_refused(refused: Mapping[str, str]) -> str:
    """A message for the tables that an output refuses, by full name, each with its reason."""
    tables = sorted(refused)
    count = "1 table is" if len(tables) == 1 else f"{len(tables)} tables are"
    listed = "; ".join(refused[table] for table in tables[:_REASONS_MAX])
    more = f"; and {len(tables) - _REASONS_MAX} more" if len(tables) > _REASONS_MAX else ""
    return (
        f"{count} not written, while the others go on: {listed}{more}. What is accepted later comes whole, by a "
        f"snapshot, when the output starts again (`databus pause`, then `databus resume`)"
    )


def worst_backlogs(output: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The backlog of an output by physical source, over its queries: the largest lag, the sum of the rows, and whether
    the relay holds all of it; None where that is not known.
    """
    backlogs: dict[str, dict[str, Any]] = {}
    for backlog in output.get("backlog", ()):
        worst = backlogs.setdefault(backlog["physical"], {"lag_s": None, "rows": None, "held": None, "is_least": False})
        worst["is_least"] |= backlog["is_least"]
        if backlog["rows"] is not None:
            worst["rows"] = (worst["rows"] or 0) + backlog["rows"]
        if backlog["lag_s"] is not None:
            worst["lag_s"] = max(worst["lag_s"] or 0.0, backlog["lag_s"])
        if backlog["held"] is not None:
            worst["held"] = backlog["held"] and worst["held"] is not False
    return backlogs
