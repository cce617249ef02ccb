"""The differences between the file that a pipeline runs by and the file as it is now. Pure; no I/O.

A change stops and restarts whole outputs, with all that their queries read and with the other outputs of their lanes.
Start with `changes`; `refusals` has what a running pipeline cannot take.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from databus.pipeline.engine import QueryPlan
from databus.pipeline.graph import Graph, NodeSpec, PipelineConfig, Problem

_OF_QUERIES: Final = frozenset({"trigger_ms", "retry_ms_min", "retry_ms_max", "retries_max"})
"""Options of `run` that a query reads when it starts."""
_RESTART: Final = "End the pipeline (`databus stop`) and start it with the new file; outputs continue at their places"
_WHY: Final = {
    "name": "targets know this pipeline by it, and under another name they would begin from the start",
    "state": "the state folder is in use by this run",
    "relay": "the queries read the relay as it was when the pipeline started",
    "spark": "Spark keeps the options that it was started with",
    "run.http": "the server listens already",
}


@dataclass(frozen=True)
class ReloadChanges:
    """Names of outputs."""

    unchanged: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """They stop, and start again as the new file says."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        """For answers and events."""
        return {name: list(getattr(self, name)) for name in ("unchanged", "changed", "added", "removed")}

    def __str__(self) -> str:
        verbs = {"goes on": self.unchanged, "starts again": self.changed, "starts": self.added, "ends": self.removed}
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in verbs.items() if names) or "nothing runs"


def changes(old: Graph, old_plans: Sequence[QueryPlan], new: Graph, new_plans: Sequence[QueryPlan]) -> ReloadChanges:
    """The differences of two graphs without problems, over the same physical sources."""
    before, after = _made_of(old, old_plans), _made_of(new, new_plans)
    same = {name for name in after if name in before and before[name] == after[name]}
    return ReloadChanges(
        unchanged=tuple(name for name in after if name in same),
        changed=tuple(name for name in after if name in before and name not in same),
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
    )


def refusals(old: PipelineConfig, new: PipelineConfig) -> list[Problem]:
    """ReloadChanges that a pipeline cannot take while it runs, each with what to do."""
    names = [] if new.name == old.name else ["name"]
    names += [] if new.state == old.state else ["state"]
    for section in ("relay", "spark"):
        before, after = getattr(old.sections, section), getattr(new.sections, section)
        fields = type(before).model_fields
        names += [f"{section}.{name}" for name in fields if getattr(before, name) != getattr(after, name)]
    names += [] if new.sections.run.http == old.sections.run.http else ["run.http"]
    problems = [Problem(where, f"cannot change while the pipeline runs: {_why(where)}. {_RESTART}") for where in names]
    before, after = old.sections.sources, new.sections.sources
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            why = "its own relay captures what the file said when it started"
            problems.append(Problem(f"sources.{name}", f"cannot change while the pipeline runs: {why}. {_RESTART}"))
    return problems


def _why(where: str) -> str:
    return _WHY.get(where) or _WHY[where.partition(".")[0]]


def _made_of(graph: Graph, plans: Sequence[QueryPlan]) -> dict[str, Any]:
    """By output: all that its queries depend on, in a form that can be compared."""
    nodes = graph.config.outputs.values()
    run = graph.config.sections.run.model_dump(include=set(_OF_QUERIES))
    lanes: dict[str, list[NodeSpec]] = {}
    for node in nodes:
        lanes.setdefault(_lane_of(node), []).append(node)
    outputs = {}
    for lane, members in lanes.items():
        paths = {node.path for node in members}
        plans_of_lane = [plan for plan in plans if any(feed.output in paths for feed in plan.feeds)]
        made_of = (lane, members, [_chain(graph, plan) for plan in plans_of_lane], run, _stores(graph.config, members))
        outputs.update(dict.fromkeys((node.name for node in members), made_of))
    return outputs


def _lane_of(node: NodeSpec) -> str:
    return f"output {node.name}" if node.config.lane is None else f"lane {node.config.lane}"


def _stores(config: PipelineConfig, members: Sequence[NodeSpec]) -> Mapping[str, Any] | None:
    """Options of object stores, if one of these outputs may write to one."""
    takes = any(getattr(node.config, "takes_stores", False) for node in members)
    return config.sections.storage if takes else None


def _chain(graph: Graph, plan: QueryPlan) -> tuple[Any, ...]:
    """A query with the options of its input and of the filters on its way."""
    steps = dict.fromkeys(step for feed in plan.feeds for way in feed.ways for step in way.steps)
    inputs = [graph.config.nodes[path] for path in plan.inputs]
    return plan, inputs, [_filter(graph, step.node, step.branch) for step in steps]


def _filter(graph: Graph, path: str, branch: str | None) -> tuple[Any, ...]:
    """Of a route, only this branch: the others belong to other queries. The form includes the text of files."""
    spec = graph.filters[path]
    return path, branch, None if spec.branches else graph.config.nodes[path], spec.form(branch)
