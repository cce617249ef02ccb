"""The shop on a MySQL or MariaDB server, in the types that people use there.

The application deletes the lines of an order itself: what InnoDB does for a foreign key's ON DELETE CASCADE is not
written to the server's log, so no reader of that log can know of it.
"""

import json
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from databus.testing.shop._workload import CITIES, Workload

if TYPE_CHECKING:
    import pymysql

DATABASE: Final = "shop"
_GONE_S_MAX: Final = 60.0
_AGAIN_S: Final = 0.1
_LOST: Final = (0, 1053, 1927, 2006, 2013)  # the connection is closed, the server ends, ended it, is gone, went away
_AGAIN: Final = (
    1020,  # MariaDB, innodb_snapshot_isolation: a row is no longer as this transaction has read it
    1205,  # a lock was not had in time; the statement alone is undone
    1213,  # deadlock; the transaction is undone
    1412,  # a table was altered since this transaction began
)
_AGAIN_MAX: Final = 100
_BATCH: Final = 500

_SCHEMA: Final = (
    f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4",
    f"USE {DATABASE}",
    """CREATE TABLE customers (
      id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL, email VARCHAR(190) UNIQUE, city VARCHAR(60),
      balance_cents BIGINT NOT NULL DEFAULT 0, profile JSON
    )""",
    """CREATE TABLE stock (
      product_id INT PRIMARY KEY, name VARCHAR(100) NOT NULL, quantity INT NOT NULL, price_cents INT UNSIGNED NOT NULL,
      weight DECIMAL(8, 3), rating FLOAT, labels SET('new', 'heavy', 'fragile') NOT NULL DEFAULT 'new'
    )""",
    """CREATE TABLE orders (
      id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, customer_id BIGINT NOT NULL,
      status ENUM('open', 'paid', 'sent') NOT NULL, total_cents BIGINT NOT NULL, placed_at DATETIME(6),
      changed_at TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), KEY (customer_id)
    )""",
    """CREATE TABLE order_lines (
      order_id BIGINT UNSIGNED NOT NULL, line SMALLINT NOT NULL, product_id INT NOT NULL, quantity INT NOT NULL,
      price_cents INT UNSIGNED NOT NULL, gift BLOB, PRIMARY KEY (order_id, line),
      FOREIGN KEY (order_id) REFERENCES orders(id)
    )""",
)


def create_shop_on(
    connect: "Callable[[], pymysql.Connection[Any]]",
    *,
    customers: int = 1000,
    products: int = 200,
    orders: int = 2000,
    seed: int = 0,
) -> None:
    """Make a database `shop` on a server, with the shop's tables, and fill them. connect: as a user who may."""
    dice = random.Random(seed)
    shop = MysqlWorkload(connect, dice, database=None)
    for statement in _SCHEMA:
        shop.execute(statement)
    shop.execute("BEGIN")
    shop.execute_many(
        "INSERT INTO customers (name, email, city, balance_cents) VALUES (%s, %s, %s, %s)",
        [(f"customer {i}", f"c{i}@example.com", dice.choice(CITIES), dice.randrange(10_000)) for i in range(customers)],
    )
    shop.execute_many(
        "INSERT INTO stock (product_id, name, quantity, price_cents, weight, rating) VALUES (%s, %s, %s, %s, %s, %s)",
        [
            (i, f"product {i}", dice.randrange(1000), dice.randrange(50, 20_000), dice.random() * 9, dice.random() * 5)
            for i in range(products)
        ],
    )
    for number in range(orders):
        shop.place_order()
        if number % _BATCH == _BATCH - 1:
            shop.execute("COMMIT")
            shop.execute("BEGIN")
    shop.execute("COMMIT")
    shop.close()


class MysqlWorkload(Workload):
    """A day in the shop. Survives restarts of the server as a decent application does: it connects again, and what was
    under way is lost.
    """

    def __init__(
        self, connect: "Callable[[], pymysql.Connection[Any]]", dice: random.Random, *, database: str | None = DATABASE
    ) -> None:
        super().__init__(dice)
        self._connect = connect
        self._database = database
        self._db = self._connected()

    def close(self) -> None:
        """See `Workload.close`."""
        self._db.close()

    def execute(self, statement: str) -> None:
        """Run one statement as it stands."""
        self._db.cursor().execute(statement)

    def execute_many(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        """Run an INSERT for many rows."""
        self._db.cursor().executemany(statement, rows)

    def step(self) -> None:
        """One transaction, now and then rolled back; none if the server went away in the middle. Where the server asks
        to try again, the same transaction runs again from its beginning.
        """
        import pymysql

        dice = self._dice.getstate()
        try:
            for _ in range(_AGAIN_MAX):
                try:
                    super().step()
                    return
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in _AGAIN:
                        raise
                self._run("ROLLBACK")
                self._dice.setstate(dice)
            super().step()
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
            self._come_back(error)

    def notice_channel(self) -> None:
        """See `Workload.notice_channel`."""
        import pymysql

        try:
            self.has_channel = self._one("SHOW COLUMNS FROM orders LIKE 'channel'") is not None
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
            self._come_back(error)

    def _come_back(self, error: Exception) -> None:
        if error.args[0] not in _LOST:
            raise error
        self._db = self._connected()

    def _connected(self) -> "pymysql.Connection[Any]":
        """A new connection; waits for a server that is away, not for ever."""
        import pymysql

        deadline = time.monotonic() + _GONE_S_MAX
        while True:
            try:
                connection = self._connect()
                if self._database is not None:
                    connection.select_db(self._database)
                return connection
            except pymysql.err.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_S)

    def _run(self, sql: str, *values: object) -> Any:
        cursor = self._db.cursor()
        cursor.execute(sql.replace("?", "%s"), values or None)
        return cursor

    def _begin(self) -> None:
        self._run("BEGIN")

    def _actions(self) -> list[tuple[Callable[[], None], float]]:
        return [*super()._actions(), (self._learn, 8)]

    def _cancel_order(self) -> None:
        order = self._some_order()
        self._run("DELETE FROM order_lines WHERE order_id = ?", order)
        self._run("DELETE FROM orders WHERE id = ?", order)

    def _move_customer(self) -> None:
        """To a number that the counter has given out: it does not look at numbers that others choose."""
        old = self._some_customer()
        new = self._run("INSERT INTO customers (name) VALUES ('nobody')").lastrowid
        self._run("DELETE FROM customers WHERE id = ?", new)
        self._run("UPDATE customers SET id = ? WHERE id = ?", new, old)

    def _set_quantity(self, product: int, quantity: int) -> None:
        self._run(
            "INSERT INTO stock (product_id, name, quantity, price_cents) VALUES (?, ?, ?, 100) "
            "ON DUPLICATE KEY UPDATE quantity = VALUES(quantity), labels = 'heavy,fragile'",
            *(product, f"product {product}", quantity),
        )

    def _learn(self) -> None:
        """What is known of a customer, as JSON."""
        dice = self._dice
        profile = {"visits": dice.randrange(1000), "likes": dice.sample(["tea", "木", "naïve"], 2), "vip": None}
        self._run("UPDATE customers SET profile = ? WHERE id = ?", json.dumps(profile), self._some_customer())
