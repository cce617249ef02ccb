"""One table that an output refuses does not keep the others from being copied, and is shown until it joins them."""

import pytest
from deltalake.exceptions import TableNotFoundError

from databus.core import InputError
from databus.pipeline import run, status_of, unwell
from databus.pipeline.running._control import ask
from tests.pipeline.projects import Project

OUTPUTS = """\
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: "copy/{table}"}
  log: {type: delta, from: shop, mode: history, path: "log/{table}"}
"""
HEAD = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [main.good, "main.bad*"]}}
"""


def once(project, engine):
    """The exit code, and the tables that were refused last."""
    events = []
    code = run(project.path, once=True, session=engine, on_event=events.append)
    refused = [each["tables"] for each in events if each["event"] == "refused"]
    assert not [each for each in events if each["event"] == "failed"], events
    return code, sorted(refused[-1]) if refused else []


def is_copied(project, table, into="copy"):
    return project.copied(f"{into}/{table}", "id", "v") == project.select(f"SELECT id, v FROM {table}")


def remade(table, columns):
    return [
        f"ALTER TABLE {table} RENAME TO before",
        f"CREATE TABLE {table} ({columns})",
        f"INSERT INTO {table} SELECT * FROM before",
        "DROP TABLE before",
    ]


WITH_KEY, WITHOUT = "id INTEGER PRIMARY KEY, v TEXT", "id INTEGER, v TEXT"


@pytest.fixture
def project(tmp_path):
    """A table with a key and two without."""
    found = Project(tmp_path, OUTPUTS, head=HEAD)
    found.execute(
        f"CREATE TABLE good ({WITH_KEY})",
        *(f"CREATE TABLE {each} ({WITHOUT})" for each in ("bad1", "bad2")),
        *(f"INSERT INTO {each} VALUES (1, 'a'), (2, 'b')" for each in ("good", "bad1", "bad2")),
    )
    return found


@pytest.mark.usefixtures("relay_in_thread")
def test_the_others_are_copied_and_it_joins_by_a_snapshot_once_it_has_a_key(engine, project):
    both = ["shop/main.bad1", "shop/main.bad2"]
    assert once(project, engine) == (InputError.exit_code, both)
    assert is_copied(project, "good")
    (line,) = unwell(status_of(project.path))
    assert "refuses tables: 2 tables are not written" in line
    assert "main.bad1 comes without a key" in line
    assert "main.bad2 comes without a key" in line

    project.execute(*remade("bad1", WITH_KEY), "INSERT INTO bad1 VALUES (4, 'd')", "INSERT INTO good VALUES (4, 'd')")
    assert once(project, engine) == (InputError.exit_code, both[1:])
    assert is_copied(project, "good")
    assert is_copied(project, "bad1")


@pytest.mark.nightly
@pytest.mark.usefixtures("relay_in_thread")
def test_tables_lose_their_keys_and_get_them_back_and_no_row_is_missing(engine, project):
    both = ["shop/main.bad1", "shop/main.bad2"]
    assert once(project, engine) == (InputError.exit_code, both)
    project.execute(*(f"INSERT INTO {each} VALUES (3, 'c')" for each in ("good", "bad1", "bad2")))
    assert once(project, engine) == (InputError.exit_code, both)
    assert is_copied(project, "good")

    project.execute(*remade("bad1", WITH_KEY), "INSERT INTO bad1 VALUES (4, 'd')", "INSERT INTO good VALUES (4, 'd')")
    assert once(project, engine) == (InputError.exit_code, both[1:])

    project.execute(*remade("good", WITHOUT), "INSERT INTO good VALUES (5, 'e')", "INSERT INTO bad1 VALUES (5, 'e')")
    assert once(project, engine) == (InputError.exit_code, ["shop/main.bad2", "shop/main.good"])
    assert is_copied(project, "bad1")

    project.execute(*remade("bad2", WITH_KEY), *remade("good", WITH_KEY), "DELETE FROM good WHERE id = 1")
    assert once(project, engine) == (0, [])
    assert all(is_copied(project, each) for each in ("good", "bad1", "bad2"))

    project.write(OUTPUTS.replace("  copy:", "  later:").replace("copy/", "later/"), head=HEAD)
    assert once(project, engine) == (InputError.exit_code, ["shop/main.bad1", "shop/main.bad2", "shop/main.good"])
    assert once(project, engine) == (0, [])
    assert all(is_copied(project, each, "later") for each in ("good", "bad1", "bad2"))


@pytest.mark.nightly
@pytest.mark.usefixtures("relay_in_thread")
def test_a_table_that_is_made_while_the_pipeline_runs_joins_when_the_output_is_resumed(engine, project):
    project.execute("DROP TABLE bad1", "DROP TABLE bad2")

    def has(table, into="copy"):
        try:
            return is_copied(project, table, into)
        except TableNotFoundError:
            return False

    with project.running(engine) as running:
        running.wait_for(lambda: has("good"), "the copy")
        project.execute(f"CREATE TABLE bad3 ({WITHOUT})", "INSERT INTO bad3 VALUES (1, 'a')")
        assert list(running.event(event="refused", output="copy")["tables"]) == ["shop/main.bad3"]
        project.execute("INSERT INTO good VALUES (3, 'c')")
        running.wait_for(lambda: has("good"), "the next row")
        project.execute(*remade("bad3", WITH_KEY), "INSERT INTO bad3 VALUES (2, 'b')")
        running.wait_for(lambda: has("bad3", "log") or len(project.copied("log/bad3", "id")) > 1, "the new key")
        ask(project.state, "pause", outputs=["copy"])
        running.event(event="paused")
        ask(project.state, "resume", outputs=["copy"])
        running.wait_for(lambda: has("bad3"), "its snapshot")
        running.event(event="refused", output="copy", tables={})
    assert running.code == 0
