"""`databus audit`: whether the batches of an output follow each other, and have all rows that the log has between them.

Each batch begins where the one before ended, or below, when a killed process repeats one. What lies between an end and
a later beginning was given to no batch: a break. Start with `chains`, which is pure, then `audit`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from databus.core import DatabusError, Pair
from databus.filters import selects
from databus.pipeline.engine import positions_of
from databus.pipeline.graph import Graph
from databus.pipeline.telling import read_batches
from databus.places import place_at
from databus.plugins import KeepsLetters

if TYPE_CHECKING:
    from databus.link import RelayClient

_BREAKS_MAX: Final = 100


@dataclass
class Chain:
    """The batches of an output that one query has brought of one physical source. `rows` is without repetitions."""

    output: str
    query: str
    physical: str
    start: Pair = (0, 0)
    end: Pair = (0, 0)
    batches: int = 0
    repeated: int = 0
    is_exact: bool = True
    """Whether no batch was repeated in part, so that `rows` are each row once."""
    rows: Counter[str] = field(default_factory=Counter)
    breaks: list[tuple[Pair, Pair]] = field(default_factory=list)
    log_rows: int | None = None
    """Rows that the log has from `start` to `end`; None where that is not known, or not the same."""
    why_unknown: str = ""

    def take(self, start: Pair, end: Pair, rows: Mapping[str, int]) -> None:
        """The next batch."""
        if not self.batches:
            self.start = self.end = start
        self.batches += 1
        if start > self.end and len(self.breaks) < _BREAKS_MAX:
            self.breaks.append((self.end, start))
        if start < self.end:
            self.repeated += 1
            if end <= self.end:
                return
            self.is_exact &= not rows
        self.rows.update(rows)
        self.end = max(self.end, end)

    @property
    def missing(self) -> int:
        """Rows that the log has and no batch."""
        return 0 if self.log_rows is None else max(self.log_rows - self.rows.total(), 0)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, as far as is known."""
        return not self.breaks and not self.missing

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "output": self.output,
            "query": self.query,
            "physical": self.physical,
            "start": self.start,
            "end": self.end,
            "batches": self.batches,
            "repeated": self.repeated,
            "rows": self.rows.total(),
            "tables": dict(self.rows),
            "log_rows": self.log_rows,
            "why_unknown": self.why_unknown,
            "missing": self.missing,
            "breaks": self.breaks,
            "is_whole": self.is_whole,
        }


def chains(output: str, batches: Iterable[Mapping[str, Any]], since: Mapping[str, Pair] | None = None) -> list[Chain]:
    """The chains of an output, of its batches in the order in which they were written; what lets tables catch up is no
    part of one. since: by physical source, batches that begin below are not looked at.
    """
    found: dict[tuple[str, str], Chain] = {}
    for each in batches:
        if each["only"]:
            continue
        query, physical = each["query"], each["physical"]
        start, end = _pair(each["start"]), _pair(each["end"])
        if start < (since or {}).get(physical, (0, 0)):
            continue
        chain = found.setdefault((query, physical), Chain(output, query, physical))
        chain.take(start, end, each["rows"])
    return list(found.values())


def audit(graph: Graph, client: "RelayClient | None") -> Iterator[Chain]:
    """The chains of all outputs of a pipeline, compared with their ledgers and with the log, as far as it goes back."""
    config = graph.config
    oldest: dict[str, Pair] = {}
    for places in positions_of(config):
        for physical in places.positions:
            oldest.setdefault(physical, _oldest(client, physical))
        for chain in chains(places.output, read_batches(config.state, places.output), oldest):
            position = places.positions.get(chain.physical)
            at = None if position is None or position.at is None else position.at.pair
            is_of_all = chain.query.endswith(f"@{chain.physical}")
            if is_of_all and at is not None and at > chain.end:
                chain.breaks.append((chain.end, at))  # the ledger has it from no batch that the journal knows
            _count(graph, chain, client)
            yield chain


def _oldest(client: "RelayClient | None", physical: str) -> Pair:
    try:
        return (0, 0) if client is None else client.head(physical).oldest.pair
    except DatabusError:
        return (0, 0)


def _count(graph: Graph, chain: Chain, client: "RelayClient | None") -> None:
    """Have the log's rows counted between the ends of a chain, where they are to be as many as those of the batches."""
    chain.why_unknown = _why_not_compared(graph, chain)
    if client is None:
        chain.why_unknown = chain.why_unknown or "its relay does not run"
    if chain.why_unknown or client is None:
        return
    try:
        chain.log_rows = _rows_in_log(client, chain, _tables_of(graph, chain, client))
    except DatabusError as error:
        chain.why_unknown = str(error)


def _why_not_compared(graph: Graph, chain: Chain) -> str:
    node = graph.config.nodes[f"outputs.{chain.output}"]
    if any(each.steps or each.over_tables for each in graph.branches(node.path)):
        return "filters stand before it"
    if isinstance(node.plugin(node.config, graph.config.context_of(chain.output)), KeepsLetters):
        return f"outputs of type {node.type} count what the target takes"
    return "" if chain.is_exact else "a batch was repeated in part"


def _tables_of(graph: Graph, chain: Chain, client: "RelayClient") -> list[str]:
    branches = graph.branches(f"outputs.{chain.output}")
    names = [each.name for each in client.sources() if each.physical == chain.physical]
    of_query = None if chain.query.endswith(f"@{chain.physical}") else chain.rows.keys()
    return [
        name
        for name in names
        if any(selects(branch.selection, name) for branch in branches)
        and (of_query is None or name.partition("/")[2] in of_query)
    ]


def _rows_in_log(client: "RelayClient", chain: Chain, tables: Sequence[str]) -> int | None:
    """None where nothing of these tables is there to be counted."""
    if not tables:
        return None
    rows, at = 0, place_at(chain.start)
    while at.pair < chain.end:
        found = client.range(chain.physical, at, sources=tables, to=chain.end)
        rows += found.rows
        if found.position.pair <= at.pair:
            break
        at = found.position
    return rows


def _pair(value: Sequence[int]) -> Pair:
    scn, seq = value
    return int(scn), int(seq)
