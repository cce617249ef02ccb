"""A dashboard beside a pipeline that runs in Spark: what it shows and does, its death, and what trace and audit say."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from deltalake import DeltaTable

from databus.testing.servers import ServerMissing
from tests.cli.live import WAIT_S, Live
from tests.commands import databus
from tests.dashboard.browser import Browser
from tests.dashboard.chromium import Chromium
from tests.dashboard.parts import ask, is_gone, wait_until
from tests.dashboard.running import MARK

OUTPUTS = """\
filters: {dear: {type: where, from: shop, where: total_cents > 1000000000, missing: skip}}
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: copy}
  all: {type: delta, from: shop, mode: history, path: all}
  few: {type: files, from: dear, path: few}
"""


@contextmanager
def dashboard(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of its own, and the link by which its owner signs in; with principals, where it is."""
    command = [sys.executable, "-m", "databus.cli", "dashboard", "--listen", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, next(found[0] for line in process.stdout if (found := re.search(r"http://[^\s,]+", line)))
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stdout.close()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_an_output_in_spark_is_throttled_and_a_table_of_it_made_anew(tmp_path):
    with Live(tmp_path, OUTPUTS) as live, beside(live) as (url, cookie):
        live.wait_until_copied("copy")

        def act(path: str, **body: Any) -> Any:
            status, said, _ = ask(url, f"/api/v1{path}", {"reason": "a test", **body}, headers=cookie)
            assert status == 202, said
            operation = f"/api/v1/operations/{said['id']}"
            done = live.wait_until(
                lambda: (now := ask(url, operation, headers=cookie)[1])["state"] != "running" and now, "it is done"
            )
            assert done["state"] == "done", done
            return done["result"]

        def told() -> Any:
            outputs = ask(url, "/api/v1/status", headers=cookie)[1]["outputs"]
            return next(each for each in outputs if each["output"] == "copy")

        act("/outputs/shop/copy/throttle", rows=10)
        live.wait_until(lambda: told()["throttle"] == {"rows": 10} and told()["state"] == "running", "it is throttled")
        batches = len(live.events(event="batch", output="copy"))
        live.work(100)
        live.wait_until_copied("copy")
        sizes = [each["rows"] for each in live.events(event="batch", output="copy")[batches:]]
        assert len(sizes) > 3
        assert max(sizes) < 300, "whole transactions, one at least"
        act("/outputs/shop/copy/resume")
        live.wait_until(lambda: told()["throttle"] == {}, "it is no longer throttled")

        first = min(row[0] for row in live.copied("copy") or [])
        DeltaTable(tmp_path / "copy" / "orders").delete(f"id = {first}")
        table = "shop/main.orders"
        path = f"/tables/shop/copy/{quote(table, safe='')}/rebuild"
        assert act(path, confirm=table)["tables"] == [table]
        live.work()
        live.wait_until_copied("copy")
        assert told()["state"] == "running"
        assert live.wait_until(lambda: told()["visible"], "batches are counted")["count"] > 0
        live.kill()
        wait_until(lambda: is_gone(url))


@contextmanager
def beside(live: Live) -> Iterator[tuple[str, dict[str, str]]]:
    """A run with its dashboard: where that is, and the headers of who is signed in."""
    live.start("--dashboard")
    link = live.wait_until(lambda: re.search(r"(http://\S+)/#once=(\S+)", live.said), "it says its link")
    signed_in = ask(link[1], "/api/v1/session", {"token": link[2]}, headers=MARK)
    assert signed_in[0] == 200
    yield link[1], {"Cookie": signed_in[2]["set-cookie"].partition(";")[0], "Origin": link[1], **MARK}


def trace(live: Live, order: int) -> subprocess.CompletedProcess[str]:
    return databus("trace", "main.orders", f"id={order}", "--since", "earliest", cwd=live.folder)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_a_pipeline_in_spark_is_steered_traced_and_audited(tmp_path):
    try:
        Chromium.prepare()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    (tmp_path / "browser").mkdir()
    with Live(tmp_path, OUTPUTS) as live, Chromium(tmp_path / "browser") as chromium, Browser(chromium.url) as browser:
        live.start()
        live.wait_until_copied("copy")
        with dashboard(tmp_path) as (process, link):
            page = browser.page()
            page.open(link)
            page.wait("document.querySelectorAll('svg a').length === 4")
            page.js("location.hash = '#/output/shop/copy'")
            page.wait_for("Last batch")
            page.click("main button", "Pause")
            page.type("dialog[open] input", "the table is being moved")
            page.press("Enter")
            page.wait("document.querySelector('main .state').textContent.includes('paused')")
            live.expect_state("copy", "paused")
            live.work()
            process.send_signal(signal.SIGKILL)
            page.wait_for("The dashboard does not answer")
            assert page.strangers(link) == []
        live.wait_until(lambda: live.copied("all") is not None, "the others go on")
        assert "the table is being moved" in (live.state / "audit.jsonl").read_text()

        first = min(row[0] for row in live.copied("copy") or [])
        said = trace(live, first)
        assert said.returncode == 0, said.stdout + said.stderr
        assert "copy: written" in said.stdout or "copy: superseded" in said.stdout or "copy: not yet" in said.stdout
        assert "few: filtered: by filters.dear" in said.stdout
        DeltaTable(tmp_path / "copy" / "orders").delete(f"id = {first}")
        said = trace(live, first)
        assert (said.returncode, "copy: lost" in said.stdout) == (1, True), said.stdout

        whole = databus("audit", "--json", cwd=tmp_path)
        assert whole.returncode == 0, whole.stdout + whole.stderr
        assert '"is_whole": true' in whole.stdout
        assert '"log_rows": null' not in whole.stdout.partition('"output": "few"')[0].partition('"output": "all"')[2]
        journal = live.state / "batches" / "all.jsonl"

        def lines() -> list[str]:
            live.work()
            return journal.read_text().splitlines()

        live.wait_until(lambda: len(lines()) > 2, "three batches of `all`")
        live.ask("pause", "all")
        first, _, *others = lines()
        journal.write_text("\n".join([first, *others, ""]))
        broken = databus("audit", cwd=tmp_path)
        assert (broken.returncode, "no batch has the changes" in broken.stderr) == (1, True), broken.stdout
