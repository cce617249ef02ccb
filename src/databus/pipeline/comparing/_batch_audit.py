"""`databus audit`: whether the batches of an output follow each other and have all rows of the log.

The chain of batches is in `_batch_chain.py`; here it is compared with the ledger and the log, whose rows the relay
counts by the headers of frames. Start with `audit`; `Audited` is the result for one chain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from databus.core import DatabusError, Pair
from databus.filters import StreamFilter, may_select
from databus.pipeline.comparing._batch_chain import Break, Chain, RangeCounts, chains
from databus.pipeline.engine import inputs_hash, positions_of
from databus.pipeline.graph import Graph
from databus.pipeline.telling import read_batches
from databus.places import chosen_by, place_at

if TYPE_CHECKING:
    from databus.link import RelayClient


@dataclass
class Audited:
    """A chain, compared with the log."""

    chain: Chain
    log_rows: int | None = None
    """Rows of the log in the ranges that were compared; None if unknown."""
    came: int = 0
    """Rows of the batches in the same ranges."""
    missing: int = 0
    """Rows of the log that are in no batch."""
    surplus: int = 0
    """Rows of batches that are not in the log."""
    why_unknown: str = ""
    not_compared: set[str] = field(default_factory=set)
    """Full names of tables of which an input omits rows: headers do not say how many remain."""

    @property
    def is_whole(self) -> bool:
        """Whether all rows are there, as far as is known."""
        return not (self.chain.breaks or self.missing or self.surplus or self.chain.unbalanced)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        chain, rows = self.chain, self.chain.rows
        return {
            "output": chain.output,
            "query": chain.query,
            "physical": chain.physical,
            "start": chain.start,
            "end": chain.end,
            "behind": chain.behind,
            "batches": chain.batches,
            "repeated": chain.repeated,
            "rows": rows.total(),
            "tables": dict(rows),
            "written": dict(chain.written),
            "log_rows": self.log_rows,
            "why_unknown": self.why_unknown,
            "not_compared": sorted(self.not_compared),
            "missing": self.missing,
            "surplus": self.surplus,
            "breaks": [[gap.start, gap.end, gap.table] for gap in chain.breaks],
            "unbalanced": chain.unbalanced,
            "is_whole": self.is_whole,
        }

    def compare(self, graph: Graph, client: "RelayClient | None", counted: Sequence[RangeCounts]) -> None:
        """Count the log's rows and compare with those of the batches."""
        if client is None:
            self.why_unknown = "its relay does not run"
            return
        if not self.chain.is_counted:
            self.why_unknown = "Spark alone has seen its rows"
            return
        try:
            for part in counted:
                self.compare_one(graph, client, part)
        except DatabusError as error:
            self.why_unknown = str(error)
        if self.log_rows is None and self.not_compared:
            self.why_unknown = self.why_unknown or "its inputs omit rows"

    @property
    def why_not_whole(self) -> str:
        """What is wrong with the rows; empty if nothing is."""
        problems = []
        if self.missing:
            problems.append(f"{self.missing:,} rows that the log has are in no batch")
        if self.surplus:
            problems.append(f"batches have {self.surplus:,} rows that the log has not")
        return "; ".join(problems)

    def compare_one(self, graph: Graph, client: "RelayClient", counted: RangeCounts) -> None:
        """The same for some tables. Raises what asking the relay raises."""
        by_filter = _tables_of(graph, self.chain, counted, client)
        if by_filter is None:
            self.why_unknown = "the filters of its inputs were changed since"
            return
        for input_filter, tables in by_filter:
            if not input_filter.is_nothing:  # headers do not say which rows an input omits
                self.not_compared.update(tables)
                continue
            log_rows = _rows_in_log(client, self.chain.physical, counted.start, counted.end, tables)
            came = sum(counted.rows.get(name.partition("/")[2], 0) for name in tables)
            self.log_rows = (self.log_rows or 0) + log_rows
            self.came += came
            self.missing += max(log_rows - came, 0)
            self.surplus += max(came - log_rows, 0)


def audit(graph: Graph, client: "RelayClient | None") -> Iterator[Audited]:
    """The chains of all outputs of a pipeline, compared with their ledgers and with the log, as far as it goes back."""
    oldest: dict[str, Pair] = {}
    for places in positions_of(graph.config):
        for physical in places.positions:
            oldest.setdefault(physical, oldest_of(client, physical))
        for chain in chains(places.output, read_batches(graph.config.state, places.output), oldest):
            position = places.positions.get(chain.physical)
            at = None if position is None or position.at is None else position.at.pair
            if at is not None and chain.main is not None and at > chain.end:
                # The journal lacks the batch after which the ledger was written.
                chain.breaks.append(Break(chain.end, at))
            audited = Audited(chain)
            audited.compare(graph, client, [*chain.ended, *chain.counted()])
            yield audited


def oldest_of(client: "RelayClient | None", physical: str) -> Pair:
    """Where a log begins; what is before has been removed."""
    try:
        return (0, 0) if client is None else client.head(physical).oldest.pair
    except DatabusError:
        return (0, 0)


def _tables_of(
    graph: Graph, chain: Chain, counted: RangeCounts, client: "RelayClient"
) -> list[tuple[StreamFilter, list[str]]] | None:
    """The tables by the filter of their input; None if the inputs were others then."""
    branches = graph.branches(f"outputs.{chain.output}")
    here = [branch for branch in branches if may_select(branch.selection, f"{chain.physical}/*")]
    if counted.inputs != inputs_hash(graph, [branch.input for branch in here]):
        return None
    tables_by_filter: list[tuple[StreamFilter, list[str]]] = []
    for name in (source.name for source in client.sources() if source.physical == chain.physical):
        source = name.partition("/")[2]
        is_meant = source not in counted.but if counted.tables is None else source in counted.tables
        if not is_meant or not chosen_by(counted.choice, name):
            continue
        input_filter = next((graph.inputs[branch.input].filter for branch in here if branch.takes(name)), None)
        if input_filter is None:
            return None
        names = next((tables for other, tables in tables_by_filter if other == input_filter), None)
        if names is None:
            tables_by_filter.append((input_filter, names := []))
        names.append(name)
    return tables_by_filter


def _rows_in_log(client: "RelayClient", physical: str, start: Pair, end: Pair, tables: Sequence[str]) -> int:
    rows, at = 0, place_at(start)
    while at.pair < end:
        answer = client.range(physical, at, sources=tables, to=end)
        rows += answer.rows
        if answer.position.pair <= at.pair:
            break
        at = answer.position
    return rows
