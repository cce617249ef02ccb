"""A source whose rows are encoded already, such as those of another relay, has them written as they are."""

from pathlib import Path

import pytest

from databus.wire import Commit, FrameGroup, Group, Rows
from tests.relay.support import ORDERS, STOCK, Database, get, order, parts, published, sale, scripted

TABLES = {table.fingerprint: table for table in (ORDERS, STOCK)}


def passed_on(group: FrameGroup) -> Group:
    """What a source yields that has this group from another log."""
    rows = (Rows(TABLES[frame.header.fingerprint], frame.batch, frame.body) for frame in group.rows)
    return Group(Commit.from_header(group.commit), tuple(rows))


def captured(folder: Path, database: Database) -> list[FrameGroup]:
    with scripted(folder, {"shop": database}) as relay:
        published(relay, "shop", database.groups[-1].commit.scn)
        return get(relay, "/stream", output="frames").groups


def test_rows_that_are_encoded_already_go_into_the_log_byte_for_byte(tmp_path, monkeypatch):
    large = order(9, "x" * 300_000)
    first = captured(tmp_path / "first", Database(groups=[order(1), sale(2), *parts(3, 3), large]))

    def encode_again(_: object) -> list[bytes]:
        pytest.fail("rows that are encoded were encoded again")

    monkeypatch.setattr("databus.wire._group.encode_body", encode_again)
    second = captured(tmp_path / "second", Database(groups=list(map(passed_on, first))))
    assert [[bytes(frame.body) for frame in group.rows] for group in second] == [
        [bytes(frame.body) for frame in group.rows] for group in first
    ]
    assert [frame.batch for group in second for frame in group.rows] == [
        frame.batch for group in first for frame in group.rows
    ]
