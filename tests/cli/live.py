"""A pipeline in a process of its own, over a shop in SQLite that the test keeps busy."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from deltalake.exceptions import TableNotFoundError

from databus.sinks import read_delta
from databus.testing.shop import SqliteWorkload, connect, create_shop
from tests.commands import databus

WAIT_S = 120.0
HEAD = """\
name: shop
spark: {master: "local[2]"}
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [shop/main.*]}}
"""


class Live:
    """`start` it; it is killed when the block ends."""

    wait_s = WAIT_S

    def __init__(self, folder: Path, outputs: str) -> None:
        self.folder = folder
        self.file = folder / "databus.yml"
        self.state = folder / ".databus" / "pipelines" / "shop"
        self.process: subprocess.Popen[bytes] | None = None
        self.write(outputs)
        create_shop(folder / "shop.db", customers=20, products=10, orders=30, seed=7)
        self.db = connect(folder / "shop.db")
        self._workload = SqliteWorkload(self.db, random.Random(7))

    def write(self, outputs: str, head: str = HEAD) -> None:
        self.file.write_text(head + outputs)

    def work(self, transactions: int = 20) -> None:
        for _ in range(transactions):
            self._workload.step()

    def start(self, *options: str, **environment: str) -> None:
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "databus.cli", "run", "--progress", "events.jsonl", *options],
                cwd=self.folder,
                stdout=said,
                stderr=said,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **environment},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.db.close()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # Spark's too, which would end by itself
            self.process.wait(WAIT_S)

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    def events(self, **wanted: Any) -> list[Mapping[str, Any]]:
        file = self.folder / "events.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [each for each in found if wanted.items() <= each.items()]

    def ask(self, *arguments: str) -> str:
        """What a command prints, which must go well."""
        answer = databus(*arguments, cwd=self.folder)
        assert answer.returncode == 0, (arguments, answer.stderr, self.said[-2000:])
        return answer.stdout

    def status(self) -> dict[str, Any]:
        answer = databus("status", "--json", cwd=self.folder)
        return json.loads(answer.stdout) if answer.stdout else {"outputs": {}}

    def state_of(self, output: str) -> str:
        return str(self.status()["outputs"][output]["state"])

    def expect_state(self, output: str, state: str) -> None:
        """Wait until the status says so, which is a second old at most."""
        self.wait_until(lambda: self.state_of(output) == state, f"{output} is {state}")

    def wait_until(self, is_so: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + self.wait_s
        while not (found := is_so()):
            assert time.monotonic() < deadline, (what, self.said[-3000:])
            assert self.process is None or self.process.poll() is None, (what, self.said[-3000:])
            time.sleep(0.2)
        return found

    def source(self, columns: str = "id, status, total_cents") -> list[tuple[Any, ...]]:
        return sorted(self.db.execute(f"SELECT {columns} FROM orders").fetchall())

    def copied(self, path: str, columns: str = "id, status, total_cents") -> list[tuple[Any, ...]] | None:
        """The rows of a mirror; None while there is none."""
        try:
            found = read_delta(self.folder / path / "orders", columns.split(", "))
        except TableNotFoundError:
            return None
        return sorted(zip(*(each.to_pylist() for each in found.columns), strict=True))

    def wait_until_copied(self, path: str, columns: str = "id, status, total_cents") -> None:
        self.wait_until(lambda: self.copied(path, columns) == self.source(columns), f"{path} has what the source has")
