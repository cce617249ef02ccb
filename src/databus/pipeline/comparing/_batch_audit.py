"""`databus audit`: whether the batches of an output follow each other, and have all rows that the log has between them.

The chain of batches is in `_batch_chain.py`; here it is compared with the ledger and with the log, whose rows the relay
counts by the headers of frames. Start with `audit`; `Audited` is what it says of a chain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from databus.core import DatabusError, Pair
from databus.filters import StreamFilter, may_select
from databus.pipeline.comparing._batch_chain import Break, Chain, Counted, chains
from databus.pipeline.engine import inputs_hash, positions_of
from databus.pipeline.graph import Graph
from databus.pipeline.telling import read_batches
from databus.places import chosen_by, place_at

if TYPE_CHECKING:
    from databus.link import RelayClient


@dataclass
class Audited:
    """A chain, compared with the log. log_rows: those between the places that its batches go over; None where that is
    not known.
    """

    chain: Chain
    log_rows: int | None = None
    came: int = 0
    """Rows that came to batches, of those compared."""
    missing: int = 0
    """Rows that the log has and no batch."""
    surplus: int = 0
    """Rows that batches have and the log has not."""
    why_unknown: str = ""
    not_compared: set[str] = field(default_factory=set)
    """Tables, by full names, of which inputs leave something out, so that headers do not tell how many rows come."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, as far as is known."""
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
            "breaks": [[each.start, each.end, each.table] for each in chain.breaks],
            "unbalanced": chain.unbalanced,
            "is_whole": self.is_whole,
        }

    def compare(self, graph: Graph, client: "RelayClient | None", counted: Sequence[Counted]) -> None:
        """Have the log's rows counted, which are to be as many as those that came."""
        if client is None:
            self.why_unknown = "its relay does not run"
            return
        if not self.chain.is_counted:
            self.why_unknown = "Spark alone has seen its rows"
            return
        try:
            for each in counted:
                self.compare_one(graph, client, each)
        except DatabusError as error:
            self.why_unknown = str(error)
        if self.log_rows is None and self.not_compared:
            self.why_unknown = self.why_unknown or "its inputs leave rows out"

    @property
    def why_not_whole(self) -> str:
        """What is wrong with the rows; empty where nothing is."""
        told = []
        if self.missing:
            told.append(f"{self.missing:,} rows that the log has are in no batch")
        if self.surplus:
            told.append(f"batches have {self.surplus:,} rows that the log has not")
        return "; ".join(told)

    def compare_one(self, graph: Graph, client: "RelayClient", counted: Counted) -> None:
        """The same of some tables. Raises what asking the relay does."""
        by_filter = _tables_of(graph, self.chain, counted, client)
        if by_filter is None:
            self.why_unknown = "what its inputs leave out was changed since"
            return
        for wanted, tables in by_filter:
            if not wanted.is_nothing:  # of what an input leaves out, headers say nothing
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
                chain.breaks.append(Break(chain.end, at))  # the ledger has it from no batch that the journal knows
            found = Audited(chain)
            found.compare(graph, client, [*chain.ended, *chain.counted()])
            yield found


def oldest_of(client: "RelayClient | None", physical: str) -> Pair:
    """Up to where a log has lost what it had."""
    try:
        return (0, 0) if client is None else client.head(physical).oldest.pair
    except DatabusError:
        return (0, 0)


def _tables_of(
    graph: Graph, chain: Chain, counted: Counted, client: "RelayClient"
) -> list[tuple[StreamFilter, list[str]]] | None:
    """The tables by what their inputs leave out; None where that is not what it was."""
    branches = graph.branches(f"outputs.{chain.output}")
    here = [each for each in branches if may_select(each.selection, f"{chain.physical}/*")]
    if counted.inputs != inputs_hash(graph, [each.input for each in here]):
        return None
    found: list[tuple[StreamFilter, list[str]]] = []
    for name in (each.name for each in client.sources() if each.physical == chain.physical):
        source = name.partition("/")[2]
        is_meant = source not in counted.but if counted.tables is None else source in counted.tables
        if not is_meant or not chosen_by(counted.choice, name):
            continue
        wanted = next((graph.inputs[each.input].filter for each in here if each.takes(name)), None)
        if wanted is None:
            return None
        mine = next((tables for known, tables in found if known == wanted), None)
        if mine is None:
            found.append((wanted, mine := []))
        mine.append(name)
    return found


def _rows_in_log(client: "RelayClient", physical: str, start: Pair, end: Pair, tables: Sequence[str]) -> int:
    rows, at = 0, place_at(start)
    while at.pair < end:
        found = client.range(physical, at, sources=tables, to=end)
        rows += found.rows
        if found.position.pair <= at.pair:
            break
        at = found.position
    return rows
