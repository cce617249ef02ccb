"""What the server's own tool lists, event by event."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mysql.binlog.conftest import Log
from tests.mysql.binlog.support import scan, scanner, transactions_of
from tests.mysql.binlog.twin import Rows


def test_gtids_and_rows_events_stand_where_mariadb_binlog_lists_them(
    log_of: Callable[[str, bool], Log], tmp_path: Path
) -> None:
    tool = shutil.which("mariadb-binlog")
    if tool is None:
        pytest.skip("mariadb-binlog is not installed")
    log = log_of("mariadb-10.11", True)
    scanning = scanner(log.kind, log.scheme)
    found = transactions_of(scanning, scan(scanning, log.files))
    listed: list[tuple[str, str, list[tuple[int, str]]]] = []
    for name, raw in log.files.items():
        (tmp_path / name).write_bytes(raw)
        done = subprocess.run(
            [tool, "--base64-output=decode-rows", "-v", tmp_path / name], capture_output=True, check=True
        )
        offset = 0
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            if at := re.match(r"# at (\d+)$", line):
                offset = int(at[1])
            elif gtid := re.search(r"\sGTID (\d+-\d+-\d+)", line):
                listed.append((name, gtid[1], []))
            elif (image := re.match(r"### (INSERT INTO|UPDATE|DELETE FROM) `shop`\.`(\w+)`", line)) and (
                not listed[-1][2] or listed[-1][2][-1] != (offset, f"shop.{image[2]}")
            ):
                listed[-1][2].append((offset, f"shop.{image[2]}"))
    ours = []
    for each in found:
        rows = [(item.offset, item.table) for item in each.items if isinstance(item, Rows)]
        ours.append((each.file, each.txid, [row for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]))
    assert [(file, txid) for file, txid, _ in ours] == [(file, txid) for file, txid, _ in listed]
    # The tool prints the rows of a statement together, behind its last event: compare tables and the first offsets.
    for mine, theirs in zip(ours, listed, strict=True):
        assert {table for _, table in mine[2]} == {table for _, table in theirs[2]}
        assert {offset for offset, _ in theirs[2]} <= {offset for offset, _ in mine[2]}
