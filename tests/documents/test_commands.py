"""The commands of the documentation run: as they stand, in order, in an empty folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from databus.testing.servers import Kafka, SearchServer, ServerMissing, open_search_server
from tests.documents.pages import PAGES, ROOT, blocks
from tests.documents.reader import Reader

WITH_SPARK = ("README.md", "docs/tutorial.md")  # the first is what everybody begins with
WITHOUT_SPARK = ("docs/recipes.md", "docs/tls.md")
SERVERS: dict[str, Callable[[Path], SearchServer | Kafka]] = {
    "binlog-dispatcher": Kafka,
    "search-index": lambda folder: open_search_server("opensearch-2.19", folder),
}
"""What an example starts, to be fetched before it is timed."""
EXAMPLES = sorted(page.parent.name for page in (ROOT / "examples").glob("*/README.md"))


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["README.md", pytest.param("docs/tutorial.md", marks=pytest.mark.nightly)])
def test_the_page_can_be_followed_word_for_word(name, tmp_path):
    with Reader(tmp_path) as reader:
        reader.follow(ROOT / name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_the_page_without_spark_can_be_followed_word_for_word(name, tmp_path):
    with Reader(tmp_path) as reader:
        reader.follow(ROOT / name)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_can_be_followed_word_for_word(name, tmp_path):
    if name in SERVERS:
        try:
            SERVERS[name](tmp_path / "unused").prepare()
        except ServerMissing as missing:
            pytest.skip(str(missing))
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
