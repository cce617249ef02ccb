"""The architecture's pictures are true: every arrow is an import, every module stands in its package's section."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

import databus
from tests.documents.pages import ROOT

SOURCE = Path(databus.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SECTIONS = dict(re.findall(r"^### `([\w/]+)`\n(.*?)(?=^##)", PAGE, re.DOTALL | re.MULTILINE))
PACKAGES = sorted({str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")} - {"."})


def modules_of(package: str) -> set[str]:
    return {path.stem for path in (SOURCE / package).glob("*.py")} - {"__init__", "__main__"}


def imports_of(package: str, module: str) -> set[str]:
    tree = ast.parse((SOURCE / package / f"{module}.py").read_text())
    name = ".".join(("databus", *package.split("/")))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.removeprefix(f"{name}."))
            if node.module == name:
                found |= {each.name for each in node.names}
    return found


def test_every_package_has_a_section():
    assert sorted(SECTIONS) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_the_arrows_of_a_picture_are_imports(package):
    chains = [line.split(" --> ") for line in SECTIONS[package].splitlines() if " --> " in line]
    arrows = [(start.strip(), end.strip()) for chain in chains for start, end in pairwise(chain)]
    assert [(start, end) for start, end in arrows if end not in imports_of(package, start)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_section_names_every_module_and_none_that_is_not_there(package):
    """A module that is new, moved or gone has its place in the reading order."""
    reading = SECTIONS[package].rpartition("\nRead ")[2]
    assert set(re.findall(r"`(\w+)\.py`", reading)) == modules_of(package)
