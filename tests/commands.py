"""The command `databus`, run to its end as a shell runs it; forked from a process that has imported what it needs."""

import subprocess
import sys
from functools import cache
from pathlib import Path

from databus.forks import Nursery

_PRELOADED = ("databus.cli", "databus.pipeline", "databus.relay", "databus.operate", "databus.sources.sqlite")


@cache
def _nursery() -> Nursery:
    return Nursery(_PRELOADED, wait_s_max=120)


@cache
def python() -> str:
    """What stands for Python. Hundreds of commands would each import for a second of processor time."""
    made = _nursery().python() if sys.platform == "linux" else None
    return sys.executable if made is None else str(made)


@cache
def folder_of_programs() -> Path:
    """A folder for PATH, with a `databus` that is forked. A terminal's Ctrl-C does not reach it."""
    folder = _nursery().folder / "programs"
    folder.mkdir()
    program = folder / "databus"
    program.write_text(f'#!/bin/sh\nexec "{python()}" -m databus.cli "$@"\n')
    program.chmod(0o700)
    return folder


def databus(
    *arguments: object, cwd: Path | None = None, timeout: float = 120, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run it; what it printed, and its exit code."""
    return subprocess.run(
        [python(), "-m", "databus.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        timeout=timeout,
        input=stdin,
    )


def failed(result: subprocess.CompletedProcess[str], code: int) -> str:
    """The error's text; a user's mistake shows no traceback."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr
