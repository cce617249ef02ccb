"""`databus init` for a server: a project that validates, and what a newcomer is told who follows it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

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


def run_without(packages: list[str], *arguments, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line on a Python that lacks these packages."""
    code = (
        f"import sys\nfor name in {packages!r}: sys.modules[name] = None\n"
        f"sys.argv = ['databus', *{list(map(str, arguments))!r}]\nfrom databus.cli import main\nmain()"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=False, timeout=120
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


@pytest.mark.parametrize("package", ["pymysql", "numba"])
@pytest.mark.parametrize("verb", ["relay", "check-source", "validate"])
def test_a_missing_extra_is_told_with_the_command_that_installs_it(package, verb, tmp_path):
    text = yaml.safe_dump({"sources": {"shop": {"type": "mysql", "hosts": ["127.0.0.1:1"], "user": "x"}}})
    (tmp_path / "relay.yml").write_text(text)
    done = run_without([package], verb, "relay.yml", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'databus-cdc[mysql]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_sqlite_needs_no_extra_of_mysql(tmp_path):
    assert databus("init", cwd=tmp_path).returncode == 0
    assert run_without(["pymysql", "numba"], "validate", cwd=tmp_path).stdout == "databus.yml: no errors\n"


def test_a_missing_extra_of_spark_is_told_with_the_command_that_installs_it(tmp_path):
    assert databus("init", cwd=tmp_path).returncode == 0
    done = run_without(["pyspark"], "run", "--once", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'databus-cdc[spark]'" in done.stderr
    assert "Traceback" not in done.stderr


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
        server.run("DROP USER databus", "CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
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


@pytest.mark.spark
def test_a_run_tells_what_keeps_a_source_from_being_captured(tmp_path):
    assert databus("init", cwd=tmp_path).returncode == 0
    value = yaml.safe_load((tmp_path / "databus.yml").read_text())
    value["relay"].pop("listen")
    value["sources"]["shop"] = {"type": "mysql", "hosts": ["127.0.0.1"], "user": "u", "password_file": "nowhere.txt"}
    value.pop("filters")
    value["inputs"]["shop"]["tables"] = ["shop/*"]
    value["outputs"] = {"copy": value["outputs"]["copy"]}
    (tmp_path / "databus.yml").write_text(yaml.safe_dump(value))
    done = databus("run", "--once", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "source=shop status=suspended" in done.stdout + done.stderr
    assert "nowhere.txt" in done.stdout + done.stderr
