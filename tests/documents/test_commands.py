"""The commands of the documentation run: as they stand, in order, in an empty folder."""

import pytest

from tests.documents.pages import PAGES, ROOT, blocks
from tests.documents.reader import Reader

WITH_SPARK = ("README.md", "docs/tutorial.md")
WITHOUT_SPARK = ("docs/recipes.md", "docs/tls.md")
EXAMPLES = sorted(page.parent.name for page in (ROOT / "examples").glob("*/README.md"))


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", WITH_SPARK)
def test_the_page_can_be_followed_word_for_word(name, tmp_path):
    with Reader(tmp_path) as reader:
        reader.follow(ROOT / name)


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_the_page_without_spark_can_be_followed_word_for_word(name, tmp_path):
    with Reader(tmp_path) as reader:
        reader.follow(ROOT / name)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_can_be_followed_word_for_word(name, tmp_path):
    with Reader(tmp_path, ROOT / "examples" / name) as reader:
        reader.follow(ROOT / "examples" / name / "README.md")


def test_every_example_is_in_the_list():
    listed = (ROOT / "examples" / "README.md").read_text()
    assert [name for name in EXAMPLES if f"[{name}]({name}/README.md)" not in listed] == []


def test_no_page_has_commands_that_nobody_runs():
    """A block that is only shown has another language than `sh`; see `Reader`."""
    pages = [page for page in PAGES if ROOT / "examples" not in page.parents]
    shown = [page.name for page in pages if any(each.language == "sh" for each in blocks(page))]
    assert sorted(shown) == sorted(ROOT.joinpath(name).name for name in (*WITH_SPARK, *WITHOUT_SPARK))
