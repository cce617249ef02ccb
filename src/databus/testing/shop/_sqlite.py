"""The shop in a SQLite file: lines go with their order by the database's own cascade."""

import random
import sqlite3
from pathlib import Path
from typing import Final

from databus.testing.shop._workload import CITIES, Workload

_BUSY_S: Final = 30.0

_SCHEMA: Final = """
CREATE TABLE customers (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT UNIQUE, city TEXT, balance_cents INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE stock (
  product_id INTEGER PRIMARY KEY, name TEXT NOT NULL, quantity INTEGER NOT NULL, price_cents INTEGER NOT NULL,
  weight REAL
);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, status TEXT NOT NULL, total_cents INTEGER NOT NULL,
  placed_at TEXT
);
CREATE TABLE order_lines (
  order_id INTEGER NOT NULL REFERENCES orders(id) ON DELETE CASCADE ON UPDATE CASCADE, line INTEGER NOT NULL,
  product_id INTEGER NOT NULL, quantity INTEGER NOT NULL, price_cents INTEGER NOT NULL, gift BLOB,
  PRIMARY KEY (order_id, line)
) WITHOUT ROWID;
"""


def connect(path: Path) -> sqlite3.Connection:
    """An ordinary connection: WAL, foreign keys on, explicit transactions, waiting for its turn."""
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def create_shop(path: Path, *, customers: int = 1000, products: int = 200, orders: int = 2000, seed: int = 0) -> None:
    """Make the shop's tables and fill them."""
    dice = random.Random(seed)
    connection = connect(path)
    connection.executescript(_SCHEMA)
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO customers (id, name, email, city, balance_cents) VALUES (?, ?, ?, ?, ?)",
        [
            (i, f"customer {i}", f"c{i}@example.com", dice.choice(CITIES), dice.randrange(10_000))
            for i in range(customers)
        ],
    )
    connection.executemany(
        "INSERT INTO stock VALUES (?, ?, ?, ?, ?)",
        [
            (i, f"product {i}", dice.randrange(1000), dice.randrange(50, 20_000), dice.random() * 9)
            for i in range(products)
        ],
    )
    shop = SqliteWorkload(connection, dice)
    for _ in range(orders):
        shop.place_order()
    connection.execute("COMMIT")
    connection.close()


class SqliteWorkload(Workload):
    """A day in the shop on an open connection."""

    def __init__(self, connection: sqlite3.Connection, dice: random.Random) -> None:
        super().__init__(dice)
        self._db = connection

    def close(self) -> None:
        """See `Workload.close`."""
        self._db.close()

    def notice_channel(self) -> None:
        """See `Workload.notice_channel`."""
        self.has_channel = any(row[1] == "channel" for row in self._db.execute("PRAGMA table_info(orders)"))

    def _run(self, sql: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(sql, values)

    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def _cancel_order(self) -> None:
        self._run("DELETE FROM orders WHERE id = ?", self._some_order())

    def _move_customer(self) -> None:
        old, new = self._some_customer(), (self._one("SELECT max(id) FROM customers") or 0) + self._dice.randint(1, 3)
        self._run("UPDATE customers SET id = ? WHERE id = ?", new, old)

    def _set_quantity(self, product: int, quantity: int) -> None:
        self._run(
            "INSERT INTO stock (product_id, name, quantity, price_cents) VALUES (?, ?, ?, 100) "
            "ON CONFLICT (product_id) DO UPDATE SET quantity = excluded.quantity",
            *(product, f"product {product}", quantity),
        )
