"""All parts together, as a principal sees them: states, lags and rates, and the graph.

A principal sees what belongs to their projects. Everything here is a function of what the watches have seen. Outputs
and sources are flat lists, since pages, alerts and programs look for one among all of them.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from databus.core import UnknownSource
from databus.dashboard._error_texts import seen_by
from databus.dashboard._flow_rates import dropped_by, edge_rates, filter_rates
from databus.dashboard._history import History
from databus.dashboard._numbers import Numbers
from databus.dashboard._parts import Part, PipelinePart
from databus.dashboard._rights import Principal
from databus.dashboard._watch import Watch
from databus.operate import hide_in_text

_ITEMS_MAX: Final = 100
"""Of any list or object in a status, since all of it goes to each tab once a second."""
_PIPELINE: Final = ("state", "doing", "pid", "started_us", "ended_us", "code", "failure", "relay_error", "reload")
_OUTPUT: Final = (
    "state",
    "error",
    "message",
    "rows",
    "batches",
    "retries",
    "last_batch_us",
    "refused",
    "throttle",
    "visible",
)
_SOURCE: Final = (
    *(
        "status",
        "error",
        "message",
        "remedy",
        "type",
        "sinceMs",
        "SCN",
        "lagMs",
        "lagChanges",
        "lagBytes",
        "rows",
        "bytes",
    ),
    *(
        "retentionLeftMs",
        "snapshots",
        "snapshotProgress",
        "snapshotRows",
        "diskFree",
        "missingTables",
        "restarts",
        "pausePending",
    ),
)


class Board:
    """The watches of all parts, by name, and what follows from what they saw. Safe in any thread."""

    def __init__(self, parts: Sequence[tuple[str, Part]], history: History) -> None:
        self.numbers = Numbers(history)
        self.watches: dict[str, Watch] = {}
        for name, part in parts:
            # Two files may have the same name: the later ones get a number, `shop-2`.
            chosen, number = name, 1
            while chosen in self.watches:
                number += 1
                chosen = f"{name}-{number}"
            self.watches[chosen] = Watch(chosen, part, self._note)

    def pipeline(self, name: str, principal: Principal) -> tuple[Watch, PipelinePart]:
        """A pipeline that a principal sees. Raises `UnknownSource`, in the same words for one of another project."""
        watch = self.watches.get(name)
        if watch is None or not isinstance(watch.part, PipelinePart) or not principal.sees(watch.project):
            raise UnknownSource(f"no pipeline {name[:100]!r} here")
        return watch, watch.part

    def output(self, name: str, output: str, principal: Principal) -> tuple[Watch, PipelinePart]:
        """The pipeline of an output that a principal sees."""
        watch, part = self.pipeline(name, principal)
        if output not in watch.seen.status.get("outputs", {}):
            raise UnknownSource(f"pipeline {name!r} has no output {output[:100]!r}")
        return watch, part

    def source(self, name: str, source: str, principal: Principal) -> tuple[str | None, Watch]:
        """The project of a source that a principal sees, and the watch of the part whose relay captures it."""
        watch = self.watches.get(name)
        status = None if watch is None else watch.seen.status.get("sources", {}).get(source)
        project = None if watch is None or status is None else status.get("project") or watch.project
        if watch is None or status is None or not principal.sees(project):
            raise UnknownSource(f"no source {source[:100]!r} of {name[:100]!r} here")
        return project, watch

    def pipelines(self, principal: Principal) -> Iterator[tuple[Watch, PipelinePart]]:
        """The pipelines that a principal sees."""
        for watch in self.watches.values():
            if isinstance(watch.part, PipelinePart) and principal.sees(watch.project):
                yield watch, watch.part

    def status(self, principal: Principal) -> dict[str, Any]:
        """Everything that a principal sees, now."""
        graph = self.graph(principal)
        return {
            "at_us": time.time_ns() // 1000,
            "graph": hashlib.blake2b(json.dumps(graph).encode(), digest_size=8).hexdigest(),
            "parts": [
                self._part(watch, principal)
                for watch in self.watches.values()
                if principal.sees(watch.project)
                or (watch.part.kind == "relay" and any(self._sources(watch, principal)))
            ],
            "outputs": [output for watch, _ in self.pipelines(principal) for output in self._outputs(watch, principal)],
            "sources": [source for watch in self.watches.values() for source in self._sources(watch, principal)],
            "filters": [
                rates
                for watch, _ in self.pipelines(principal)
                for rates in filter_rates(watch.seen.status.get("outputs", {}), watch.name, self.numbers.of)
            ],
            "edges": [
                rates
                for watch, _ in self.pipelines(principal)
                for rates in edge_rates(
                    watch.seen.graph, watch.seen.status.get("outputs", {}), watch.name, self.numbers.of
                )
            ],
        }

    @staticmethod
    def _part(watch: Watch, principal: Principal) -> dict[str, Any]:
        seen = watch.seen
        shown = _seen_by(principal, seen.status, _PIPELINE)
        if watch.part.kind == "relay":
            # A relay has no state of its own, only its sources have.
            shown = {"state": "running" if not watch.unseen else "stopped"}
        about = {
            "name": watch.name,
            "kind": watch.part.kind,
            "where": hide_in_text(watch.part.where),
            "project": watch.project,
        }
        return {**about, **shown, "seen_us": seen.at_us, "unseen": watch.unseen_for(principal)}

    def _outputs(self, watch: Watch, principal: Principal) -> Iterator[dict[str, Any]]:
        seen = watch.seen
        is_over = seen.status.get("state") in ("stopped", "ended")
        for name, output in seen.status.get("outputs", {}).items():
            node = f"{watch.name}/outputs.{name}"
            shown = _seen_by(principal, output, _OUTPUT)
            shown["refused"] = shown["refused"] or {}
            # When the pipeline no longer runs, no output does, whatever it last said of them.
            if is_over and shown["state"] in ("running", "starting"):
                shown["state"] = seen.status["state"]
            yield {
                "node": node,
                "pipeline": watch.name,
                "output": name,
                **shown,
                **lag_of(seen.backlog.get(name, {})),
                "lag_us": seen.backlog_us,
                **self.numbers.of(node),
                "seen_us": seen.at_us,
            }

    def _sources(self, watch: Watch, principal: Principal) -> Iterator[dict[str, Any]]:
        owners = self._owners(watch)
        for name, source in watch.seen.status.get("sources", {}).items():
            if not principal.sees(source.get("project") or watch.project):
                continue
            if any(
                name in owner.seen.status.get("sources", {}) and self._sees_source(owner, name, principal)
                for owner in owners
            ):
                continue  # it is shown once, as that of its relay
            node = f"{watch.name}/sources.{name}"
            about = {"node": node, "relay": watch.name, "source": name, "seen_us": watch.seen.at_us}
            shown = _seen_by(principal, source, _SOURCE)
            yield {**about, **shown, **self.numbers.of(node)}

    @staticmethod
    def _sees_source(watch: Watch, name: str, principal: Principal) -> bool:
        """Whether a principal sees this source of a part; it may be of another project than a pipeline that has it."""
        source = watch.seen.status.get("sources", {}).get(name, {})
        return principal.sees(source.get("project") or watch.project)

    def _owners(self, watch: Watch) -> list[Watch]:
        """The relays among the parts that a pipeline reads."""
        relay = watch.seen.status.get("relay")
        if relay is None or watch.part.kind == "relay":
            return []
        return [
            other
            for other in self.watches.values()
            if other.part.kind == "relay" and other.seen.status.get("relay") == relay
        ]

    def graph(self, principal: Principal) -> dict[str, Any]:
        """Nodes and edges of everything that a principal sees; nodes by `shop/outputs.copy`."""
        nodes, edges = {}, []
        for watch in self.watches.values():
            for source in self._sources(watch, principal):
                nodes[source["node"]] = {
                    "id": source["node"],
                    "part": watch.name,
                    "kind": "source",
                    "name": source["source"],
                    "type": source["type"],
                }
        for watch, _ in self.pipelines(principal):
            graph = watch.seen.graph
            mine = {
                node["id"]: {**node, "id": f"{watch.name}/{node['id']}", "part": watch.name}
                for node in graph.get("nodes", ())
                if node["kind"] != "source" or self._sees_source(watch, node["name"], principal)
            }
            nodes |= {node["id"]: node for node in mine.values() if node["id"] not in nodes}
            edges += [
                {**edge, "from": f"{watch.name}/{edge['from']}", "to": f"{watch.name}/{edge['to']}"}
                for edge in graph.get("edges", ())
            ]
            edges += self._from_elsewhere(watch, mine.values(), nodes)
        # An edge to a node that this principal does not see would tell that there is one.
        visible = [edge for edge in edges if edge["from"] in nodes and edge["to"] in nodes]
        return {"nodes": list(nodes.values()), "edges": visible}

    def _from_elsewhere(self, watch: Watch, mine: Any, nodes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Edges to the inputs of a pipeline from the sources of a relay that another part owns."""
        if any(node["kind"] == "source" for node in mine):
            return
        for name in watch.seen.status.get("sources", {}):
            candidates = [f"{owner.name}/sources.{name}" for owner in (*self._owners(watch), watch)]
            start = next((candidate for candidate in candidates if candidate in nodes), None)
            for node in mine:
                if start is not None and node["kind"] == "input":
                    yield {"from": start, "to": node["id"], "label": "log"}

    def _note(self, watch: Watch) -> None:
        """Note the numbers that a look has brought."""
        seen = watch.seen
        if seen.error:
            return
        for name, output in seen.status.get("outputs", {}).items():
            lag = lag_of(seen.backlog.get(name, {}))
            gauges = {"lag_s": lag["lag_s"], "lag_rows": lag["lag_rows"]}
            node, flow = f"{watch.name}/outputs.{name}", output.get("flow") or {}  # an earlier version has none
            counters = {"rows_s": output.get("rows"), "in_rows_s": flow.get("rows"), "in_bytes_s": flow.get("bytes")}
            self.numbers.note(node, seen.at_us, counters, gauges)
            for path, rows in flow.get("dropped", {}).items():
                self.numbers.note(dropped_by(node, path), seen.at_us, {"dropped_s": rows}, {})
        for name, source in seen.status.get("sources", {}).items():
            lag_ms = source.get("lagMs")
            counters = {"rows_s": source.get("rows"), "bytes_s": source.get("bytes")}
            gauges = {"lag_s": None if lag_ms is None else lag_ms / 1e3}
            self.numbers.note(f"{watch.name}/sources.{name}", seen.at_us, counters, gauges)


def _seen_by(principal: Principal, status: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    shown: dict[str, Any] = seen_by(principal, {field: _first(status.get(field)) for field in fields})
    return shown


def _first(value: Any) -> Any:
    """A value with its lists and objects cut to `_ITEMS_MAX`."""
    if isinstance(value, dict):
        return {name: _first(inner) for name, inner in islice(value.items(), _ITEMS_MAX)}
    return [_first(inner) for inner in value[:_ITEMS_MAX]] if isinstance(value, list) else value


def lag_of(measured: Mapping[str, Any]) -> dict[str, Any]:
    """From an output's backlogs by physical source: the worst lag, the sum of rows, whether the relay still holds all;
    None where unknown. With `_is_least` there may be more: the count was cut short, or one source's is unknown.
    """
    backlogs = list(measured.get("backlog", {}).values())
    lags = [backlog["lag_s"] for backlog in backlogs if backlog["lag_s"] is not None]
    rows = [backlog["rows"] for backlog in backlogs if backlog["rows"] is not None]
    held = [backlog["held"] for backlog in backlogs if backlog["held"] is not None]
    return {
        "lag_s": max(lags, default=None),
        "lag_is_least": bool(lags) and len(lags) < len(backlogs),
        "lag_rows": sum(rows) if rows else None,
        "lag_rows_is_least": any(backlog["is_least"] or backlog["rows"] is None for backlog in backlogs),
        "held": all(held) if held else None,
        "dead_letters": measured.get("dead_letters"),
    }
