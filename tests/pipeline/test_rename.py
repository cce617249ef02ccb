"""An output or a pipeline goes on under another name where it stood, wherever the rename was killed meanwhile."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from databus.core import ConfigError, InputError, LockHeld, SourceCheckpoint
from databus.disk import LocalLocation, located
from databus.filters import TableChoice
from databus.flow import DeadLetters
from databus.pipeline import (
    compare,
    load_pipeline,
    outputs_with_letters,
    rename_output,
    rename_pipeline,
    run,
    validate,
)
from databus.pipeline.engine import Ledger
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.graph import while_stopped
from databus.pipeline.running import _rename
from databus.pipeline.telling import Rest, Resting
from databus.places import Position
from databus.sinks import read_delta
from databus.sinks.delta import _output as delta_output
from databus.testing._change_log import ORDERS
from tests.commands import databus, failed
from tests.outputs.harnesses import log_of
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

OUTPUTS = """
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
  history: {type: delta, from: shop, mode: history, path: lake/history}
  several: {type: delta, from: shop, mode: history, merge: true, path: lake/several}
  lines: {type: files, from: shop, path: lines, format: json}
  letters: {type: stream, from: shop, command: [sh, -c, cat >> letters.jsonl]}
"""
NEW = {"copy": "mirror", "history": "changes", "several": "all", "lines": "json", "letters": "mail"}
NAME = "shop/main.orders"
TABLES = ("customers", "stock", "orders", "order_lines")
MADE = ("lake", "lines", ".databus/pipelines")


class Killed(BaseException):
    """As by SIGKILL: nobody cleans up."""


class Killer:
    """Ends a rename before its `left`-th step that is durable."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for of, name in ((LocalLocation, "write"), (LocalLocation, "remove"), (delta_output, "give_names")):
            patch.setattr(of, name, self._before(getattr(of, name)))
        patch.setattr(_rename, "move_folder", self._before(_rename.move_folder))

    def _before(self, method: Any) -> Any:
        def stepped(*args: Any, **options: Any) -> Any:
            self.step()
            return method(*args, **options)

        return stepped


def renamed(text: str) -> str:
    for old, new in NEW.items():
        text = text.replace(f"  {old}: {{", f"  {new}: {{")
    return text


def rename_all(project: Project) -> None:
    for old, new in NEW.items():
        rename_output(load_pipeline(project.path), old, new)


def killed_everywhere(project: Project, rename: Any) -> int:
    """Carry out a rename on what is there, killed before its first step, its second and so on, each time repeated until
    it is done; what it leaves is the same each time. Returns the number of steps.
    """
    kept, left, steps = project.folder.with_name("kept"), [], 0
    copy(project.folder, kept)
    while True:
        copy(kept, project.folder)
        killer = Killer(steps)
        with pytest.MonkeyPatch.context() as patch:
            killer.patch(patch)
            with suppress(Killed):
                rename(project)
        if killer.left >= 0:
            return steps
        assert_no_run_begins_what_is_half_done(project)
        rename(project)
        left.append(standing(project.folder))
        assert left[-1] == left[0]
        steps += 1


def copy(before: Path, after: Path) -> None:
    """What runs have made, but for the database and the relay's log of it."""
    for part in MADE:
        shutil.rmtree(after / part, ignore_errors=True)
        if (before / part).exists():
            shutil.copytree(before / part, after / part)


def assert_no_run_begins_what_is_half_done(project: Project) -> None:
    """Where something is reserved, nothing runs; before that, nothing has been changed."""
    says = standing(project.folder)
    reserved = [name for name, each in says.items() if each["renaming"] is not None and not each["positions"]]
    wrong = [each.message for each in validate(project.path) if not each.is_warning]
    assert len(wrong) == len(reserved)
    assert all("Repeat the `databus rename`" in message for message in wrong)


def standing(folder: Path) -> dict[str, Any]:
    """What the ledgers say, but for who had them, and how often."""
    paths = sorted({*folder.glob("**/.databus-*.ledger.json"), *folder.glob(".databus/pipelines/*/ledgers/*.json")})
    found = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths}
    return {name: {key: each[key] for key in each if key not in ("epoch", "writer")} for name, each in found.items()}


def died(*_: object) -> None:
    raise InputError("killed before the ledger")


def assert_all_is_there_once(project: Project) -> None:
    for table in TABLES:
        histories = [
            [(row["_commit_version"], row["_seq"], row["_change_type"]) for row in rows]
            for rows in (
                read_delta(project.folder / "lake/history" / table).to_pylist(),
                read_delta(project.folder / "lake/several" / table).to_pylist(),
                [json.loads(line) for path in project.folder.glob(f"lines/{table}/*.jsonl") for line in path.open()],
            )
        ]
        assert histories[0]
        for found in histories:
            assert len(found) == len({*found})
            assert sorted(found) == sorted(histories[0])
    letters = [json.loads(line) for line in (project.folder / "letters.jsonl").open()]
    of_letters = [(row["_source"], row["_commit_version"], row["_seq"], row["_change_type"]) for row in letters]
    assert len(of_letters) == len({*of_letters})
    assert len(of_letters) == sum(len(read_delta(project.folder / "lake/history" / table)) for table in TABLES)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.spark
def test_outputs_and_then_their_pipeline_go_on_under_other_names_wherever_that_was_killed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch before is in most targets and in no ledger: what these say by the old names counts."""
    (tmp_path / "shop").mkdir()
    project = Project(tmp_path / "shop", OUTPUTS)
    project.once(spark)
    project.work(20)
    with monkeypatch.context() as patch:
        advance = OutputHandle.advance
        patch.setattr(
            OutputHandle, "advance", lambda self, *of: advance(self, *of) if self.name == "letters" else died()
        )
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(spark)
    project.write(renamed(OUTPUTS))
    assert killed_everywhere(project, rename_all) > 3 * len(NEW)
    project.work(20)
    project.once(spark)
    assert_all_is_there_once(project)

    project.write(renamed(OUTPUTS), head=HEAD.replace("name: shop", "name: store"))
    assert killed_everywhere(project, lambda project: rename_pipeline(load_pipeline(project.path), "shop")) > len(NEW)
    project.work(20)
    project.once(spark)
    assert_all_is_there_once(project)
    assert compare(load_pipeline(project.path), "mirror", wait_ms_max=5_000).is_identical


# What is refused

FILE = HEAD + "outputs: {archive: {type: stream, from: shop, command: [cat]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "databus.yml").write_text(FILE)
    return tmp_path


def write_ledger(folder: Path, output: str, pipeline: str = "shop") -> Ledger:
    """As of an output that has begun."""
    path = located(folder / f".databus/pipelines/{pipeline}/ledgers/{output}.json")
    ledger = Ledger.load(path, pipeline, output)
    ledger.put("shop", Position(SourceCheckpoint("db", 7), ((TableChoice(("shop/*",)),),)))
    return ledger


def test_a_rename_is_refused_while_the_pipeline_runs(folder: Path) -> None:
    write_ledger(folder, "copy")
    with while_stopped(folder / ".databus/pipelines/shop", "shop"), pytest.raises(LockHeld):
        rename_output(load_pipeline(folder / "databus.yml"), "copy", "archive")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("output copy other", "has no output 'other'; there are archive. Give the output its new name there first"),
        ("output archive archive", "still has an output 'archive'"),
        ("output copi archive", "nothing was written by the old name"),
        ("pipeline shop store", "is of pipeline shop, not store. Give it the new `name` there first"),
        ("pipeline shop shop", "still has the name shop"),
        ("pipeline sho shop", "nothing was written by the old name"),
    ],
)
def test_a_name_that_is_not_the_files_is_told(folder: Path, words: str, said: str) -> None:
    assert said in failed(databus("rename", *words.split(), cwd=folder), 2)


def test_an_output_that_has_begun_by_its_new_name_too_forgets_neither(folder: Path) -> None:
    for output in ("copy", "archive"):
        write_ledger(folder, output)
    with pytest.raises(InputError, match=r"has been written already by this name.*Give the output a third name"):
        rename_output(load_pipeline(folder / "databus.yml"), "copy", "archive")


def test_a_run_by_either_name_is_refused_until_the_rename_is_done(folder: Path) -> None:
    old = write_ledger(folder, "copy")
    new = Ledger.load(located(folder / ".databus/pipelines/shop/ledgers/archive.json"), "shop", "archive")
    new.reserve(old.names)
    old.reserve(new.names)
    for ledger in (old, new):
        with pytest.raises(ConfigError, match="Repeat the `databus rename`"):
            Ledger.load(ledger.path, *ledger.names).take()
    with pytest.raises(ConfigError, match="Repeat the `databus rename`"):
        run(folder / "databus.yml", once=True)


def test_a_paused_output_stays_so_and_what_was_done_is_said(folder: Path) -> None:
    write_ledger(folder, "copy")
    Resting(folder / ".databus/pipelines/shop").pause(["copy"])
    said = databus("rename", "output", "copy", "archive", "--json", cwd=folder)
    assert json.loads(said.stdout) == {"renamed": [{"output": "archive", "tables": 0, "records": 0, "letters": 0}]}
    assert Resting(folder / ".databus/pipelines/shop").of(["archive"]) == Rest.PAUSED
    again = databus("rename", "output", "copy", "archive", cwd=folder)
    assert again.stdout == "nothing is left by the name copy: archive goes on where it stands\n"


def test_dead_letters_go_along(folder: Path) -> None:
    hook = "archive: {type: http, from: shop, url: 'http://127.0.0.1:9/', on_error: dead_letter}"
    (folder / "databus.yml").write_text(f"{HEAD}outputs: {{{hook}}}\n")
    write_ledger(folder, "copy")
    (item,) = log_of(1, 2).batch(0, 2).items
    left = folder / ".databus/dead-letters/shop/copy"
    DeadLetters(located(left)).put(NAME, ORDERS, item.rows, [("1", "no"), ("2", "no")])
    (found,) = rename_output(load_pipeline(folder / "databus.yml"), "copy", "archive")
    assert found.letters == 2
    assert [*left.iterdir()] == []
    (kept,) = outputs_with_letters(load_pipeline(folder / "databus.yml"))
    assert [letter.id for letters in kept.read() for letter in letters.letters] == ["1", "2"]


def test_a_pipeline_whose_state_has_a_place_of_its_own_is_renamed_in_it(folder: Path) -> None:
    state = folder / "state"
    ledger = Ledger.load(located(state / "ledgers/archive.json"), "shop", "archive")
    ledger.put("shop", Position(SourceCheckpoint("db", 7), ((TableChoice(("shop/*",)),),)))
    (folder / "databus.yml").write_text(FILE.replace("name: shop", "name: store\nstate: state"))
    graph = load_pipeline(folder / "databus.yml")
    assert [each.output for each in rename_pipeline(graph, "shop")] == ["archive"]
    assert Ledger.load(ledger.path, "store", "archive").positions == ledger.positions
    assert rename_pipeline(graph, "shop") == []
