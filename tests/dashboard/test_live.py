"""A dashboard beside a pipeline that runs in Spark: what it shows and does, its death, and what trace and audit say."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from databus.testing.servers import Chromium, ServerMissing
from tests.cli.live import WAIT_S, Live
from tests.commands import databus
from tests.dashboard.browser import Browser

OUTPUTS = """\
filters: {dear: {type: where, from: shop, where: total_cents > 1000000000, missing: skip}}
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: copy}
  all: {type: delta, from: shop, mode: history, path: all}
  few: {type: files, from: dear, path: few}
"""


@contextmanager
def dashboard(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of its own, and the link by which its owner signs in."""
    command = [sys.executable, "-m", "databus.cli", "dashboard", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = (line for line in process.stdout if "#once=" in line)
        yield process, next(lines).split()[-1]
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stdout.close()


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
