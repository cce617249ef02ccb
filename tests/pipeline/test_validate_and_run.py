"""What a run refuses, and could have been known before: `validate` says it, in the same words."""

import sqlite3
from contextlib import closing

import pytest

from databus.pipeline import run, validate
from tests.pipeline.projects import HEAD, Project

WRONG = """
inputs:
  shop: {type: databus, tables: [shop/main.orders]}
  notes: {type: databus, tables: [shop/main.notes]}
  people: {type: databus, tables: [shop/main.customers]}
  stock: {type: databus, tables: [shop/main.stock]}
filters:
  cut: {type: mask, from: shop, truncate: {total_cents: 2}}
  blind: {type: mask, from: shop, redact: [id]}
  loose: {type: project, from: shop, exclude: [id]}
  mixed: {type: where, from: shop, where: status > 5}
  short: {type: mask, from: people, truncate: {name: 2}}
  float: {type: mask, from: stock, hash: [weight], salt: sixteen bytes and more}
  twice: {type: rename, from: shop, columns: {total_cents: status}}
  keyless: {type: sql, from: shop, select: SELECT total_cents FROM main.orders}
  narrow: {type: sql, from: shop, select: "SELECT id, total_cents FROM main.orders"}
  gone: {type: sql, from: narrow, where: "status = 'open'"}
  behind: {type: where, from: narrow, where: status = 'open'}
  before: {type: mask, from: shop, truncate: {total_cents: 2}}
  after: {type: sql, from: before, table: main.orders, where: id > 0}
outputs:
  notes: {type: delta, from: notes, mode: mirror, path: lake/notes}
  cut: {type: delta, from: cut, mode: mirror, path: lake/cut}
  blind: {type: delta, from: blind, mode: mirror, path: lake/blind}
  loose: {type: delta, from: loose, mode: history, path: lake/loose}
  mixed: {type: files, from: mixed, path: lake/mixed}
  short: {type: delta, from: short, mode: mirror, path: lake/short, key: [name]}
  float: {type: delta, from: float, mode: mirror, path: lake/float}
  twice: {type: delta, from: twice, mode: history, path: lake/twice}
  keyless: {type: delta, from: keyless, mode: mirror, path: lake/keyless}
  gone: {type: delta, from: gone, mode: mirror, path: lake/gone}
  behind: {type: delta, from: behind, mode: mirror, path: lake/behind}
  after: {type: delta, from: after, mode: mirror, path: lake/after}
  right: {type: delta, from: narrow, mode: mirror, path: lake/right}
"""
REPHRASED = {"behind"}
"""Of these `validate` says the same in other words."""


@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_every_output_that_a_run_refuses_was_named_by_validate(spark, tmp_path):
    project = Project(tmp_path, WRONG, head=HEAD.partition("inputs:")[0])
    project.execute("CREATE TABLE notes (at TEXT, said TEXT)", "INSERT INTO notes VALUES ('now', 'something')")
    told = [each for each in validate(project.path) if not each.is_warning]
    events = []
    run(project.path, once=True, session=spark, on_event=events.append)
    failed = {event["outputs"][0]: event["message"] for event in events if event["event"] == "failed"}
    failed |= {each["output"]: why for each in events if each["event"] == "refused" for why in each["tables"].values()}
    assert "right" not in failed
    assert failed.keys() == {name for name in WRONG_OUTPUTS if name != "right"}
    for name, message in failed.items():
        where, _, words = message.partition(": ")
        named = [each for each in told if each.path.startswith((f"outputs.{name}", f"filters.{name}", where))]
        assert named, (name, message, told)
        assert name in REPHRASED or any(each.message == words for each in named), (message, named)
    places = {each.path.split(".")[1] for each in told}
    assert places == {*WRONG_OUTPUTS, "before"} - {"right", "after"}


WRONG_OUTPUTS = [line.split(":")[0].strip() for line in WRONG.partition("outputs:\n")[2].splitlines() if line]


def problems(path):
    return [str(each) for each in validate(path)]


def test_a_database_in_another_journal_mode_is_named(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    path = tmp_path / "databus.yml"
    path.write_text(HEAD + "outputs: {copy: {type: files, from: shop, path: out}}\n")
    (found,) = problems(path)
    assert found.startswith("sources.shop.path: shop.db: its journal mode is 'delete'")
    path.write_text(path.read_text().replace("path: shop.db", "path: shop.db, set_wal: true"))
    assert problems(path) == []


def test_a_target_that_cannot_be_written_is_named(tmp_path):
    project = Project(tmp_path, "outputs: {copy: {type: delta, from: shop, mode: mirror, path: lake/copy}}\n")
    assert problems(project.path) == []
    (tmp_path / "lake").write_text("")
    assert problems(project.path) == [f"outputs.copy.path: {tmp_path / 'lake'} is a file, not a folder"]


@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_a_filter_that_was_changed_is_named_before_the_run_that_refuses_it(spark, tmp_path):
    text = """
        filters: {{large: {{type: sql, from: shop, table: main.orders, where: total_cents > {least}}}}}
        outputs: {{large: {{type: delta, from: large, mode: mirror, path: lake{more}}}}}
        """
    project = Project(tmp_path, text.format(least=20_000, more=""))
    project.once(spark)
    assert problems(project.path) == []
    project.write(text.format(least=10_000, more=""))
    (found,) = problems(project.path)
    events = []
    assert run(project.path, once=True, session=spark, on_event=events.append) == 2
    assert [event["message"] for event in events if event["event"] == "failed"] == [found]
    project.write(text.format(least=10_000, more=", on_change: continue"))
    assert problems(project.path) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "outputs: {copy: {type: delta, from: shop, mode: mirror, path: lake/{table}}}\n",
            ":4: column 68: a text with braces, such as `${NAME}`, needs quotes inside braces or brackets",
        ),
        (
            "filters: {f: {type: sql, from: shop, select: SELECT a, b AS c FROM main.t}}\n",
            (
                ":4: filters.f.b AS c FROM main.t: there is no such option; if it belongs to the text before it, that "
                "needs quotes, since a comma ends it"
            ),
        ),
    ],
)
def test_text_that_needs_quotes_is_named_with_its_place(tmp_path, text, told):
    path = tmp_path / "databus.yml"
    path.write_text(HEAD + text)
    said = [each.in_file(path) for each in validate(path)]
    assert f"{path}{told}" in said
