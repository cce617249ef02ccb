"""Classes of users' own in a pipeline: found by module or file, checked, and run."""

import re
import sqlite3
from pathlib import Path

import pytest

from databus.pipeline import validate
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

PAGE = Path("docs/plugins.md").read_text(encoding="utf-8")
POSTBOX = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
OUTPUTS = re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1]
BEGIN = "from databus.pipeline import Output, OutputConfig, Delivery\n"


def test_the_output_of_the_page_gets_every_change_once(engine, tmp_path):
    (tmp_path / "postbox.py").write_text(POSTBOX)
    project = Project(tmp_path, OUTPUTS)
    project.once(engine)
    project.work(10)
    project.once(engine)
    with sqlite3.connect(tmp_path / "post.db") as post:
        rows = post.execute("SELECT version, seq, kind FROM post WHERE source = 'shop/main.orders' ORDER BY 1, 2")
        alive = sum({"insert": 1, "delete": -1}.get(kind, 0) for _, _, kind in rows)
    assert alive == project.select("SELECT count(*) FROM orders")[0][0]


def problem(folder, plugin, type_name="mine.py:Mine"):
    (folder / "mine.py").write_text(BEGIN + plugin)
    path = folder / "databus.yml"
    path.write_text(
        f"{HEAD.replace('sqlite, path: shop.db', 'mock')}outputs: {{a: {{type: '{type_name}', from: shop}}}}\n"
    )
    return " ".join(str(each) for each in validate(path))


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("class Mine(Output):\n    config_model = OutputConfig\n", "has no write, which its contract asks for"),
        ("class Mine(Output):\n    def part_writer(self): pass\n", "has no commit, which its contract asks for"),
        ("class Mine(Output):\n    def write(self, batch): pass\n", "has no `config_model`"),
        (
            "class Mine(Output):\n    config_model = OutputConfig\n    def write(self, batch): pass\n    hold = 1\n",
            "has hold, which no contract knows; did you mean held",
        ),
        (
            "class Mine(Output):\n    def write(self, batch): pass\n    def part_writter(self): pass\n",
            "has part_writter, which no contract knows; did you mean part_writer",
        ),
        ("class Mine: pass\n", "no subclass of databus.pipeline.Output"),
        ("class Yours: pass\n", r"does not load: .*\.py has no class Mine"),
        ("1 / 0\n", "does not load: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "does not load: SystemExit: 3"),
        ("class:\n", "does not load: SyntaxError"),
    ],
)
def test_a_class_that_is_no_output_is_named(tmp_path, plugin, said):
    assert re.search(rf'outputs.a.type: type "mine.py:Mine".*{said}', problem(tmp_path, plugin))


def test_a_file_or_module_that_is_not_there_is_named(tmp_path):
    assert "does not load: FileNotFoundError" in problem(tmp_path, "", "other.py:Mine")
    assert "does not load: ModuleNotFoundError" in problem(tmp_path, "", "no_such_module_x:Mine")
