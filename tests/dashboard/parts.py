"""A pipeline as others see it, without Spark: its files, its control socket and its HTTP server are the real ones."""

import json
import time
from collections.abc import Callable, Collection, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from databus.pipeline.checks._validate import load_pipeline
from databus.pipeline.engine._plan import plan_queries
from databus.pipeline.graph._graph import Graph
from databus.pipeline.graph._state import StateLock
from databus.pipeline.running._commands import Commands
from databus.pipeline.running._control import ControlServer
from databus.pipeline.running._published import Published
from databus.pipeline.telling._resting import Resting

WAIT_S = 45
HOSTILE = "<script>alert(1)</script>"
FILE = """\
name: {name}
project: {project}
sources: {{{name}_db: {{type: mock}}}}
inputs: {{rows: {{type: databus}}}}
filters: {{big: {{type: where, from: rows, where: id > 1}}}}
outputs:
  copy: {{type: files, from: big, path: out/copy}}
  hook: {{type: http, from: rows, url: "http://127.0.0.1:9/", headers: {{X-Key: hunter2}}}}
"""


class Pipeline:
    """What `databus run` does besides reading and writing rows. `batch` says that some were written."""

    def __init__(self, folder: Path, name: str = "shop", project: str = "billing", http: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "databus.yml"
        if not self.file.exists():
            self.file.write_text(FILE.format(name=name, project=project))
        self._graph = load_pipeline(self.file)
        self.published = Published(self._graph.config, http)
        self._lock = StateLock(self._graph.config.state, name)
        self._lock.take()
        self._resting = Resting(self._graph.config.state)
        commands = Commands(self, self._resting, lambda asks: self.published.status(asks_relay=asks), self._reload)
        self._control = ControlServer(self._graph.config.state, commands.answer)
        self.published.answer = commands.answer
        self._plans = plan_queries(self._graph, [f"{name}_db"])
        self.asked: list[str] = []

    # What commands do to a run; see `databus.pipeline.running._commands.Run`.

    @property
    def config(self) -> Any:
        return self._graph.config

    @property
    def graph(self) -> Graph:
        return self._graph

    def look(self) -> None:
        for plan in self._plans:
            rest = self._resting.of([feed.output.partition(".")[2] for feed in plan.feeds])
            event = {None: "started", "paused": "paused"}.get(rest, "output_stopped")
            self.published.take({"event": event, "query": plan.name, "at_us": now_us()})
            names = [feed.output.partition(".")[2] for feed in plan.feeds]
            throttle = self._resting.throttle_of(names)
            told = {"throttle": {} if throttle is None else throttle.to_json(), "outputs": names}
            self.published.take({"event": "throttled", "query": plan.name, "at_us": now_us(), **told})

    def retry(self, outputs: Collection[str]) -> None:
        self.asked.append(f"retry {','.join(outputs)}")

    def end_when_drained(self) -> None:
        self.asked.append("end when drained")

    def ask_to_stop(self, why: str) -> None:
        self.asked.append(why)

    def rebuild(self, output: str, tables: Sequence[str]) -> list[str]:
        self.asked.append(f"rebuild {','.join(tables)} of {output}")
        return list(tables)

    def _reload(self, by: str) -> dict[str, Any]:
        self.asked.append(by)
        return {"unchanged": ["copy"], "changed": [], "added": [], "removed": [], "warnings": []}

    def batch(self, rows: int = 3, output: str = "copy") -> None:
        query = next(plan.name for plan in self._plans if any(feed.output.endswith(output) for feed in plan.feeds))
        told = {"event": "batch", "query": query, "output": output, "rows": rows, "at_us": now_us(), "lag_ms": 12.0}
        self.published.take({**told, "physical": "shop_db", "tables": {"main.events": rows}, "changes": []})

    @property
    def url(self) -> str:
        return str(self.published.status(asks_relay=False)["http"])

    def __enter__(self) -> Self:
        self.published.__enter__()
        self._control.__enter__()
        self.published.expect(self._plans)
        self.look()
        return self

    def __exit__(self, *_: object) -> None:
        self._control.__exit__(None, None, None)
        self.published.__exit__(None, None, None)
        self._lock.release()


def now_us() -> int:
    return time.time_ns() // 1000


def ask(
    url: str, path: str, body: Any = None, *, method: str = "", headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """One request: status, JSON or text, headers."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
    try:
        sent = {} if body is None else {"Content-Type": "application/json"}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, content, {**sent, **(headers or {})})
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        text = answer.read().decode()
        is_json = found.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else text, found
    finally:
        connection.close()


def is_gone(url: str) -> bool:
    """Whether nobody listens there any more."""
    try:
        ask(url, "/")
    except OSError:
        return True
    return False


def wait_until(condition: Callable[[], Any]) -> Any:
    """What a condition gives once it is something."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
    return found
