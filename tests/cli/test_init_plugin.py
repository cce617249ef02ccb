"""`databus init --plugin`: a package whose tests pass as it is, and that pipelines find by its entry point."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest

from databus.pipeline import Filter, Input, Output
from databus.pipeline.graph._registry import NodeKind, plugin_class
from tests.commands import databus, failed

BASES = {"output": Output, "input": Input, "filter": Filter}


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", BASES)
def test_a_package_is_found_by_its_entry_point_and_its_own_tests_pass(tmp_path, kind, monkeypatch):
    said = databus("init", "--plugin", kind, f"my-{kind}", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    folder = tmp_path / f"my-{kind}"
    assert f"next: cd my-{kind} && pip install" in said.stdout
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][f"databus.{kind}s"].items()
    about = folder / "src" / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(f"[databus.{kind}s]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(folder / "src")
    assert metadata.version(project["name"]) == "0.1.0"
    assert issubclass(plugin_class(NodeKind(f"{kind}s"), f"my-{kind}"), BASES[kind])
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), "src"]))},
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-3000:]
    assert " passed" in tests.stdout
    assert "already there" in failed(databus("init", "--plugin", kind, f"my-{kind}", cwd=tmp_path), 2)


def test_a_name_that_no_type_can_have_is_refused(tmp_path):
    assert "small letters" in failed(databus("init", "--plugin", "output", "My Sink", cwd=tmp_path), 2)
