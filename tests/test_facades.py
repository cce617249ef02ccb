"""Each package shows one curated, sorted facade; what is private stays behind it."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import databus

PACKAGES = [
    name
    for _, name, is_package in pkgutil.walk_packages(databus.__path__, "databus.")
    if is_package and not name.startswith("databus.cli")
]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_facade_is_sorted_and_whole(name):
    package = importlib.import_module(name)
    assert len(package.__all__) == len(set(package.__all__)) > 0  # the linter sees to the order
    assert [each for each in package.__all__ if each.startswith("_") or not hasattr(package, each)] == []
    assert package.__doc__


HEAVY = (
    "pyspark",
    "pyarrow",
    "numpy",
    "pandas",
    "aiohttp",
    "deltalake",
    "pydantic",
    "sqlglot",
    "databus.log",
    "databus.relay",
)


def test_help_imports_nothing_heavy():
    code = f"import sys, databus.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_pipeline_that_is_only_looked_at_imports_neither_a_server_nor_pandas():
    code = "import sys, databus.pipeline; print([m for m in ('aiohttp', 'pandas', 'pyspark') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_what_each_query_starts_a_process_of_imports_neither_the_client_nor_its_log():
    heavy = ("databus.client", "structlog", "asyncio", "aiohttp", "pandas")
    code = f"import sys, pyspark_databus; print([m for m in {heavy!r} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_server_that_is_only_named_or_asked_has_no_compiler_imported():
    """By `validate`, `check-source`, `position`, `compare`, and by a pipeline, whose relay is another process."""
    code = "import sys, databus.sources.mysql; print([m for m in ('numba', 'llvmlite') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_nothing_committed_names_a_place_of_one_machine():
    root = Path(databus.__file__).parents[2]
    files = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    home = str(Path.home())
    guilty = [
        name
        for name in files
        if (root / name).suffix in {".py", ".md", ".yml", ".toml", ""} and (root / name).is_file()
        for text in [(root / name).read_text(errors="replace")]
        if str(root) + "/" in text or f"{home}/" in text
    ]
    assert guilty == []
