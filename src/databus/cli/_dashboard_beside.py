"""A dashboard beside a run, a relay or a demo: a process of its own, which ends when ours does, however that ends."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

FOLDER: Final = Path(".databus/dashboard")
_LOG: Final = "dashboard.log"
END_S_MAX: Final = 5.0
"""How long a dashboard may take to end with what it stands beside."""

Beside = Annotated[
    bool,
    typer.Option("--dashboard", help="Start a dashboard too, for a browser; it ends with this, and prints its link."),
]


@contextmanager
def dashboard_beside(
    is_wanted: bool, arguments: Sequence[str], say: Callable[[str], None], folder: Path = FOLDER
) -> Iterator[None]:
    """Run `databus dashboard` with these arguments meanwhile. say: called in a thread with each line that it prints,
    and with a last one if it ends by itself, which ends nothing else.
    """
    if not is_wanted:
        yield
        return
    from databus.operate import end_child, start_child

    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "databus.cli", "dashboard", *arguments, "--folder", str(folder), "--beside"]
    with (folder / _LOG).open("wb") as log:
        process = start_child(command, stdout=subprocess.PIPE, stderr=log)
    is_ending = threading.Event()

    def pass_on() -> None:
        for line in process.stdout or ():
            say(line.decode(errors="replace").rstrip())
        if process.wait() and not is_ending.is_set():
            say(f"the dashboard has ended; {folder / _LOG} says why")

    saying = threading.Thread(target=pass_on, name="dashboard-says", daemon=True)
    saying.start()
    try:
        yield
    finally:
        is_ending.set()
        end_child(process, END_S_MAX)
        saying.join(END_S_MAX)
