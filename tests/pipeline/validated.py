"""Files of pipelines for tests, written and validated."""

import textwrap
from pathlib import Path

from databus.pipeline import validate

GOOD = """
name: shop
sources:
  shop: {type: sqlite, path: shop.db}
inputs:
  shop: {type: databus, tables: [shop/main.*]}
filters:
  big: {type: sql, from: shop, table: main.orders, where: "total_cents > 10000"}
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/mirror}
  bigs: {type: delta, from: big, mode: mirror, path: lake/big}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "databus.yml"
    path.write_text(textwrap.dedent(text))
    return path


def problems_of(folder: Path, text: str, **options) -> list[str]:
    return [str(each) for each in validate(written(folder, text), **options)]


def pipeline(sections: str) -> str:
    """A pipeline with one source and one input `shop`; `sections` adds to it."""
    base = "sources: {shop: {type: mock}, hr: {type: mock}}\n"
    inputs = "" if "inputs:" in sections else "inputs: {shop: {type: databus}}\n"
    outputs = "" if "outputs:" in sections else "outputs: {n: {type: mock, from: shop}}\n"
    return base + inputs + textwrap.dedent(sections) + outputs
