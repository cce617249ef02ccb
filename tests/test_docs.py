"""The documentation says what the code does: the reference is generated, links lead somewhere, examples parse."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_reference_is_as_the_code_says():
    script = ROOT / "scripts" / "write_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [to for to in targets if "://" not in to and not (page.parent / to).exists()]
    assert missing == []


def test_the_pipeline_of_the_readme_has_no_problems(tmp_path):
    from databus.pipeline import validate
    from databus.testing.shop import create_shop

    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    create_shop(tmp_path / "shop.db", customers=1, orders=0)
    path = tmp_path / "databus.yml"
    path.write_text(yaml.safe_dump(yaml.safe_load(block)))
    assert validate(path) == []


def test_the_quick_start_of_mysql_has_no_problems_and_ten_lines(tmp_path, monkeypatch):
    from databus.pipeline import validate

    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "mysql.md").read_text(), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    path = tmp_path / "databus.yml"
    path.write_text(block)
    assert validate(path) == []


def test_links_inside_a_page_lead_to_its_headings():
    for page in PAGES:
        text = page.read_text()
        headings = {
            re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        }
        assert [to for to in re.findall(r"\]\(#([^)]+)\)", text) if to not in headings] == [], page.name


def test_python_in_the_pages_compiles():
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            compile(block, str(page), "exec")
