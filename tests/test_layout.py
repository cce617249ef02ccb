"""The rooms of the house: small files, and inside a package no two files of one name."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import databus

ROOT = Path(databus.__file__).parent
LINES_MAX = 1_200  # a file is one concept, whatever its length: half of one, cut off, is no easier to read
RENAMING = {
    "disk/_files.py": "the one way to replace a file",
    "disk/_location.py": "a file that is on the disk already gets the name by which it is seen; it syncs the folder",
    "disk/_object_store.py": "the same in a store, which has no files",
    "log/_opening.py": "a segment is renamed while it is open; it syncs file and folder",
    "testing/servers/_fetch.py": "a cache of what was fetched; what is missing is fetched again",
    "spark/_session.py": "a cache that Java writes; what is missing is written again",
    "relay/_audit.py": "yesterday's audit log gets another name; it syncs the folder",
    "dashboard/_history.py": "a file that is no history gets another name; charts begin with a new one",
    "pipeline/telling/_journal.py": "the full journal gets another name; nothing rests on its last seconds",
}


def test_no_file_is_longer_than_can_be_read_at_once():
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {str(path): lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


@pytest.mark.parametrize("package", ["sources/mysql", "sources/sqlite", "sources/snapshots", "log", "link", "relay"])
def test_a_file_s_name_is_one_of_a_kind_in_all_stages_of_a_package(package):
    names = Counter(path.name for path in (ROOT / package).rglob("*.py"))
    names.pop("__init__.py")
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_files_are_replaced_by_the_disk_s_own_function_alone():
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _renames(node, node.func)
    }
    assert found == set(RENAMING)


def _renames(call: ast.Call, function: ast.Attribute) -> bool:
    is_a_path_s = function.attr == "replace" and len(call.args) == 1 and not call.keywords
    is_the_system_s = function.attr == "replace" and ast.unparse(function.value) == "os"
    return function.attr == "rename" or is_a_path_s or is_the_system_s
