"""The documentation says what the code does: generated pages are current, links lead somewhere, examples parse."""

import re
import subprocess
import sys

import pytest
import yaml

from tests.documents.pages import PAGES, ROOT, anchors, blocks, links


def test_the_generated_pages_are_as_the_code_says():
    script = ROOT / "scripts" / "write_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading_in_it(page):
    wrong = []
    for file, anchor in links(page):
        to = page.parent / file if file else page
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            wrong.append(f"{file}#{anchor}")
    assert wrong == []


def test_every_page_of_docs_is_linked_from_the_readme_or_another_page():
    linked = {(page.parent / file).resolve() for page in PAGES for file, _ in links(page) if file}
    decisions = ROOT / "docs" / "decisions"
    alone = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.resolve() not in linked]
    assert [page.name for page in alone if not page.is_relative_to(decisions)] == []


def test_the_pipeline_of_the_readme_has_no_problems_and_ten_lines(tmp_path):
    from databus.pipeline import validate
    from databus.testing.shop import create_shop

    (block,) = [each.text for each in blocks(ROOT / "README.md") if each.language == "yaml"]
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    create_shop(tmp_path / "shop.db", customers=1, orders=0)
    path = tmp_path / "databus.yml"
    path.write_text(yaml.safe_dump(yaml.safe_load(block)))
    assert validate(path) == []


def test_the_lines_that_split_a_stream_send_each_table_one_way(tmp_path):
    from databus.filters import selects
    from databus.pipeline import load_pipeline

    (block,) = [each.text for each in blocks(ROOT / "docs" / "recipes.md") if "type: route, from: shop" in each.text]
    path = tmp_path / "databus.yml"
    path.write_text(f"relay: {{url: http://127.0.0.1:9}}\ninputs: {{shop: {{type: databus}}}}\n{block}")
    graph = load_pipeline(path)
    ways = [branch for name in ("crm", "others") for branch in graph.branches(f"outputs.{name}")]
    for table, way in (
        ("s/crm.people", "split.crm"), ("s/shop.orders", "split.orders"), ("s/old.order_lines", "split.orders"),
        ("s/shop.stock", "split.rest"),
    ):  # fmt: skip
        assert [each.edge_name for each in ways if selects(each.selection, table)] == [way]


def test_every_sqlite3_that_writes_beside_a_relay_waits_for_its_locks():
    """Without `.timeout`, sqlite3 says `database is locked` when the relay cuts at that moment."""
    texts = [each.text for page in PAGES for each in blocks(page) if each.language == "sh"]
    lines = [line for text in texts for line in text.splitlines()]
    writes = re.compile(r"sqlite3 .*(?:\b(?:BEGIN|UPDATE|DELETE|ALTER|INSERT)\b|< place_order)")
    writing = [line for line in lines if writes.match(line)]
    assert writing
    assert [line for line in writing if ".timeout" not in line] == []


def test_the_filters_in_the_recipes_are_pipelines_that_load(tmp_path, monkeypatch):
    from databus.pipeline import load_pipeline

    monkeypatch.setenv("MASK_SALT", "sixteen bytes or more")
    given = [each.text for each in blocks(ROOT / "docs" / "recipes.md") if each.text.startswith("filters:")]
    assert given
    for text in given:
        *_, last = yaml.safe_load(text)["filters"]
        outputs = "" if "\noutputs:" in text else f"outputs: {{all: {{type: files, from: {last}, path: out}}}}\n"
        path = tmp_path / "databus.yml"
        path.write_text(f"relay: {{url: http://127.0.0.1:9}}\ninputs: {{shop: {{type: databus}}}}\n{text}{outputs}")
        load_pipeline(path)


def test_the_quick_start_of_mysql_has_no_problems_and_ten_lines(tmp_path, monkeypatch):
    from databus.pipeline import validate

    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "mysql.md").read_text(), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    path = tmp_path / "databus.yml"
    path.write_text(block)
    assert validate(path) == []


def test_the_relays_files_in_the_pages_are_valid(tmp_path, monkeypatch):
    from databus.relay import load_relay

    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    given = [block.text for page in PAGES for block in blocks(page) if block.text.startswith("listen: ")]
    assert given
    for number, text in enumerate(given):
        path = tmp_path / f"{number}.yml"
        path.write_text(text)
        load_relay(path)


def test_yaml_in_the_pages_is_yaml():
    for page in PAGES:
        for block in blocks(page):
            if block.language == "yaml":
                yaml.safe_load(block.text)


def test_every_metric_that_the_pages_name_is_there():
    known = set(re.findall(r"^\| `(databus_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    kinds = "capture|log|client|group|disk|journal|output|pipeline"
    named = {name for page in PAGES for name in re.findall(rf"\bdatabus_(?:{kinds})_[a-z_]+[a-z]\b", page.read_text())}
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_a_page_compiles(page):
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, str(page), "exec")


def test_the_reference_has_the_options_inside_options_once():
    text = (ROOT / "docs" / "reference.md").read_text()
    for title in ("`create_topics` of output `kafka`", "`registry` of source `kafka`", "`columns` of every source"):
        assert text.count(f"\n#### {title}\n") == 1
    assert "| `replication_factor` |" in text
    assert "\n### relay `registry`\n" in text
    assert " of source `mysql`\n" not in text, "it has none but those of every source"
