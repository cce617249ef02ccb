"""A campaign without Spark: what fills, serves and asks dies, is replaced or forgets, and nothing is missing.

The database works and is altered. The stores are filled by writers that die at their crash points, and states expire.
Services are cut off and replaced in mid-answer, the relay is started again, and consumers die between two windows.
"""

from contextlib import ExitStack, contextmanager, suppress

from databus.bootstrap import BootstrapServer
from databus.client import windows
from databus.core import crash_point
from databus.relay import Relay, parse_relay
from databus.stores import NoteFolder
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.followers import Follower, selected

TABLES = f"""
CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, total INTEGER);
CREATE TABLE stock (id INTEGER PRIMARY KEY, "left" INTEGER);
CREATE TABLE notes (said INTEGER);
CREATE TABLE ballast (id INTEGER PRIMARY KEY, n INTEGER, filler TEXT);
INSERT INTO ballast VALUES (1, 0, '{"x" * 2000}');
"""
ORDERS = "shop/main.orders"
ASKS = (
    {},
    {"sources": [ORDERS]},
    {"sources": [ORDERS], "where": "total >= 3"},
    {"look_back": "all"},
    {"sources": ["shop/main.notes", "shop/main.stock"]},
)
WRITERS = ("databus.sinks.delta._table", "databus.bootstrap._noting")
ATTEMPTS_MAX = 300


class Died(BaseException):
    """What a kill is inside of this process."""


class Campaign:
    """Over a shop, with the dice of a seed."""

    def __init__(self, shop, dice, monkeypatch):
        self.shop, self.dice, self.monkeypatch = shop, dice, monkeypatch
        self.deaths = {}
        self.kinds = set()
        self._noted = self._altered = 0
        self._added = []
        self._consumers = [(Follower(), ASKS[0])]
        self._servers = [BootstrapServer(shop.config).start() for _ in range(2)]
        self._cut = False  # whether answers are cut off by now
        monkeypatch.setattr("databus.bootstrap._commands.crash_point", self._answering)

    def close(self):
        """Stop what it has started."""
        for server in self._servers:
            server.stop()

    # what happens

    def work(self, transactions):
        """Random work on all tables."""
        for _ in range(transactions):
            statements = [self._statement() for _ in range(self.dice.choice((1, 2, 5)))]
            self.shop.execute(*statements)

    def _statement(self):
        dice, number = self.dice, self.dice.randrange(30)
        self._noted += 1
        name, total = dice.randrange(99), dice.randrange(9)
        return dice.choice(
            (
                f"REPLACE INTO orders (id, name, total) VALUES ({number}, 'n{name}', {total})",
                f"UPDATE orders SET total = (total + 1) % 7 WHERE id % 5 = {number % 5}",
                f"DELETE FROM orders WHERE id = {number}",
                f"UPDATE OR REPLACE orders SET id = id + 3 WHERE id = {number}",
                f'INSERT OR REPLACE INTO stock (id, "left") VALUES ({number % 7}, {dice.randrange(99)})',
                f"DELETE FROM stock WHERE id = {number % 7}",
                f"INSERT INTO notes VALUES ({self._noted})",
            )
        )

    def alter(self):
        """Add a column with a default or without, give one another name, or drop a table and make it again."""
        dice = self.dice
        self._altered += 1
        kind = dice.choice(("add", "filled", "rename", "again"))
        if kind == "again":
            self.shop.execute("DROP TABLE stock")
            self.shop.captured()
            self.shop.execute('CREATE TABLE stock (id INTEGER PRIMARY KEY, "left" INTEGER)')
        elif kind == "rename" and self._added:
            self.shop.execute(f"ALTER TABLE orders RENAME COLUMN {self._added.pop()} TO r{self._altered}")
            self._added.append(f"r{self._altered}")
        else:
            self._added.append(f"c{self._altered}")
            default = f" DEFAULT 'd{self._altered}'" if kind == "filled" else ""
            self.shop.execute(f"ALTER TABLE orders ADD COLUMN c{self._altered} TEXT{default}")
        self.shop.captured()

    def fill(self):
        """Write and note what there is; those who do are killed at a crash point, mostly, and start again."""
        while self.dice.random() < 0.6:
            left = self.dice.randrange(1, 8)

            def passing(name):
                nonlocal left
                left -= 1
                if left == 0:
                    self.deaths[name] = self.deaths.get(name, 0) + 1
                    raise Died

            with self.monkeypatch.context() as patched, suppress(Died):
                for writer in WRITERS:
                    patched.setattr(f"{writer}.crash_point", passing)
                self.shop.fill()
            self.shop._noting = None
        self.shop.fill()

    def expire(self):
        """Forget some states, also such as are being given."""
        states = self.shop.states()
        count = self.dice.randrange(len(states)) if states else 0
        NoteFolder(self.shop.config.root, PHYSICAL).forget(states[:count])

    def replace_server(self):
        """Name another service; the one that was named is stopped, perhaps in the middle of an answer."""
        number = self.dice.randrange(2)
        self._servers[number].stop()
        self._servers[number] = BootstrapServer(self.shop.config).start()
        self.shop.name_service(self.dice.choice(self._servers).url)

    def restart_relay(self):
        """Stop it, and start it again at its address."""
        shop = self.shop
        address = shop.url.removeprefix("http://")
        shop.relay.stop()
        shop.relay = Relay(parse_relay({**shop._relay_file, "listen": address}, folder=shop.folder)).start()
        shop.name_service(shop.service_url)

    def _answering(self, name):
        crash_point(name)
        if self._cut and self.dice.random() < 0.1:
            self.deaths[name] = self.deaths.get(name, 0) + 1
            raise ConnectionError("cut off")

    # those who ask

    def follow(self, number):
        """To the end, with a consumer that dies at random and begins again with what it saved."""
        saved, asks = self._consumers[number]
        self._cut = True
        for _ in range(ATTEMPTS_MAX):
            follower = saved.saved()
            dies_after = self.dice.randrange(1, 12) if self.dice.random() < 0.7 else None
            with windows(self.shop.url, follow=False, checkpoint=follower.checkpoint, **asks) as following:
                for count, window in enumerate(following):
                    follower.take(window)
                    if self.dice.random() < 0.5:
                        saved = follower.saved()
                    if self.dice.random() < 0.04:
                        self._meddle()
                    if count == dies_after:
                        break
                else:
                    self._cut = False
                    self._consumers[number] = follower, asks
                    self.check(follower, asks)
                    return
        raise AssertionError(f"does not come to an end at {saved.checkpoint}")

    def _meddle(self):
        self.dice.choice((self.expire, self.replace_server, self.shop.note))()

    def check(self, follower, asks):
        """It has what SELECT says."""
        sources = asks.get("sources", [ORDERS, "shop/main.stock", "shop/main.notes"])
        where = f" WHERE {asks['where']}" if "where" in asks else ""
        for name in sources:
            table = name.partition("/")[2]
            there = selected(self.shop, table, where)
            if table == "main.notes":
                rows = [each.row for each in follower.entries if each.table.source == table and hasattr(each, "row")]
                assert sorted((sorted(row.items()) for row in rows), key=repr) == there
            else:
                assert follower.rows(table) == there, (name, asks)

    def round(self):
        """One day of it."""
        dice = self.dice
        self.work(dice.randrange(1, 25))
        if dice.random() < 0.3:
            self.alter()
            self.work(dice.randrange(4))
        if dice.random() < 0.7:
            self.fill()
        if dice.random() < 0.6:
            self.shop.forget()
        if dice.random() < 0.3:
            self.expire()
        if dice.random() < 0.15:
            self.restart_relay()
        self.work(dice.randrange(4))
        self.shop.captured()
        self.follow(dice.randrange(len(self._consumers)))
        if dice.random() < 0.4:
            self._consumers.append((Follower(), dice.choice(ASKS)))
        if len(self._consumers) > 6:
            self._consumers.pop(dice.randrange(len(self._consumers)))
        self.kinds |= {kind for follower, _ in self._consumers for kind in follower.kinds}


@contextmanager
def campaign(folder, dice, monkeypatch):
    """One in a folder, begun."""
    with ExitStack() as stack:
        shop = Shop(folder, TABLES)
        stack.enter_context(shop.captured_by_a_relay())
        stack.callback(lambda: shop.relay.stop())  # noqa: PLW0108 - the one that is there by then
        shop.captured()  # a table without a key shows a row twice that is logged while it is read
        found = Campaign(shop, dice, monkeypatch)
        stack.callback(found.close)
        shop.name_service(found._servers[0].url)
        found.work(10)
        shop.fill()
        yield found
