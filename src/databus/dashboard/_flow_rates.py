"""How much goes over each edge of a pipeline's graph, from what its outputs count. Pure.

An output counts what came to it, what each filter on its way dropped, and what it has written. Where one way alone
leads to it, that says what goes over each edge of the way; where ways meet, only what goes over the last. Outputs read
by their own, so an edge that leads to several carries what the fastest of them reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

Rates = Mapping[str, float | None]
"""By name, such as `in_rows_s`, and with `_5m` behind it the mean of five minutes."""

SPANS: Final = ("", "_5m")


def dropped_by(output: str, path: str) -> str:
    """The node by which the rows are counted that a filter drops on their way to an output."""
    return f"{output} {path}"


def edge_rates(graph: Mapping[str, Any], part: str, rates_of: Callable[[str], Rates]) -> list[dict[str, Any]]:
    """Of the edges of which something is known; nodes as in the graph of all parts. part: the pipeline's name."""
    into: dict[str, list[str]] = {}
    for edge in graph.get("edges", ()):
        into.setdefault(edge["to"], []).append(edge["from"])
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for node in graph.get("nodes", ()):
        if node["kind"] != "output":
            continue
        for start, end, told in _of_output(node["id"], into, part, rates_of):
            known = found.setdefault((start, end), {"from": f"{part}/{start}", "to": f"{part}/{end}"})
            for name, value in told.items():
                known[name] = max(known.get(name) or 0.0, value)
    return list(found.values())


def _of_output(
    path: str, into: Mapping[str, Sequence[str]], part: str, rates_of: Callable[[str], Rates]
) -> Iterator[tuple[str, str, dict[str, float]]]:
    node = f"{part}/{path}"
    rates = rates_of(node)
    way, is_only = [path], True
    while before := into.get(way[-1], ()):
        is_only = is_only and len(before) == 1
        if not is_only or before[0].startswith("sources."):  # what a relay captures, its node says
            break
        if before[0] in way:  # of a part that says so: no graph of ours goes in a circle
            return
        way.append(before[0])
    if not is_only:
        for before_last in into.get(path, ()) if len(into.get(path, ())) == 1 else ():
            yield before_last, path, _known({f"rows_s{span}": rates.get(f"rows_s{span}") for span in SPANS})
        return
    left = {span: rates.get(f"in_rows_s{span}") for span in SPANS}
    came = {f"bytes_s{span}": rates.get(f"in_bytes_s{span}") for span in SPANS}
    for start, end in zip(reversed(way[1:]), reversed(way[:-1]), strict=True):
        dropped = rates_of(dropped_by(node, start))
        for span, rows in left.items():
            lost = dropped.get(f"dropped_s{span}") or 0.0
            left[span] = None if rows is None else max(rows - lost, 0.0)
        yield start, end, _known({**{f"rows_s{span}": rows for span, rows in left.items()}, **came})
        came = {}  # bytes are those of the log; behind a filter nobody counts them


def _known(told: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in told.items() if value is not None}


def filter_rates(
    outputs: Mapping[str, Mapping[str, Any]], part: str, rates_of: Callable[[str], Rates]
) -> Iterator[dict[str, Any]]:
    """Of each filter of a pipeline that has dropped something: how many rows a second, on the way to the output of
    which that is most. outputs: as its status has them.
    """
    most: dict[str, dict[str, float]] = {}
    for name, output in outputs.items():
        for path in (output.get("flow") or {}).get("dropped", {}):
            known = most.setdefault(path, {})
            for rate, value in rates_of(dropped_by(f"{part}/outputs.{name}", path)).items():
                known[rate] = max(known.get(rate, 0.0), value or 0.0)
    for path, rates in most.items():
        yield {"node": f"{part}/{path}", **rates}
