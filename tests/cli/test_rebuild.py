"""`databus rebuild` says what is lost by it before anything is."""

from pathlib import Path

import pytest

from databus.testing.shop import create_shop
from tests.commands import databus, failed

FILE = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [shop/main.*]}}
outputs:
  history: {type: delta, from: shop, mode: history, path: history}
  mirror: {type: delta, from: shop, mode: mirror, path: mirror}
  lines: {type: stream, from: shop, command: [cat]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "databus.yml").write_text(FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("output", "asked"),
    [
        (
            "history",
            "remove what it has, with its changes, of which those come back that the relay's log still holds? [y/N]",
        ),
        ("mirror", "remove what it has? [y/N]"),
    ],
)
def test_the_question_says_which_changes_do_not_come_back(folder: Path, output: str, asked: str) -> None:
    said = failed(databus("rebuild", output, cwd=folder, stdin="n\n"), 1)
    assert said.startswith(f"{output}: {asked}")


def test_an_output_whose_target_keeps_nothing_says_what_another_name_does(folder: Path) -> None:
    """Its errors name this command, whatever the output is."""
    said = failed(databus("rebuild", "lines", cwd=folder), 2)
    assert "Under another name the output begins as at a first start, and the target gets again what" in said


def test_nothing_is_removed_for_a_file_that_could_not_be_written_again(folder: Path) -> None:
    create_shop(folder / "shop.db", customers=1, products=1, orders=0)
    wrong = "filters: {slim: {type: mask, from: shop, redact: [phone], tables: [main.customers]}}\n"
    (folder / "databus.yml").write_text(
        wrong + FILE.replace("mirror: {type: delta, from: shop", "mirror: {type: delta, from: slim")
    )
    said = failed(databus("rebuild", "mirror", "--yes", cwd=folder), 2)
    assert 'filters.slim.redact: shop/main.customers has no column "phone"' in said
