"""Entries of `tables:` that no table fits are no error, and are said wherever somebody waits for rows."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from databus.operate import configure_logs
from databus.relay import Relay, State, parse_relay
from tests.relay.support import get, until
from tests.relay.test_capture import state_of, wait_for_state


def test_an_entry_that_no_table_fits_is_said_with_what_is_near_until_the_table_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        writer.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY)")
        source = {"type": "sqlite", "path": str(database), "tables": ["main.stock", "main.ordrs"]}
        configure_logs(style="text", stream=sys.stderr)
        config = parse_relay({"listen": "127.0.0.1:0", "folder": "relay", "sources": {"shop": source}}, folder=tmp_path)
        with Relay(config) as relay:
            wait_for_state(relay, State.RUNNING)
            sentence = "no table fits main.ordrs yet; did you mean main.orders?"
            assert get(relay, "/admin/status").json["sources"][0]["missingTables"] == [sentence]
            assert sentence in capsys.readouterr().err
            writer.execute("CREATE TABLE ordrs (id INTEGER PRIMARY KEY)")
            until(lambda: state_of(relay)["missingTables"] == [], "the table")
