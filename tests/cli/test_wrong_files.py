"""A file of another kind than the command takes is told apart, with the command that takes it."""

from tests.cli.test_cli import databus, failed

RELAY = "listen: 127.0.0.1:0\nsources: {shop: {type: mock}}\n"
PIPELINE = "sources: {shop: {type: mock}}\ninputs: {shop: {type: databus}}\noutputs: {c: {type: count, from: shop}}\n"


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


def test_a_file_that_is_no_database_is_wrong_input_and_not_tried_again(tmp_path):
    (tmp_path / "shop.db").write_text("no database, but as long as the header of one" * 10)
    said = failed(databus("sqlite", "status", "shop.db", cwd=tmp_path), 2)
    assert "shop.db: this file is no SQLite database, or an encrypted one; name the database's file" in said


def test_a_run_of_a_project_whose_database_is_gone_names_the_database(tmp_path):
    databus("init", cwd=tmp_path)
    (tmp_path / "shop.db").unlink()
    assert "shop.db: there is no such file" in failed(databus("run", cwd=tmp_path), 2)
