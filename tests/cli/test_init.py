"""`databus init` for a server: a project that validates, and what a newcomer is told who follows it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from databus.cli.init import free_port
from databus.relay import load_relay
from databus.testing.servers import ServerMissing, open_server


def databus(*arguments, cwd: Path, given: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "databus.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(given or {})},
        check=False,
        timeout=120,
    )


WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":  # pyarrow asks for it, and takes no None
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
for name in {packages!r}:
    if name == "pandas":
        sys.meta_path.insert(0, Without())
    else:
        sys.modules[name] = None
sys.argv = ["databus", *{arguments!r}]
from databus.cli import main
main()
"""


def run_without(packages: list[str], *arguments, cwd: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """The command line on a Python that lacks these packages."""
    code = WITHOUT.format(packages=packages, arguments=[*map(str, arguments)])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **given},
        check=False,
        timeout=120,
    )


@pytest.fixture(params=["mysql", "mariadb"])
def project(request, tmp_path) -> Path:
    folder = tmp_path / "project"
    done = databus("init", folder, "--source", request.param, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "databus check-source && databus run" in done.stdout
    return folder


def test_a_project_for_a_server_validates_and_holds_no_password(project):
    assert databus("validate", cwd=project, given={"MYSQL_PASSWORD": "x"}).stdout == "databus.yml: no errors\n"
    told = yaml.safe_load((project / "databus.yml").read_text())["sources"]["shop"]
    assert "${MYSQL_PASSWORD}" in told.values()
    assert "change-me" in (project / "prepare.sql").read_text()


def test_a_password_that_is_not_set_is_named(project):
    environ = {name: value for name, value in os.environ.items() if name != "MYSQL_PASSWORD"}
    done = subprocess.run(
        [sys.executable, "-m", "databus.cli", "check-source"],
        capture_output=True,
        text=True,
        cwd=project,
        env=environ,
        check=False,
    )
    assert done.returncode == 2
    assert "sources.shop.password: the environment has no variable MYSQL_PASSWORD" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("package", "verb"), [("pymysql", "relay"), ("numba", "check-source"), ("numba", "validate")])
def test_a_missing_extra_is_told_with_the_command_that_installs_it(package, verb, tmp_path):
    text = yaml.safe_dump({"sources": {"shop": {"type": "mysql", "hosts": ["127.0.0.1:1"], "user": "x"}}})
    (tmp_path / "relay.yml").write_text(text)
    done = run_without([package], verb, "relay.yml", cwd=tmp_path)
    assert done.returncode == 2
    assert "in your clone of databus, run pip install '.[mysql]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_sqlite_needs_no_extra_of_mysql(tmp_path):
    assert databus("init", cwd=tmp_path).returncode == 0
    assert run_without(["pymysql", "numba"], "validate", cwd=tmp_path).stdout == "databus.yml: no errors\n"


def test_a_missing_extra_of_spark_is_told_with_the_command_that_installs_it(tmp_path):
    assert databus("init", cwd=tmp_path).returncode == 0
    done = run_without(["pyspark"], "run", "--once", cwd=tmp_path)
    assert done.returncode == 2
    assert "in your clone of databus, run pip install '.[spark]'" in done.stderr
    assert "Traceback" not in done.stderr


SPARK = ["pyspark", "py4j", "deltalake", "pandas"]


@pytest.mark.parametrize("more", [(), ("--relay",)], ids=["pipeline", "relay"])
def test_a_server_can_be_prepared_and_checked_without_spark(more, tmp_path):
    assert run_without(SPARK, "init", "--source", "mysql", *more, cwd=tmp_path).returncode == 0
    file = "relay.yml" if more else "databus.yml"
    where = {"MYSQL_PASSWORD": "x", "MYSQL_PORT": "1"}
    done = run_without(SPARK, "check-source", file, cwd=tmp_path, **where)
    assert done.returncode == 1, done.stderr
    assert "nothing listens there" in done.stdout
    if not more:
        assert run_without(SPARK, "validate", cwd=tmp_path, **where).stdout == "databus.yml: no errors\n"


@pytest.mark.parametrize("source", ["sqlite", "mysql", "mariadb", "kafka", "stream"])
def test_a_relay_is_written_whole_with_the_other_kind_of_source_as_an_example(source, tmp_path, monkeypatch):
    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    assert databus("init", "--relay", "--source", source, cwd=tmp_path).returncode == 0
    text = (tmp_path / "relay.yml").read_text()
    config = load_relay(tmp_path / "relay.yml")
    (used,) = (each.type for each in config.sources.values())
    assert used == ("mysql" if source == "mariadb" else source)
    assert "token_file" in text
    lines = text.splitlines()
    at = lines.index("  # Another source beside it:")
    uncommented = [*lines[:at], *(line.replace("  # ", "  ", 1) for line in lines[at + 1 :])]
    (tmp_path / "both.yml").write_text("\n".join(uncommented))
    other = "mysql" if source == "sqlite" else "sqlite"
    assert {each.type for each in load_relay(tmp_path / "both.yml").sources.values()} == {used, other}


@pytest.mark.parametrize("source", ["kafka", "stream"])
def test_a_project_for_topics_or_lines_validates_as_it_is(source, tmp_path):
    done = databus("init", "--source", source, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "databus run" in done.stdout
    assert databus("validate", cwd=tmp_path).stdout == "databus.yml: no errors\n"
    told = yaml.safe_load((tmp_path / "databus.yml").read_text())["sources"]
    assert [each["type"] for each in told.values()] == [source]
    again = databus("init", "--source", source, cwd=tmp_path)
    assert "already there" in again.stderr


def test_a_plugin_is_not_written_where_a_source_was_asked_for(tmp_path):
    done = databus("init", "--plugin", "output", "--source", "kafka", "my-sink", cwd=tmp_path)
    assert done.returncode == 2
    assert "--source is for a project" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_projects_of_two_kinds_and_beside_one_that_runs_have_ports_of_their_own(tmp_path):
    listens = []
    for source in ("sqlite", "mysql", "mariadb"):
        assert databus("init", source, "--source", source, cwd=tmp_path).returncode == 0
        listens.append(yaml.safe_load((tmp_path / source / "databus.yml").read_text())["relay"]["listen"])
        assert listens[-1].rpartition(":")[2] in (tmp_path / source / "README.md").read_text()
    assert len(set(listens)) == 3
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(port) > port


def test_mariadb_as_a_type_is_sent_to_mysql(tmp_path):
    (tmp_path / "relay.yml").write_text("sources: {shop: {type: mariadb, host: db1}}")
    assert 'did you mean "mysql"?' in databus("relay", "relay.yml", cwd=tmp_path).stderr


@pytest.mark.parametrize(("kind", "name"), [("mariadb-10.11", "mariadb"), ("mysql-8.0", "mysql")])
def test_a_server_prepared_by_the_project_has_no_errors(kind, name, tmp_path):
    try:
        server = open_server(kind, tmp_path / "server", row_metadata="FULL")
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with server:
        assert databus("init", "project", "--source", name, cwd=tmp_path).returncode == 0
        project = tmp_path / "project"
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        lines = (project / "prepare.sql").read_text().splitlines()
        text = "\n".join(line.partition("--")[0] for line in lines)
        server.run(*(each.strip() for each in text.split(";") if each.strip()))
        where = {"MYSQL_HOST": "127.0.0.1", "MYSQL_PORT": str(server.port)}
        fine = databus("check-source", cwd=project, given={"MYSQL_PASSWORD": "change-me", **where})
        assert fine.returncode == 0, fine.stdout + fine.stderr
        assert "errors: 0, warnings: 0" in fine.stdout
        wrong = databus("check-source", cwd=project, given={"MYSQL_PASSWORD": "nope", **where})
        assert wrong.returncode == 1
        assert "correct `user` and `password`" in wrong.stdout


def test_a_run_tells_what_keeps_a_source_from_being_captured(tmp_path):
    assert databus("init", cwd=tmp_path).returncode == 0
    value = yaml.safe_load((tmp_path / "databus.yml").read_text())
    value["relay"].pop("listen")
    value["sources"]["shop"] = {"type": "mysql", "hosts": ["127.0.0.1"], "user": "u", "password_file": "nowhere.txt"}
    del value["filters"], value["tests"]
    value["inputs"]["shop"]["tables"] = ["shop/*"]
    value["outputs"] = {"copy": value["outputs"]["copy"]}
    (tmp_path / "databus.yml").write_text(yaml.safe_dump(value))
    done = databus("run", "--once", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if '"event": "source"' in line]
    assert (line["status"], "nowhere.txt" in line["message"]) == ("suspended", True)
    assert "nowhere.txt" not in done.stdout, "once is enough"
    assert "rows in this run: copy 0" in done.stdout
    assert "nowhere.txt" in done.stderr.splitlines()[-1], "the reason comes last"
    assert "org.apache.spark" not in done.stderr
