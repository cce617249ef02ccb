"""What the relay's tests are made with: a source that does as it is told, and a plain HTTP client."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import pyarrow as pa

from databus.core import BUS_SEQ_MIN, ChangeType, ControlKind, Identity
from databus.log import Resume
from databus.relay import Relay, RelayConfig, State, parse_relay
from databus.schema import Column, TableSchema, frame_schema
from databus.sources import SourceConfig, SourceLag
from databus.wire import Commit, Control, FrameGroup, FrameParser, Group, Rows

ORDERS = TableSchema("main.orders", (Column("id", "int64"), Column("name", "string")), ("id",))
STOCK = TableSchema("main.stock", (Column("id", "int64"), Column("left", "int32")), ("id",))
AT_US = 1_700_000_000_000_000
WAIT_S = 45.0


def rows_of(table: TableSchema, scn: int, rows: Sequence[Mapping[str, Any]], first_seq: int = 1) -> Rows:
    """Inserts of one transaction."""
    count = len(rows)
    columns = [[row[column.name] for row in rows] for column in table.columns]
    schema = frame_schema(table)
    columns += [
        [int(ChangeType.INSERT)] * count,
        [scn] * count,
        list(range(first_seq, first_seq + count)),
        [AT_US + scn] * count,
        [f"t{scn}"] * count,
        [first_seq >= BUS_SEQ_MIN] * count,
    ]
    arrays = [pa.array(column, schema.field(i).type) for i, column in enumerate(columns)]
    return Rows(table, pa.RecordBatch.from_arrays(arrays, schema=schema))


def commit_of(scn: int, seq: int, *, continues: bool = False) -> Commit:
    return Commit(scn, seq, f"t{scn}", {"n": scn}, AT_US + scn, continues=continues)


def order(scn: int, name: str = "a") -> Group:
    """A transaction that inserts one order."""
    return Group(commit_of(scn, 1), (rows_of(ORDERS, scn, [{"id": scn, "name": name}]),))


def sale(scn: int) -> Group:
    """A transaction over two tables: an order, then the stock that is left."""
    order_rows = rows_of(ORDERS, scn, [{"id": scn, "name": "b"}])
    stock_rows = rows_of(STOCK, scn, [{"id": 1, "left": 100 - scn}], first_seq=2)
    return Group(commit_of(scn, 2), (order_rows, stock_rows))


def parts(scn: int, count: int, rows_each: int = 10) -> list[Group]:
    """One transaction in several groups."""
    groups = []
    for part in range(count):
        first = part * rows_each + 1
        rows = rows_of(ORDERS, scn, [{"id": first + i, "name": "x" * 50} for i in range(rows_each)], first)
        groups.append(Group(commit_of(scn, first + rows_each - 1, continues=part < count - 1), (rows,)))
    return groups


def truncate(scn: int) -> Group:
    body = {"kind": ControlKind.TRUNCATE, "source": ORDERS.source}
    return Group(commit_of(scn, 1), (), Control(ControlKind.TRUNCATE, ORDERS, scn, 1, body))


@dataclass
class Database:
    """What a `ScriptedSource` reads: groups, and errors to raise, as a test says. Survives the source's restarts."""

    uuid: str = "11111111-1111-1111-1111-111111111111"
    tables: tuple[TableSchema, ...] = (ORDERS, STOCK)
    groups: list[Group] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    identify_errors: list[Exception] = field(default_factory=list)
    told: list[Mapping[str, Any]] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    polls: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, *groups: Group) -> None:
        with self.changed:
            self.groups.extend(groups)
            self.changed.notify_all()

    def fail(self, *errors: Exception) -> None:
        """The next polls raise these."""
        with self.changed:
            self.errors.extend(errors)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)


class ScriptedSource:
    """Yields its database's groups from the log's end on."""

    config_model: ClassVar = SourceConfig

    def __init__(self, physical: str, database: Database) -> None:
        self.physical = physical
        self._database = database
        self._next = 0

    def identify(self) -> Identity:
        if self._database.identify_errors:
            raise self._database.identify_errors.pop(0)
        return Identity(self._database.uuid, "count", f"script {self.physical}")

    def tables(self) -> Sequence[TableSchema]:
        return self._database.tables

    def start(self, resume: Resume) -> None:
        database = self._database
        with database.changed:
            database.resumes.append(resume)
            database.changed.notify_all()
        done = (resume.scn, resume.seq) if resume.position else (0, 0)
        self._next = sum(group.commit.pair <= done for group in database.groups)

    def poll(self, wait_ms: int) -> Group | None:
        database = self._database
        with database.changed:
            database.polls += 1
            database.changed.notify_all()
            database.changed.wait_for(lambda: database.errors or self._next < len(database.groups), wait_ms / 1e3)
            if self._next < len(database.groups):
                self._next += 1
                return database.groups[self._next - 1]
            if database.errors:
                raise database.errors.pop(0)
        return None

    def durable(self, position: Mapping[str, Any]) -> None:
        with self._database.changed:
            self._database.told.append(position)
            self._database.changed.notify_all()

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        del where
        self._database.asked.extend(sources)

    def cancel_snapshot(self, sources: Sequence[str]) -> None:
        self._database.cancelled.extend(sources)

    def lag(self) -> SourceLag:
        return SourceLag(12.5, 3, 60_000.0, {"main.orders": 2}, bytes=4096)

    def close(self) -> None:
        return


def config_of(folder: Path, databases: Mapping[str, Database], **options: Any) -> RelayConfig:
    value = {
        "listen": "127.0.0.1:0",
        "folder": "relay",
        "sources": {name: {"type": "mock"} for name in databases},
        **options,
    }
    value["capture"] = {"poll_ms": 20, "retry_ms_min": 1, "retry_ms_max": 20, **value.get("capture", {})}
    value["log"] = {"fsync_interval_ms": 5, "free_bytes_min": 0, **value.get("log", {})}
    return parse_relay(value, folder=folder)


@contextmanager
def scripted(folder: Path, databases: Mapping[str, Database], **options: Any) -> Iterator[Relay]:
    """A relay whose sources are scripted."""
    config = config_of(folder, databases, **options)
    with Relay(config, open_source=lambda name, _: ScriptedSource(name, databases[name])) as relay:
        yield relay


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def groups(self) -> list[FrameGroup]:
        return parse_frames(self.body)


def parse_frames(body: bytes) -> list[FrameGroup]:
    parser = FrameParser("response")
    groups, view = [], memoryview(body)
    while view:
        space = parser.space()
        count = min(len(space), len(view))
        space[:count] = view[:count]
        groups += parser.received(count)
        view = view[count:]
    parser.finish()
    return groups


def connect(relay: Relay | str, timeout: float = WAIT_S) -> http.client.HTTPConnection:
    url = relay if isinstance(relay, str) else relay.url
    host, _, port = url.removeprefix("http://").rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=timeout)


def path_of(path: str, query: Mapping[str, Any]) -> str:
    pairs = {name.rstrip("_"): json.dumps(v) if isinstance(v, dict) else v for name, v in query.items()}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def get(relay: Relay | str, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Answer:
    """One request. A parameter called `from_` is `from`."""
    return ask("GET", relay, path_of(path, query), headers)


def post(relay: Relay | str, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Answer:
    """The same, for what changes something."""
    return ask("POST", relay, path_of(path, query), headers)


def ask(
    method: str, relay: Relay | str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> Answer:
    """One request of any method."""
    connection = connect(relay)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Wait until something is true, with a bound."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {WAIT_S} s"
        time.sleep(0.002)
    return found


def published(relay: Relay, physical: str, scn: int) -> None:
    """Wait until a log has published an SCN."""
    capture = relay.captures[physical]
    until(lambda: capture.log is not None and capture.log.head().published.scn >= scn, f"{physical} at SCN {scn}")


def scns(answer: Answer) -> list[int]:
    return [group.commit.last_scn for group in answer.groups]


def state_of(relay: Relay, physical: str = "shop") -> dict[str, Any]:
    found: dict[str, Any] = get(relay, "/controlSources/status", sources=physical).json[0]
    return found


def wait_for_state(relay: Relay, state: State, physical: str = "shop") -> dict[str, Any]:
    found: dict[str, Any] = until(lambda: (now := state_of(relay, physical))["state"] == state.name and now, state.name)
    return found
