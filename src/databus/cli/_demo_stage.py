"""Where the demo plays: a shop in a SQLite file, or on a MySQL or MariaDB server that is started for it."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

from databus.testing.servers import Server, open_server
from databus.testing.shop import create_shop, create_shop_on

_KINDS: Final = {"mariadb": "mariadb-10.11", "mysql": "mysql-8.0"}


class Stage(Protocol):
    """A database with a shop in it.

    name: for people. database: the shop's, by which its tables are named. text_type: for a short text in DDL. unit:
    what its SCNs count. has_server: whether there is a server that can be killed.
    """

    name: str
    database: str
    text_type: str
    unit: str
    has_server: bool

    @property
    def target(self) -> Path:
        """What the workload's program is told."""
        ...

    def build(self) -> None:
        """Make the database and the shop. Raises `ServerMissing` where this machine cannot have it."""
        ...

    def source(self) -> Mapping[str, Any]:
        """The options of the source, for a relay."""
        ...

    def execute(self, statement: str) -> None:
        """Run one statement in the shop."""
        ...

    def kill_server(self) -> None:
        """SIGKILL."""
        ...

    def start_server(self) -> None:
        """Start it again."""
        ...

    def close(self) -> None:
        """Let go of everything; also of what `build` left unfinished."""
        ...


class SqliteStage:
    """A file."""

    database = "main"
    text_type = "TEXT"
    unit = "cuts"
    has_server = False

    def __init__(self, folder: Path) -> None:
        self.target = folder / "shop.db"
        self.name = str(self.target)

    def build(self) -> None:
        """See `Stage`."""
        create_shop(self.target)

    def source(self) -> Mapping[str, Any]:
        """See `Stage`."""
        return {"type": "sqlite", "path": str(self.target)}

    def execute(self, statement: str) -> None:
        """See `Stage`."""
        with closing(sqlite3.connect(self.target, timeout=30, isolation_level=None)) as connection:
            connection.execute(statement)

    def kill_server(self) -> None:
        """See `Stage`."""

    def start_server(self) -> None:
        """See `Stage`."""

    def close(self) -> None:
        """See `Stage`."""


class ServerStage:
    """A real server with its data in the demo's folder, captured by a user who may do no more than that needs."""

    database = "shop"
    text_type = "VARCHAR(20)"
    unit = "transactions"
    has_server = True

    def __init__(self, kind: str, folder: Path) -> None:
        self._server: Server = open_server(_KINDS[kind], folder / kind)
        self.name = self._server.kind

    @property
    def target(self) -> Path:
        """See `Stage`."""
        return self._server.option_file

    def build(self) -> None:
        """See `Stage`."""
        self._server.start()
        self.name = f"a shop on {self._server.kind} ({self._server.version}, port {self._server.port})"
        create_shop_on(self._server.connect)

    def source(self) -> Mapping[str, Any]:
        """See `Stage`."""
        return {
            "type": "mysql",
            "hosts": [f"{self._server.host}:{self._server.port}"],
            "user": self._server.capture_user,
            "password": self._server.capture_password,
            "tables": [f"{self.database}.*"],
        }

    def execute(self, statement: str) -> None:
        """See `Stage`."""
        with closing(self._server.connect(database=self.database)) as connection:
            connection.cursor().execute(statement)

    def kill_server(self) -> None:
        """See `Stage`."""
        self._server.kill()

    def start_server(self) -> None:
        """See `Stage`."""
        self._server.start()

    def close(self) -> None:
        """See `Stage`."""
        self._server.stop()


def stage_of(source: str, folder: Path) -> Stage:
    """The stage for a kind of source: `sqlite`, `mariadb` or `mysql`."""
    return SqliteStage(folder) if source == "sqlite" else ServerStage(source, folder)
