"""`python -m databus.testing.servers [KIND...]`: fetch servers and make their empty data folders, ahead of the tests.

Says for each whether it is there. Never fails for one that this machine cannot have: its tests are skipped then.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from databus.core import DatabusError
from databus.testing.servers import KINDS, SEARCH_KINDS, Kafka, open_search_server, open_server

_PLUGINS: Final = {"mariadb": "file_key_management.so"}  # what the tests of encryption load


def main() -> None:
    """Prepare the servers named on the command line, or all."""
    for kind in sys.argv[1:] or (*KINDS, *SEARCH_KINDS, Kafka.kind):
        with tempfile.TemporaryDirectory() as folder:
            if kind in SEARCH_KINDS:
                _say(kind, open_search_server(kind, Path(folder)).prepare)
                continue
            if kind == Kafka.kind:
                _say(kind, Kafka(Path(folder)).prepare)
                continue
            server = open_server(kind, Path(folder))
            _say(kind, lambda: server.prepare().parent)  # noqa: B023 - called here
            if (plugin := _PLUGINS.get(server.flavor)) is not None:
                _say(f"{kind}, {plugin}", lambda: server.plugin_folder(plugin))  # noqa: B023 - called here


def _say(what: str, fetch: Callable[[], Path]) -> None:
    try:
        said = f"kept in {fetch()}"
    except DatabusError as error:
        said = f"absent: {error}"
    print(f"{what}: {said}", flush=True)  # noqa: T201


main()
