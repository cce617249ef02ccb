"""The shop on a MySQL or MariaDB server, with one relay or two, for tests that need its log, its DDL or its GTIDs."""

from contextlib import contextmanager

import pymysql.cursors

from databus.link import RelayClient
from databus.relay import Relay, parse_relay
from databus.relay._config import BootstrapAt
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.client.conftest import wait_for

TABLES = """
CREATE TABLE main.orders (id INT PRIMARY KEY, name VARCHAR(50), total DECIMAL(10, 2));
CREATE TABLE main.stock (id INT PRIMARY KEY, `left` BIGINT UNSIGNED);
CREATE TABLE main.ballast (id INT PRIMARY KEY, n INT, filler TEXT)
"""


KEPT_BYTES = 24_000


class MysqlShop(Shop):
    """The shop on a server."""

    def __init__(self, folder, server):
        self.server = server
        super().__init__(folder, TABLES)

    def database(self, statements):
        """See `Shop.database`."""
        self.server.run("DROP DATABASE IF EXISTS main", "CREATE DATABASE main", *statements.split(";"))
        self.server.run(f"INSERT INTO main.ballast VALUES (1, 0, '{'x' * 2000}')")
        self.db = self.server.connect(database="main", autocommit=False)
        password = self.folder / "password"
        password.write_text(self.server.capture_password)
        return {
            "type": "mysql",
            "hosts": [f"{self.server.host}:{self.server.port}"],
            "user": self.server.capture_user,
            "password": "${file:password}",
            "tables": ["main.*"],
        }

    def execute(self, *statements):
        """One transaction."""
        with self.db.cursor() as cursor:
            for each in statements:
                cursor.execute(each)
        self.db.commit()

    def select(self, query):
        """Rows as values."""
        rows = self.server.query(query.replace("FROM ", "FROM main."))
        return sorted(rows, key=repr)

    def rows(self, table, where=""):
        """What SELECT says of a table, `db.table`: rows as sorted values by name."""
        with self.server.connect(cursorclass=pymysql.cursors.DictCursor) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}{where}")
            return sorted((sorted(row.items()) for row in cursor.fetchall()), key=repr)

    def churn(self, first, last):
        """Random-looking work."""
        for n in range(first, last):
            self.execute(
                f"INSERT INTO orders (id, name, total) VALUES ({n}, 'order {n}', {n % 7})",
                f"REPLACE INTO stock (id, `left`) VALUES ({n % 5}, {n})",
                f"DELETE FROM orders WHERE id = {n - 3} AND id % 2 = 0",
                f"UPDATE orders SET id = id + 10000 WHERE id = {n - 2} AND id % 5 = 0",
                f"UPDATE orders SET total = total + 1 WHERE id % 7 = {n % 7}",
            )

    @contextmanager
    def another_relay(self):
        """A relay of the same database with a folder of its own, which names the same service; and its client."""
        made = parse_relay({**self._relay_file, "folder": "another"}, folder=self.folder)
        with Relay(made) as relay:
            relay.config.bootstrap = BootstrapAt(url=self.service_url)
            client = RelayClient(relay.url)
            first = self.captured()
            wait_for(lambda: client.physicals().get(PHYSICAL) and is_at(client, first), "the other relay")
            # behind the SCN at which both may have put controls, each numbered by its own clock
            self.execute("UPDATE ballast SET n = n + 1 WHERE id = 1")
            end = self.captured()
            wait_for(lambda: is_at(client, end), "the other relay")
            yield relay, client

    def forget(self):
        """See `Shop.forget`."""
        self.purged((self.relay, self.client))

    def purged(self, *relays):
        """Have relays lose all that the stores have, which keep up."""
        self.fill()
        had = self.written["state"].pair
        logs = [relay.captures[PHYSICAL].log for relay, _ in relays]
        for log in logs:
            log.config = log.config.model_copy(update={"retention_bytes_max": KEPT_BYTES})
        while any(client.head(PHYSICAL).oldest.pair <= had for _, client in relays):
            self.execute("UPDATE ballast SET n = n + 1 WHERE id = 1")  # less than is kept
            self.fill()
            end = self.captured()
            for _, client in relays:
                wait_for(lambda client=client, end=end: is_at(client, end), "all relays")
        for log in logs:
            log.config = log.config.model_copy(update={"retention_bytes_max": 1 << 30})


def is_at(client, end):
    """Whether a relay has come to a position, and no snapshot is open there."""
    published = client.head(PHYSICAL).published
    return published.scn >= end.scn and not published.snapshots
