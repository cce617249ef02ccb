"""Compacted targets into which rows of several tables come: those of equal keys would take each other's place."""

from collections.abc import Iterator, Sequence

from databus.core import is_pattern
from databus.flow import patterns_of
from databus.pipeline.graph import Branch, Graph, NodeSpec, Problem, physicals_of
from databus.plugins import Shape


def check_compacted(graph: Graph, node: NodeSpec, branches: Sequence[Branch]) -> Iterator[Problem]:
    """Warn of names of such targets that do not tell physical sources, or tables, apart."""
    physicals = {name for branch in branches for name in physicals_of(graph, branch) or ()}
    many = any(branch.shape is Shape.TABLES and is_many(branch) for branch in branches) or len(branches) > 1
    for template in dict.fromkeys(node.config.compacts_in):
        if len(physicals) > 1 and "{physical}" not in template:
            what, place = f"tables of {' and '.join(sorted(physicals))} that have one name", "`{physical}`"
        elif many and "{table}" not in template and template == next(iter(node.config.compacts_in)):
            what, place = "several tables", "`{table}`"
        else:
            continue
        yield Problem(
            f"{node.path}.topic",
            f"{what} would meet in a topic that is compacted, where a row takes the place of one of another table that "
            f"has the same key; put {place} into {template}",
            is_warning=True,
        )


def is_many(branch: Branch) -> bool:
    """Whether it may carry more than one table."""
    patterns = patterns_of(branch.selection)
    return len(patterns) > 1 or is_pattern(patterns[0])
