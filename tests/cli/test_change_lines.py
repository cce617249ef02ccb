"""`databus tail` for people."""

from databus.cli.tail import change_lines
from databus.core import ControlKind
from databus.schema import Column, TableSchema
from databus.testing import Feed

ORDERS = TableSchema("main.orders", (Column("id", "int64"), Column("note", "string"), Column("n", "int32")), ("id",))
KEYLESS = TableSchema("main.notes", (Column("note", "string"),))


def test_a_change_is_a_line_with_its_key_and_what_has_changed():
    one, two = {"id": 1, "note": "first", "n": 1}, {"id": 1, "note": None, "n": 1}
    feed = Feed(ORDERS, KEYLESS).snapshot("main.orders", [one])
    feed.update("main.orders", one, two).delete("main.orders", two).commit()
    feed.insert("main.notes", {"note": f"\x1b[2J\n{'x' * 100}"}).delete("main.notes", {"note": "a"}).commit()
    feed.control(ControlKind.GAP, "main.orders", reason="purged")
    lines = [line.split("  ", 1)[1] for line in change_lines(feed.windows())]
    cut = '"\\u001b[2J\\n' + "x" * 100 + '"'
    assert lines == [
        "shop/main.orders  snapshot_begin",
        'shop/main.orders  read  id=1  note="first", n=1',
        "shop/main.orders  snapshot_end  complete=true",
        'shop/main.orders  update  id=1  note: "first" → null',
        "shop/main.orders  delete  id=1",
        f"shop/main.notes  insert  note={cut[:60]}... ({len(cut)} characters)",
        'shop/main.notes  delete  note="a"',
        'shop/main.orders  gap  reason="purged"',
    ]
