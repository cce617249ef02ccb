"""The commands of the documentation run: as they stand, in order, in an empty folder."""

import pytest

from tests.documents.pages import PAGES, ROOT, blocks
from tests.documents.reader import Reader

WITH_SPARK = ("README.md", "docs/tutorial.md")
WITHOUT_SPARK = ("docs/recipes.md", "docs/tls.md")


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


def test_no_page_has_commands_that_nobody_runs():
    """A block that is only shown has another language than `sh`; see `Reader`."""
    shown = [page.name for page in PAGES if any(each.language == "sh" for each in blocks(page))]
    assert sorted(shown) == sorted(ROOT.joinpath(name).name for name in (*WITH_SPARK, *WITHOUT_SPARK))
