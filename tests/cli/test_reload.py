"""`databus reload`: what has not changed goes on untouched, what has changed starts again; a bad file does nothing."""

import os
import signal

import pytest

from tests.cli.live import HEAD, WAIT_S, Live
from tests.commands import databus, failed

COLUMNS = "id, status"
PLAIN = """\
outputs:
  keep: {type: delta, from: shop, mode: mirror, path: keep}
  copy: {type: delta, from: shop, mode: mirror, path: copy}
  gone: {type: delta, from: shop, mode: mirror, path: gone}
"""
CHANGED = """\
filters:
  slim: {type: project, from: shop, tables: [main.orders], columns: [id, status]}
outputs:
  keep: {type: delta, from: shop, mode: mirror, path: keep}
  copy: {type: delta, from: slim, mode: mirror, path: copy, on_change: rebuild}
  new: {type: delta, from: shop, mode: mirror, path: new}
"""


def _starts(live: Live, output: str) -> int:
    return sum(output in each["outputs"] for each in live.events(event="started"))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_reload_leaves_what_has_not_changed_untouched_and_ends_equal_to_the_source(tmp_path):
    with Live(tmp_path, PLAIN) as live:
        live.start()
        for each in ("keep", "copy", "gone"):
            live.wait_until_copied(each)

        live.write(CHANGED.replace("type: project", "type: projekt"))
        assert 'did you mean "project"?' in failed(databus("reload", cwd=tmp_path), 2)
        assert live.process is not None
        live.write(CHANGED.replace("on_change: rebuild", ""))
        os.kill(live.process.pid, signal.SIGHUP)
        (refused,) = live.wait_until(lambda: live.events(event="reload", by="SIGHUP"), "the signal is answered")
        assert "was changed after rows were written" in refused["problem"]
        live.write(CHANGED, head=HEAD.replace("local[2]", "local[1]"))
        assert "spark.master: cannot change while the pipeline runs" in failed(databus("reload", cwd=tmp_path), 2)
        live.work()
        for each in ("keep", "copy", "gone"):
            live.wait_until_copied(each)
        assert [_starts(live, each) for each in ("keep", "copy", "gone")] == [1, 1, 1], "a bad file changes nothing"

        live.write(CHANGED)
        said = live.ask("reload")
        assert said.splitlines() == [
            "keep: goes on",
            "copy: starts again",
            "new: is new",
            "gone: has ended",
        ]
        live.work()
        for each, columns in (("keep", "id, status, total_cents"), ("copy", COLUMNS), ("new", COLUMNS)):
            live.wait_until_copied(each, columns)
        assert [_starts(live, each) for each in ("keep", "copy", "new")] == [1, 2, 1]
        assert live.copied("gone") != live.source(), "what is removed ends"
        live.wait_until(lambda: set(live.status()["outputs"]) == {"keep", "copy", "new"}, "the outputs of the new file")
        assert live.ask("stop") == "the pipeline has ended\n"
        assert live.process.wait(WAIT_S) == 0, live.said[-2000:]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_file_that_has_changed_is_taken_by_itself_if_it_says_so(tmp_path):
    one = "outputs:\n  copy: {type: delta, from: shop, mode: mirror, path: copy}\n"
    head = HEAD + "run: {reload: on_change}\n"
    with Live(tmp_path, one) as live:
        live.write(one, head)
        live.start()
        live.wait_until_copied("copy")
        live.write(one + "  other: {type: delta, from: shop, mode: mirror, path: oth", head)
        live.wait_until(lambda: live.events(event="reload"), "half a file is refused")
        live.write(one + "  other: {type: delta, from: shop, mode: mirror, path: other, lane: two}\n", head)
        live.wait_until_copied("other")
        live.write("outputs:\n  other: {type: delta, from: shop, mode: mirror, path: other, lane: two}\n", head)
        live.wait_until(lambda: set(live.status()["outputs"]) == {"other"}, "the first output has gone")
        live.work()
        live.wait_until_copied("other")
        assert _starts(live, "other") == 1
