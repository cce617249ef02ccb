"""Fetch servers and make their empty data folders, ahead of the tests; or start one, to try things with.

Says for each whether it is there. Never fails for one that this machine cannot have: its tests are skipped then.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from databus.core import DatabusError
from databus.testing.servers import (
    KINDS,
    SEARCH_KINDS,
    SOAK_KINDS,
    Kafka,
    SearchServer,
    Server,
    open_search_server,
    open_server,
)

_FETCHED: Final = (*KINDS, *SEARCH_KINDS, Kafka.kind)
_ALL: Final = (*_FETCHED, *SOAK_KINDS)
_PLUGINS: Final = {"mariadb": "file_key_management.so"}  # what the tests of encryption load


def main(arguments: list[str]) -> int:
    """Prepare the servers named on the command line, or all; or start one, until Ctrl-C. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m databus.testing.servers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"what to fetch: {', '.join(_ALL)}; most by default")
    parser.add_argument("--start", choices=_ALL, metavar="KIND", help="start this one, until Ctrl-C")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where what is started keeps its data and its port, to be started again; without it, nothing is kept",
    )
    chosen = parser.parse_args(arguments)
    unknown = [kind for kind in chosen.kinds if kind not in _ALL]
    if unknown:
        parser.error(f"no server called {unknown[0]!r}; there are {', '.join(_ALL)}")
    if chosen.start is not None:
        return _start(chosen.start, chosen.folder)
    for kind in chosen.kinds or _FETCHED:
        _prepare(kind)
    return 0


def _opened(kind: str, folder: Path) -> Server | SearchServer | Kafka:
    if kind in SEARCH_KINDS:
        return open_search_server(kind, folder)
    return Kafka(folder) if kind == Kafka.kind else open_server(kind, folder)


def _prepare(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = _opened(kind, Path(folder))
        if not isinstance(server, Server):
            _say(kind, server.prepare)
            return
        _say(kind, lambda: server.prepare().parent)
        if (plugin := _PLUGINS.get(server.flavor)) is not None:
            _say(f"{kind}, {plugin}", lambda: server.plugin_folder(plugin))


def _start(kind: str, folder: Path | None) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # a shell has what it starts behind itself pass over Ctrl-C
    with tempfile.TemporaryDirectory() as own:
        try:
            with _kept(kind, folder) if folder is not None else _opened(kind, Path(own)) as server:
                print(f"{kind} answers at {_address(server)}; Ctrl-C ends it", flush=True)  # noqa: T201
                signal.pause()
        except KeyboardInterrupt:
            pass
        except DatabusError as error:
            print(f"{kind}: {error}", file=sys.stderr)  # noqa: T201
            return error.exit_code
    return 0


@contextmanager
def _kept(kind: str, folder: Path) -> Iterator[Server | SearchServer | Kafka]:
    """A server whose data and port stay in the folder when it has ended, for who starts it there again."""
    server, port = _opened(kind, folder.absolute()), folder / "port"
    server.port = int(port.read_text()) if port.is_file() else 0
    server.start()
    try:
        port.write_text(str(server.port))
        yield server
    finally:
        server.stop()


def _address(server: Server | SearchServer | Kafka) -> str:
    """What to write into a pipeline's file, or to a client."""
    if isinstance(server, SearchServer):
        return server.url
    if isinstance(server, Kafka):
        return f"{server.bootstrap} (bootstrap.servers)"
    return f"{server.host}:{server.port}, user {server.user}, password {server.password!r}"


def _say(what: str, fetch: Callable[[], Path]) -> None:
    try:
        said = f"kept in {fetch()}"
    except DatabusError as error:
        said = f"absent: {error}"
    print(f"{what}: {said}", flush=True)  # noqa: T201


sys.exit(main(sys.argv[1:]))
