"""What is sent to executors: our packages that they need, the users' archive, the files by which a relay is asked."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import databus
from databus.cli import main
from databus.core import ConfigError
from databus.link import FILES_VARIABLE, travelling_name
from databus.spark import SHIPPED, Shipment, make_archive
from databus.spark import _shipping as archives
from databus.spark._shipping import pack_databus
from tests.flow.test_task_imports import NOBODY_S


def test_our_packages_are_whole_without_the_server_s(tmp_path):
    path = tmp_path / "databus.zip"
    pack_databus(path)
    code = "import sys, databus.flow, pyspark_databus; print(databus.flow.__file__, *sys.modules)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(path)}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=tmp_path)
    place, *imported = said.stdout.split()
    assert place.startswith(str(path))
    assert [name for name in imported if name.startswith(NOBODY_S)] == []
    inside = zipfile.ZipFile(path).namelist()
    assert not [name for name in inside if name.startswith(("databus/relay", "databus/pipeline", "databus/testing"))]


def imports_of(path):
    """The modules that a file imports when it is run, also inside of functions; not those for types alone."""
    tree = ast.parse(path.read_text())
    of_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in of_types]
    return [node.module.split(".") for node in found if node.module]


def of_outputs(root):
    """What tasks import of outputs: not what configures and drives them, which is sent along."""
    found = {root / "sinks/__init__.py"}
    left = [root / "sinks" / name / "__init__.py" for name in ("files", "http", "kafka", "search")]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            modules = (module[1:] for module in imports_of(path) if module[:2] == ["databus", "sinks"])
            named = [root.joinpath(*module) for module in modules]
            left += [each / "__init__.py" if each.is_dir() else each.with_suffix(".py") for each in named]
    return found


def test_what_is_sent_to_executors_imports_nothing_of_ours_that_is_not():
    root = Path(databus.__file__).parent
    sent = {path for name in SHIPPED if name != "sinks" for path in (root / name).rglob("*.py")} | of_outputs(root)
    assert root / "sinks/kafka/_writer.py" in sent
    missing = {
        (path.relative_to(root).as_posix(), module[1])
        for path in sent
        for module in imports_of(path)
        if module[0] == "databus" and module[1:] and module[1] not in SHIPPED
    }
    assert missing == {
        ("link/_peers.py", "operate"),  # goes on without
        ("spark/_plan.py", "client"),  # on the driver, as the next is
        ("spark/_session.py", "operate"),
    }


def test_settings_that_are_given_are_joined_by_ours(tmp_path):
    given = {"spark.archives": "mine.zip#mine", "spark.executorEnv.PYTHONPATH": "mine"}
    found = Shipment(tmp_path / "executors.zip").settings(given)
    assert found["spark.archives"] == f"mine.zip#mine,{tmp_path}/executors.zip#databus-packages"
    assert found["spark.executorEnv.PYTHONPATH"] == "databus.zip:databus-packages:mine"


@pytest.mark.parametrize("variable", [None, "/opt/python"])
def test_executors_have_their_own_python_where_their_packages_travel(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert Shipment().python({}) == (variable or sys.executable)
    assert Shipment(tmp_path / "executors.zip").python({}) == (variable or own)
    assert Shipment(tmp_path / "executors.zip").python({"spark.pyspark.python": "python3"}) == "python3"


@pytest.fixture
def small(monkeypatch):
    """Of the packages that are needed, a small one."""
    monkeypatch.setattr(archives, "NEEDED", ("crc32c",))
    monkeypatch.setattr(archives, "WANTED", ("no-such-package",))


def test_an_archive_has_what_is_asked_for_and_what_that_requires(tmp_path, small):
    path = tmp_path / "executors.zip"
    assert {"crc32c", "pydantic", "pydantic_core", "annotated-types"} <= set(make_archive(path, ["pydantic"]))
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(path).extractall(unpacked)
    code = f"import sys; sys.path.insert(0, {str(unpacked)!r}); import pydantic, crc32c; print(pydantic.__file__)"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(str(unpacked))


def test_a_package_that_is_not_here_is_named(tmp_path, small):
    with pytest.raises(ConfigError, match="no-such-thing is not installed here"):
        make_archive(tmp_path / "executors.zip", ["no-such-thing"])


def test_the_command_says_what_it_has_packed(tmp_path, small, capsys, monkeypatch):
    command = ["databus", "archive", str(tmp_path / "executors.zip"), "--with", "pydantic"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "crc32c " in capsys.readouterr().out


def test_a_file_that_this_machine_lacks_is_the_one_that_came_with_the_job(tmp_path, monkeypatch):
    from databus.link import RelayClient

    path = tmp_path / "gone" / "token"
    (tmp_path / travelling_name(path)).write_text("the-token-that-travelled")
    monkeypatch.setenv(FILES_VARIABLE, str(tmp_path))
    client = RelayClient("http://127.0.0.1:1", token_file=path)
    assert client._peers.endpoints[0].headers("*/*")["Authorization"] == "Bearer the-token-that-travelled"
    path.parent.mkdir()
    path.write_text("the-renewed-one")
    assert client._peers.endpoints[0].headers("*/*")["Authorization"] == "Bearer the-renewed-one"
