"""Where the demo plays: a shop in a SQLite file, or on a MySQL or MariaDB server that is started for it."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

from databus.testing.servers import Server, ServerProcess, open_server
from databus.testing.shop import create_shop, create_shop_on

_KINDS: Final = {"mariadb": "mariadb-10.11", "mysql": "mysql-8.0"}


class DemoStage(Protocol):
    """A database with a shop in it."""

    name: str
    """For people."""
    database: str
    """The shop's, by which its tables are named."""
    text_type: str
    """For a short text in DDL."""
    unit: str
    """What its SCNs count."""

    @property
    def target(self) -> Path:
        """The argument of the workload's program: the database's file, or one with options for it."""
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

    @property
    def server(self) -> ServerProcess | None:
        """The server that can be killed; None where there is none. Stopped by who called `build`, also if it failed."""
        ...


class SqliteStage:
    """A file."""

    database = "main"
    text_type = "TEXT"
    unit = "cuts"
    server = None

    def __init__(self, folder: Path) -> None:
        self.target = folder / "shop.db"
        self.name = str(self.target)

    def build(self) -> None:
        """See `DemoStage`."""
        create_shop(self.target)

    def source(self) -> Mapping[str, Any]:
        """See `DemoStage`."""
        return {"type": "sqlite", "path": str(self.target)}

    def execute(self, statement: str) -> None:
        """See `DemoStage`."""
        with closing(sqlite3.connect(self.target, timeout=30, isolation_level=None)) as connection:
            connection.execute(statement)


class ServerStage:
    """A real server with its data in the demo's folder, captured by a user who may do no more than that needs."""

    database = "shop"
    text_type = "VARCHAR(20)"
    unit = "transactions"

    def __init__(self, kind: str, folder: Path) -> None:
        self.server: Server = open_server(_KINDS[kind], folder / kind)
        self.name = self.server.kind

    @property
    def target(self) -> Path:
        """See `DemoStage`."""
        return self.server.option_file

    def build(self) -> None:
        """See `DemoStage`."""
        self.server.start()
        self.name = f"a shop on {self.server.kind} ({self.server.version}, port {self.server.port})"
        create_shop_on(self.server.connect)

    def source(self) -> Mapping[str, Any]:
        """See `DemoStage`."""
        return {
            "type": "mysql",
            "hosts": [f"{self.server.host}:{self.server.port}"],
            "user": self.server.capture_user,
            "password": self.server.capture_password,
            "tables": [f"{self.database}.*"],
        }

    def execute(self, statement: str) -> None:
        """See `DemoStage`."""
        with closing(self.server.connect(database=self.database)) as connection:
            connection.cursor().execute(statement)


def stage_of(source: str, folder: Path) -> DemoStage:
    """The stage for a kind of source: `sqlite`, `mariadb` or `mysql`."""
    return SqliteStage(folder) if source == "sqlite" else ServerStage(source, folder)
