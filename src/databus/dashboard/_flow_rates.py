"""How much goes over each edge of a pipeline's graph, from what its outputs count. Pure.

An output counts the rows that came to it in all, and those that each filter before it dropped. So the rows of an edge
are known while a single path leads from it to the output, or from the input to it; where paths part and meet they are
unknown, and the edge has no rate. Outputs read independently of each other: an edge that leads to several shows the
fastest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

Rates = Mapping[str, float | None]
"""By name, such as `in_rows_s`; the mean of five minutes has `_5m` behind its name."""

SPANS: Final = ("", "_5m")
_AND: Final = " + "
"""Joins the paths of filters of typed rows that follow each other, which count together what they drop."""
_Rows = Mapping[str, float | None]
"""By span."""


def dropped_by(output: str, path: str) -> str:
    """The node of the counter of rows that a filter drops before an output."""
    return f"{output} {path}"


def edge_rates(
    graph: Mapping[str, Any], outputs: Mapping[str, Mapping[str, Any]], part: str, rates_of: Callable[[str], Rates]
) -> list[dict[str, Any]]:
    """The edges of which something is known; nodes as in the graph of all parts. part: the pipeline's name. outputs: as
    its status has them.
    """
    into: dict[str, list[str]] = {}
    for edge in graph.get("edges", ()):
        if not edge["from"].startswith("sources."):  # the source's own node has its rates
            into.setdefault(edge["to"], []).append(edge["from"])
    edges: dict[tuple[str, str], dict[str, Any]] = {}
    for node in graph.get("nodes", ()):
        if node["kind"] != "output":
            continue
        way = _WayTo(node["id"], into, _drops(node, outputs, part, rates_of))
        for start, end, rates in way.rates(rates_of(f"{part}/{node['id']}")):
            known = edges.setdefault((start, end), {"from": f"{part}/{start}", "to": f"{part}/{end}"})
            for name, value in rates.items():
                known[name] = max(known.get(name) or 0.0, value)
    return list(edges.values())


def _drops(
    node: Mapping[str, Any], outputs: Mapping[str, Mapping[str, Any]], part: str, rates_of: Callable[[str], Rates]
) -> dict[str, Rates]:
    """The rates at which rows of an output are dropped, by filter, or by filters that count together."""
    output = outputs.get(node.get("name", ""), {})
    paths = (output.get("flow") or {}).get("dropped", {})
    return {path: rates_of(dropped_by(f"{part}/{node['id']}", path)) for path in paths}


class _WayTo:
    """The part of the graph that leads to one output. into: the nodes before each node. drops: see `_drops`."""

    def __init__(self, output: str, into: Mapping[str, Sequence[str]], drops: Mapping[str, Rates]) -> None:
        self._output = output
        self._before: dict[str, list[str]] = {}
        left = [output]
        while left:
            node = left.pop()
            if node not in self._before:  # a graph that a part sends may have a circle
                self._before[node] = list(dict.fromkeys(into.get(node, ())))
                left += self._before[node]
        self._behind: dict[str, list[str]] = {node: [] for node in self._before}
        for node, before in self._before.items():
            for other in before:
                self._behind[other].append(node)
        self._drops = drops
        self._together = [path.split(_AND) for path in drops if _AND in path]

    def rates(self, output_rates: Rates) -> Iterator[tuple[str, str, dict[str, float]]]:
        """The known edges with their rates. output_rates: those of the output itself."""
        came = {span: output_rates.get(f"in_rows_s{span}") for span in SPANS}
        known: dict[tuple[str, str], dict[str, float]] = {}
        for start, end, rows in (*self._back(came, output_rates), *self._on(came)):
            if not any(start in group and end in group for group in self._together):
                known[start, end] = _known({f"rows_s{span}": rows[span] for span in SPANS})
        came_bytes = _known({f"bytes_s{span}": output_rates.get(f"in_bytes_s{span}") for span in SPANS})
        for (start, end), rates in known.items():
            # Bytes are counted as the log has them, so they are known before the first filter only.
            yield start, end, rates if self._before[start] else {**rates, **came_bytes}

    def _back(self, came: _Rows, output_rates: Rates) -> Iterator[tuple[str, str, _Rows]]:
        """From the output backward, while a single node leads to each: its input is its output plus its drops."""
        rows = self._less(came, self._drops)
        if all(
            value is None for value in rows.values()
        ):  # a pipeline of an earlier version counts only the rows written
            rows = {span: output_rates.get(f"rows_s{span}") for span in SPANS}
            came = {}
        node, seen = self._output, {self._output}
        while len(self._before[node]) == 1 and (before := self._before[node][0]) not in seen:
            yield before, node, rows
            if not came:
                return
            rows = {
                span: None if value is None else value + self._dropped(before, span) for span, value in rows.items()
            }
            node = before
            seen.add(node)

    def _on(self, came: _Rows) -> Iterator[tuple[str, str, _Rows]]:
        """From the only input forward, while no path parts or joins: each node passes on its input less its drops."""
        inputs = [node for node, before in self._before.items() if not before]
        if len(inputs) != 1 or all(value is None for value in came.values()):
            return
        node, rows = inputs[0], came
        while len(self._behind[node]) == 1 and len(self._before[behind := self._behind[node][0]]) == 1:
            yield node, behind, rows
            rows = {
                span: None if value is None else max(value - self._dropped(behind, span), 0.0)
                for span, value in rows.items()
            }
            node = behind

    def _dropped(self, node: str, span: str) -> float:
        """What a node drops. The first of filters that count together has all: edges between them have no rate."""
        rates = (drop for path, drop in self._drops.items() if path.split(_AND)[0] == node)
        return sum(drop.get(f"dropped_s{span}") or 0.0 for drop in rates)

    def _less(self, came: _Rows, drops: Mapping[str, Rates]) -> _Rows:
        lost = {span: sum(drop.get(f"dropped_s{span}") or 0.0 for drop in drops.values()) for span in SPANS}
        return {span: None if rows is None else max(rows - lost[span], 0.0) for span, rows in came.items()}


def _known(rates: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in rates.items() if value is not None}


def filter_rates(
    outputs: Mapping[str, Mapping[str, Any]], part: str, rates_of: Callable[[str], Rates]
) -> Iterator[dict[str, Any]]:
    """For each filter of a pipeline that has dropped rows: how many a second, of the output for which it drops most.
    outputs: as its status has them.
    """
    most: dict[str, dict[str, float]] = {}
    for name, output in outputs.items():
        for path in (output.get("flow") or {}).get("dropped", {}):
            known = most.setdefault(path, {})
            for rate, value in rates_of(dropped_by(f"{part}/outputs.{name}", path)).items():
                known[rate] = max(known.get(rate, 0.0), value or 0.0)
    for path, rates in most.items():
        yield {"node": f"{part}/{path}", **rates}
