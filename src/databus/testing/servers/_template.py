"""Empty data folders, made once for each version of a server and copied for each start."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from databus.testing.servers._fetch import ServerMissing, kept
from databus.testing.servers._server import ADMIN, CAPTURE, Server

_VERSION: Final = "v2"  # to be counted up when the way a data folder is made changes
_INIT_S_MAX: Final = 180


def data_template(
    name: str, initialise: Callable[[Path], Sequence[str]], server: Callable[[Path], Server], privileges: str
) -> Path:
    """A data folder with the users in it and whatever a server makes at its first start, and nothing logged.

    initialise: the command that makes a data folder. privileges: what the user for capture gets besides SELECT.
    """
    users = [
        f"CREATE USER '{ADMIN[0]}'@'%' IDENTIFIED BY '{ADMIN[1]}'",
        f"GRANT ALL PRIVILEGES ON *.* TO '{ADMIN[0]}'@'%' WITH GRANT OPTION",
        f"CREATE USER '{CAPTURE[0]}'@'%' IDENTIFIED BY '{CAPTURE[1]}'",
        f"GRANT SELECT, {privileges} ON *.* TO '{CAPTURE[0]}'@'%'",
        "CREATE DATABASE test",
    ]

    def make(draft: Path) -> None:
        _run(initialise(draft / "data"))
        script = draft / "users.sql"
        script.write_text("".join(f"{each};\n" for each in users))
        first = server(draft)
        first.start(lines=["skip-log-bin", f"init-file={script}"])
        first.stop()
        (first.data_folder / "auto.cnf").unlink(missing_ok=True)  # the server's uuid: each copy makes its own

    return kept(f"{name}-{_VERSION}", make) / "data"


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INIT_S_MAX, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"a data folder could not be made: {error}") from error
    if done.returncode != 0:
        raise ServerMissing(f"{command[0]} could not make a data folder: {(done.stdout + done.stderr)[-800:]}")
