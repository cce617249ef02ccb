"""What `databus trace` and `databus audit` say of a pipeline that runs in Spark."""

import subprocess

import pytest
from deltalake import DeltaTable

from tests.cli.live import Live
from tests.commands import databus

OUTPUTS = """\
filters: {dear: {type: where, from: shop, where: total_cents > 1000000000, missing: skip}}
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: copy}
  all: {type: delta, from: shop, mode: history, path: all}
  few: {type: files, from: dear, path: few}
"""


def trace(live: Live, order: int) -> subprocess.CompletedProcess[str]:
    return databus("trace", "main.orders", f"id={order}", "--since", "earliest", cwd=live.folder)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_a_pipeline_in_spark_is_traced_and_audited(tmp_path):
    with Live(tmp_path, OUTPUTS) as live:
        live.start()
        live.wait_until_copied("copy")
        live.ask("pause", "copy")
        live.expect_state("copy", "paused")
        live.work()
        live.wait_until(lambda: live.copied("all") is not None, "the others go on")
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
