"""A consumer that keeps all that it is given, and a mirror's twin made of that: whatever its tables go through."""

from copy import copy

from databus.client import windows
from databus.core import BUS_SEQ_MIN, ChangeType
from databus.pipeline import TableControl
from databus.testing._change_log import Image, mirror_of
from tests.bootstrap.filled import PHYSICAL


class Follower:
    """Takes windows. Its pairs rise, or it says so."""

    def __init__(self):
        self.entries = []
        self.kinds = set()
        self.checkpoint = None

    def saved(self):
        """As it is now, for one that dies later."""
        other = copy(self)
        other.entries, other.kinds = [*self.entries], {*self.kinds}
        return other

    def take(self, window):
        """Keep its control and its images."""
        found = entries_of(window)
        if window.restarts:  # it had a part of a transaction that comes again, or whose outcome does
            last = self.entries[-1].pair[0] if self.entries else 0
            self.entries = [each for each in self.entries if each.pair < (last, 0) or each.pair[1] >= BUS_SEQ_MIN]
        pairs = [each.pair for each in found]
        last = self.entries[-1].pair if self.entries else (0, -1)
        assert all(one < other for one, other in zip([last, *pairs], pairs, strict=False)), (last, pairs)
        self.entries += found
        self.kinds.add(window.look_back)
        self.checkpoint = window.checkpoint

    def follow(self, url, **options):
        """To what is published now; returns itself."""
        with windows(url, follow=False, checkpoint=self.checkpoint, **options) as following:
            for window in following:
                self.take(window)
        return self

    def rows(self, table):
        """What a mirror has of a table, `db.table`: as SELECT says it, rows as sorted values by name."""
        return sorted((sorted(row.items()) for row, _ in mirror_of(self.entries, table).values()), key=repr)

    def is_as(self, shop, *tables):
        """Whether it has what SELECT says, of tables `db.table` of a shop in SQLite."""
        return all(self.rows(table) == selected(shop, table) for table in tables)

    def images(self, *tables):
        """All images and controls of some tables, `db.table`."""
        return [told(each) for each in self.entries if each.table.source in tables]


def selected(shop, table, where=""):
    """What SELECT says of a table of a shop in SQLite: rows as sorted values by name."""
    cursor = shop.db.execute(f"SELECT * FROM {table}{where}")
    names = [name for name, *_ in cursor.description]
    return sorted((sorted(zip(names, row, strict=True)) for row in cursor.fetchall()), key=repr)


def told(entry):
    """An entry as far as two relays, or a relay and a service, say the same of it."""
    if isinstance(entry, TableControl):
        return entry.pair, str(entry.kind), entry.table.fingerprint, entry.body.get("class")
    return entry.pair, str(entry.kind), entry.table.fingerprint, sorted(entry.row.items())


def entries_of(window):
    """A window's control and images, in the order of their pairs."""
    found = []
    if (control := window.control) is not None:
        assert control.source.startswith(f"{PHYSICAL}/")
        found.append(TableControl(control.table, control.kind, control.pair, control.body))
    for changes in window.changes():
        for row in changes.batch.to_pylist():
            values = {name: row[name] for name in changes.table.names}
            pair = row["_commit_version"], row["_seq"]
            found.append(Image(changes.table, pair, ChangeType(row["_change_type"]), values, row["_snapshot"]))
    return sorted(found, key=lambda each: each.pair)
