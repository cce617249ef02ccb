"""Pages in two browsers beside a real set: MariaDB, a relay, and a pipeline to Delta, Kafka, OpenSearch and a web hook.

Every action by its button, and parts that are killed or stand still. What is in the targets is held against SELECT.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import yaml

from databus.testing import RelayProcess
from databus.testing.servers import MariaDb, SearchServer, ServerMissing, open_search_server
from tests.cli.live import WAIT_S, Live
from tests.dashboard.browser import Browser, Page
from tests.dashboard.chromium import Chromium
from tests.dashboard.running import entry, token_of
from tests.dashboard.test_live import dashboard
from tests.http.receiver import Receiver
from tests.kafka.support import messages_in, new_prefix

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.timeout(1500)]

PIPELINE = """\
name: shop
spark: {{master: "local[2]"}}
relay: {{url: "{relay}"}}
inputs: {{rows: {{type: databus, tables: [shop/*]}}}}
outputs:
  copy: {{type: delta, from: rows, mode: mirror, path: copy}}
  topics: {{type: kafka, from: rows, topic: "{prefix}.{{table}}", control_topic: "{prefix}.control",
           create_topics: {{partitions: 1}}, kafka: {{bootstrap.servers: "{kafka}"}}}}
  index: {{type: opensearch, from: rows, url: "{search}", settings: {{number_of_shards: 1, number_of_replicas: 0}}}}
  hook: {{type: http, from: rows, url: "{hook}", on_error: dead_letter}}
"""
OUTPUTS = ("copy", "topics", "index", "hook")
ALERTS = "alerts: [{name: Letters, metric: databus_output_dead_letters, above: 0, text: look at them}]"
RIGHTS = ["see", "rows", "control", "admin"]


class Run(Live):
    """The pipeline, over a database that is a server's."""

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
class World:
    server: MariaDb
    search: SearchServer
    kafka: Any
    prefix: str
    receiver: Receiver
    relay: RelayProcess
    run: Run
    browser: Browser
    url: str = ""

    def page(self, who: str) -> Page:
        page = self.browser.page()
        page.open(self.url)
        page.type("input[type=password]", token_of(who))
        page.press("Enter")
        page.wait_for("Outputs")
        return page

    def wait_until_all_have_it(self) -> None:
        """Each target has what the database answers."""
        self.run.wait_until_copied("copy", "id, status")
        self.run.wait_until(lambda: self.indexed() == self.run.source(), "OpenSearch has it")
        self.run.wait_until(lambda: self.sent() >= set(self.run.source()), "Kafka has it")
        self.run.wait_until(lambda: self.heard() >= set(self.run.source()), "the hook has it")

    def indexed(self) -> list[tuple[Any, ...]]:
        return sorted((each["id"], each["status"]) for each in self.search.documents("orders").values())

    def sent(self) -> set[tuple[Any, ...]]:
        partitions = messages_in(self.kafka, f"{self.prefix}.orders")
        rows = [json.loads(each.value()) for partition in partitions for each in partition if each.value()]
        return {(each["id"], each["status"]) for each in rows}

    def heard(self) -> set[tuple[Any, ...]]:
        rows = [each for request in self.receiver.seen for each in request.changes if "id" in each]
        return {(each["id"], each["status"]) for each in rows}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, kafka: Any) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("set")
    prefix = new_prefix()
    for name in ("browser", "maria", "search"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        try:
            Chromium.prepare()
            server = stack.enter_context(MariaDb(folder / "maria"))
            search = stack.enter_context(open_search_server("opensearch-2.19", folder / "search"))
        except ServerMissing as missing:
            pytest.skip(str(missing))
        server.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, status VARCHAR(20))",
            "INSERT INTO shop.orders (status) VALUES ('old'), ('older')",
        )
        login = {"user": server.capture_user, "password": server.capture_password}
        source = {"type": "mysql", "hosts": [f"{server.host}:{server.port}"], **login, "tables": ["shop.*"]}
        relay = stack.enter_context(RelayProcess(folder / "relay", {"shop": source}))
        receiver = stack.enter_context(Receiver())
        text = PIPELINE.format(
            relay=relay.url, prefix=prefix, kafka=kafka.bootstrap, search=search.url, hook=receiver.url
        )
        run = stack.enter_context(Run(folder, server, text))
        browser = stack.enter_context(Browser(stack.enter_context(Chromium(folder / "browser")).url))
        (folder / "principals.yml").write_text(yaml.safe_dump({"principals": [entry("ann", RIGHTS), entry("bill")]}))
        (folder / "alerts.yml").write_text(ALERTS)
        told = ("databus.yml", "--relay", relay.url, "--principals", "principals.yml", "--alerts", "alerts.yml")
        _, url = stack.enter_context(dashboard(folder, *told))
        run.start()
        made = World(server, search, kafka, prefix, receiver, relay, run, browser, url)
        made.wait_until_all_have_it()
        yield made


def act(page: Page, title: str, **fields: str) -> None:
    """Press a button, say why, and wait for what came of it. What changes state meanwhile is looked at again."""
    while True:
        page.click("main button", title)
        for name, text in {"reason": "a test", **fields}.items():
            page.type(f"dialog[open] input[name={name}]", text)
        page.press("Enter")
        trouble = "document.querySelector('dialog .trouble')?.textContent"
        if (said := page.wait(f"/{title}: (done|running)/.test(document.body.innerText) || {trouble}")) is True:
            return
        assert "no longer" in said
        page.press("Escape")
        page.wait("document.querySelector('dialog') === null")


def go(where: str, *pages: Page) -> None:
    for page in pages:
        page.js(f"location.hash = '#/{where}'")


def expect_state(states: str, *pages: Page) -> None:
    """states: with | between them."""
    for page in pages:
        page.wait(f"/{states}/.test(document.querySelector('main .state')?.textContent)")


def expect_clean(world: World, *pages: Page, errors: tuple[str, ...] = ()) -> None:
    """Nothing was logged but answers that are known errors, as a browser does, and nobody else was asked."""
    for page in pages:
        assert [each for each in page.errors if not any(known in each for known in ("412", *errors))] == []
        assert page.strangers(world.url) == []


def test_each_output_does_what_its_buttons_say_and_another_browser_sees_it(world):
    ann, bill = world.page("ann"), world.page("bill")
    for page in (ann, bill):
        page.wait("document.querySelectorAll('svg a').length >= 5")  # a source, and four outputs
    for output in OUTPUTS:
        go(f"output/shop/{output}", ann, bill)
        for page in (ann, bill):
            page.wait_for(f"Output shop / {output}")
        expect_state("running", ann, bill)
        act(ann, "Pause")
        expect_state("paused", ann, bill)
        row = world.run.add(f"{output} rests")
        act(ann, "Resume")
        expect_state("running", ann, bill)
        act(ann, "Throttle")
        bill.wait_for("1,000 rows a batch")
        expect_state("running", ann, bill)
        act(ann, "Resume")
        bill.wait("!document.body.innerText.includes('1,000 rows a batch')")
        assert bill.js("document.querySelectorAll('main .actions button').length") == 0, "who only sees has no buttons"
    world.wait_until_all_have_it()
    act(ann, "Drain")
    expect_state("stopped|drained", ann, bill)
    act(ann, "Resume")
    expect_state("running", ann, bill)
    act(ann, "Stop", confirm="hook")
    expect_state("stopped", ann, bill)
    act(ann, "Resume")
    expect_state("running", ann, bill)
    go("output/shop/copy", ann)
    ann.wait_for("Output shop / copy")
    act(ann, "Rebuild", confirm="shop/shop.orders")
    world.run.add("rebuilt")
    world.wait_until_all_have_it()

    go("trace", ann)
    ann.type("input[name=table]", "shop.orders")
    ann.type("input[name=key]", f"id={row}")
    ann.press("Enter")
    ann.wait_for("hook rests")
    verdicts = re.findall(r"\b(written|superseded|unknown|lost)\b", ann.js("document.querySelector('main').innerText"))
    assert len(verdicts) >= len(OUTPUTS)
    assert "lost" not in verdicts
    ann.click("main button", "Check the batches")
    ann.wait_for("whole")
    assert "broken" not in ann.text()
    expect_clean(world, ann, bill)


def test_a_source_a_letter_an_alert_and_the_file_are_seen_to(world):
    ann, bill = world.page("ann"), world.page("bill")
    go(f"source/{quote(urlsplit(world.relay.url).netloc, safe='')}/shop", ann, bill)
    for page in (ann, bill):
        page.wait_for("shop.orders")
    act(ann, "Pause")
    expect_state("paused", ann, bill)
    act(ann, "Resume")
    expect_state("running", ann, bill)
    act(ann, "Read again")
    act(ann, "Read tables again", tables="shop.orders")
    world.wait_until_all_have_it()

    def refuse(request: Any) -> int | None:
        return 422 if b"refused" in request.body else None

    world.receiver.answer = refuse
    world.run.add("refused")
    go("letters", ann, bill)
    for page in (ann, bill):
        page.wait_for("shop.orders")
    ann.click("main button", "Show")
    ann.wait_for("422")
    assert "422" not in bill.text()
    go("alerts", ann, bill)
    ann.wait_for("output=hook")
    act(ann, "Silence")
    act(ann, "Acknowledge")
    bill.wait("document.querySelector('main').innerText.includes('ann')")
    go("letters", ann)
    world.receiver.answer = lambda _: None
    act(ann, "Replay")
    ann.wait_for("No target refuses a row")
    assert b"refused" in world.receiver.seen[-1].body
    world.receiver.answer = refuse
    world.run.add("refused")
    ann.wait_for("shop.orders")
    act(ann, "Drop", confirm="hook")
    ann.wait_for("No target refuses a row")
    world.receiver.answer = lambda _: None

    world.run.file.write_text(world.run.file.read_text().replace("opensearch,", "opensearch, bulk_rows_max: 500,"))
    go("config/shop", ann)
    ann.wait_for("bulk_rows_max")
    act(ann, "Reload")
    ann.wait_for("Nothing: the file is as it was taken")
    expect_clean(world, ann, bill)


def test_a_part_that_stands_still_or_is_killed_says_since_when_and_keeps_nobody_waiting(world):
    ann, bill = world.page("ann"), world.page("bill")
    relay, process = urlsplit(world.relay.url).netloc, world.run.process
    assert process is not None
    go(f"source/{quote(relay, safe='')}/shop", bill)
    bill.wait_for("shop.orders")
    scn = "document.querySelector('main').innerText.match(/SCN\\s+(\\S+)/)?.[1]"
    os.kill(process.pid, signal.SIGSTOP)
    try:
        ann.wait_for("shop does not answer; its numbers are of")
        go("journal", ann)
        ann.wait_for("shop does not answer")
        before = bill.js(scn)
        world.run.add("meanwhile")
        bill.wait(f"{scn} !== {json.dumps(before)}")
        go("alerts", bill)
        bill.wait_for("Rules")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    go("flow", ann)
    ann.wait("!document.body.innerText.includes('does not answer')")

    world.relay.kill()
    ann.wait_for(f"{relay} does not answer; its numbers are of")
    ann.wait_for("shop / copy")
    world.relay.start()
    ann.wait(f"!document.body.innerText.includes('{relay} does not answer')")
    world.run.add("after the relay")
    world.wait_until_all_have_it()

    world.run.kill()
    go("output/shop/copy", ann)
    ann.wait_for("Output shop / copy")
    expect_state("stopped", ann)
    world.run.start()
    expect_state("running", ann)
    world.run.add("after the kill")
    world.wait_until_all_have_it()

    go("config/shop", ann)
    ann.wait_for("As it runs")
    act(ann, "Stop", confirm="shop")
    world.run.process.wait(WAIT_S)
    expect_state("stopped|ended", ann)
    expect_clean(world, ann, bill, errors=("503",))
