"""`databus dashboard` as a process: how soon a browser shows what flows, what watching costs, how soon a fault is told.

The pipelines are those of the tests of the dashboard: real files, control sockets and answers, no rows and no Spark.

Flow: from the link that signs in until a page has 60 nodes, in a headless Chromium that knows nothing of it yet.
A number: from the moment when the pipeline has it, in `/metrics` too, until it stands in the page of its output.
Tabs: connections that take what `/events` sends.
A fault: from there until a web hook has heard of it, less the `for` of its rule.

    python -m benchmarks.dashboard
"""

import json
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml
from tests.dashboard.browser import Browser, Page
from tests.dashboard.chromium import Chromium
from tests.dashboard.parts import Pipeline, ask, now_us, wait_until
from tests.dashboard.running import MARK

from benchmarks.figures import Figure
from databus.testing.servers import ServerMissing

NODES = 60
OPENINGS = 5
NUMBERS = 20
IDLE_OUTPUTS = 10
IDLE_S = 20.0
SETTLE_S = 3.0  # what starts leaves behind, such as imports, is over
TABS = 50
FAULTS = 8
FOR_S = 1.0
FLOW_S_MAX = 0.5
NUMBER_S_MAX = 1.5
IDLE_PERCENT_MAX = 2.0
IDLE_MB_MAX = 120.0
TABS_PERCENT_MAX = 10.0
FAULT_S_MAX = 3.0

# When the page has so many nodes, and when it shows each count of batches.
WATCHES = """
  const numbers = window.numbers = {};
  new MutationObserver(() => {
    if (window.drawnMs === undefined && document.querySelectorAll("svg a, svg g[role=img]").length >= %d) {
      window.drawnMs = performance.now();
    }
    const found = /rows in ([0-9,]+) batches/.exec(document.querySelector("main")?.textContent || "");
    if (found) numbers[found[1].replace(",", "")] ??= Date.now();
  }).observe(document, {childList: true, subtree: true, characterData: true});
"""


def _pipeline(folder: Path, name: str, outputs: int, filters: int = 0) -> Pipeline:
    """One source, one input, so many filters and outputs."""
    folder.mkdir()
    rules = {f"f{number}": {"type": "where", "from": "rows", "where": f"id > {number}"} for number in range(filters)}
    targets = {
        f"o{number}": {"type": "files", "from": f"f{number}" if number < filters else "rows", "path": f"out/o{number}"}
        for number in range(outputs)
    }
    value = {"name": name, "sources": {f"{name}_db": {"type": "mock"}}, "inputs": {"rows": {"type": "databus"}}}
    (folder / "databus.yml").write_text(yaml.safe_dump({**value, "filters": rules, "outputs": targets}))
    return Pipeline(folder, name)


@dataclass
class Process:
    """The dashboard. links: by which its owner signs in, each for once."""

    process: psutil.Process
    links: list[str]

    def spent_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def percent(self, seconds: float) -> float:
        """Of a core, from now on."""
        before, at = self.spent_s(), time.perf_counter()
        time.sleep(seconds)  # what is measured is doing nothing
        return 100 * (self.spent_s() - before) / (time.perf_counter() - at)

    def memory_mb(self) -> float:
        return self.process.memory_full_info().pss / 1e6

    def link(self) -> str:
        """One that nobody has used."""
        wait_until(lambda: self.links)
        return self.links.pop()

    def signed_in(self) -> tuple[str, dict[str, str]]:
        """Where it is, and the headers of who is signed in."""
        url, _, once = self.link().partition("/#once=")
        _, _, headers = ask(url, "/api/v1/session", {"token": once}, headers=MARK)
        return url, {"Cookie": headers["set-cookie"].partition(";")[0], "Origin": url}


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[Process]:
    """It runs meanwhile."""
    command = [sys.executable, "-m", "databus.cli", "dashboard", "--listen", "127.0.0.1:0", *arguments]
    with (folder / "dashboard.log").open("wb") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    links: list[str] = []

    def read() -> None:
        links.extend(line.split()[-1] for line in child.stdout or () if "#once=" in line)  # as they come

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        yield Process(psutil.Process(child.pid), links)
    finally:
        child.kill()  # it holds no truth, and may be stopped
        child.wait()
        reading.join()


def _seen(url: str, headers: dict[str, str], outputs: int) -> None:
    """Wait until it has looked at all of them."""
    wait_until(lambda: len(ask(url, "/api/v1/status", headers=headers)[1]["outputs"]) == outputs)


def _flow(folder: Path) -> Iterator[Figure]:
    outputs = (NODES - 2) // 2
    try:
        Chromium.prepare()
    except ServerMissing as missing:
        yield Figure(f"Flow: not measured: {missing}", 0.0, "")
        return
    (folder / "browser").mkdir()
    with (
        _pipeline(folder / "shop", "shop", outputs, NODES - 2 - outputs) as shop,
        process(folder, "shop/databus.yml") as dashboard,
        Chromium(folder / "browser") as chromium,
        Browser(chromium.url) as browser,
    ):
        _seen(*dashboard.signed_in(), outputs)
        drawn: list[float] = []
        for _ in range(OPENINGS + 1):  # the first one starts the browser's own processes
            page = browser.page()
            page.send("Page.addScriptToEvaluateOnNewDocument", source=WATCHES % NODES)
            page.open(dashboard.link())
            drawn.append(page.wait("window.drawnMs") / 1e3)
        drawn = drawn[1:]
        what = f"Flow of {NODES} nodes, cold, from the link to the graph"
        yield Figure(f"{what}, median", statistics.median(drawn), "s", "at most", FLOW_S_MAX)
        yield Figure(f"{what}, worst", max(drawn), "s", "at most", FLOW_S_MAX)
        late = sorted(_numbers(page, shop))
        what = "a number in a page behind the pipeline's"
        yield Figure(f"{what}, median", statistics.median(late), "s", "at most", NUMBER_S_MAX)
        yield Figure(f"{what}, worst", late[-1], "s", "at most", NUMBER_S_MAX)


def _numbers(page: Page, shop: Pipeline) -> list[float]:
    """How late each came: a batch at any time of the dashboard's second."""
    page.js("location.hash = '#/output/shop/o0'")
    page.wait_for("rows in 0 batches")
    dice, told = random.Random(7), []
    for number in range(NUMBERS):
        time.sleep(dice.random())  # anywhere between two looks
        told.append(time.time())
        shop.batch(output="o0")
        page.wait(f"window.numbers[{number + 1}]")
    seen = page.js("window.numbers")
    return [seen[str(number + 1)] / 1e3 - at_s for number, at_s in enumerate(told)]


class Tabs(threading.Thread):
    """Connections that follow `/events`, as the tabs of browsers do."""

    def __init__(self, url: str, headers: dict[str, str], count: int) -> None:
        super().__init__(daemon=True)
        host, _, port = urlsplit(url).netloc.rpartition(":")
        head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": f"{host}:{port}", **headers}.items())
        self._ended = threading.Event()
        self._ready = selectors.DefaultSelector()
        self.bytes = 0
        for _ in range(count):
            sock = socket.create_connection((host, int(port)))
            sock.sendall(f"GET /api/v1/events HTTP/1.1\r\n{head}\r\n".encode())
            self._ready.register(sock, selectors.EVENT_READ)

    def run(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._ready.select(0.5):
                self.bytes += len(key.fileobj.recv(1 << 18))  # type: ignore[union-attr]

    def end(self) -> None:
        self._ended.set()
        self.join()
        for key in list(self._ready.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]


def _cost(folder: Path, seconds: float) -> Iterator[Figure]:
    with _pipeline(folder / "shop", "shop", IDLE_OUTPUTS), process(folder, "shop/databus.yml") as dashboard:
        url, headers = dashboard.signed_in()
        _seen(url, headers, IDLE_OUTPUTS)
        time.sleep(SETTLE_S)
        what = f"the dashboard's process, {IDLE_OUTPUTS} outputs"
        yield Figure(f"{what}, idle", dashboard.percent(seconds), "% of a core", "at most", IDLE_PERCENT_MAX)
        yield Figure(f"{what}, memory", dashboard.memory_mb(), "MB", "at most", IDLE_MB_MAX)
        tabs = Tabs(url, headers, TABS)
        tabs.start()
        time.sleep(SETTLE_S)
        before = tabs.bytes
        percent = dashboard.percent(seconds)
        if tabs.bytes == before:
            raise RuntimeError("nothing came to the tabs")
        yield Figure(f"{what}, {TABS} tabs open", percent, "% of a core", "at most", TABS_PERCENT_MAX)
        yield Figure(f"{what}, {TABS} tabs open, to each", (tabs.bytes - before) / seconds / TABS / 1e3, "KB/s")
        yield Figure(f"{what}, {TABS} tabs open, memory", dashboard.memory_mb(), "MB")
        tabs.end()


class _Hook(ThreadingHTTPServer):
    """Notes when it was told that a rule fires."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HookHandler)
        self.heard_s: dict[str, float] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _HookHandler(BaseHTTPRequestHandler):
    server: _Hook

    def do_POST(self) -> None:
        now_s = time.time()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["state"] == "firing":
            self.server.heard_s.setdefault(body["rule"], now_s)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def _rules() -> Sequence[dict[str, Any]]:
    """One for each fault, since what fires of one rule within half a minute is told together."""
    rule = {"for_ms": round(FOR_S * 1e3), "text": "look at it"}
    failed = [
        {"name": f"F{number}", "metric": "databus_output_state", "labels": {"output": f"o{number}", "state": "failed"}}
        for number in range(FAULTS)
    ]
    gone = {"name": "Gone", "metric": "up", "below": 1}
    return [*({**each, "above": 0, **rule} for each in failed), {**gone, **rule}]


def _faults(folder: Path) -> Iterator[Figure]:
    hook = _Hook()
    (folder / "alerts.yml").write_text(yaml.safe_dump({"alerts": _rules()}))
    told = ["--alerts", "alerts.yml", "--webhook", f"http://127.0.0.1:{hook.server_port}/"]
    late, dice = [], random.Random(7)
    with process(folder, "shop/databus.yml", *told) as dashboard:
        with _pipeline(folder / "shop", "shop", FAULTS) as shop:
            _seen(*dashboard.signed_in(), FAULTS)
            for number in range(FAULTS):
                time.sleep(dice.random())  # anywhere between two looks
                plan = next(plan for plan in shop._plans if plan.feeds[0].output == f"outputs.o{number}")
                failed = {"event": "failed", "query": plan.name, "error": "SinkFailed", "message": "no room"}
                at_s = time.time()
                shop.published.take({**failed, "at_us": now_us()})
                late.append(wait_until(lambda name=f"F{number}": hook.heard_s.get(name)) - at_s - FOR_S)
            at_s = time.time()
        gone_s = wait_until(lambda: hook.heard_s.get("Gone")) - at_s - FOR_S
    hook.shutdown()
    what = f"a fault until a web hook has heard, beyond `for` ({FOR_S:.0f} s)"
    yield Figure(f"{what}, median", statistics.median(late), "s", "at most", FAULT_S_MAX)
    yield Figure(f"{what}, worst", max(late), "s", "at most", FAULT_S_MAX)
    yield Figure("the same, of a pipeline that has ended", gone_s, "s", "at most", FAULT_S_MAX)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    """See this module's first lines."""
    with tempfile.TemporaryDirectory(prefix="databus-bench-") as name:
        folder = Path(name)
        for part in ("flow", "cost", "faults"):
            (folder / part).mkdir()
        yield from _flow(folder / "flow")
        yield from _cost(folder / "cost", max(1.0, IDLE_S * scale))
        yield from _faults(folder / "faults")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
