"""The command line as a newcomer meets it: help at once, output for scripts, mistakes answered in a paragraph."""

import json
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.cli.sqlite import sqlite_app
from databus.core import DiskFull
from databus.testing import RelayProcess
from tests.commands import databus, failed

VERBS = ["init", "validate", "graph", "relay", "run", "status", "tail", "sources", "checkpoints", "compare"]
RUNNING = ["pause", "resume", "drain", "stop", "sources pause", "sources resume"]
KNOWING = ["plugins list", "plugins show", "schema"]
TRIALS = ["demo", "bench"]
REPAIRS = ["check-source", "prepare", "remove", "snapshot", "skip", "position show", "position set"]


def test_ctrl_c_while_the_command_is_still_importing_shows_no_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\n\nos.kill(os.getpid(), signal.SIGINT)\n")  # found first
    begin = [sys.executable, "-m", "databus.cli", "validate"]
    done = subprocess.run(begin, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    "verb", [*VERBS, *RUNNING, *KNOWING, *TRIALS, *REPAIRS, "sqlite install", "sqlite alter", "sqlite remove"]
)
def test_each_verb_has_help_with_an_example(verb):
    assert re.search(rf"Example: databus\s+{verb}", databus(*verb.split(), "--help").stdout)


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "project"
    assert databus("init", folder).returncode == 0
    return folder


def test_init_writes_a_project_that_validates_and_draws(project):
    assert databus("validate", cwd=project).stdout == "databus.yml: no errors\n"
    drawn = databus("graph", "--style", "dot", cwd=project).stdout
    assert drawn.startswith("digraph")
    assert "copy" in drawn
    assert databus("graph", "--style", "mermaid", cwd=project).stdout.startswith("flowchart")
    tree = databus("graph", cwd=project).stdout.splitlines()
    assert tree[:2] == ["source shop (sqlite)", "└─ input shop (databus)"]
    assert [line for line in tree if "output copy (delta)" in line]


def test_init_leaves_what_is_there_alone(project):
    assert "already there" in failed(databus("init", project), 2)


def test_init_names_the_file_that_stands_where_a_folder_should(tmp_path):
    (tmp_path / "taken").touch()
    assert "there is a file of that name" in failed(databus("init", tmp_path / "taken"), 2)


def test_the_version_is_said():
    assert re.fullmatch(r"databus \d+\.\d+\.\d+\S*\n", databus("--version").stdout)


def test_a_place_that_cannot_be_written_is_named(project):
    (project / ".databus").touch()  # a file where the state has to go
    assert ".databus" in failed(databus("run", "--once", cwd=project), 2)


def test_checkpoints_of_a_pipeline_are_found_by_its_file(project):
    before = (project / "databus.yml").read_text()
    said = failed(databus("checkpoints", "databus.yml", cwd=project), 2)
    assert "when its pipeline first runs" in said
    assert (project / "databus.yml").read_text() == before


def test_validate_names_every_mistake_with_its_path_and_a_likely_fix(project):
    text = (project / "databus.yml").read_text()
    (project / "databus.yml").write_text(
        text.replace("from: large\n", "from: lagre\n").replace("mode: mirror", "mode: miror")
    )
    said = failed(databus("validate", cwd=project), 2)
    assert 'did you mean "large"' in said
    assert "outputs.copy.mode" in said
    told = json.loads(databus("validate", "--json", cwd=project).stdout)
    assert "outputs.copy.mode" in {each["path"] for each in told}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["validate", "nowhere.yml"], 2, "nowhere.yml"),
        (["run", "nowhere.yml"], 2, "nowhere.yml"),
        (["relay", "nowhere.yml"], 2, "nowhere.yml"),
        (["sources", "--relay", "http://127.0.0.1:1"], 75, "does not answer"),
        (["tail", "--relay", "http://127.0.0.1:1"], 75, "does not answer"),
        (["checkpoints", "nowhere"], 2, "nowhere"),
        (["bench", "nonsense"], 2, "no benchmark called 'nonsense'"),
        (["sqlite", "install", "nowhere.db"], 2, "nowhere.db"),
        (["compare", "nowhere.yml"], 2, "nowhere.yml"),
        (["nonsense"], 2, "nonsense"),
        (["tail", "--from", "nowhere.json"], 2, "nowhere.json"),
    ],
)
def test_a_mistake_is_answered_in_a_paragraph_with_a_code_for_scripts(arguments, code, words, tmp_path):
    assert words in failed(databus(*arguments, cwd=tmp_path), code)


@pytest.fixture(scope="module")
def relay(tmp_path_factory) -> Iterator[RelayProcess]:
    folder = tmp_path_factory.mktemp("relay")
    database = folder / "shop.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total_cents INTEGER, note TEXT)")
        connection.execute("INSERT INTO orders VALUES (1, 100, 'first'), (2, 9007199254740993, NULL)")
    with RelayProcess(folder, {"shop": {"type": "sqlite", "path": str(database)}}) as running:
        yield running


def test_sources_lists_names_ids_and_keys(relay):
    (table,) = json.loads(databus("sources", "--relay", relay.url, "--json").stdout)
    assert (table["name"], table["id"], table["key"]) == ("shop/main.orders", 1, "id")
    assert "shop/main.orders" in databus("sources", "--relay", relay.url).stdout


def test_tail_prints_changes_exactly_and_stops_after_a_count(relay):
    said = databus("tail", "--relay", relay.url, "--from", "beginning", "-n", 4, "--json").stdout.splitlines()
    assert len(said) == 4
    assert [{name: json.loads(line)[name] for name in ("id", "total_cents", "note")} for line in said[1:3]] == [
        {"id": 1, "total_cents": 100, "note": "first"},
        {"id": 2, "total_cents": 9007199254740993, "note": None},
    ]
    asked = ["tail", "orders", "--relay", relay.url, "--from", "beginning", "-n", 2]
    plain = databus(*asked, "--format", "text").stdout
    assert re.search(r'\d\d:\d\d:\d\d  shop/main.orders  read  id=1  total_cents=100, note="first"\n', plain)
    json.loads(databus(*asked).stdout.splitlines()[1])  # nobody looks


def test_tail_prints_the_rows_and_columns_that_it_is_asked_for(relay):
    asked = ["tail", "orders", "--relay", relay.url, "--from", "beginning", "--no-follow", "--json"]
    lines = map(json.loads, databus(*asked, "--where", "note IS NULL", "--columns", "note").stdout.splitlines())
    rows = [line for line in lines if "id" in line]
    assert [(row["id"], row["note"], "total_cents" in row) for row in rows] == [(2, None, False)]
    assert "did you mean 'note'" in failed(databus(*asked, "--where", "noet IS NULL"), 2)


def test_tail_names_the_nearest_table(relay):
    assert "shop/main.orders" in failed(databus("tail", "order", "--relay", relay.url), 2)


def test_a_snapshot_of_a_table_that_is_none_is_refused(relay):
    assert "main.nope" in failed(databus("snapshot", "shop", "main.nope", "--relay", relay.url), 2)
    assert databus("snapshot", "shop", "main.orders", "--relay", relay.url).returncode == 0


def test_sqlite_status_alter_and_remove(tmp_path):
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)")
    assert "--wal" in failed(databus("sqlite", "install", path), 2)
    assert "none is called main.nope" in failed(databus("sqlite", "install", path, "--wal", "--table", "main.nope"), 2)
    assert databus("sqlite", "install", path, "--table", "main.t").returncode == 0
    assert json.loads(databus("sqlite", "status", path, "--json").stdout)["tables"] == ["main.t"]
    plain = databus("sqlite", "status", path).stdout
    assert {"installed: yes", "log: none", "tables: main.t"} <= set(plain.splitlines())
    assert re.search(r"^cut: 1 of 20\S+\+00:00, token \S+$", plain, re.MULTILINE)
    assert not re.search(r"None|True|False|[{[]", plain)
    assert databus("sqlite", "alter", path, "ALTER TABLE t DROP COLUMN b").returncode == 0
    assert "no such column" in failed(databus("sqlite", "alter", path, "ALTER TABLE t DROP COLUMN zz"), 2)
    assert databus("sqlite", "remove", path).returncode == 0
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    assert [name for name in names if not name.startswith("sqlite_")] == ["t"]


def test_the_example_of_alter_fits_the_shop_of_init(project):
    (alter,) = [each for each in sqlite_app.registered_commands if each.epilog and "sqlite alter" in each.epilog]
    assert databus("sqlite", "install", "shop.db", cwd=project).returncode == 0
    done = databus(*shlex.split(str(alter.epilog).removeprefix("Example: databus ")), cwd=project)
    assert (done.returncode, done.stdout) == (0, "shop.db: done\n"), done.stderr


def test_a_token_is_never_taken_from_the_command_line():
    """Others can read a process's arguments."""
    for verb in ("tail", "sources", "snapshot"):
        assert not re.search(r"--token\b(?!-file)", databus(verb, "--help").stdout)


PROBE = """
import structlog
from databus.cli._app import app

@app.command()
def probe():
    structlog.get_logger("databus.sources").info("a hint")
    structlog.get_logger("databus.sources").warning("beware")
    print("the answer")

app(["probe"])
"""


def test_logs_never_stand_between_the_lines_of_an_answer():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "the answer\n"
    assert "beware" in done.stderr
    assert "a hint" not in done.stderr


def test_a_relay_whose_logs_go_to_a_pipe_says_how_to_have_them_as_text(tmp_path):
    done = databus("relay", tmp_path / "none.yml")
    assert json.loads(done.stderr.splitlines()[0])["hint"] == "for logs as text: --log-format text"
    assert "--log-format" not in databus("relay", tmp_path / "none.yml", "--log-format", "text").stderr
    assert "tee" in databus("relay", "--help").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device is Linux's own")
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["plugins"]])
def test_an_answer_that_does_not_fit_on_the_disk_is_an_error_in_one_paragraph(arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "databus.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == DiskFull.exit_code
    assert done.stderr.startswith("databus: the standard output")
    assert done.stderr.count("\n") == 1
