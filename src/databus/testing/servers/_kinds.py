"""The servers by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from databus.core import InputError
from databus.testing.servers._mariadb import MariaDb
from databus.testing.servers._mysql import MySql
from databus.testing.servers._server import Server

_BY_KIND: Final[Mapping[str, Callable[..., Server]]] = {
    "mariadb-10.11": MariaDb,
    "mysql-8.0": lambda folder, **options: MySql("8.0", folder, **options),
    "mysql-5.7": lambda folder, **options: MySql("5.7", folder, **options),
    "mysql-9.7": lambda folder, **options: MySql("9.7", folder, **options),
}
KINDS: Final = ("mariadb-10.11", "mysql-8.0", "mysql-5.7")
"""The servers of the ordinary tests."""
SOAK_KINDS: Final = ("mysql-9.7",)
"""Those of the long campaigns, besides."""


def open_server(kind: str, folder: Path, **options: Any) -> Server:
    """A server of a kind by name, not started; `options` are those of `Server`."""
    if kind not in _BY_KIND:
        raise InputError(f"no server called {kind!r}; there are {', '.join(_BY_KIND)}")
    return _BY_KIND[kind](folder, **options)
