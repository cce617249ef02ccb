"""The rooms of the house: small files, and inside a package no two files of one name."""

from collections import Counter
from pathlib import Path

import pytest

import databus

ROOT = Path(databus.__file__).parent
LINES_MAX = 500


def test_no_file_is_longer_than_can_be_read_at_once():
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {str(path): lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


@pytest.mark.parametrize("package", ["sources/mysql", "sources/sqlite", "sources/snapshots", "log", "link", "relay"])
def test_a_file_s_name_is_one_of_a_kind_in_all_stages_of_a_package(package):
    names = Counter(path.name for path in (ROOT / package).rglob("*.py"))
    names.pop("__init__.py")
    assert {name: count for name, count in names.items() if count > 1} == {}
