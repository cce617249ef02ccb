"""What is committed comes out once, in order, whole; first the rows that were there."""

from tests.sqlite.conftest import Shop
from tests.sqlite.model import assert_identical, controls_of, drain, kinds_of


def test_rows_that_were_there_come_first_and_changes_follow(shop: Shop) -> None:
    shop.run("CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    source = shop.start()
    first = drain(source, shop.log)
    assert [body["kind"] for body in controls_of(first)] == ["snapshot_begin", "snapshot_end"]
    assert kinds_of(first, snapshot=True) == [(1, {"id": 1, "name": "a"}), (1, {"id": 2, "name": "b"})]
    shop.run("INSERT INTO t VALUES (3, 'c')", "UPDATE t SET name = 'B' WHERE id = 2", "DELETE FROM t WHERE id = 1")
    assert kinds_of(drain(source, shop.log)) == [
        (1, {"id": 3, "name": "c"}),
        (2, {"id": 2, "name": "b"}),
        (3, {"id": 2, "name": "B"}),
        (4, {"id": 1, "name": "a"}),
    ]
    assert_identical(shop.path, shop.log, ["t"])
