"""A file of another kind than the command takes is told apart, with the command that takes it."""

import pytest
from typer.testing import CliRunner

from databus.cli._app import app
from tests.cli.test_cli import databus, failed

RELAY = "listen: 127.0.0.1:0\nsources: {shop: {type: mock}}\n"
PIPELINE = "sources: {shop: {type: mock}}\ninputs: {shop: {type: databus}}\noutputs: {c: {type: count, from: shop}}\n"
COPIED = PIPELINE.replace("type: count", "type: delta, path: lake, mode: history")


def test_a_relay_s_file_and_a_pipeline_s_are_not_taken_for_each_other(tmp_path):
    (tmp_path / "relay.yml").write_text(RELAY)
    (tmp_path / "databus.yml").write_text(PIPELINE)
    said = failed(databus("validate", "relay.yml", cwd=tmp_path), 2)
    assert said == (
        "relay.yml: this is a relay's file: `databus check-source` examines it, and `databus relay` runs it\n"
    )
    assert "this is a pipeline's file; `databus run` runs it" in failed(
        databus("relay", "databus.yml", "--log-format", "text", cwd=tmp_path), 2
    )


def test_a_folder_without_a_project_says_how_to_begin_one(tmp_path):
    assert failed(databus("validate", cwd=tmp_path), 2) == (
        "databus.yml: No such file or directory; `databus init` writes one to begin with\n"
    )


WITHOUT_PROJECT = [
    *("validate", "test", "run", "graph", "lineage", "checkpoints", "compare", "status", "audit", "check-source"),
    *("trace main.orders id=1", "pause copy", "resume copy", "drain", "stop copy"),
    *("throttle copy 5", "reload", "rebuild copy", "rename output a b", "prepare shop", "remove shop", "dashboard"),
    *("dead-letters list", "dead-letters show copy", "dead-letters replay copy", "dead-letters drop copy"),
    *("relay relay.yml", "check-source relay.yml"),
]


@pytest.mark.parametrize("words", WITHOUT_PROJECT)
def test_every_command_in_an_empty_folder_names_the_file_and_how_to_begin(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words.split())
    said = f"{result.output}{result.exception}"
    assert "databus.yml" in said or "relay.yml" in said, said
    assert "`databus init" in said, said
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_wrong_input_and_not_tried_again(tmp_path):
    (tmp_path / "shop.db").write_text("no database, but as long as the header of one" * 10)
    said = failed(databus("sqlite", "status", "shop.db", cwd=tmp_path), 2)
    assert "shop.db: this file is no SQLite database, or an encrypted one; name the database's file" in said


def test_a_run_of_a_project_whose_database_is_gone_names_the_database(tmp_path):
    databus("init", cwd=tmp_path)
    (tmp_path / "shop.db").unlink()
    assert "shop.db: there is no such file" in failed(databus("run", cwd=tmp_path), 2)


def test_each_mistake_in_a_relay_s_file_is_named_with_its_line(tmp_path):
    (tmp_path / "relay.yml").write_text(
        "listen: 127.0.0.1:0\nfolders: logs\nsources:\n  shop:\n    type: sqlite\n    path: shop.db\n    tabels: [a]\n"
    )
    assert failed(databus("relay", "relay.yml", "--log-format", "text", cwd=tmp_path), 2) == (
        'databus: relay.yml:2: folders: there is no such option; did you mean "folder"?\n'
        'relay.yml:7: sources.shop.tabels: there is no such option; did you mean "tables"?\n'
    )
    (tmp_path / "relay.yml").write_text("listen: 127.0.0.1:0\nsources:\n  shop:\n    type: sqlite\n    path: ${NO}\n")
    said = failed(databus("relay", "relay.yml", "--log-format", "text", cwd=tmp_path), 2)
    assert said.startswith("databus: relay.yml:5: sources.shop.path: the environment has no variable NO;")


def test_a_variable_that_is_not_set_is_one_mistake_and_not_a_wrong_value_too(tmp_path):
    outputs = "outputs:\n  c: {type: count, from: ['${NO}']}\n  d: {type: delta, from: s, path: x, mode: '${NO}'}\n"
    (tmp_path / "databus.yml").write_text(
        f"sources: {{s: {{type: mock}}}}\ninputs: {{s: {{type: databus}}}}\n{outputs}"
    )
    said = failed(databus("validate", cwd=tmp_path), 2).splitlines()
    assert [line.partition(";")[0] for line in said] == [
        "databus.yml:4: outputs.c.from[0]: the environment has no variable NO",
        "databus.yml:5: outputs.d.mode: the environment has no variable NO",
    ]


def test_a_colon_without_a_blank_is_named_as_what_it_is(tmp_path):
    (tmp_path / "databus.yml").write_text("sources:\n  shop: {type:sqlite, path: shop.db}\n")
    assert failed(databus("validate", cwd=tmp_path), 2) == (
        "databus.yml:2: column 10: a blank is missing behind the colon: write `type: sqlite`\n"
    )
    (tmp_path / "databus.yml").write_text("sources:\n  shop:\n    type:sqlite\n    path: shop.db\n")
    said = failed(databus("validate", cwd=tmp_path), 2)
    assert said.startswith("databus.yml:4: column 9: a `:` that does not belong here. A key needs a blank")


@pytest.mark.parametrize(
    "verb", [("rebuild",), ("dead-letters", "show"), ("dead-letters", "replay"), ("dead-letters", "drop")]
)
def test_databus_yml_is_the_file_where_the_first_word_is_an_output(verb, tmp_path):
    assert failed(databus(*verb, "copy", "main.orders", cwd=tmp_path), 2).startswith(
        "databus: databus.yml: No such file"
    )
    assert failed(databus(*verb, "--json", "copy", cwd=tmp_path), 2).startswith("databus: databus.yml: No such file")
    assert failed(databus(*verb, "other.yml", "copy", cwd=tmp_path), 2).startswith("databus: other.yml: No such file")
    (tmp_path / "databus.yml").write_text(COPIED)
    assert "has no output 'copy'; there are c" in failed(databus(*verb, "copy", "main.orders", cwd=tmp_path), 2)


def test_dead_letters_of_the_pipeline_in_this_folder_are_listed_without_its_name(tmp_path):
    (tmp_path / "databus.yml").write_text(COPIED)
    assert databus("dead-letters", "list", cwd=tmp_path).stdout == "no dead letters\n"
