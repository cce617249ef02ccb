"""`databus run --dry-run`: what goes over each edge is counted, and nothing is written."""

import pytest

from databus.testing.shop import connect, create_shop
from tests.cli.live import HEAD
from tests.commands import databus

SECTIONS = """\
filters:
  slim: {type: project, from: shop, tables: [main.orders], columns: [id]}
  large: {type: sql, from: shop, table: main.orders, where: total_cents > 20000}
outputs:
  copy: {type: delta, from: slim, mode: mirror, path: lake/copy, key: [id]}
  kept: {type: files, from: large, format: json, path: lake/large}
"""


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_each_edge_is_counted_and_no_target_or_state_is_there_afterwards(tmp_path):
    (tmp_path / "databus.yml").write_text(HEAD + SECTIONS)
    create_shop(tmp_path / "shop.db", customers=20, products=10, orders=30, seed=7)
    done = databus("run", "--dry-run", "--once", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {(words[0], words[1]): int(words[2]) for words in lines if len(words) == 5 and words[2].isdigit()}
    with connect(tmp_path / "shop.db") as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        all_rows = sum(
            db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in tables
            if not name.startswith(("_databus", "databus", "sqlite"))
        )
        orders, large = db.execute("SELECT count(*), sum(total_cents > 20000) FROM orders").fetchone()
    assert found == {
        ("shop", "slim"): all_rows,
        ("shop", "large"): orders,
        ("slim", "copy"): all_rows,
        ("large", "kept"): large,
    }
    assert not (tmp_path / "lake").exists()
    assert not (tmp_path / ".databus" / "pipelines").exists()
