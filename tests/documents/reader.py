"""Somebody who reads a page at a terminal and types what it says: each command as it stands, in order.

What a page's blocks ask for stands behind their language, where no reader sees it:

    ```sh                    typed; must succeed
    ```sh background         typed into another terminal, and left running
    ```sh checkout           for the checkout, not for the folder: not typed; its `make` targets must exist
    ```python file=a.py      saved under that name (of any language)
    <!-- until: COMMAND -->  the reader waits until COMMAND succeeds
    <!-- ctrl-c: COMMAND --> Ctrl-C in the terminal in which COMMAND runs, once it has shown something
    <!-- end: COMMAND -->    the reader waits until COMMAND, in its terminal, has ended without an error

Only the port is another than the page's 11115, so that a relay which runs on this machine is not in the way.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from databus.testing.servers._ports import Port
from tests.commands import folder_of_programs
from tests.documents.pages import ROOT, Block, blocks

_PORT = "11115"
_ADDRESS = re.compile(r"127\.0\.0\.1:111\d\d\b")  # `init` takes the next port where one is in use
_COMMAND_S_MAX = 300
_END_S_MAX = 60
_TYPED = """\
set -eu
[ ! -f "$READER/shell" ] || . "$READER/shell"
{text}
{{ export -p | grep -v ' READER='; printf 'cd %q\\n' "$PWD"; }} > "$READER/shell"
"""


class Reader:
    """A context manager; what is still running at its end is killed. copied: the folder in a copy of which it reads."""

    def __init__(self, folder: Path, copied: Path | None = None) -> None:
        self.folder = folder / "empty"
        if copied is None:
            self.folder.mkdir()
        else:
            shutil.copytree(copied, self.folder)
        self._notes = folder / "notes"
        self._notes.mkdir()
        self._terminals: list[tuple[str, Path, subprocess.Popen[bytes]]] = []
        self._claim = Port.claim()  # also while nothing listens there
        self._port = str(self._claim.number)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        relay = f"http://127.0.0.1:{self._port}"
        self._env = {**os.environ, "PATH": path, "DATABUS_RELAY": relay, "READER": str(self._notes)}
        self._env |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _, _, process in self._terminals:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._claim.close()

    def follow(self, page: Path) -> None:
        """Do everything that a page says."""
        for block in blocks(page):
            self._do(block)

    def _do(self, block: Block) -> None:
        if block.language == "<!--" and "until" in block.words:
            self._wait_until(block.text)
        elif block.language == "<!--" and "end" in block.words:
            text, _, process = self._terminal_of(block.text)
            assert process.wait(_COMMAND_S_MAX) == 0, f"{text}\n{self._told()}"
        elif block.language == "<!--" and "ctrl-c" in block.words:
            self._press_ctrl_c(block.text)
        elif "file" in block.words:
            (self._cwd() / block.words["file"]).write_text(self._here(block.text))
        elif block.language == "sh" and "checkout" in block.words:
            _check_targets(block.text)
        elif block.language == "sh" and "background" in block.words:
            self._open_terminal(block.text)
        elif block.language == "sh":
            done = self._type(block.text)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}\n{self._told()}"
            for config in self.folder.rglob("*.yml"):
                config.write_text(_ADDRESS.sub(f"127.0.0.1:{self._port}", config.read_text()))

    def _here(self, text: str) -> str:
        return text.replace(_PORT, self._port)

    def _cwd(self) -> Path:
        shell = self._notes / "shell"
        last = shell.read_text().splitlines()[-1] if shell.is_file() else f"cd {self.folder}"
        return Path(last.removeprefix("cd "))

    def _type(self, text: str) -> subprocess.CompletedProcess[str]:
        typed = _TYPED.format(text=self._here(text))
        env = {**self._env, "PATH": f"{folder_of_programs()}{os.pathsep}{self._env['PATH']}"}
        return subprocess.run(
            ["bash", "-c", typed], cwd=self.folder, env=env, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=_COMMAND_S_MAX, check=False,
        )  # fmt: skip

    def _open_terminal(self, text: str) -> None:
        screen = self._notes / f"terminal-{len(self._terminals)}"
        with screen.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-euc", self._here(text)], cwd=self._cwd(), env=self._env, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self._terminals.append((text, screen, process))

    def _wait_until(self, command: str) -> None:
        deadline = time.monotonic() + _COMMAND_S_MAX
        while (done := self._type(command)).returncode != 0:
            assert time.monotonic() < deadline, f"never came: {command}\n{done.stderr}\n{self._told()}"
            time.sleep(1)  # each try takes a second of processor time from what is waited for

    def _terminal_of(self, command: str) -> tuple[str, Path, subprocess.Popen[bytes]]:
        """The last one that this command was typed into."""
        return next(each for each in reversed(self._terminals) if each[0].startswith(command))

    def _press_ctrl_c(self, command: str) -> None:
        text, screen, process = self._terminal_of(command)
        deadline = time.monotonic() + _COMMAND_S_MAX
        while not screen.stat().st_size:  # nobody stops what has not shown anything yet
            is_alive = process.poll() is None and time.monotonic() < deadline
            assert is_alive, f"{text} shows nothing\n{self._told()}"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        try:
            code = process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # shows where each thread is
            code = process.wait(_END_S_MAX)
        assert code in (0, 130, -signal.SIGINT), f"{text} ended with {code}\n{self._told()}"

    def _told(self) -> str:
        """What the other terminals show."""
        return "\n".join(f"$ {text}{screen.read_text()[-3000:]}" for text, screen, _ in self._terminals)


def _check_targets(text: str) -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE)) <= known
