"""Folders within folders: that of a table is its output's alone, which removes what is in it when it is rebuilt."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Final

from databus.core import ConfigError
from databus.disk import LocalLocation, Storage, locate
from databus.flow import may_select, patterns_meet
from databus.pipeline.graph import Branch, Graph, NodeSpec, Problem, physicals_of

_NAME: Final = re.compile(r"\{(physical|db|table)\}")
_NO_DOT: Final = "[^./]+"  # a folder such as `.databus` is taken for no table's


def check_nested(graph: Graph, outputs: Sequence[NodeSpec], branches: Mapping[str, list[Branch]]) -> Iterator[Problem]:
    """Outputs and folders of the pipeline that may be in the folder of a table. branches: of outputs, by path."""
    config = graph.config
    own = {"state": config.state, **({"relay.folder": config.relay_folder} if config.embeds_relay else {})}
    folders = {node.path: _parts_of(config.folder, node.config.path) for node in outputs}
    for outer, inner in permutations(outputs, 2):
        if len(folders[inner.path]) > len(folders[outer.path]):
            named = _names_where_inside(folders[inner.path], folders[outer.path])
            if named is not None and all(
                _may_come(graph, branches[node.path], names) for node, names in zip((inner, outer), named, strict=True)
            ):
                yield _problem(f"{inner.path}.path", inner.config.path, outer)
    for outer in outputs:
        for where, folder in own.items():
            named = _names_where_inside(os.path.realpath(folder).split("/"), folders[outer.path])
            if named is not None and _may_come(graph, branches[outer.path], named[1]):
                yield _problem(where, str(folder), outer)


def _problem(where: str, folder: str, outer: NodeSpec) -> Problem:
    return Problem(
        where,
        f"{folder} may be in the folder of a table of {outer.path} ({outer.config.path}), which is removed when that "
        "is rebuilt; name a folder beside it",
    )


def _parts_of(folder: Path, template: str) -> list[str]:
    """The parts of the folders of an output's tables, however these are spelt: see `Folders`."""
    whole = template if "{" in template else f"{template.rstrip('/')}/{{table}}"
    try:
        place = locate(whole.rstrip("/"), folder, Storage())
    except ConfigError:  # said elsewhere
        return [template]
    return (os.path.realpath(place) if isinstance(place, LocalLocation) else str(place)).split("/")


def _names_where_inside(inner: Sequence[str], outer: Sequence[str]) -> tuple[dict[str, str], dict[str, str]] | None:
    """What the names of the two tables are, or patterns of them, where one folder is the other or in it; None if it
    never is.
    """
    if len(inner) < len(outer):
        return None
    names: tuple[dict[str, str], dict[str, str]] = {}, {}
    for mine, theirs in zip(inner, outer, strict=False):
        if mine == theirs:
            continue
        both = [(1, theirs, _NAME.sub("*", mine)), (0, mine, _NAME.sub("*", theirs))]
        found = [(at, match) for at, template, part in both if (match := _pattern(template).fullmatch(part))]
        if not found and not (_NAME.search(mine) and _NAME.search(theirs)):
            return None
        for at, match in found[:1]:
            for name, value in match.groupdict().items():
                if names[at].setdefault(name, value) != value and "*" not in value + names[at][name]:
                    return None
    return names


def _pattern(template: str) -> re.Pattern[str]:
    """What matches the parts of folders that a part of a template makes."""
    said, seen = "", set[str]()
    for number, piece in enumerate(_NAME.split(template)):
        if number % 2 == 0:
            said += re.escape(piece)
        else:
            said += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{_NO_DOT})"
            seen.add(piece)
    return re.compile(said)


def _may_come(graph: Graph, branches: Sequence[Branch], names: Mapping[str, str]) -> bool:
    """Whether a table with these names may reach an output."""
    pattern = "{physical}/{db}.{table}".format_map({"physical": "*", "db": "*", "table": "*", **names})
    return any(
        (branch.table is None or patterns_meet(branch.table, pattern))
        and may_select(branch.selection, pattern)
        and ("physical" not in names or names["physical"] in (physicals_of(graph, branch) or [names["physical"]]))
        for branch in branches
    )
