"""Comparing a copy with its source, by value, at one position.

The source is read in one read transaction, from the database itself and by nothing of the bus. The copy is compared
once its query has written everything up to what that transaction sees; if the source changes meanwhile, all is done
again. Start with `compare`.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from databus.core import Checkpoint, ConfigError, DatabusError, SourceCheckpoint, TryAgain, Unavailable, ordinal_of
from databus.pipeline._config import NodeSpec
from databus.pipeline._contract import OutputContext, Shape
from databus.pipeline._graph import Graph
from databus.pipeline._plan import QueryPlan, plan_queries
from databus.schema import TableSchema

_ASK_S: Final = 0.1
_BUSY_S: Final = 10.0
_KEYS_SHOWN_MAX: Final = 10
_LITERAL: Final = "ANY (as a literal)"

Row = tuple[Any, ...]


@dataclass(frozen=True)
class TableDifference:
    """What was found about one table. The keys are the first few of each kind, `*_rows` how many there are."""

    name: str
    rows: int
    only_in_source: tuple[Row, ...] = ()
    only_in_copy: tuple[Row, ...] = ()
    different: tuple[Row, ...] = ()
    only_in_source_rows: int = 0
    only_in_copy_rows: int = 0
    different_rows: int = 0
    note: str = ""

    @property
    def is_identical(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_in_source_rows or self.only_in_copy_rows or self.different_rows or self.note)

    def lines(self) -> Iterator[str]:
        """What differs, for people."""
        if self.note:
            yield f"{self.name}: {self.note}"
        kinds = (
            (self.only_in_source_rows, self.only_in_source, "only in the source"),
            (self.only_in_copy_rows, self.only_in_copy, "only in the copy"),
            (self.different_rows, self.different, "in both, with other values"),
        )
        for count, keys, words in kinds:
            if count:
                shown = ", ".join("/".join(map(repr, key)) for key in keys)
                yield f"{self.name}: {count:,} rows {words}, first {shown}"


@dataclass(frozen=True)
class Comparison:
    """Every table of a copy against its source."""

    tables: tuple[TableDifference, ...]
    positions: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_identical(self) -> bool:
        """Whether nothing differs."""
        return all(each.is_identical for each in self.tables)

    @property
    def rows(self) -> int:
        """Rows of the source that were compared."""
        return sum(each.rows for each in self.tables)

    def summary(self) -> str:
        """One line."""
        word = "identical" if self.is_identical else "different"
        return f"source and copy {word}: {len(self.tables)} tables, {self.rows:,} rows"

    def details(self) -> str:
        """The summary, and a line for each difference."""
        return "\n".join([self.summary(), *(line for each in self.tables for line in each.lines())])

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        tables = [
            {
                "table": each.name,
                "rows": each.rows,
                "identical": each.is_identical,
                "only_in_source": each.only_in_source_rows,
                "only_in_copy": each.only_in_copy_rows,
                "different": each.different_rows,
                "differences": list(each.lines()),
            }
            for each in self.tables
        ]
        return {"identical": self.is_identical, "rows": self.rows, "positions": self.positions, "tables": tables}


@dataclass(frozen=True)
class _Copy:
    """A mirror of one physical source, and the query that keeps it."""

    graph: Graph
    node: NodeSpec
    plan: QueryPlan
    physical: str
    database: Path

    def selects(self, source: str) -> bool:
        return any(
            feed.output == self.node.path and feed.selects(f"{self.physical}/{source}") for feed in self.plan.feeds
        )

    def position(self) -> SourceCheckpoint | None:
        """Up to where the query has written; None before its first batch."""
        folder = self.graph.config.state / "queries" / self.plan.name
        done = [int(path.name) for path in (folder / "commits").glob("*") if path.name.isdigit()]
        if not done:
            return None
        try:
            text = (folder / "offsets" / str(max(done))).read_text(encoding="utf-8").splitlines()[2]
        except OSError:
            return None  # being replaced
        return Checkpoint.from_json(text, "offset").sources.get(self.physical)

    def published(self) -> SourceCheckpoint | None:
        """The end of the relay's log; None if the relay does not run."""
        from databus.client import RelayClient

        config = self.graph.config
        try:
            url = config.relay.url or json.loads((config.relay_folder / "relay.json").read_text())["url"]
            return RelayClient(url, token_file=config.token_file).head(self.physical).published
        except (OSError, ValueError, TryAgain):
            return None

    def folder_of(self, source: str) -> Path:
        from databus.pipeline.outputs._paths import path_of

        config = self.graph.config
        context = OutputContext(config.name, self.node.name, config.folder)
        return path_of(self.node.config.path, context, self.physical, source)

    def key_of(self, table: TableSchema) -> tuple[str, ...]:
        chosen = self.node.config.key
        found = chosen.get(table.source) if isinstance(chosen, dict) else chosen
        return tuple(found or table.key)


def compare(
    graph: Graph,
    output: str,
    *,
    database: Path | None = None,
    wait_ms_max: int = 60_000,
    keys_max: int = _KEYS_SHOWN_MAX,
) -> Comparison:
    """Compare a Delta mirror with the SQLite databases that it copies.

    graph: of the pipeline that keeps it. database: the file, where the pipeline's relay runs elsewhere. Raises
    `ConfigError` if that output is no mirror of SQLite tables, `Unavailable` if the copy did not reach the source
    within `wait_ms_max`, or the source would not rest.
    """
    deadline = time.monotonic() + wait_ms_max / 1e3
    tables: list[TableDifference] = []
    positions: dict[str, int] = {}
    for copy in _copies(graph, output, database):
        found, cut = _compare_physical(copy, deadline, keys_max)
        tables += found
        positions[copy.physical] = cut
    return Comparison(tuple(tables), positions)


def _copies(graph: Graph, output: str, database: Path | None) -> list[_Copy]:
    config = graph.config
    node = config.nodes.get(f"outputs.{output}")
    if node is None or getattr(node.config, "mode", None) != "mirror":
        mirrors = [each.name for each in config.nodes.values() if getattr(each.config, "mode", None) == "mirror"]
        raise ConfigError(f'{config.path}: "{output}" is no mirror; there are {", ".join(mirrors) or "none"}')
    physicals = list(config.sources)
    if database is not None and not physicals:
        physicals = _physicals_of_relay(graph)
    found = []
    for plan in plan_queries(graph, physicals):
        if plan.shape is not Shape.TABLES or plan.physical is None or node.path not in [f.output for f in plan.feeds]:
            continue
        source = config.sources.get(plan.physical)
        path = database or (config.folder / str(getattr(source, "path", "")))
        if database is None and (source is None or source.type != "sqlite"):
            raise ConfigError(
                f"{config.path}: {plan.physical} is not a SQLite database, which is all that can be compared"
            )
        found.append(_Copy(graph, node, plan, plan.physical, path))
    if not found:
        raise ConfigError(f'{config.path}: "{output}" copies no tables as they are; typed branches cannot be compared')
    return found


def _physicals_of_relay(graph: Graph) -> list[str]:
    from databus.client import RelayClient

    client = RelayClient(graph.config.relay.url or "", token_file=graph.config.token_file)
    return sorted({each.physical for each in client.sources()})


def _compare_physical(copy: _Copy, deadline: float, keys_max: int) -> tuple[list[TableDifference], int]:
    why = "nothing was tried"
    while True:
        try:
            with closing(_open(copy.database)) as connection:
                connection.execute("BEGIN")
                changes, cut = _marks(connection, copy.database)
                why = _not_there(copy, changes, cut)
                if not why:
                    found = [_compare_table(copy, connection, each, keys_max) for each in _tables(connection, copy)]
                    if _rests(copy.database, changes):
                        return found, cut[0]
                    why = "the source did not rest: it was written to during the comparison"
        except sqlite3.OperationalError as error:
            why = f"{copy.database}: {error}"
        if time.monotonic() > deadline:
            raise Unavailable(f"{copy.physical}: not compared: {why}")
        time.sleep(_ASK_S)  # neither SQLite nor Delta tells of a commit in another process


def _open(database: Path) -> sqlite3.Connection:
    if not database.is_file():
        raise ConfigError(f"{database}: there is no such database")
    return sqlite3.connect(database, timeout=_BUSY_S, isolation_level=None)


def _marks(connection: sqlite3.Connection, database: Path) -> tuple[int, tuple[int, int]]:
    """The last change that was written, and the last cut with the last change in it; fixes the read transaction."""
    try:
        (changes,) = connection.execute("SELECT coalesce(max(id), 0) FROM _databus_change").fetchone()
        cut = connection.execute("SELECT id, change_id FROM _databus_cut ORDER BY id DESC LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{database}: not captured yet: {error}") from error
    return changes, cut or (0, 0)


def _rests(database: Path, changes: int) -> bool:
    with closing(_open(database)) as connection:
        return _marks(connection, database)[0] == changes


def _not_there(copy: _Copy, changes: int, cut: tuple[int, int]) -> str:
    """Why the copy cannot be compared with this moment of the source yet; empty if it can."""
    if changes > cut[1]:
        return f"{changes - cut[1]} changes of the source are not captured yet; does the relay run?"
    position, published = copy.position(), copy.published()
    if position is None or ordinal_of(position.scn) < cut[0]:
        at = 0 if position is None else ordinal_of(position.scn)
        return f"the copy is at {at}, the source at {cut[0]}; does the pipeline run?"
    if published is None:
        return ""
    if published.snapshots:
        return f"{', '.join(published.snapshots)} are being read"
    if position.pair < published.pair:
        return f"the copy is at {position.pair}, the log at {published.pair}"
    return ""


def _tables(connection: sqlite3.Connection, copy: _Copy) -> list[TableSchema]:
    rows = connection.execute("SELECT definition FROM _databus_table WHERE live ORDER BY t").fetchall()
    latest = {table.source: table for table in (TableSchema.from_json(json.loads(text)) for (text,) in rows)}
    return [latest[source] for source in sorted(latest) if copy.selects(source)]


def _compare_table(copy: _Copy, connection: sqlite3.Connection, table: TableSchema, keys_max: int) -> TableDifference:
    key = copy.key_of(table)
    if not key:
        return TableDifference(table.source, 0, note="it has no key, so a mirror of it cannot be")
    source = _source_rows(connection, table, key)
    try:
        mirrored = _copy_rows(copy.folder_of(table.source), table, key)
    except DatabusError as error:
        if source or not isinstance(error, Unavailable):
            return TableDifference(table.source, len(source), note=str(error))
        return TableDifference(table.source, 0)  # never a row, so never a copy
    return _difference(table, source, mirrored, keys_max)


def _source_rows(connection: sqlite3.Connection, table: TableSchema, key: Sequence[str]) -> dict[Row, Row]:
    """The rows as the database holds them, by key."""
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in table.names}
    columns = [
        f"quote({quoted[each.name]})" if each.db_type == _LITERAL else quoted[each.name] for each in table.columns
    ]
    name = table.source.rpartition(".")[2].replace('"', '""')
    places = [table.names.index(each) for each in key]
    found = connection.execute(f'SELECT {", ".join(columns)} FROM "{name}"')  # noqa: S608 - names, quoted
    return {tuple(row[place] for place in places): tuple(map(_as_copied, row, table.columns)) for row in found}


def _as_copied(value: Any, column: Any) -> Any:
    """A value as the column's type holds it: SQLite keeps whole reals as integers; a literal NULL is null."""
    if column.type == "float64" and isinstance(value, int):
        return float(value)
    return None if column.db_type == _LITERAL and value == "NULL" else value


def _copy_rows(folder: Path, table: TableSchema, key: Sequence[str]) -> dict[Row, Row]:
    from deltalake.exceptions import DeltaError, TableNotFoundError

    from databus.pipeline.outputs import read_delta

    try:
        found: pa.Table = read_delta(folder)
    except TableNotFoundError as error:
        raise Unavailable(f"{folder}: there is no table") from error
    except (DeltaError, OSError) as error:
        raise ConfigError(f"{folder}: cannot be read: {error}") from error
    missing = [name for name in table.names if name not in found.column_names]
    if missing:
        raise ConfigError(f"the copy lacks column {missing[0]!r}")
    columns = [found.column(name).to_pylist() for name in table.names]
    places = [table.names.index(each) for each in key]
    return {tuple(row[place] for place in places): row for row in zip(*columns, strict=True)}


def _difference(
    table: TableSchema, source: Mapping[Row, Row], copied: Mapping[Row, Row], keys_max: int
) -> TableDifference:
    missing = [key for key in source if key not in copied]
    extra = [key for key in copied if key not in source]
    changed = [key for key, row in source.items() if key in copied and not _is_same(row, copied[key])]
    return TableDifference(
        table.source,
        len(source),
        only_in_source=_first(missing, keys_max),
        only_in_copy=_first(extra, keys_max),
        different=_first(changed, keys_max),
        only_in_source_rows=len(missing),
        only_in_copy_rows=len(extra),
        different_rows=len(changed),
    )


def _first(keys: Sequence[Row], keys_max: int) -> tuple[Row, ...]:
    return tuple(sorted(keys, key=repr)[:keys_max])


def _is_same(one: Row, other: Row) -> bool:
    return all(a == b and type(a) is type(b) for a, b in zip(one, other, strict=True))
