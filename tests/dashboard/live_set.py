"""A real set: MariaDB, a relay, a pipeline in Spark to Delta, Kafka, OpenSearch and a web hook, a dashboard, browsers.

What the targets hold is held against what the database answers to SELECT. Start with `live_set`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import yaml
from confluent_kafka import KafkaException

from databus.testing import RelayProcess
from databus.testing.servers import Kafka, MariaDb, SearchServer, open_search_server
from tests.cli.live import Live
from tests.dashboard.axe import axe_text
from tests.dashboard.browser import Browser, Page
from tests.dashboard.chromium import Chromium
from tests.dashboard.running import entry, token_of
from tests.http.receiver import Received, Receiver
from tests.kafka.support import messages_in, new_prefix

PIPELINE: Final = """\
name: shop
spark: {{master: "local[2]"}}
relay: {{url: "{relay}"}}
inputs: {{rows: {{type: databus, tables: [shop/shop.orders]}}}}
filters: {{final: {{type: where, from: rows, where: "status != 'draft'"}}}}
outputs:
  copy: {{type: delta, from: rows, mode: mirror, path: copy}}
  topics: {{type: kafka, from: rows, topic: "{prefix}.{{table}}", control_topic: "{prefix}.control",
           create_topics: {{partitions: 1}}, kafka: {{bootstrap.servers: "{kafka}"}}}}
  index: {{type: opensearch, from: final, url: "{search}", settings: {{number_of_shards: 1, number_of_replicas: 0}}}}
  hook: {{type: http, from: rows, url: "{hook}", on_error: dead_letter}}
"""
OUTPUTS: Final = ("copy", "topics", "index", "hook")
TABLE: Final = "shop/shop.orders"
ALERTS: Final = """\
alerts: [{name: Letters, metric: databus_output_dead_letters, labels: {output: hook}, above: 0, text: look at them}]
"""
PRINCIPALS: Final = [
    entry("ann", ["see", "rows", "control", "admin"]),
    entry("cleo", ["see", "control"]),
    entry("bill"),
]
WAIT_S: Final = 180.0
"""For what goes through Spark on a busy machine."""
DRAFT: Final = "draft"

Rows = set[tuple[int, str | None]]


class Hook(Receiver):
    """The web hook. What it has taken is in `rows`; with `refuses` it does not take rows with this in them."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self.rows: Rows = set()
        self.refuses = b""

    def _take(self, request: Received) -> int | None:
        if self.refuses and self.refuses in request.body:
            return 422
        self.rows |= {(each["id"], each.get("status")) for each in request.changes}
        return None


class Run(Live):
    """The pipeline, over a database that is a server's."""

    wait_s = 300.0  # it starts beside three servers

    def __init__(self, folder: Path, server: MariaDb, text: str) -> None:
        self.folder, self.file = folder, folder / "databus.yml"
        self.state = folder / ".databus" / "pipelines" / "shop"
        self.process = None
        self.file.write_text(text)
        self.db = server.connect()
        self._server = server

    def add(self, status: str = "new") -> int:
        """Insert an order; its id."""
        self._server.run(f"INSERT INTO shop.orders (status) VALUES ('{status}')")
        return int(self._server.query("SELECT MAX(id) FROM shop.orders")[0][0])

    def source(self, columns: str = "id, status") -> list[tuple[Any, ...]]:
        return sorted(self._server.query(f"SELECT {columns} FROM shop.orders"))


@dataclass
class LiveSet:
    folder: Path
    server: MariaDb
    search: SearchServer
    kafka: Kafka
    prefix: str
    hook: Hook
    bell: Receiver
    """Is told of alerts."""
    relay: RelayProcess
    run: Run
    browser: Browser
    arguments: tuple[str, ...]
    """Of the dashboard."""
    url: str = ""
    pages: list[tuple[Page, str]] = field(default_factory=list)
    """Those that a test has opened, with the dashboard of each."""

    @property
    def relay_name(self) -> str:
        return urlsplit(self.relay.url).netloc

    @property
    def source(self) -> str:
        """Its page."""
        return f"source/{quote(self.relay_name, safe='')}/shop"

    def page(self, who: str, url: str = "", *, axe: bool = False, **how: Any) -> Page:
        """Somebody who is signed in. axe: with that library, for which the page's own policy is passed over."""
        page = self.browser.page(**how)
        page.wait_s = WAIT_S
        if axe:
            page.send("Page.setBypassCSP", enabled=True)
        page.open(url or self.url)
        page.type("input[type=password]", token_of(who))
        page.press("Enter")
        page.wait_for("shop / copy")
        if axe:
            page.js(axe_text())
        self.pages.append((page, url or self.url))
        return page

    def expect_clean(self, *known: str) -> None:
        """No page has logged an error, but answers that are known ones, as a browser does; nobody else was asked; and
        what is shown is text.
        """
        for page, url in self.pages:
            assert [each for each in page.errors if not any(word in each for word in ("412", *known))] == []
            assert page.strangers(url) == []
            assert page.js("document.querySelectorAll('main script, main img').length") == 0

    def wait_until_all_have_it(self) -> None:
        """Each target has what the database answers, and no more where it holds the rows of now."""
        run = self.run

        def wanted() -> Rows:
            return {(int(id_), str(status)) for id_, status in run.source()}

        run.wait_until_copied("copy", "id, status")
        run.wait_until(lambda: self._indexed() == {row for row in wanted() if row[1] != DRAFT}, "OpenSearch has it")
        run.wait_until(lambda: self._sent() >= wanted(), "Kafka has it")
        run.wait_until(lambda: self.hook.rows >= wanted(), "the hook has it")

    def _indexed(self) -> Rows:
        return {(each["id"], each["status"]) for each in self.search.documents("orders").values()}

    def _sent(self) -> Rows:
        try:
            partitions = messages_in(self.kafka, f"{self.prefix}.orders")
        except KafkaException:  # a topic that is new has no leader yet
            return set()
        rows = [json.loads(message.value()) for partition in partitions for message in partition if message.value()]
        return {(row["id"], row["status"]) for row in rows if "id" in row}


@contextmanager
def live_set(folder: Path, kafka: Kafka) -> Iterator[LiveSet]:
    """It runs, and has copied what was there. Raises `ServerMissing`."""
    prefix = new_prefix()
    for name in ("browser", "maria", "search"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        Chromium.prepare()
        server = stack.enter_context(MariaDb(folder / "maria"))
        search = stack.enter_context(open_search_server("opensearch-2.19", folder / "search"))
        server.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, status VARCHAR(60))",
            "INSERT INTO shop.orders (status) VALUES ('old'), ('older')",
            "CREATE TABLE shop.stock (id INT PRIMARY KEY AUTO_INCREMENT, item VARCHAR(20))",
            "INSERT INTO shop.stock (item) VALUES ('nail')",
        )
        login = {"user": server.capture_user, "password": server.capture_password}
        source = {"type": "mysql", "hosts": [f"{server.host}:{server.port}"], **login, "tables": ["shop.*"]}
        relay = stack.enter_context(RelayProcess(folder / "relay", {"shop": source}))
        hook, bell = stack.enter_context(Hook()), stack.enter_context(Receiver())
        text = PIPELINE.format(relay=relay.url, prefix=prefix, kafka=kafka.bootstrap, search=search.url, hook=hook.url)
        run = stack.enter_context(Run(folder, server, text))
        browser = stack.enter_context(Browser(stack.enter_context(Chromium(folder / "browser")).url))
        (folder / "principals.yml").write_text(yaml.safe_dump({"principals": PRINCIPALS}))
        (folder / "alerts.yml").write_text(ALERTS)
        told = ("databus.yml", "--relay", relay.url, "--principals", "principals.yml", "--alerts", "alerts.yml")
        _, url = stack.enter_context(dashboard(folder, *told, "--webhook", bell.url))
        run.start()
        made = LiveSet(folder, server, search, kafka, prefix, hook, bell, relay, run, browser, told, url)
        made.wait_until_all_have_it()
        yield made


@contextmanager
def dashboard(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A dashboard in a process of its own, and where it is."""
    command = [sys.executable, "-m", "databus.cli", "dashboard", "--listen", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, next(found[0] for line in process.stdout if (found := re.search(r"http://[^\s,]+", line)))
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stdout.close()


def go(where: str, heading: str, *pages: Page) -> None:
    """Have pages show something else, and wait until they do."""
    for page in pages:
        page.js(f"location.hash = {json.dumps(f'#/{where}')}")
        page.wait(f"document.querySelector('main h1')?.textContent === {json.dumps(heading)}")


def expect_state(states: str, *pages: Page) -> None:
    """states: with | between them."""
    for page in pages:
        page.wait(f"/{states}/.test(document.querySelector('main .state')?.textContent)")


def act(page: Page, title: str, **fields: str) -> dict[str, Any]:
    """Press a button, say why, and wait for what comes of it. Where the state has changed meanwhile, look again."""
    while (refused := ask(page, title, **fields)) and "when you looked" in refused:
        page.press("Escape")
        page.wait("document.querySelector('dialog') === null")
    assert refused == "", refused
    page.wait(f"document.querySelector('.said').textContent.startsWith({json.dumps(f'{title}: ')})")
    newest = "fetch('/api/v1/operations?limit=1').then((answer) => answer.json()).then((told) => told.operations[0])"
    page.wait(f"{newest}.then((each) => each.state !== 'running')")
    operation: dict[str, Any] = page.js(newest)
    assert operation["state"] == "done", operation
    return operation


def ask(page: Page, title: str, **fields: str) -> str:
    """Press a button, and say why; returns why it is refused, with the dialog still open, or an empty text."""
    page.wait("document.querySelector('dialog') === null")
    page.click("main button", title)
    for name, text in {"reason": f"to try {title}", **fields}.items():
        page.type(f"dialog[open] input[name={name}]", text)
    page.press("Enter")
    trouble = "document.querySelector('dialog .trouble')?.textContent"
    page.wait(f"document.querySelector('dialog') === null || {trouble}")
    return str(page.js(trouble) or "")


def buttons(page: Page) -> list[str]:
    """What can be done on the page, in dialogs that ask why."""
    found = page.js("[...document.querySelectorAll('main [aria-label=Actions] button')].map((e) => e.textContent)")
    return list(found)


def words_in(page: Page, *words: str) -> list[str]:
    """Which of these words stand on the page."""
    return re.findall(rf"\b({'|'.join(words)})\b", page.js("document.querySelector('main').innerText"))
