"""A small shop in SQLite, and somebody who keeps it busy: the application that demos and tests capture.

    python -m databus.testing.shop shop.db --create --seconds 30 --rate 200

Money is in cents. The workload knows nothing of databus: it is an ordinary program with ordinary transactions, of one
row to a thousand, with upserts, REPLACE, changed keys, savepoints, rollbacks and cascading deletes.
"""

import argparse
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

TABLES: Final = ("customers", "order_lines", "orders", "stock")
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
_CITIES: Final = ("Oslo", "Łódź", "São Paulo", "東京", "Nürnberg", None)


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
            (i, f"customer {i}", f"c{i}@example.com", dice.choice(_CITIES), dice.randrange(10_000))
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
    shop = Workload(connection, dice)
    for _ in range(orders):
        shop.place_order()
    connection.execute("COMMIT")
    connection.close()


class Workload:
    """Transactions of a day in the shop. `step` makes one."""

    def __init__(self, connection: sqlite3.Connection, dice: random.Random) -> None:
        self._db = connection
        self._dice = dice
        self.transactions = 0
        self.has_channel = False

    def step(self) -> None:
        """One transaction, now and then rolled back."""
        self._db.execute("BEGIN IMMEDIATE")
        action = self._dice.choices(*zip(*self._actions(), strict=True))[0]
        action()
        if self._dice.random() < 0.02:
            self._db.execute("ROLLBACK")
        else:
            self._db.execute("COMMIT")
            self.transactions += 1

    def _actions(self) -> list[tuple[Callable[[], None], float]]:
        return [
            (self.place_order, 40),
            (self._pay_order, 25),
            (self._cancel_order, 10),
            (self._new_customer, 10),
            (self._move_customer, 2),
            (self._count_stock, 6),
            (self._replace_customer, 3),
            (self._half_an_order, 3),
            (self._restock, 0.6),
            (self._campaign, 0.4),
        ]

    def notice_channel(self) -> None:
        """Begin to use the column `channel` of orders once it is there, as a new release of the program would."""
        self.has_channel = any(row[1] == "channel" for row in self._db.execute("PRAGMA table_info(orders)"))

    def _one(self, query: str, *values: object) -> int | None:
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _some_order(self) -> int | None:
        top = self._one("SELECT max(id) FROM orders") or 0
        return self._one("SELECT id FROM orders WHERE id >= ? LIMIT 1", self._dice.randint(0, top))

    def _some_customer(self) -> int:
        top = self._one("SELECT max(id) FROM customers") or 0
        return self._one("SELECT id FROM customers WHERE id >= ? LIMIT 1", self._dice.randint(0, top)) or 0

    def place_order(self) -> None:
        """An order with its lines, and the stock that it takes."""
        dice = self._dice
        order = self._one(
            "INSERT INTO orders (customer_id, status, total_cents, placed_at) VALUES (?, 'open', 0, ?) RETURNING id",
            self._some_customer(),
            time.strftime("%Y-%m-%dT%H:%M:%S"),
        )
        if self.has_channel:
            self._db.execute("UPDATE orders SET channel = ? WHERE id = ?", (dice.choice(["app", "shop", None]), order))
        for line in range(dice.randint(1, 6)):
            product, quantity = dice.randrange(200), dice.randint(1, 5)
            price = self._one("SELECT price_cents FROM stock WHERE product_id = ?", product) or 100
            gift = dice.randbytes(8) if dice.random() < 0.1 else None
            values = (order, line, product, quantity, price, gift)
            self._db.execute(
                "INSERT INTO order_lines (order_id, line, product_id, quantity, price_cents, gift) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                values,
            )
            self._db.execute("UPDATE stock SET quantity = quantity - ? WHERE product_id = ?", (quantity, product))
        self._db.execute(
            "UPDATE orders SET total_cents = (SELECT sum(quantity * price_cents) FROM order_lines WHERE order_id = ?1) "
            "WHERE id = ?1",
            (order,),
        )

    def _pay_order(self) -> None:
        order = self._some_order()
        self._db.execute("UPDATE orders SET status = 'paid' WHERE id = ?", (order,))
        self._db.execute(
            "UPDATE customers SET balance_cents = balance_cents - (SELECT total_cents FROM orders WHERE id = ?1) "
            "WHERE id = (SELECT customer_id FROM orders WHERE id = ?1)",
            (order,),
        )

    def _cancel_order(self) -> None:
        self._db.execute("DELETE FROM orders WHERE id = ?", (self._some_order(),))

    def _new_customer(self) -> None:
        number = self._dice.randrange(1 << 40)
        values = (f"customer {number}", f"c{number}@example.com", self._dice.choice(_CITIES))
        self._db.execute("INSERT INTO customers (name, email, city) VALUES (?, ?, ?)", values)

    def _move_customer(self) -> None:
        """A changed key."""
        old, new = self._some_customer(), (self._one("SELECT max(id) FROM customers") or 0) + self._dice.randint(1, 3)
        self._db.execute("UPDATE customers SET id = ? WHERE id = ?", (new, old))

    def _count_stock(self) -> None:
        """Upserts."""
        for product in self._dice.sample(range(210), 5):
            self._db.execute(
                "INSERT INTO stock (product_id, name, quantity, price_cents) VALUES (?, ?, ?, 100) "
                "ON CONFLICT (product_id) DO UPDATE SET quantity = excluded.quantity",
                (product, f"product {product}", self._dice.randrange(2000)),
            )

    def _replace_customer(self) -> None:
        """REPLACE over another unique key: the row that had this e-mail goes, without a delete of its own."""
        email = self._db.execute("SELECT email FROM customers WHERE id = ?", (self._some_customer(),)).fetchone()
        number = self._dice.randrange(1 << 40)
        values = (f"replaced {number}", email[0] if email else f"r{number}@example.com")
        self._db.execute("INSERT OR REPLACE INTO customers (name, email) VALUES (?, ?)", values)

    def _half_an_order(self) -> None:
        """A savepoint that is rolled back inside a transaction that is not."""
        self._db.execute("SAVEPOINT half")
        self.place_order()
        self._db.execute("ROLLBACK TO half")
        self._db.execute("RELEASE half")
        self._pay_order()

    def _restock(self) -> None:
        self._db.execute("UPDATE stock SET quantity = quantity + 100")

    def _campaign(self) -> None:
        for _ in range(1000):
            self._new_customer()


def main(arguments: list[str] | None = None) -> int:
    """Run the workload as a program until its time is over or it is told to stop; prints what it did."""
    parser = argparse.ArgumentParser(prog="python -m databus.testing.shop", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--create", action="store_true", help="make the tables and fill them first")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="transactions a second at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.create:
        create_shop(options.path, seed=options.seed)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    connection = connect(options.path)
    shop = Workload(connection, random.Random(options.seed + 1))
    start = time.monotonic()
    while not stopping.is_set() and (now := time.monotonic() - start) < options.seconds:
        if shop.transactions % 50 == 0:
            shop.notice_channel()
        shop.step()
        stopping.wait(max(0.0, shop.transactions / options.rate - now))
    connection.close()
    sys.stdout.write(f"{shop.transactions} transactions in {time.monotonic() - start:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
