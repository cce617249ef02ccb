"""Real servers for the tests of the mysql source.

`server`: each kind in turn (MySQL 9.7 in the long campaigns only), shared by all tests of a run; work in a `database`
of your own and put back what you set.
`walls`: what the decoders of a module's tests allocate stands between pages that nobody may touch.
`new_server(kind, **options)`: one for this test alone. `plain_server(kind)`: the shared one of that kind.
`follow(database, *servers, **options)`: a `Follower` of them. `busy`: the load's tables in `database`, and the load.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.sources.mysql._kernels import load_kernels
from databus.testing.servers import KINDS, SOAK_KINDS, Server, ServerMissing, open_server
from tests.mysql.following import Follower, Load, config_of, create
from tests.mysql.rows.guarded import Walls

_databases = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compiled before the first test, so that none waits for that, least of all in a process that it kills."""
    load_kernels("tests")


@pytest.fixture(scope="module", params=["behind", "in-front"])
def walls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once with walls right behind all memory, once right in front of it."""
    walls = Walls()
    walls.is_behind = request.param == "behind"
    with walls.built():
        yield


def _started(server: Server) -> Server:
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(f"{server.kind}: {missing}")
    return server


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """The shared server of a kind, with everything as by default."""
    servers: dict[str, Server] = {}

    def of_kind(kind: str) -> Server:
        if kind not in servers:
            servers[kind] = _started(open_server(kind, tmp_path_factory.mktemp(kind)))
        server = servers[kind]
        server.start()  # a test may have left it dead
        return server

    yield of_kind
    for each in servers.values():
        each.close()


@pytest.fixture(scope="session", params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.soak) for kind in SOAK_KINDS)])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of server by name."""
    return str(request.param)


@pytest.fixture
def server(kind: str, plain_server: Callable[[str], Server]) -> Server:
    """The shared server of each kind."""
    return plain_server(kind)


@pytest.fixture
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Make servers for this test alone: `new_server(kind, gtid=False, ...)`; they are gone at its end."""
    servers: list[Server] = []

    def make(kind: str, **options: Any) -> Server:
        servers.append(open_server(kind, tmp_path_factory.mktemp(kind), **options))
        return _started(servers[-1])

    yield make
    for each in servers:
        each.close()


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """A new, empty database on the shared server, dropped afterwards."""
    name = f"db_{next(_databases)}"
    server.run(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    yield name
    server.run(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def busy(server: Server, database: str, seed: int) -> Iterator[Load]:
    """The shared server with the load's tables; the load is to be started by the test."""
    create(server, database)
    load = Load(server, database, seed)
    yield load
    load.stop() if load._thread.ident else None


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    """Make followers; they let go at the end."""
    made: list[Follower] = []

    def make(database: str, *servers: Server, **options: object) -> Follower:
        made.append(Follower(config_of(database, *servers, **options), tmp_path / f"source{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.kill()
