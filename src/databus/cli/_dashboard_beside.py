"""A dashboard beside a run, a relay or a demo: a process of its own, which ends when ours does, however that ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

FOLDER: Final = Path(".databus/dashboard")
_LOG: Final = "dashboard.log"
_END_S_MAX: Final = 5.0

Beside = Annotated[
    bool,
    typer.Option("--dashboard", help="Start a dashboard too, for a browser; it ends with this, and prints its link."),
]


@contextmanager
def dashboard_beside(
    is_wanted: bool, arguments: Sequence[str], say: Callable[[str], None], folder: Path = FOLDER
) -> Iterator[None]:
    """Run `databus dashboard` with these arguments meanwhile. say: told each line that it prints, by a thread; and that
    it has ended by itself, which ends nothing else.
    """
    if not is_wanted:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "databus.cli", "dashboard", *arguments, "--folder", str(folder), "--beside"]
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.PIPE,  # closes when this process ends, by which the other one does too
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is for us
        )
    is_ending = threading.Event()

    def pass_on() -> None:
        for line in process.stdout or ():
            say(line.rstrip())
        if process.wait() and not is_ending.is_set():
            say(f"the dashboard has ended; {folder / _LOG} says why")

    saying = threading.Thread(target=pass_on, name="dashboard-says", daemon=True)
    saying.start()
    try:
        yield
    finally:
        is_ending.set()
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        saying.join(_END_S_MAX)


def end_with_input() -> None:
    """Have this process end when its standard input does."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(_END_S_MAX)  # what Ctrl-C has not ended by then ends without its last words
        os._exit(1)

    threading.Thread(target=watch, name="leash", daemon=True).start()
