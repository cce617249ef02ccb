"""Workload: what happens in the shop, in the SQL that all databases share."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

TABLES: Final = ("customers", "order_lines", "orders", "stock")
CITIES: Final = ("Oslo", "Łódź", "São Paulo", "東京", "Nürnberg", None)
_PRODUCTS_MAX: Final = 200


class Workload(ABC):
    """Transactions of a day in the shop. `step` makes one."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.transactions = 0
        self.has_channel = False

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    @abstractmethod
    def notice_channel(self) -> None:
        """Begin to use the column `channel` of orders once it is there, as a new release of the program would."""

    @abstractmethod
    def _run(self, sql: str, *values: object) -> Any:
        """Run a statement; `?` stands for each value. Returns the DB-API's cursor."""

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _cancel_order(self) -> None:
        """An order goes, and its lines with it."""

    @abstractmethod
    def _move_customer(self) -> None:
        """A changed key."""

    @abstractmethod
    def _set_quantity(self, product: int, quantity: int) -> None:
        """An upsert."""

    def step(self) -> None:
        """One transaction, now and then rolled back."""
        self._begin()
        action = self._dice.choices(*zip(*self._actions(), strict=True))[0]
        action()
        if self._dice.random() < 0.02:
            self._run("ROLLBACK")
        else:
            self._run("COMMIT")
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

    def _one(self, query: str, *values: object) -> int | None:
        row = self._run(query, *values).fetchone()
        return None if row is None else row[0]

    def _some_order(self) -> int | None:
        top = self._one("SELECT max(id) FROM orders") or 0
        return self._one("SELECT id FROM orders WHERE id >= ? ORDER BY id LIMIT 1", self._dice.randint(0, top))

    def _some_customer(self) -> int:
        top = self._one("SELECT max(id) FROM customers") or 0
        return self._one("SELECT id FROM customers WHERE id >= ? ORDER BY id LIMIT 1", self._dice.randint(0, top)) or 0

    def place_order(self) -> None:
        """An order with its lines, and the stock that it takes."""
        dice = self._dice
        order = self._run(
            "INSERT INTO orders (customer_id, status, total_cents, placed_at) VALUES (?, 'open', 0, ?)",
            self._some_customer(),
            time.strftime("%Y-%m-%dT%H:%M:%S"),
        ).lastrowid
        if self.has_channel:
            self._run("UPDATE orders SET channel = ? WHERE id = ?", dice.choice(["app", "shop", None]), order)
        for line in range(dice.randint(1, 6)):
            product, quantity = dice.randrange(_PRODUCTS_MAX), dice.randint(1, 5)
            price = self._one("SELECT price_cents FROM stock WHERE product_id = ?", product) or 100
            gift = dice.randbytes(8) if dice.random() < 0.1 else None
            self._run(
                "INSERT INTO order_lines (order_id, line, product_id, quantity, price_cents, gift) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                *(order, line, product, quantity, price, gift),
            )
            self._run("UPDATE stock SET quantity = quantity - ? WHERE product_id = ?", quantity, product)
        self._run(
            "UPDATE orders SET total_cents = (SELECT sum(quantity * price_cents) FROM order_lines WHERE order_id = ?) "
            "WHERE id = ?",
            *(order, order),
        )

    def _pay_order(self) -> None:
        order = self._some_order()
        self._run("UPDATE orders SET status = 'paid' WHERE id = ?", order)
        self._run(
            "UPDATE customers SET balance_cents = balance_cents - (SELECT total_cents FROM orders WHERE id = ?) "
            "WHERE id = (SELECT customer_id FROM orders WHERE id = ?)",
            *(order, order),
        )

    def _new_customer(self) -> None:
        number = self._dice.randrange(1 << 40)
        values = (f"customer {number}", f"c{number}@example.com", self._dice.choice(CITIES))
        self._run("INSERT INTO customers (name, email, city) VALUES (?, ?, ?)", *values)

    def _count_stock(self) -> None:
        for product in self._dice.sample(range(_PRODUCTS_MAX + 10), 5):
            self._set_quantity(product, self._dice.randrange(2000))

    def _replace_customer(self) -> None:
        """REPLACE over another unique key: the row that had this e-mail goes, without a delete of its own."""
        email = self._one("SELECT email FROM customers WHERE id = ?", self._some_customer())
        number = self._dice.randrange(1 << 40)
        values = (f"replaced {number}", email or f"r{number}@example.com")
        self._run("REPLACE INTO customers (name, email) VALUES (?, ?)", *values)

    def _half_an_order(self) -> None:
        """A savepoint that is rolled back inside a transaction that is not."""
        self._run("SAVEPOINT half")
        self.place_order()
        self._run("ROLLBACK TO SAVEPOINT half")
        self._run("RELEASE SAVEPOINT half")
        self._pay_order()

    def _restock(self) -> None:
        self._run("UPDATE stock SET quantity = quantity + 100")

    def _campaign(self) -> None:
        for _ in range(1000):
            self._new_customer()
