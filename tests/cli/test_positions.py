"""Where an output stands is what its target says, whatever Spark's checkpoint and the last run say, or did not say."""

import json
from pathlib import Path

import pytest

from databus.client import FileCheckpoints
from databus.core import Checkpoint, CorruptData, SourceCheckpoint
from databus.filters import TableChoice
from databus.pipeline import load_pipeline, positions_of
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.engine._positions import with_positions
from databus.pipeline.telling._status import write_status
from databus.places import Position
from tests.commands import databus, failed

PIPELINE = """\
name: shop
sources: {shop: {type: mock}}
inputs: {shop: {type: databus, tables: [shop/main.*]}}
filters: {big: {type: sql, from: shop, table: main.t1, where: a > 1}}
outputs:
  copy: {type: files, from: shop, path: out}
  large: {type: files, from: big, path: large}
"""
QUERY = "outputs/copy/shop@shop"


@pytest.fixture
def project(tmp_path) -> Path:
    """A pipeline whose targets have come to SCN 5 and 3, and whose state says 9."""
    (tmp_path / "databus.yml").write_text(PIPELINE)
    of_tables = Position(place(5), ((TableChoice(("shop/main.*",)),),), seeds={"shop/main.t2": "asked"})
    ledger_of(tmp_path, "copy").put("shop", of_tables)
    ledger_of(tmp_path, "large").put("shop", Position(places={"shop/main.t1": place(3)}))
    spark = load_pipeline(tmp_path / "databus.yml").config.state / "queries" / QUERY
    for folder, lines in (("offsets", ["v1", "{}", json.dumps(at(9).to_json())]), ("commits", ["v1", "{}"])):
        (spark / folder).mkdir(parents=True)
        (spark / folder / "0").write_text("\n".join(lines))
    return tmp_path


def place(scn: int) -> SourceCheckpoint:
    return SourceCheckpoint(uuid="u", scn=scn, txid=f"t{scn}", ts_us=scn)


def at(scn: int) -> Checkpoint:
    return Checkpoint({"shop": place(scn)})


def ledger_of(folder: Path, output: str) -> Ledger:
    config = load_pipeline(folder / "databus.yml").config
    (path,) = [each.ledger for each in positions_of(config) if each.output == output]
    return Ledger.load(path, "shop", output)


def scns_of(outputs: dict) -> dict[str, dict[str, int | None]]:
    return {
        name: {query: each["positions"].get("shop", {}).get("scn") for query, each in output["queries"].items()}
        for name, output in outputs.items()
    }


def test_checkpoints_are_those_of_the_targets(project):
    told = [
        json.loads(line) for line in databus("checkpoints", "databus.yml", "--json", cwd=project).stdout.splitlines()
    ]
    assert [(each["consumer"], each["table"], each["checkpoint"]) for each in told] == [
        ("copy", "", at(5).to_json()),
        ("large", "shop/main.t1", at(3).to_json()),
    ]
    assert (told[0]["incomplete"], Path(told[0]["ledger"]).is_file()) == (["shop/main.t2"], True)
    table = databus("checkpoints", "databus.yml", cwd=project).stdout.splitlines()
    assert [line.split()[:4] for line in table[1:]] == [
        ["copy", "shop", "5", "-"],
        ["large", "shop/main.t1", "shop", "3"],
    ]


def test_a_consumer_that_has_done_nothing_yet_has_no_time(tmp_path):
    kept = FileCheckpoints(tmp_path / "new.checkpoint")
    kept.open()
    kept.save(Checkpoint({"shop": SourceCheckpoint("u")}))
    kept.close()
    shown = databus("checkpoints", "new.checkpoint", cwd=tmp_path).stdout.splitlines()[1]
    assert shown.split() == ["new.checkpoint", "shop", "0", "-", "-"]


def test_one_target_that_does_not_say_where_it_stands_hides_no_other(project):
    ledger_of(project, "large").path.write(b"{")
    answer = databus("checkpoints", "databus.yml", cwd=project)
    assert answer.returncode == CorruptData.exit_code
    assert "copy" in answer.stdout
    assert "does not say how far this output has come" in answer.stderr
    told = databus("status", "--json", cwd=project)
    outputs = json.loads(told.stdout)["outputs"]
    assert (outputs["copy"]["state"], outputs["large"]["state"]) == ("ended", "failed")
    assert "large: failed: " in failed(databus("status", cwd=project), 1)


def test_a_folder_is_no_place_where_outputs_say_how_far_they_have_come(project):
    assert "name the pipeline's file" in failed(databus("checkpoints", ".databus", cwd=project), 2)


def test_without_a_status_of_a_run_the_targets_still_say_where_they_stand(project):
    answer = databus("status", cwd=project)
    assert answer.stdout.startswith("shop does not run, and its last run left no status; its targets say this\n")
    assert answer.returncode == 1
    assert scns_of(json.loads(databus("status", "--json", cwd=project).stdout)["outputs"]) == {
        "copy": {"outputs/copy/shop": 5},
        "large": {"outputs/large/shop": 3},
    }


def test_a_target_that_was_put_back_stands_where_it_was_put_back_to(project):
    """The last run said what it said; since then the target is that of a backup, and a query reads another source."""
    config = load_pipeline(project / "databus.yml").config
    ran = {"state": "running", "since_us": 1, "error": "", "message": "", "tables": ["shop/main.*"]}
    output = {"state": "running", "error": "", "message": "", "rows": 7, "batches": 1, "retries": 0, "last_batch_us": 1}
    copy = {**output, "queries": {QUERY: ran, "outputs/copy/new@crm": ran}}
    about = {"pipeline": "shop", "pid": 1, "state": "stopped", "doing": "", "relay": None, "http": None, "code": 0}
    write_status(config.state, {**about, "outputs": {"copy": copy}})
    found = json.loads(databus("status", "--json", cwd=project).stdout)["outputs"]
    assert scns_of(found) == {"copy": {QUERY: 5, "outputs/copy/new@crm": None}, "large": {"outputs/large/shop": 3}}
    assert (found["copy"]["rows"], found["copy"]["queries"][QUERY]["since_us"]) == (7, 1)


def test_what_a_relay_is_asked_for_is_what_the_target_was_given(project):
    found = with_positions(load_pipeline(project / "databus.yml").config, {})
    assert found["copy"]["queries"]["outputs/copy/shop"]["tables"] == ["shop/main.*"]
    assert found["large"]["queries"]["outputs/large/shop"]["tables"] == ["shop/main.t1"]
