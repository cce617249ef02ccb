"""What the tests of accidents are made with: a capture that plays relay and log, a copy by value, a busy server.

`Follower` polls a real source into a tape as the capture loop does into its log, and starts another where that
ends, whenever it is killed or told to try again. `Copy` is what a mirror makes of it, for comparing by value.
"""

import datetime as dt
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pymysql
import pytest

from databus.core import ChangeType, ControlKind, DatabusError, TransientError, name_parts
from databus.formats import from_json_value
from databus.sources.mysql import MysqlConfig, MysqlSource
from databus.testing._source_suite import Tape
from databus.testing.servers import SOAK_KINDS, Server
from databus.wire import Control, Group, Rows

ARRIVE_S_MAX = 60.0
FAMILIES = [
    "mariadb-10.11",
    "mysql-8.0",
    *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("mysql-5.7", *SOAK_KINDS)),
]
"""Servers for tests of whole relays, in which releases of one family do not differ; what differs is tried on all, by
tests that need no process of their own.
"""
_marks = itertools.count(1)
Row = dict[str, Any]


def hosts(*servers: Server) -> list[str]:
    """Their addresses, as the configuration has them."""
    return [f"{server.host}:{server.port}" for server in servers]


def config_of(database: str, *servers: Server, **options: Any) -> MysqlConfig:
    """A configuration with small groups and chunks that looks at everything in `database`."""
    settings: dict[str, Any] = {
        "type": "mysql",
        "hosts": hosts(*servers),
        "user": servers[0].capture_user if servers else "databus_test",
        "password": servers[0].capture_password if servers else "databus-of-tests",
        "tables": [f"{database}.*"],
        "group_bytes_max": 4096,
        "chunk_rows_max": 50,
        "heartbeat_ms": 100,
        "progress_ms": 20,
        "connect_ms_max": 5_000,
    }
    return MysqlConfig.model_validate({**settings, **options})


class Copy:
    """Tables as a mirror has them: by key, the last pair wins; controls are followed as DESIGN 4.6 says."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[tuple[Any, ...], tuple[tuple[int, int], Row]]] = {}
        self.controls: list[dict[str, Any]] = []

    def take(self, group: Group) -> None:
        """Apply one group."""
        if group.control is not None:
            self._control(group.control)
        for rows in group.rows:
            self._rows(rows)

    def _rows(self, rows: Rows) -> None:
        held = self.tables.setdefault(rows.table.source, {})
        for row in rows.batch.to_pylist():
            pair = (row["_commit_version"], row["_seq"])
            key = tuple(row[name] for name in rows.table.key)
            if row["_change_type"] in (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE):
                held[key] = (pair, {name: value for name, value in row.items() if not name.startswith("_")})
            else:
                held.pop(key, None)

    def _control(self, control: Control) -> None:
        source, body = control.table.source, dict(control.body)
        self.controls.append({**body, "pair": control.pair})
        held = self.tables.setdefault(source, {})
        match control.kind:
            case ControlKind.DROP:
                del self.tables[source]
            case ControlKind.TRUNCATE:
                held.clear()
            case ControlKind.SCHEMA if body["class"] == 3:
                held.clear()  # the reading that follows must bring every row
            case ControlKind.SCHEMA:
                renamed, names = body["renamed"], control.table.names
                fill = {
                    name: from_json_value(value, control.table.column(name).type)
                    for name, value in body["fill"].items()
                }
                for key, (pair, old) in list(held.items()):
                    row = {renamed.get(name, name): value for name, value in old.items()}
                    if pair < control.pair:
                        row |= fill
                    row = {name: row.get(name) for name in names}
                    del held[key]
                    held[tuple(row[name] for name in control.table.key)] = (pair, row)
            case ControlKind.SNAPSHOT_END if body["complete"]:
                begin = tuple(body["begin"])
                self.tables[source] = {key: each for key, each in held.items() if each[0] >= begin}
            case _:
                pass

    def kinds(self, source: str | None = None) -> list[str]:
        """What happened to a table, without its readings."""
        return [
            str(each["kind"])
            for each in self.controls
            if source in (None, each["source"]) and not str(each["kind"]).startswith("snapshot")
        ]

    def differences(self, server: Server, database: str) -> list[str]:
        """In what this is not what the server holds; empty if in nothing."""
        there = {
            str(row[0]) for row in server.query(f"SHOW FULL TABLES IN `{database}` WHERE Table_type = 'BASE TABLE'")
        }
        held = {
            name_parts(source)[1]: rows for source, rows in self.tables.items() if name_parts(source)[0] == database
        }
        found = [f"{name} is not on the server" for name in held.keys() - there if held[name]]
        with server.connect(database=database, cursorclass=pymysql.cursors.DictCursor) as connection:
            for name in sorted(there):
                with connection.cursor() as cursor:
                    cursor.execute("SELECT * FROM `" + name.replace("`", "``") + "`")
                    theirs = [repr(sorted(row.items())) for row in cursor.fetchall()]
                ours = [repr(sorted(row.items())) for _, row in held.get(name, {}).values()]
                missing, more = sorted(set(theirs) - set(ours)), sorted(set(ours) - set(theirs))
                if len(theirs) != len(ours) or missing or more:
                    found.append(
                        f"{name}: {len(theirs)} rows, {len(ours)} here; missing {missing[:3]}, more {more[:3]}"
                    )
        return found


class Follower:
    """A source, and the log that it would fill, kept in memory. `folder`: for the source's own files."""

    def __init__(self, config: MysqlConfig, folder: Path, physical: str = "shop") -> None:
        self.config = config
        self.tape = Tape()
        self.source: MysqlSource | None = None
        self.tried: list[DatabusError] = []
        self._lag_due_s = 0.0
        self._folder = folder
        self._physical = physical

    def start(self) -> None:
        """Start a source where the tape ends. Raises what it raises."""
        self.kill()
        self.source = MysqlSource(self._physical, self.config)
        resume = self.tape.resume()
        try:
            self.source.identify()
            self.source.tables()
            self.source.start(replace(resume, folder=self._folder))
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Drop the source; what is unfinished of the tape goes at the next start."""
        source, self.source = self.source, None
        if source is not None:
            source.close()

    def step(self) -> Group | None:
        """One poll, as the capture loop does it: what may pass ends the source, and the next step starts another."""
        try:
            if self.source is None:
                self.start()
            assert self.source is not None
            group = self.source.poll(20)
            if time.monotonic() >= self._lag_due_s:
                self._lag_due_s = time.monotonic() + 1
                self.source.lag()
        except TransientError as error:
            self.tried.append(error)
            self.kill()
            time.sleep(0.02)
            return None
        except DatabusError:
            self.kill()
            raise
        if group is not None:
            self.tape.append(group)
        return group

    def until(self, is_there: Callable[[], bool], seconds_max: float = ARRIVE_S_MAX) -> None:
        """Step until something holds."""
        end = time.monotonic() + seconds_max
        while not is_there():
            self.step()
            assert time.monotonic() < end, f"it did not come; tried again after {[str(e) for e in self.tried[-3:]]}"

    def catch_up(self, server: Server, database: str) -> None:
        """Step until everything that the server has committed by now is in, and no table is being read."""
        mark = next(_marks)
        server.run(f"REPLACE INTO `{database}`.mark VALUES (1, {mark})")
        seen = len(self.tape.groups)
        state = {"at": max(seen - 1, 0), "is_marked": False}

        def is_there() -> bool:
            groups = self.tape.groups
            state["at"] = min(state["at"], max(len(groups) - 1, 0))  # a step adds one group, also when it cuts back
            for group in groups[state["at"] :]:
                for rows in group.rows:
                    if rows.table.source == f"{database}.mark" and mark in rows.batch["n"].to_pylist():
                        state["is_marked"] = True
            state["at"] = len(groups)
            if not (state["is_marked"] and groups):
                return False
            last = groups[-1].commit
            return not (last.snapshots or last.has_unread or last.continues)

        self.until(is_there)

    def copy(self) -> Copy:
        """What a mirror makes of the whole tape."""
        copy = Copy()
        for group in self.tape.groups:
            copy.take(group)
        return copy

    def check(self, server: Server, database: str) -> Copy:
        """Catch up, and hold the copy against the server."""
        self.catch_up(server, database)
        copy = self.copy()
        assert copy.differences(server, database) == []
        return copy


def create(server: Server, database: str) -> None:
    """The tables that `Load` keeps busy, and the one that `Follower.catch_up` marks."""
    server.run(
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
        f"CREATE TABLE {database}.a (id INT PRIMARY KEY, name VARCHAR(60), price DECIMAL(12,2), at DATETIME(6))",
        f"CREATE TABLE {database}.b (k VARCHAR(20), n INT, x DOUBLE, PRIMARY KEY (k, n))",
        f"INSERT INTO {database}.a SELECT n, CONCAT('first ', n), n / 3, NULL FROM (SELECT a.d * 10 + b.d AS n FROM "
        + ", ".join(f"({' UNION '.join(f'SELECT {i} AS d' for i in range(1, 11))}) AS {name}" for name in "ab")
        + ") AS numbers GROUP BY n",
    )


class Load:
    """Transactions on `a` and `b` of a database from a thread of its own, whatever becomes of the server.

    As a context it works until the end. `server` may be changed while it works.
    """

    def __init__(self, server: Server, database: str, seed: int) -> None:
        self.server = server
        self.done = 0
        self.error: BaseException | None = None
        self._database = database
        self._dice = random.Random(seed)
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End it after the transaction at hand."""
        self._stopping.set()
        self._thread.join(30)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold it between two transactions, with no connection open."""
        with self._turn:
            yield

    def wait_for(self, count: int, follower: Follower | None = None) -> None:
        """Wait until so many more transactions are done, meanwhile stepping."""
        goal, end = self.done + count, time.monotonic() + ARRIVE_S_MAX
        while self.done < goal:
            if follower is None:
                time.sleep(0.005)
            else:
                follower.step()
            assert self.error is None, self.error
            assert time.monotonic() < end, "the load does not go on"

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with (
                    self._turn,
                    self.server.connect(database=self._database, autocommit=False, connect_timeout=5) as connection,
                ):
                    for _ in range(self._dice.randint(1, 10)):
                        self._transact(connection)
            except (pymysql.err.MySQLError, OSError):
                time.sleep(0.02)  # it is down, or read only now
            except BaseException as error:  # noqa: BLE001 - raised where it is looked at
                self.error = error
                return

    def _transact(self, connection: "pymysql.Connection[Any]") -> None:
        with connection.cursor() as cursor:
            for statement in self._statements():
                cursor.execute(statement)
        connection.commit()
        self.done += 1

    def _statements(self) -> Iterable[str]:
        dice = self._dice
        for _ in range(dice.choice([1, 2, 5, 40])):
            key = dice.randint(1, 300)
            match dice.randint(1, 6):
                case 1 | 2:
                    values = f"({key}, 'n{dice.random()}', {key / 7:.2f}, NOW(6))"
                    yield f"REPLACE INTO a (id, name, price, at) VALUES {values}"
                case 3:
                    yield f"UPDATE a SET price = price + 1, name = REVERSE(name) WHERE id BETWEEN {key} AND {key + 5}"
                case 4:
                    yield f"DELETE FROM a WHERE id = {key}"
                case 5:
                    yield f"INSERT IGNORE INTO b (k, n, x) VALUES ('k{key % 9}', {key}, {dice.random()})"
                case 6:
                    yield f"DELETE FROM b WHERE n = {key}"


def purge(server: Server) -> None:
    """Until only the last file is left: one that a connection still reads stays. A new file is begun each time, for the
    thread of a connection that is gone notices that only when it has something to send.
    """
    end = time.monotonic() + 60
    while True:
        server.run("FLUSH BINARY LOGS")
        last = server.position()[0]
        server.run(f"PURGE BINARY LOGS TO '{last}'")
        if server.binlogs()[0].name == last:
            return
        assert time.monotonic() < end, server.binlogs()
        time.sleep(0.05)


def drop_quietly(server: Server, *databases: str) -> None:
    """Drop databases, whatever state the server is in."""
    with suppress(pymysql.err.MySQLError, OSError):
        server.run(*(f"DROP DATABASE IF EXISTS {name}" for name in databases))


def second_after(server: Server) -> str:
    """A second of the server's clock at whose begin all before was committed."""
    (before,) = server.query("SELECT UTC_TIMESTAMP()")[0]
    while True:
        (now,) = server.query("SELECT UTC_TIMESTAMP()")[0]
        if now > before:
            return str(now.replace(tzinfo=dt.UTC).isoformat())
        time.sleep(0.02)  # a server does not tell when its clock goes on
