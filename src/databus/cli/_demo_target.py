"""What the demo's pipeline writes to, and how that is compared at the end.

Delta tables here, topics in `_demo_kafka.py`, indices in `_demo_search.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from databus.core import CHANGE_TYPE, SOURCE, ChangeType, FatalError, InputError
from databus.sources import Row, SourceConfig
from databus.testing.servers import ServerProcess
from databus.testing.shop import TABLES

_SECTIONS: Final = """\
filters:
  paid: {type: where, from: shop, tables: [orders], where: "status = 'paid' AND total_cents > 10000"}
  private: {type: mask, from: paid, tables: [customers], redact: [email], truncate: {name: 1}}
  named: {type: rename, from: private, tables: [stock], columns: {quantity: pieces}}
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
  history: {type: delta, from: shop, mode: history, path: lake/history}
  filtered: {type: delta, from: named, mode: mirror, path: lake/filtered}
"""
_MIRRORS: Final = ("copy", "filtered")

Say = Callable[[str], None]


class DemoTarget(Protocol):
    """Where the demo's rows go."""

    product: str
    """Its name before those of its outputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """Those that it has in the pipeline's file, by name."""
        ...

    def build(self) -> None:
        """Start what there is to start. Raises `ServerMissing`, and `InputError` for a client that is not installed."""
        ...

    def sections(self) -> str:
        """The filters and outputs of the pipeline's file."""
        ...

    def compare(self, source: SourceConfig, relay: str, say: Say) -> int:
        """Compare it with the database; returns how many rows both have. relay: its URL.

        Raises `FatalError` for any difference.
        """
        ...

    @property
    def server(self) -> ServerProcess | None:
        """The server that can be killed; None where there is none. Stopped by who called `build`, also if it failed."""
        ...


class DeltaDemo:
    """Two mirrors, one of them behind filters, and a history."""

    product = "Delta"
    outputs = ("copy", "history", "filtered")
    server = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self) -> None:
        """See `DemoTarget`."""

    def sections(self) -> str:
        """See `DemoTarget`."""
        return _SECTIONS

    def compare(self, source: SourceConfig, relay: str, say: Say) -> int:
        """See `DemoTarget`."""
        del relay
        from databus.pipeline import compare, load_pipeline

        graph = load_pipeline(self._folder / "databus.yml")
        compared = {name: compare(graph, name, sources={"shop": source}) for name in _MIRRORS}
        for name, comparison in compared.items():
            say(f"compared the Delta tables of {name}: {comparison.summary()}")
            if not comparison.is_identical:
                raise FatalError(f"source and {name} differ:\n{comparison.details()}")
        self._check_history()
        return compared["copy"].rows

    def _check_history(self) -> None:
        """No change twice: (SCN, `_seq`) is unique in the history."""
        from databus.sinks import read_delta

        for name in TABLES:
            history = read_delta(self._folder / "lake" / "history" / name, ["_commit_version", "_seq"])
            if history.num_rows != history.group_by(["_commit_version", "_seq"]).aggregate([]).num_rows:
                raise FatalError(f"the history of {name} holds a change twice")


def target_of(sink: str, folder: Path) -> DemoTarget:
    """The target for a kind of sink: `delta`, `kafka` or `opensearch`."""
    if sink == "kafka":
        from databus.cli._demo_kafka import KafkaDemo

        return KafkaDemo(folder)
    if sink == "opensearch":
        from databus.cli._demo_search import SearchDemo

        return SearchDemo(folder)
    if sink != "delta":
        raise InputError(f"no sink called {sink!r}; there are delta, kafka, opensearch")
    return DeltaDemo(folder)


def compare_rows(
    source: SourceConfig, relay: str, held: Callable[[str], list[dict[str, Any]]], say: Say, what: str
) -> int:
    """Compare rows in our own JSON with the database, all tables; returns how many there are. held: by table's name.

    Raises `FatalError` for any difference.
    """
    from databus.link import RelayClient
    from databus.pipeline import read_source

    client = RelayClient(relay)
    tables = {served.table: client.table_of(served.fingerprint) for served in client.sources()}
    selected, count = read_source("shop", source), 0
    for source_name, table in sorted(tables.items()):
        name = source_name.rpartition(".")[2]
        copied, wanted = _typed(table, held(name)), selected[source_name]
        if copied != wanted:
            raise FatalError(f"source and {what} differ: {_difference(name, wanted, copied)}")
        count += len(copied)
    say(f"compared the {what} with the source: {len(tables)} tables, {count:,} rows")
    return count


def _typed(table: Any, rows: Sequence[Mapping[str, Any]]) -> dict[Row, Row]:
    """Rows by key, in the values that a mirror holds."""
    import json

    import pyarrow as pa

    from databus.formats import own_rows
    from databus.schema import sink_schema

    about = {SOURCE: f"shop/{table.source}", CHANGE_TYPE: ChangeType.INSERT.label}
    lines = [json.dumps({**row, **about}).encode() for row in rows]
    read = own_rows(table, pa.array(lines, pa.large_binary())).rows.select(table.names).cast(sink_schema(table))
    columns = [column.to_pylist() for column in read.columns]
    places = [table.names.index(column) for column in table.key]
    return {tuple(row[place] for place in places): row for row in zip(*columns, strict=True)}


def _difference(name: str, wanted: Mapping[Row, Row], copied: Mapping[Row, Row]) -> str:
    key = next(key for key in sorted({*wanted, *copied}, key=repr) if wanted.get(key) != copied.get(key))
    return f"{name} {key}: {wanted.get(key)} in the source, {copied.get(key)} there"
