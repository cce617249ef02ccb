"""The pages in a real browser, against a real relay, and a pipeline that is real but for Spark."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from databus.core import SourceCheckpoint
from databus.dashboard import part_of_file, part_of_pipeline, part_of_relay
from databus.dashboard._board import Board
from databus.dashboard._server import PAGES
from databus.flow import Bucket, ChangeBatch, TableRows
from databus.link import Access
from databus.pipeline.trying import rows_given
from databus.testing.servers import ServerMissing
from tests.dashboard.browser import WAIT_S, Browser, Page
from tests.dashboard.chromium import Chromium
from tests.dashboard.parts import FILE, HOSTILE, Pipeline
from tests.dashboard.receiver import receiver
from tests.dashboard.running import Running
from tests.dashboard.test_strangers import answering
from tests.relay.support import ORDERS, Database, order, scripted, state_of, until

__all__ = ["receiver"]

LINES_MAX = 2_000
VENDOR = PAGES / "vendor"


def test_what_others_have_written_is_as_it_was_published():
    told = json.loads((VENDOR / "vendor.json").read_text())
    for name, each in told.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == each["sha256"], name
        assert all((VENDOR / text).stat().st_size > 500 for text in each["texts"]), name
        assert re.fullmatch(r"\d+\.\d+\.\d+", each["version"])
    texts = {text for each in told.values() for text in each["texts"]}
    assert {path.name for path in VENDOR.iterdir()} == {*told, *texts, "vendor.json"}


def test_our_pages_are_small_and_name_nobody_else():
    ours = [path for path in PAGES.iterdir() if path.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in ours if path.suffix == ".js") < LINES_MAX
    for path in ours:
        others = set(re.findall(r"https?://[^\s\"'<]+", path.read_text())) - {"http://www.w3.org/2000/svg"}
        assert others == set(), path.name
        assert "innerHTML" not in path.read_text()
        assert not re.search(r"<script>|\son\w+=\"|\sstyle=\"", path.read_text()), "the policy would refuse it"


@dataclass
class World:
    shop: Pipeline
    relay: Any
    running: Running
    browser: Browser

    def signed_in(self, **how: Any) -> Page:
        page = self.browser.page(**how)
        page.open(self.running.links[-1])
        page.wait_for("Outputs")
        return page

    def check(self, page: Page) -> None:
        """Nothing was logged, nobody else was asked, and what is on it is text."""
        assert page.errors == []
        assert page.strangers(self.running.url) == []
        assert page.js("document.querySelectorAll('main script, main img').length") == 0


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("pages")
    try:
        Chromium.prepare()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    (folder / "browser").mkdir()
    database = Database()
    with (
        Pipeline(folder / "shop") as shop,
        scripted(folder / "relay", {"erp": database}) as relay,
    ):
        database.add(*(order(scn) for scn in range(1, 20)))
        state = {"name": "shop_db", "status": "suspended", "state": "SUSPENDED_ON_ERROR", "message": HOSTILE}
        shop.published.sources([{**state, "type": "mock", "lagMs": 12.0, "sinceMs": 1}], "")
        parts = [part_of_file(shop.file), ("erp-relay", part_of_relay(relay.url, Access())[1])]
        with (
            Running(folder / "dashboard", parts) as running,
            Chromium(folder / "browser") as chromium,
            Browser(chromium.url) as browser,
        ):
            yield World(shop, relay, running, browser)


def test_every_page_shows_what_is_there_and_hostile_values_as_text(world):
    page = world.signed_in()
    page.wait("document.querySelectorAll('svg a.hidden, svg a').length >= 4")
    page.wait_for(HOSTILE)
    world.shop.published.take({"event": "failed", "query": "q", "outputs": ["copy"], "message": HOSTILE, "at_us": 1})
    for hash_, texts in {
        "#/output/shop/copy": ["Output shop / copy", "running", "Last batch"],
        "#/source/shop/shop_db": [HOSTILE, "suspended"],
        "#/source/erp-relay/erp": ["SCN", "19", "main.orders", "Nobody follows it now"],
        "#/journal": [HOSTILE],
        "#/audit": ["Audit"],
        "#/alerts": ["CaptureSuspended", "physical=shop_db", "Acknowledge"],
        "#/letters": ["No target refuses a row"],
        "#/config/shop": ["databus.yml", "(hidden)", "the file is as it was taken"],
        "#/output/%3Cscript%3E/%E0%A4%A": ["Flow"],
        f"#/output/{HOSTILE}/x": ["There is no such thing"],
    }.items():
        page.js(f"location.hash = {json.dumps(hash_)}")
        for text in texts:
            page.wait_for(text)
        assert "hunter2" not in page.text()
    page.js("location.hash = '#/flow'")
    page.click("main button", "Show tables and columns")
    page.wait_for("filters.big")
    page.errors = [each for each in page.errors if "503" not in each]  # the relay of shop does not run
    world.check(page)


def test_an_output_is_paused_by_keyboard_and_another_browser_sees_it(world):
    page, other = world.signed_in(), world.signed_in(width=360, dark=True)
    page.press("g", "j")
    page.wait_for("What happened")
    page.js("location.hash = '#/output/shop/copy'")
    page.wait_for("Pause")
    page.js("[...document.querySelectorAll('main button')].find((e) => e.textContent === 'Pause').focus()")
    page.press("Enter")
    page.wait("document.querySelector('dialog[open]') !== null")
    assert page.js("document.activeElement.name") == "reason"
    page.type("dialog[open] input", f"because {HOSTILE}")
    page.press("Enter")
    page.wait_for("Pause: done")
    page.wait("document.querySelector('main .state').textContent.includes('paused')")
    other.wait_for("paused")
    assert other.js("document.documentElement.scrollWidth") <= 360
    page.js("location.hash = '#/audit'")
    page.wait_for(f"because {HOSTILE}")
    world.check(page)
    world.check(other)


def test_who_decides_by_what_is_no_longer_so_is_told(world):
    page = world.signed_in()
    page.js("location.hash = '#/source/erp-relay/erp'")
    page.click("main button", "Pause")
    page.wait_for("It is running")
    world.relay.captures["erp"].pause()
    until(lambda: state_of(world.relay, "erp")["status"] == "paused")
    page.type("dialog[open] input", "too late")
    page.press("Enter")
    page.wait_for("erp was running when you looked, and is paused now")
    page.press("Escape")
    page.wait("document.querySelector('dialog') === null")
    page.wait("document.querySelector('main .state').textContent.includes('paused')")
    page.click("main button", "Resume")
    page.type("dialog[open] input", "go on")
    page.press("Enter")
    page.wait_for("Resume: done")
    assert state_of(world.relay, "erp")["status"] in ("running", "initializing")
    page.errors = [each for each in page.errors if "412" not in each]  # the browser logs each answer that is an error
    world.check(page)


def test_an_output_is_throttled_and_a_table_of_it_made_anew(world):
    page = world.signed_in()
    page.js("location.hash = '#/output/shop/hook'")
    page.click("main button", "Throttle")
    page.type("dialog[open] input[name=reason]", "the target is slow")
    page.press("Enter")
    page.wait_for("Throttle: done")
    page.wait_for("1,000 rows a batch")
    page.click("main button", "Resume")
    page.type("dialog[open] input[name=reason]", "it is well")
    page.press("Enter")
    page.wait("!document.body.innerText.includes('1,000 rows a batch')")
    world.shop.batch(output="hook")
    page.click("main button", "Rebuild")
    page.type("dialog[open] input[name=reason]", "it is wrong")
    page.type("dialog[open] input[name=confirm]", "shop_db/main.events")
    page.press("Enter")
    page.wait_for("Rebuild: done")
    assert "rebuild shop_db/main.events of hook" in world.shop.asked
    page.js("location.hash = '#/source/erp-relay/erp'")
    page.click("main button", "Read again")
    page.type("dialog[open] input[name=reason]", "look again")
    page.press("Enter")
    page.wait_for("Read again: done")
    world.check(page)


def test_what_a_reload_would_change_is_shown(world):
    page, text = world.signed_in(), world.shop.file.read_text()
    try:
        world.shop.file.write_text(text.replace("id > 1", "id > 2").replace("hunter2", "hunter3"))
        page.js("location.hash = '#/config/shop'")
        page.wait_for("filters.big.where")
        assert "hunter" not in page.text()
        world.shop.file.write_text(text.replace("type: mock", "type: mock, seed: 5"))
        page.wait_for("cannot change while the pipeline runs")
        page.click("main button", "Reload")
        page.type("dialog[open] input[name=reason]", "it is shown so")
        world.shop.file.write_text(text + "# by somebody else, meanwhile")
        page.press("Enter")
        page.wait_for("Nothing was done. Look at it again")
        assert ["412" in each for each in page.errors] == [True]
        page.errors.clear()
        page.press("Escape")
        page.js("location.hash = '#/config/nobody'")
        page.wait_for("There is no pipeline nobody")
        page.js("location.hash = '#/constructor'")
        page.wait_for("Outputs")
        world.shop.file.write_text("outputs: [")
        page.js("location.hash = '#/config/shop'")
        page.wait_for("The file cannot be taken as it is")
    finally:
        world.shop.file.write_text(text)
    world.check(page)


def test_many_outputs_are_one_node(world, tmp_path):
    many = "".join(f"  o{number}: {{type: files, from: rows, path: out/o{number}}}\n" for number in range(160))
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "databus.yml").write_text(
        f"name: many\nsources: {{many_db: {{type: mock}}}}\ninputs: {{rows: {{type: databus}}}}\noutputs:\n{many}"
    )
    with Pipeline(tmp_path / "many", "many") as crowd, Running(tmp_path / "d", [part_of_file(crowd.file)]) as running:
        page = world.browser.page()
        page.open(running.links[-1])
        page.wait_for("160 outputs")
        assert page.js("document.querySelectorAll('svg .edge').length") == 2
        assert page.errors == []


def test_a_trace_that_cannot_be_is_a_sentence_and_batches_are_checked(world):
    page = world.signed_in()
    page.press("g", "t")
    page.type("input[name=table]", HOSTILE)
    page.type("input[name=key]", "id=1")
    page.press("Enter")
    page.wait_for("its relay does not run")
    page.click("main button", "Check the batches")
    page.wait_for("No batches have been written")
    page.errors = [each for each in page.errors if "503" not in each]  # the browser logs each answer that is an error
    world.check(page)


def test_a_part_that_does_not_answer_says_since_when_and_the_rest_goes_on(world, tmp_path):
    with Pipeline(tmp_path / "crm", "crm") as crm:
        parts = [part_of_file(world.shop.file), part_of_file(crm.file)]
        with Running(tmp_path / "dashboard", parts) as running:
            page = world.browser.page()
            page.open(running.links[-1])
            page.wait_for("crm / hook")
            (crm.config.state / "control.sock").unlink()
            page.wait_for("crm does not answer; its numbers are of")
            assert "shop / copy" in page.text()
        page.wait_for("The dashboard does not answer; what you see is of")


def test_a_letter_is_looked_at_replayed_and_dropped(world, tmp_path, receiver):
    """A row that a target has refused, on its page; a receiver that refuses the first request, and no other."""
    text = FILE.format(name="crm", project="crm").replace("127.0.0.1:9/", f"127.0.0.1:{receiver.server_port}/")
    (tmp_path / "databus.yml").write_text(text.replace("type: http,", "type: http, on_error: dead_letter,"))
    with Pipeline(tmp_path, "crm") as crm:
        refused_by(crm, receiver)
        with Running(tmp_path / "dashboard", [part_of_file(crm.file)]) as running:
            page = world.browser.page()
            page.open(running.links[-1])
            page.wait_for("Outputs")
            page.js("location.hash = '#/letters'")
            page.wait_for("main.orders")
            page.click("main button", "Show")
            page.wait_for(HOSTILE)
            page.wait_for("422")
            assert page.js("document.querySelectorAll('main script').length") == 0
            page.click("main button", "Replay")
            page.type("dialog[open] input[name=reason]", "it takes them now")
            page.press("Enter")
            page.wait_for("Replay: done")
            page.wait_for("No target refuses a row")
            assert HOSTILE.encode() in receiver.heard[-1][1]
            page.wait_for("None.")
            refused_by(crm, receiver)
            page.wait_for("422")
            page.wait_for("main.orders")
            page.click("main button", "Drop")
            page.type("dialog[open] input[name=reason]", "nobody wants them")
            page.type("dialog[open] input[name=confirm]", "hook")
            page.press("Enter")
            page.wait_for("Drop: done")
            page.wait_for("No target refuses a row")
            assert page.errors == []


def refused_by(pipeline, receiver):
    """Have the target refuse a row, as a task does."""
    receiver.refuses = 422
    node = pipeline.graph.config.nodes["outputs.hook"]
    output = node.plugin(node.config, pipeline.graph.config.context_of("hook"))
    row = {"id": 1, "name": HOSTILE, "_commit_version": 7}
    rows = TableRows(ORDERS, rows_given("r", ORDERS, [row]))
    batch = ChangeBatch("crm_db", SourceCheckpoint(log="x"), SourceCheckpoint(scn=7, log="x"), (rows,))
    with output.part_writer().open(Bucket("crm", "hook", "crm_db")) as bucket:
        bucket.write(batch)
    receiver.refuses = 0


OF_ANOTHER_VERSION = {
    "state": "running",
    "relay_error": "refused",
    "nodes": [{"id": f"outputs.{name}", "kind": "output", "name": name, "type": "files"} for name in ("copy", "odd")],
    "outputs": {
        "copy": {
            "state": "running",
            "backlog": [
                {"physical": "a", "rows": 1_000_000, "is_least": True, "lag_s": 60.0, "held": True},
                {"physical": "b", "rows": None, "is_least": False, "lag_s": None, "held": None},
            ],
        },
        "odd": {"state": "running", "throttle": {"rows": "few"}},
    },
}


def test_what_is_not_known_is_not_shown_as_known_and_what_cannot_be_shown_is_a_sentence(world, tmp_path):
    with (
        answering(json.dumps(OF_ANOTHER_VERSION).encode()) as url,
        Running(tmp_path, [("other", part_of_pipeline(url, Access())[1])]) as running,
    ):
        page = world.browser.page()
        page.open(running.links[-1])
        page.wait_for("1.0 M+")
        page.wait_for("60.0 s+")
        page.wait_for("The relay of other does not answer it; what is shown of its sources is of before: refused")
        for _ in range(2):
            page.js("location.hash = '#/output/other/odd'")
            page.wait_for("This page cannot show what it was told")
            page.js("location.hash = '#/output/other/copy'")
            page.wait_for("60.0 s+, 1.0 M+ rows")
        assert page.js(
            "import('/flow.js').then(({ together }) => together({ of: ['a', 'b'] }, "
            "{ a: { state: 'running', lag_s: 3, rows_s: null }, b: { state: 'running', lag_s: null } }))"
        ) == {"state": "running", "rows_s": None, "lag_s": 3, "lag_is_least": True}
        assert page.errors == []


def test_a_chart_says_when_its_last_number_was_noted_and_joins_nothing_over_a_gap(world, tmp_path, monkeypatch):
    monkeypatch.setattr(Board, "_note", lambda *_: None)
    with Running(tmp_path, [part_of_file(world.shop.file)]) as running:
        page = world.browser.page()
        page.open(running.links[-1])
        page.wait_for("Outputs")
        page.js("location.hash = '#/output/shop/copy'")
        page.wait_for("Nothing has been noted")
        now_s, history = int(time.time()), running.dashboard.board.numbers._history
        for at_s in (*range(now_s - 9_000, now_s - 7_200, 10), *range(now_s - 3_600, now_s - 1_800, 10)):
            history.put("shop/outputs.copy", at_s, {"rows_s": 7_000.0})
        page.wait_for("rows/s: 7,000 at")
        page.wait_for("unknown since")
        page.click("main button", "1 h")
        page.wait("document.querySelector('main button[aria-pressed=true]').textContent === '1 h'")
        page.wait_for("rows/s: 7,000 at")
        spaced = page.js("import('/chart.js').then(({ spaced: s }) => [...s([0, 10e6, 20e6, 90e6, 100e6]).gaps])")
        assert spaced == [2]
        assert page.errors == []


def test_a_dashboard_that_hangs_says_since_when(world, tmp_path):
    with Running(tmp_path, [part_of_file(world.shop.file)]) as running:
        page = world.browser.page()
        page.open(running.links[-1])
        page.wait_for("shop / copy")
        goes_on = threading.Event()
        running._loop.call_soon_threadsafe(goes_on.wait, WAIT_S)
        try:
            page.wait_for("The dashboard does not answer; what you see is of")
        finally:
            goes_on.set()
        page.wait("!document.body.innerText.includes('The dashboard does not answer')")


def test_what_was_not_answered_is_not_done_twice(world):
    page = world.signed_in()
    world.shop.batch(output="hook")
    page.js("location.hash = '#/output/shop/hook'")
    page.click("main button", "Rebuild")
    page.type("dialog[open] input[name=reason]", "the network goes away")
    page.type("dialog[open] input[name=confirm]", "shop_db/main.events")
    page.js(
        "{ const real = window.fetch; window.fetch = (...asked) => { window.fetch = real;"
        " return real(...asked).then(() => { throw new TypeError('it is gone'); }); } }"
    )
    before = world.shop.asked.count("rebuild shop_db/main.events of hook")
    page.press("Enter")
    page.wait_for("The dashboard does not answer. Is it still running?")
    page.press("Enter")
    page.wait_for("Rebuild: done")
    assert world.shop.asked.count("rebuild shop_db/main.events of hook") == before + 1
    world.check(page)


def test_who_signs_out_sees_nothing_more(world):
    page = world.signed_in()
    page.click("header button", "Sign out")
    page.wait_for("Your token")
    page.type("input[type=password]", "no such token")
    page.press("Enter")
    page.wait_for("this link was used already")
    assert "shop" not in page.text()
    assert page.js("document.cookie") == ""
    assert page.js("location.hash") == ""
