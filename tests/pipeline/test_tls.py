"""A pipeline whose own relay has a certificate, a token, and wants to see certificates: from SQLite to files."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from databus.pipeline import run, status_of
from tests.certificates import Authority

pytestmark = pytest.mark.spark

FILE = """
name: copy
relay:
  token_file: token
  ca_file: ca.pem
  certificate_file: pipeline.pem
  key_file: pipeline.key
  tls: {certificate_file: relay.pem, key_file: relay.key, client_ca_file: ca.pem}
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus}}
outputs: {lines: {type: files, from: shop, path: out, format: json}}
"""


def test_rows_come_from_a_relay_with_tls_by_files_that_the_pipeline_names(spark: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("relay")
    authority.sign("pipeline", hosts=())
    (tmp_path / "token").write_text("correct-horse-battery")
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", [(n, f"note {n}") for n in range(100)])
    database.close()
    path = tmp_path / "databus.yml"
    path.write_text(FILE)
    assert run(path, once=True, session=spark) == 0
    lines = [json.loads(line) for file in (tmp_path / "out" / "orders").iterdir() for line in file.open()]
    assert sorted(each["id"] for each in lines if "id" in each) == list(range(100))
    status = status_of(path)
    assert status is not None
    assert status["relay"].startswith("https://127.0.0.1:")
