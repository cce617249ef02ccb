"""What becomes of a table's rows on their way into an output, as a hash: with another, they would be other rows.

What only names things, or bounds them, is not in it: a filter may be renamed, a table chosen or left out.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from databus.core import split_physical
from databus.pipeline.engine._plan import Feed
from databus.pipeline.graph import Graph
from databus.places import identity
from databus.plugins import Output

_VERSION: Final = 1  # of the form that is hashed

WayOf = Callable[[str], str]
"""By the full name of a table: the hash."""


def way_of(graph: Graph, feed: Feed, output: Output) -> WayOf:
    """How tables come into an output by a query."""

    @cache  # it is asked for with each batch
    def found(name: str) -> str:
        way = feed.way(name)
        if way is None:
            return ""
        forms = [graph.filters[step.node].form(step.branch) for step in graph.about(way.steps, name)]
        kept = output.config.form_of(name.partition("/")[2])
        given = graph.inputs[way.input].filter.form(name)
        told = {"v": _VERSION, "filters": forms, "output": kept, **({"input": given} if given else {})}
        return identity(json.dumps(told, sort_keys=True))

    return found


def why_stopped(output: str, tables: Sequence[str]) -> str:
    """Why an output that does not say what to do does not go on with such tables."""
    names = " ".join(sorted({split_physical(each)[1] for each in tables}))
    return (
        f"what decides the rows of {', '.join(sorted(tables))} (filters on the way, or this output's options) was "
        f"changed after rows were written. Choose what happens to those rows: `databus rebuild FILE {output} {names}` "
        f"writes them again, once the pipeline has stopped; `on_change: rebuild` in this output does so at each such "
        f"change, and `on_change: continue` keeps them"
    )
