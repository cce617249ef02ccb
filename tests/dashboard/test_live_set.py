"""The dashboard's pages in browsers beside a real set (`live_set.py`): every page and action, parts that are killed."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable

from databus.testing.servers import Kafka, ServerMissing
from tests.dashboard.axe import axe_text, violations
from tests.dashboard.browser import Page
from tests.dashboard.live_set import (
    OUTPUTS,
    TABLE,
    WAIT_S,
    LiveSet,
    act,
    ask,
    buttons,
    dashboard,
    expect_state,
    go,
    live_set,
    words_in,
)
from tests.dashboard.parts import HOSTILE, is_gone

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.timeout(1500)]


OPEN_ALERTS = "fetch('/api/v1/alerts').then((answer) => answer.json()).then((told) => told.open)"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, kafka: Kafka) -> Iterator[LiveSet]:
    try:
        with live_set(tmp_path_factory.mktemp("set"), kafka) as made:
            yield made
    except ServerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def world(whole: LiveSet) -> Iterator[LiveSet]:
    """The set; what a test opens is closed behind it."""
    yield whole
    whole.hook.refuses = b""
    while whole.pages:
        whole.pages.pop()[0].close()


def output_of(name: str, *pages: Page) -> None:
    go(f"output/shop/{name}", f"Output shop / {name}", *pages)


def test_the_graph_shows_what_flows_and_who_only_sees_changes_nothing(world: LiveSet) -> None:
    ann, bill = world.page("ann"), world.page("bill", width=360, dark=True)
    for page in (ann, bill):
        page.wait("document.querySelectorAll('svg a').length === 5")  # the source, and four outputs
        page.wait("document.querySelectorAll('svg .edge').length === 6")
    assert bill.js("document.documentElement.scrollWidth") <= 360

    def is_shown() -> bool:
        world.run.add()
        world.run.add("draft")
        drops = bill.js("/drops (?!0\\/s)[\\d.]+\\/s/.test(document.querySelector('svg').textContent)")
        return bool(drops and ann.js("[...document.querySelectorAll('svg .edge > text')].length >= 1"))

    world.run.wait_until(is_shown, "rows on edges, and what the filter drops")
    ann.click("main button", "Show tables and columns")
    ann.wait_for("filters.final")
    for output in OUTPUTS:
        ann.wait(f"document.querySelector('[aria-label=Lineage]')?.innerText.includes('shop / {output}')")
    for where, heading in {
        world.source: f"Source {world.relay_name} / shop",
        "output/shop/hook": "Output shop / hook",
        "alerts": "Alerts",
        "trace": "Trace",
        "letters": "Dead letters",
        "journal": "Journal",
        "audit": "Audit",
        "config": "Configuration",
    }.items():
        go(where, heading, bill)
        assert buttons(bill) == [], "who only sees"
        assert bill.js("document.documentElement.scrollWidth") <= 360
    bill.wait_for("The file is shown to those who have the right")
    world.wait_until_all_have_it()
    world.expect_clean()


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_does_what_its_buttons_say_and_others_see_it(world: LiveSet, output: str) -> None:
    run, (ann, cleo, bill) = world.run, (world.page(who) for who in ("ann", "cleo", "bill"))
    output_of(output, ann, cleo, bill)
    expect_state("running", ann, cleo, bill)
    ann.wait(f"[...document.querySelectorAll('main td')].some((e) => e.textContent === {TABLE!r})")
    assert buttons(ann)[-1] == "Rebuild"
    assert buttons(cleo) == ["Pause", "Resume", "Drain", "Throttle", "Stop"]
    assert buttons(bill) == []

    act(ann, "Pause")
    expect_state("paused", ann, cleo, bill)
    others = [name for name in OUTPUTS if name != output]
    before = {name: len(run.events(event="batch", output=name)) for name in OUTPUTS}
    run.add(f"{output} rests")
    for name in others:
        run.wait_until(lambda name=name: len(run.events(event="batch", output=name)) > before[name], f"{name} goes on")
    assert len(run.events(event="batch", output=output)) == before[output]
    cleo.click("main button", "Resume")
    cleo.wait_for("It is paused")
    act(ann, "Resume")
    expect_state("running", ann, cleo, bill)
    cleo.type("dialog[open] input[name=reason]", "too late")
    cleo.press("Enter")
    cleo.wait_for(f"output {output} was paused when you looked, and is running now")

    act(ann, "Throttle", rows="10")
    bill.wait_for("10 rows a batch")
    expect_state("running", ann)
    batches = len(run.events(event="batch", output=output))
    for number in range(30):
        run.add(f"{output} {number}")
    world.wait_until_all_have_it()
    sizes = [each["rows"] for each in run.events(event="batch", output=output)[batches:]]
    assert sum(sizes) >= 30
    assert max(sizes) <= 10
    act(ann, "Resume")
    bill.wait("!document.body.innerText.includes('10 rows a batch')")

    for title, states, more in (("Drain", "stopped|drained", {}), ("Stop", "stopped", {"confirm": output})):
        act(ann, title, **more)
        expect_state(states, ann, bill)
        act(ann, "Resume")
        expect_state("running", ann, bill)
    assert "write" in ask(ann, "Stop", confirm="another"), "its name is to be typed"
    ann.press("Escape")
    run.add(f"{output} is well")
    world.wait_until_all_have_it()
    ann.wait_for("rows in")
    ann.wait("document.querySelectorAll('figure .u-wrap').length >= 1")
    ann.wait("/half within [\\d.]+/.test(document.querySelector('main').innerText)")
    world.expect_clean("400")


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_table_is_rebuilt_where_its_target_keeps_it_and_else_the_dialog_says_why_not(
    world: LiveSet, output: str
) -> None:
    ann = world.page("ann")
    output_of(output, ann)
    if output in ("topics", "hook"):
        assert "its target keeps nothing that could be removed" in ask(ann, "Rebuild", confirm=TABLE)
        ann.press("Escape")
    else:
        first = world.run.source()[0][0]
        if output == "copy":
            DeltaTable(world.run.folder / "copy" / "orders").delete(f"id = {first}")
        else:
            world.search.ask("DELETE", f"/orders/_doc/{first}")
        go("trace", "Trace", ann)
        ann.type("input[name=table]", "shop.orders")
        ann.type("input[name=key]", f"id={first}")
        ann.press("Enter")
        ann.wait_for("lost")
        output_of(output, ann)
        assert act(ann, "Rebuild", confirm=TABLE)["result"]["tables"] == [TABLE]
    expect_state("running", ann)
    world.run.add(f"{output} was rebuilt")
    world.wait_until_all_have_it()
    world.expect_clean("400")


def test_a_source_is_paused_and_its_tables_are_read_again_and_no_longer(world: LiveSet) -> None:
    ann, bill = world.page("ann"), world.page("bill")
    heading = f"Source {world.relay_name} / shop"
    go(world.source, heading, ann, bill)
    ann.wait_for("shop.stock")
    act(ann, "Pause")
    expect_state("paused", ann, bill)
    row = world.run.add("while the source rests")
    act(ann, "Resume")
    expect_state("running", ann, bill)
    world.wait_until_all_have_it()
    assert (row, "while the source rests") in world.hook.rows

    world.server.run("ALTER TABLE shop.stock ADD COLUMN price INT", "INSERT INTO shop.stock VALUES (NULL, 'saw', 7)")
    bill.wait("document.querySelector('main').textContent.includes('+ price')")
    seen = len([each for each in world.hook.changes if each.get("id") == row])
    act(ann, "Read tables again", tables="shop.orders")
    world.run.wait_until(
        lambda: len([each for each in world.hook.changes if each.get("id") == row]) > seen, "the table came again"
    )
    with world.server.connect() as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLES shop.stock WRITE")  # nobody can read it meanwhile
        ann.type("input[type=search]", "stock")
        ann.wait("document.querySelectorAll('main [aria-label^=Tables] tbody tr').length === 1")
        act(ann, "Read again")
        bill.wait("/Snapshots under way\\s+shop.stock/.test(document.querySelector('main').innerText)")
        ann.wait("[...document.querySelectorAll('main button')].some((e) => e.textContent === 'Stop reading')")
        act(ann, "Stop reading")
        cursor.execute("UNLOCK TABLES")
    bill.wait("/Snapshots under way\\s+none/.test(document.querySelector('main').innerText)")
    go("audit", "Audit", bill)
    for did in ("source pause", "source resume", "source snapshot", "source cancel snapshot"):
        bill.wait_for(did)
    bill.wait_for("to try Stop reading")
    world.wait_until_all_have_it()
    world.expect_clean()


def test_letters_and_alerts_are_seen_to(world: LiveSet) -> None:
    ann, bill, cleo = (world.page(who) for who in ("ann", "bill", "cleo"))
    refused = f"refused {HOSTILE}"
    world.hook.refuses = b"refused"
    row = world.run.add(refused)
    go("letters", "Dead letters", ann, bill, cleo)
    for page in (ann, bill, cleo):
        page.wait_for("shop.orders")
    assert (buttons(ann), buttons(cleo), buttons(bill)) == (["Replay", "Drop"], ["Replay"], [])
    ann.click("main button", "Show")
    ann.wait_for(refused)
    ann.wait_for("422")
    assert cleo.js("[...document.querySelectorAll('main button')].map((e) => e.textContent)") == ["Replay"]

    go("alerts", "Alerts", ann, bill)
    ann.wait_for("output=hook")
    act(ann, "Silence", minutes="5")
    ann.wait(f"{OPEN_ALERTS}.then((open) => open.some((each) => each.silenced_until_us))")
    act(ann, "Acknowledge")
    bill.wait("[...document.querySelectorAll('main td')].some((e) => e.textContent === 'ann')")
    world.run.wait_until(lambda: any(b'"Letters"' in each.body for each in world.bell.seen), "somebody was told")
    trace_of(ann, row)
    ann.wait_for("dead letter")

    go("letters", "Dead letters", ann)
    assert act(ann, "Replay")["result"]["refused"] == 1
    world.hook.refuses = b""
    assert act(ann, "Replay")["result"]["written"] == 1
    for page in (ann, bill, cleo):
        go("letters", "Dead letters", page)
        page.wait_for("No target refuses a row")
    assert (row, refused) in world.hook.rows
    world.hook.refuses = b"refused"
    other = world.run.add(refused)
    ann.wait_for("shop.orders")
    assert act(ann, "Drop", confirm="hook")["result"]["dropped"] == 1
    ann.wait_for("No target refuses a row")
    assert (other, refused) not in world.hook.rows
    world.hook.refuses = b""
    world.server.run(f"DELETE FROM shop.orders WHERE id = {other}")
    go("alerts", "Alerts", bill)
    bill.wait("/Over, the newest first[\\s\\S]*Letters/.test(document.querySelector('main').innerText)")
    world.wait_until_all_have_it()
    world.expect_clean()


def trace_of(page: Page, row: int) -> None:
    go("trace", "Trace", page)
    page.type("input[name=table]", "shop.orders")
    page.type("input[name=key]", f"id={row}")
    page.press("Enter")
    page.wait_for(f"Changes of shop.orders id={row}, the newest first")


def test_a_row_is_traced_through_all_outputs_and_batches_are_checked(world: LiveSet) -> None:
    ann, bill = world.page("ann"), world.page("bill")
    written, draft = world.run.add("is traced"), world.run.add("draft")
    world.wait_until_all_have_it()
    trace_of(ann, written)
    ann.wait_for('"is traced"')
    verdicts = words_in(ann, "written", "superseded", "filtered", "lost", "unknown", "not yet")
    assert sorted({*verdicts}) in (["written"], ["unknown", "written"]), verdicts
    trace_of(ann, draft)
    assert words_in(ann, "filtered", "lost") == ["filtered"]
    go("trace", "Trace", bill)
    bill.wait_for("Rows are traced by those who have the right")
    bill.click("main button", "Check the batches")
    bill.wait_for("whole")
    verdicts = words_in(bill, "whole", "broken")
    assert ({*verdicts}, len(verdicts) >= len(OUTPUTS)) == ({"whole"}, True), bill.text()
    go("journal", "Journal", bill)
    bill.wait_for("rows in")
    bill.wait_for("shop.orders")
    world.expect_clean()


def test_a_file_is_reloaded_as_it_was_shown(world: LiveSet) -> None:
    ann, cleo = world.page("ann"), world.page("cleo")
    go("config/shop", "Configuration", ann, cleo)
    for page in (ann, cleo):
        page.wait_for("Nothing: the file is as it was taken")
    text = world.run.file.read_text()
    world.run.file.write_text(text.replace("opensearch,", "opensearch, bulk_rows_max: 500,"))
    for page in (ann, cleo):
        page.wait_for("outputs.index.bulk_rows_max")
    world.run.file.write_text(text.replace("opensearch,", "opensearch, bulk_rows_max: 600,"))
    act(cleo, "Reload")
    for page in (ann, cleo):
        page.wait_for("Nothing: the file is as it was taken")
    ann.wait_for('"bulk_rows_max": 600')
    assert buttons(cleo) == ["Drain", "Reload"], "who may not end a pipeline"
    world.run.add("after the reload")
    world.wait_until_all_have_it()
    world.expect_clean()


@contextmanager
def stands_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_parts_that_stand_still_or_are_killed_say_since_when_and_keep_nobody_waiting(world: LiveSet) -> None:
    ann, bill = world.page("ann"), world.page("bill")
    assert world.run.process is not None
    heading, scn = (
        f"Source {world.relay_name} / shop",
        "document.querySelector('main').innerText.match(/SCN\\s+(\\S+)/)?.[1]",
    )
    go(world.source, heading, bill)
    before = bill.wait(scn)
    with stands_still(world.run.process.pid):
        ann.wait_for("shop does not answer; its numbers are of")
        go("journal", "Journal", ann)
        ann.wait_for("shop does not answer")
        world.run.add("meanwhile")
        bill.wait(f"{scn} !== {before!r}")
    ann.wait("!document.body.innerText.includes('does not answer')")
    world.wait_until_all_have_it()

    go("flow", "Flow", ann)
    world.relay.kill()
    ann.wait_for(f"{world.relay_name} does not answer; its numbers are of")
    ann.wait_for("The relay of shop does not answer it")
    assert "shop / copy" in ann.text()
    world.relay.start()
    ann.wait("!document.body.innerText.includes('does not answer')")
    world.run.add("after the relay")
    world.wait_until_all_have_it()

    world.server.stop()
    bill.wait("/retrying|suspended/.test(document.querySelector('main .state')?.textContent)")
    bill.wait("document.querySelector('main .state + .why') !== null")
    world.server.start()
    expect_state("running", bill)
    world.run.add("after the database")
    world.wait_until_all_have_it()

    world.run.kill()
    output_of("copy", ann)
    expect_state("stopped", ann)
    world.run.start()
    expect_state("running", ann)
    world.run.add("after the kill")
    world.wait_until_all_have_it()
    world.expect_clean("503", "504")


def test_a_dashboard_that_stands_still_or_is_killed_changes_nothing_else(world: LiveSet) -> None:
    with dashboard(world.folder, *world.arguments, "--folder", "another") as (process, url):
        ann, bill = world.page("ann", url), world.page("bill")
        output_of("copy", ann, bill)
        with stands_still(process.pid):
            ann.wait_for("The dashboard does not answer; what you see is of")
            assert "does not answer" not in bill.text()
        ann.wait("!document.body.innerText.includes('does not answer')")
        assert ask(ann, "Pause", reason="the table is moved") == ""
        expect_state("paused", ann, bill)
        process.send_signal(signal.SIGKILL)
        ann.wait_for("The dashboard does not answer; what you see is of")
        assert is_gone(url)
        assert ann.strangers(url) == []
        world.pages = [(page, where) for page, where in world.pages if page is not ann]
        ann.close()
    before = len(world.run.events(event="batch", output="topics"))
    world.run.add("without it")
    world.run.wait_until(lambda: len(world.run.events(event="batch", output="topics")) > before, "the others go on")
    assert world.run.state_of("copy") == "paused"
    assert "the table is moved" in (world.run.state / "audit.jsonl").read_text()
    ann = world.page("ann")
    output_of("copy", ann)
    act(ann, "Resume")
    world.wait_until_all_have_it()
    world.expect_clean()


@pytest.mark.parametrize("how", [{}, {"dark": True, "width": 360}], ids=["light", "dark and narrow"])
def test_axe_finds_nothing_on_any_page(world: LiveSet, how: dict[str, Any]) -> None:
    axe = axe_text()
    page, found = world.browser.page(**how), {}
    page.send("Page.setBypassCSP", enabled=True)  # else it refuses what the test brings along
    page.open(world.url)
    page.wait_for("Your token")
    page.js(axe)
    found["sign-in"] = violations(page)
    page.close()
    page = world.page("ann", axe=True, **how)
    world.hook.refuses = b"refused"
    row = world.run.add("refused")
    page.click("main button", "Show tables and columns")
    page.wait("document.querySelector('[aria-label=Lineage]') !== null")
    found["flow"] = violations(page)
    page.press("?")
    page.wait("document.querySelector('.help') !== null")
    found["keys"] = violations(page)
    page.press("?")
    go("letters", "Dead letters", page)
    page.click("main button", "Show")
    page.wait_for("422")
    found["letters"] = violations(page)
    trace_of(page, row)
    page.click("main button", "Check the batches")
    page.wait_for("whole")
    found["trace"] = violations(page)
    go("alerts", "Alerts", page)
    page.wait_for("output=hook")
    found["alerts"] = violations(page)
    output_of("copy", page)
    page.wait("document.querySelectorAll('figure .u-wrap').length >= 1")
    act(page, "Pause")
    expect_state("paused", page)
    found["output"] = violations(page)
    page.click("main button", "Stop")
    page.wait("document.querySelector('dialog[open]') !== null")
    found["dialog"] = violations(page)
    page.press("Escape")
    act(page, "Resume")
    for where, heading in {
        world.source: f"Source {world.relay_name} / shop",
        "journal": "Journal",
        "audit": "Audit",
        "config": "Configuration",
    }.items():
        go(where, heading, page)
        page.wait("!document.body.innerText.includes('Asking')")
        found[heading] = violations(page)
    world.hook.refuses = b""
    go("letters", "Dead letters", page)
    act(page, "Replay")
    assert {name: each for name, each in found.items() if each} == {}


def test_a_pipeline_is_drained_and_stopped(world: LiveSet) -> None:
    ann, run = world.page("ann"), world.run
    for title, states, more in (("Drain", "ended|stopped", {}), ("Stop", "stopped|ended", {"confirm": "shop"})):
        go("config/shop", "Configuration", ann)
        expect_state("running", ann)
        row = run.add(f"before {title}")
        assert run.process is not None
        assert ask(ann, title, **more) == ""
        assert run.process.wait(WAIT_S) == 0
        expect_state(states, ann)
        if title == "Drain":
            assert (row, "before Drain") in world.hook.rows
        run.start()
        expect_state("running", ann)
        world.wait_until_all_have_it()
    world.expect_clean()
