"""Comparing a copy with its source, by value, at one position.

The source is read in one consistent read, directly from the database, without the bus. The copy is compared once its
query has written everything that this read sees. If the source changes meanwhile, all is repeated; a difference counts
only if a second comparison has the same. Start with `compare`.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from databus.core import (
    Clock,
    ConfigError,
    CorruptData,
    DatabusError,
    FatalError,
    ServiceUnavailable,
    SourceCheckpoint,
    SystemClock,
    TransientError,
)
from databus.disk import Location
from databus.filters import StreamFilter
from databus.flow import TableFilters
from databus.pipeline.comparing._compare_filtered import Behind, Filtered, FilteredTable, captured_table
from databus.pipeline.comparing._differences import Comparison, TableDifference, difference
from databus.pipeline.engine import Ledger, OutputFeed, QueryPlan, TypedSteps, ledger_path, named, plan_queries
from databus.pipeline.graph import Graph, NodeSpec, is_held
from databus.pipeline.telling import read_status
from databus.pipeline.trying import spark_on_demand
from databus.schema import TableSchema
from databus.sources import Comparable, Oracle, OracleTable, Reading, Row, SourceConfig, offered, parse_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from databus.link import RelayClient


_PARTS: Final = 256
"""Keys are hashed into so many parts, of which one at a time is compared in memory."""
_ROWS_WAITING_MAX: Final = 50_000
"""Rows of a side that wait in memory; a smaller table never goes to disk."""


class Side:
    """The rows of one side. places: the indexes of the key's columns in a row."""

    def __init__(self, folder: Path, places: Sequence[int]) -> None:
        self._folder = folder
        self._places = places
        self._waiting: list[list[Row]] = [[] for _ in range(_PARTS)]

    def fill(self, rows: Iterable[Row]) -> None:
        """Take all rows."""
        for number, row in enumerate(rows, 1):
            self._waiting[hash(self._key(row)) % _PARTS].append(row)
            if number % _ROWS_WAITING_MAX == 0:
                self._write()

    def part(self, part: int) -> dict[Row, Row]:
        """One part's rows, by key."""
        return {self._key(row): row for rows in (*self._read(part), self._waiting[part]) for row in rows}

    def _key(self, row: Row) -> Row:
        return tuple(row[place] for place in self._places)

    def _write(self) -> None:
        for part, rows in enumerate(self._waiting):
            with (self._folder / str(part)).open("ab") as file:
                pickle.dump(rows, file, pickle.HIGHEST_PROTOCOL)
            rows.clear()

    def _read(self, part: int) -> Iterator[list[Row]]:
        path = self._folder / str(part)
        if not path.exists():
            return
        with path.open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)  # noqa: S301 - written above, in a folder of this process alone


@contextmanager
def two_sides(places: Sequence[int]) -> Iterator[tuple[Side, Side]]:
    """The source's side and the copy's, in a folder that is removed at the end."""
    with TemporaryDirectory(prefix="databus-compare-") as folder:
        sides = []
        for name in ("source", "copy"):
            path = Path(folder) / name
            path.mkdir()
            sides.append(Side(path, places))
        yield sides[0], sides[1]


def difference_of(name: str, source: Side, copied: Side, keys_max: int) -> TableDifference:
    """The difference of two sides, part by part."""
    total = TableDifference(name, 0)
    for part in range(_PARTS):
        total = total.joined(difference(name, source.part(part), copied.part(part), keys_max), keys_max)
    return total


def oracle_of(physical: str, config: SourceConfig | None, *, folder: Path, database: Path | None = None) -> Oracle:
    """What reads the database of a physical source. `database`: a SQLite file, instead of the one in `config`.

    Raises `ConfigError` without a configuration, `UnsupportedFeature` for a kind that cannot be compared.
    """
    if database is not None:
        config = parse_source({"type": "sqlite", "path": str(database.absolute())}, physical)
    if config is None:
        raise ConfigError(
            f"{physical}: the pipeline's file does not say how to reach its database, which is read for a comparison. "
            "Give the file of the relay that captures it (`--relay-config relay.yml`), or a SQLite file (`--database`)"
        )
    comparable: type[Comparable] = offered(Comparable, config, physical)
    return comparable.oracle(config, folder)


def read_source(physical: str, config: SourceConfig) -> Mapping[str, dict[Row, Row]]:
    """The rows of a source's database now, by table (`db.table`) and key, with the values that a mirror has."""
    with oracle_of(physical, config, folder=Path())() as reading:
        return {table.source: _by_key(reading.rows(table), table) for table in reading.tables()}


def _by_key(rows: Iterable[Row], table: OracleTable) -> dict[Row, Row]:
    places = [table.names.index(name) for name in table.key]
    return {tuple(row[place] for place in places): row for row in rows}


_ASK_MS: Final = 100
_ANSWER_MS_MIN: Final = 2_000
"""A relay gets at least so long to answer, also after the deadline."""
_KEYS_SHOWN_MAX: Final = 10
_AT_REST: Final = ("failed", "hanging", "paused", "stopped")
_NO_BATCH: Final = "the copy has had no batch yet (the screen of `databus run` says why)"


@dataclass(frozen=True)
class _Copy:
    """A mirror of one physical source."""

    graph: Graph
    node: NodeSpec
    plan: QueryPlan
    """The query that writes it."""
    physical: str
    oracle: Oracle
    """Reads the source."""
    session: Callable[[], "SparkSession"]
    clock: Clock
    deadline_s: float
    """Until when the comparison waits, by the monotonic clock."""

    @property
    def feed(self) -> OutputFeed:
        return self.plan.feed_of(self.node.path) or OutputFeed(self.node.path)

    def selects(self, source: str) -> bool:
        return self.feed.selects(f"{self.physical}/{source}")

    def position(self) -> SourceCheckpoint | None:
        """Up to where all of its tables are written, by its ledger; None before there is one."""
        config = self.graph.config
        output = config.output_of(self.node.name)
        try:
            ledger = Ledger.load(ledger_path(output, config.state), config.name, self.node.name)
        except CorruptData:
            return None  # it is being replaced
        position = ledger.positions.get(self.physical)
        return None if position is None else position.least(self.feed.choice)

    def published(self) -> SourceCheckpoint | None:
        """The end of the relay's log; None if the relay does not run."""
        try:
            relay = self._relay()
            return None if relay is None else relay.head(self.physical).published
        except TransientError:
            return None

    def suspended(self) -> str:
        """The error for which the relay has stopped to capture this source, if it has."""
        try:
            relay = self._relay()
            states = [] if relay is None else relay.states()
        except TransientError:
            return ""
        stopped = [state for state in states if state["name"] == self.physical and state["status"] == "suspended"]
        return str(stopped[0]["message"]) if stopped else ""

    def at_rest(self) -> str:
        """Why the output writes nothing now, if that is known."""
        config = self.graph.config
        if not is_held(config.state):
            return "the pipeline does not run"
        try:
            status = read_status(config.state) or {}
        except DatabusError:
            return ""
        output = status.get("outputs", {}).get(self.node.name, {})
        if output.get("state") not in _AT_REST:
            return ""
        why = output["message"] or output["error"] or "`databus resume` has it go on"
        return f"{self.node.name} is {output['state']}: {' '.join(str(why).split())}"

    def _relay(self) -> "RelayClient | None":
        """The relay, with a limit for answers up to the deadline."""
        left_ms = max(int((self.deadline_s - self.clock.monotonic_s()) * 1e3), _ANSWER_MS_MIN)
        return self.graph.config.relay_client_if_there(left_ms)

    def folder_of(self, source: str) -> Location:
        from databus.flow import spelled
        from databus.sinks import path_of

        context = self.graph.config.context_of(self.node.name)
        return path_of(self.node.config.path, context, self.physical, source, spelled)

    def owner_of(self, source: str) -> str | None:
        """Whose rows to read, if several sources share the table."""
        return f"{self.physical}/{source}" if self.node.config.merge else None

    def key_of(self, source: str, key: Sequence[str]) -> tuple[str, ...]:
        chosen = self.node.config.key
        columns = chosen.get(source) if isinstance(chosen, dict) else chosen
        return tuple(columns or key)

    def not_a_copy(self, source: str) -> str:
        """Why, because of its filters, the target does not hold the source's rows; empty if it does."""
        name = f"{self.physical}/{source}"
        over = named(self.graph, self.feed.filters_of(name))
        reasons = [
            f"{where} {node_filter.not_a_copy}"
            for where, node_filter in over
            if node_filter.not_a_copy and node_filter.is_about(name)
        ]
        return f"not compared: {reasons[0]}" if reasons else ""

    def filtered(self, source: str) -> list[Behind | Filtered | FilteredTable]:
        """The filters of the source's table on its way to this copy, one after the other."""
        name = f"{self.physical}/{source}"
        way = self.feed.way(name)
        input_filter = StreamFilter() if way is None else self.graph.inputs[way.input].filter
        if way is None or (not way.steps and not input_filter.form(name)):
            return []
        table = self._captured(source)
        notes: list[Behind | Filtered | FilteredTable] = []
        if input_filter.form(name):
            notes.append(behind := Behind(input_filter, self.physical, table))
            table = behind.result
        if way.is_typed:
            steps = TypedSteps(self.graph, name, self.graph.about(way.steps, name))
            notes.append(Filtered(self.session(), steps, table))
        elif way.filters:
            filters = TableFilters(self.physical, named(self.graph, way.filters), lambda _: table, lambda _: table)
            notes.append(FilteredTable(filters, table))
        return notes

    def _captured(self, source: str) -> TableSchema:
        """The definition of a table, from the relay, or, of the pipeline's own relay, from the folder of its log."""
        if self.graph.config.embeds_relay:
            return captured_table(self.graph.config.relay_folder, self.physical, source)
        relay = self._relay()
        sources = (
            [] if relay is None else [known for known in relay.sources() if known.name == f"{self.physical}/{source}"]
        )
        if relay is None or not sources:
            raise ServiceUnavailable(f"{self.physical}: no relay knows {source}, whose types the filters need")
        return relay.table_of(sources[0].fingerprint)


def compare(
    graph: Graph,
    output: str,
    *,
    database: Path | None = None,
    sources: Mapping[str, SourceConfig] | None = None,
    wait_ms_max: int = 60_000,
    keys_max: int = _KEYS_SHOWN_MAX,
    on_wait: Callable[[str], None] | None = None,
    session: "SparkSession | None" = None,
    clock: Clock | None = None,
) -> Comparison:
    """Compare a Delta mirror with the databases that it copies: SQLite files, MySQL and MariaDB servers.

    graph: of the pipeline that writes the mirror. If the pipeline's relay runs elsewhere, `sources` are that relay's;
    for a SQLite file its path as `database` is enough. on_wait: called with the reason of a wait, whenever that
    changes. session: runs the filters of typed branches; without it, one is started if it is needed, and `on_wait` is
    called with that.

    Raises `ConfigError` if that output is not a mirror of such tables; `ServiceUnavailable` if the copy did not reach
    the source within `wait_ms_max`, no table of it is captured, or the source was written to all the time; `FatalError`
    if capture is suspended, so that waiting is of no use.
    """
    clock = clock or SystemClock()
    deadline_s = clock.monotonic_s() + wait_ms_max / 1e3
    tables: list[TableDifference] = []
    positions: dict[str, int] = {}
    on_wait = on_wait or (lambda _: None)
    with spark_on_demand("databus compare", session, on_wait) as spark:
        for copy in _copies(graph, output, database, sources, spark, clock, deadline_s):
            differences, cut = _compare_physical(copy, keys_max, on_wait)
            tables += differences
            positions[copy.physical] = cut
    return Comparison(tuple(tables), positions)


def _copies(
    graph: Graph,
    output: str,
    database: Path | None,
    sources: Mapping[str, SourceConfig] | None,
    session: Callable[[], "SparkSession"],
    clock: Clock,
    deadline_s: float,
) -> list[_Copy]:
    config = graph.config
    mirrors = {name: node for name, node in config.outputs.items() if getattr(node.config, "mode", None) == "mirror"}
    node = mirrors.get(output)
    if node is None:
        raise ConfigError(f'{config.path}: "{output}" is not a mirror; there are {", ".join(mirrors) or "none"}')
    configs = {**config.sources, **(sources or {})}
    physicals = list(configs) or config.physicals_at(config.relay.url or "")
    copies = []
    for plan in plan_queries(graph, physicals):
        if node.path not in [feed.output for feed in plan.feeds]:
            continue
        if plan.physical is not None:
            oracle = oracle_of(plan.physical, configs.get(plan.physical), folder=config.folder, database=database)
            copies.append(_Copy(graph, node, plan, plan.physical, oracle, session, clock, deadline_s))
    if not physicals:
        raise ServiceUnavailable(f"{config.path}: not compared: the relay has captured no table yet")
    if not copies:
        raise ConfigError(f'{config.path}: "{output}" copies no table of {", ".join(physicals)}')
    return copies


def _compare_physical(copy: _Copy, keys_max: int, on_wait: Callable[[str], None]) -> tuple[list[TableDifference], int]:
    """The differences, and the position of the source at which they are."""
    why = message = "nothing was tried"
    doubted: list[TableDifference] | None = None
    while True:
        is_late = copy.clock.monotonic_s() > copy.deadline_s
        try:
            with copy.oracle() as reading:
                why = _not_reached(copy, reading)
                why += f"; {resting}" if why and (resting := copy.at_rest()) else ""
                captured = [table for table in reading.tables() if copy.selects(table.source)]
                if not captured:
                    why = why or "none of its tables is captured; `databus run` and /controlSources/status say why"
                if not why:
                    differences = [_compare_table(copy, reading, table, keys_max) for table in captured]
                    if reading.rests():
                        if is_late or differences == doubted or all(table.is_identical for table in differences):
                            return differences, reading.cut
                        doubted = differences  # the copy may have been written meanwhile: compare once more
                        continue
                    why = "the source did not rest: it was written to during the comparison"
        except ServiceUnavailable as error:
            why = str(error)
        _wait(copy, why, is_late=is_late, is_news=why != message, on_wait=on_wait)
        message = why


def _wait(copy: _Copy, why: str, *, is_late: bool, is_news: bool, on_wait: Callable[[str], None]) -> None:
    """Wait a little, or raise if that is of no use."""
    suspended = copy.suspended() if is_late or is_news else ""
    if suspended:
        raise FatalError(f"{copy.physical}: not compared: {why}, and capture is suspended: {suspended}")
    if is_late:
        raise ServiceUnavailable(f"{copy.physical}: not compared: {why}")
    if is_news:
        on_wait(f"{copy.physical}: waiting: {why}")
    copy.clock.sleep_ms(_ASK_MS)  # neither a database nor Delta notifies of a commit in another process


def _not_reached(copy: _Copy, reading: Reading) -> str:
    """Why the copy cannot be compared with this moment of the source yet; empty if it can."""
    position = copy.position()
    why = reading.not_captured() or (reading.not_reached(position) if position is not None else _NO_BATCH)
    published = None if why else copy.published()
    if why or published is None or position is None:
        return why
    if published.snapshots:
        return f"{', '.join(published.snapshots)} are being read"
    if position.pair < published.pair:
        return f"the copy is at {position.pair}, the log at {published.pair}"
    return ""


def _compare_table(copy: _Copy, reading: Reading, table: OracleTable, keys_max: int) -> TableDifference:
    if why := copy.not_a_copy(table.source):
        return TableDifference(table.source, 0, note=why)
    filtered = copy.filtered(table.source)
    names, key = (filtered[-1].result.names, filtered[-1].result.key) if filtered else (table.names, table.key)
    key = copy.key_of(table.source, key)
    if not key:
        return TableDifference(table.source, 0, note="it has no key, so there cannot be a mirror of it")
    with two_sides([names.index(name) for name in key]) as (source, copied):
        rows, columns = reading.rows(table), table.names
        for step in filtered:
            rows, columns = step.rows(columns, rows), step.result.names
        source.fill(rows)
        try:
            copied.fill(_copy_rows(copy.folder_of(table.source), names, copy.owner_of(table.source)))
            note = ""
        except DatabusError as error:
            note = str(error)
            is_missing = isinstance(error, ServiceUnavailable)
        outcome = difference_of(table.source, source, copied, keys_max)
    if note and is_missing and not outcome.rows:
        return TableDifference(table.source, 0)  # a table that never had a row has no copy
    return TableDifference(table.source, outcome.rows, note=note) if note else outcome


def _copy_rows(folder: Location, names: Sequence[str], owner: str | None) -> Iterator[Row]:
    from deltalake.exceptions import DeltaError, TableNotFoundError

    from databus.sinks import delta_batches

    try:
        for batch in delta_batches(folder, source=owner):
            missing = [name for name in names if name not in batch.schema.names]
            if missing:
                raise ConfigError(f"the copy lacks column {missing[0]!r}")
            yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    except TableNotFoundError as error:
        raise ServiceUnavailable(f"{folder}: there is no table") from error
    except (DeltaError, OSError) as error:
        raise (folder.trouble(error) or ConfigError(f"{folder}: cannot be read: {error}")) from None
