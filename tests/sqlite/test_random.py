"""A random workload by several writers ends identical: the groups, replayed by the mirror rule, are the tables.

Statements are drawn without regard to whether they succeed: those that SQLite refuses must leave nothing behind.
"""

import contextlib
import random
import sqlite3
import subprocess
import sys
import threading

from databus.sources.sqlite import alter
from tests.sqlite.conftest import Shop
from tests.sqlite.model import assert_identical, drain, drain_until

SCHEMA = """
CREATE TABLE customers(id INTEGER PRIMARY KEY, email TEXT UNIQUE COLLATE NOCASE, name TEXT, boss INTEGER
    REFERENCES customers(id) ON DELETE SET NULL ON UPDATE CASCADE);
CREATE UNIQUE INDEX customers_name ON customers(lower(name)) WHERE length(name) > 1;
CREATE TABLE orders(id INTEGER PRIMARY KEY,
    customer INTEGER REFERENCES customers(id) ON DELETE CASCADE ON UPDATE CASCADE,
    number INTEGER UNIQUE ON CONFLICT REPLACE, total REAL, note BLOB);
CREATE TABLE lines(order_id INTEGER REFERENCES orders(id) ON DELETE CASCADE ON UPDATE CASCADE, line INTEGER, sku TEXT,
    code TEXT AS (sku || '-' || line) STORED UNIQUE, PRIMARY KEY(order_id, line)) WITHOUT ROWID;
CREATE TABLE audit(what TEXT, how_many INTEGER);
CREATE TRIGGER customers_before BEFORE INSERT ON customers WHEN NEW.boss = 3
    BEGIN INSERT OR IGNORE INTO customers VALUES (NEW.id + 50, 'n' || NEW.id, 'n' || NEW.id, NULL); END;
CREATE TRIGGER orders_total AFTER INSERT ON lines
    BEGIN UPDATE orders SET total = total + 1 WHERE id = NEW.order_id; END;
CREATE TRIGGER orders_gone AFTER DELETE ON orders BEGIN INSERT INTO audit VALUES ('gone', OLD.id); END;
CREATE TRIGGER customers_touch AFTER UPDATE OF name ON customers WHEN NEW.name NOT LIKE '%!'
    BEGIN UPDATE customers SET name = NEW.name || '!' WHERE id = NEW.id; END;
"""
TABLES = ["customers", "orders", "lines", "audit"]


def statement(rng: random.Random) -> str:
    clause = rng.choice(["", "OR REPLACE", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ABORT"])
    i, j, k = rng.randint(1, 15), rng.randint(1, 15), rng.randint(1, 6)
    text = rng.choice("abcdefgABCDEFG") * rng.randint(1, 2)
    return rng.choice(
        [
            f"INSERT {clause} INTO customers VALUES ({i}, '{text}', '{text.swapcase()}', {rng.choice(['NULL', k])})",
            f"INSERT {clause} INTO customers(email, boss) VALUES ('{text}', {k})",
            f"INSERT INTO customers VALUES ({i}, '{text}', NULL, NULL) ON CONFLICT(email) DO UPDATE SET boss = {k}",
            f"INSERT INTO customers VALUES ({i}, '{text}', NULL, NULL) ON CONFLICT DO NOTHING",
            f"UPDATE {clause} customers SET id = {i}, email = '{text}' WHERE id = {j}",
            f"UPDATE {clause} customers SET name = '{text}' WHERE id IN ({i}, {j})",
            f"UPDATE {clause} customers SET rowid = {i} WHERE rowid = {j}",
            f"DELETE FROM customers WHERE id = {i}",
            f"INSERT {clause} INTO orders VALUES ({i}, {j}, {k}, {rng.random()}, randomblob({k}))",
            f"INSERT {clause} INTO orders SELECT id + {k}, customer, number + 1, 0, note FROM orders WHERE id < {i}",
            f"UPDATE {clause} orders SET number = number + 1 WHERE id > {i}",
            f"UPDATE {clause} orders SET id = {i} WHERE id = {j}",
            f"DELETE FROM orders WHERE number = {k}",
            f"INSERT {clause} INTO lines(order_id, line, sku) VALUES ({i}, {k}, '{text}')",
            f"UPDATE {clause} lines SET line = {k}, sku = '{text}' WHERE order_id = {i}",
            f"DELETE FROM lines WHERE line = {k}",
            f"DELETE FROM audit WHERE how_many = {i}",
        ]
    )


def write(path: str, seed: int, transactions: int) -> None:
    """One writer: transactions with savepoints and rollbacks; errors are part of it."""
    rng = random.Random(seed)
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("PRAGMA synchronous = OFF")
    db.execute(f"PRAGMA foreign_keys = {rng.randint(0, 3) > 0:d}")
    db.execute(f"PRAGMA recursive_triggers = {rng.randint(0, 2) == 0:d}")
    for _ in range(transactions):
        db.execute("BEGIN IMMEDIATE")
        for _ in range(rng.randint(1, 8)):
            action = rng.random()
            try:
                if action < 0.1:
                    db.execute("SAVEPOINT s")
                elif action < 0.15:
                    db.execute("ROLLBACK TO s")
                else:
                    db.execute(statement(rng))
            except sqlite3.Error as error:
                if not isinstance(error, sqlite3.IntegrityError | sqlite3.OperationalError):
                    raise
        if db.in_transaction:
            db.execute("ROLLBACK" if rng.random() < 0.1 else "COMMIT")
    db.close()


def make_tables(shop: Shop) -> None:
    shop.db.executescript(SCHEMA)
    rng = random.Random(1)
    for _ in range(30):
        try:
            shop.run(statement(rng))
        except sqlite3.Error:
            continue


def test_each_statement_alone_ends_identical(shop: Shop, seed: int) -> None:
    """One statement a window, compared after each: the shortest way to what differs."""
    make_tables(shop)
    rng = random.Random(seed)
    shop.run(f"PRAGMA foreign_keys = {seed % 2}", f"PRAGMA recursive_triggers = {seed // 2 % 2}")
    source = shop.start()
    drain(source, shop.log)
    mirror = shop.log.mirror()
    done = len(shop.log.groups)
    for number in range(300):
        sql = statement(rng)
        with contextlib.suppress(sqlite3.IntegrityError, sqlite3.OperationalError):
            shop.run(sql)
        drain(source, shop.log, 0)
        for group in shop.log.groups[done:]:
            mirror.apply(group)
        done = len(shop.log.groups)
        for table in ("customers", "orders", "lines"):
            copy = sorted(mirror.rows[f"main.{table}"].values(), key=repr)
            cursor = shop.db.execute(f"SELECT * FROM {table}")
            names = [each[0] for each in cursor.description]
            real = sorted((dict(zip(names, row, strict=True)) for row in cursor), key=repr)
            assert copy == real, f"statement {number}: {sql}"


def test_several_processes_end_identical(shop: Shop, seed: int) -> None:
    make_tables(shop)
    source = shop.start(group_bytes_max=20_000, chunk_rows_max=3, trim_rows_max=50)
    code = "import sys; from tests.sqlite.test_random import write; write(sys.argv[1], int(sys.argv[2]), 120)"
    writers = [subprocess.Popen([sys.executable, "-c", code, shop.path, str(seed + n)]) for n in range(3)]
    rng = random.Random(seed)

    def all_done() -> bool:
        if shop.log.groups and rng.random() < 0.3 and not shop.log.groups[-1].commit.continues:
            source.durable(shop.log.groups[-1].commit.position)
        if rng.random() < 0.02:
            source.request_snapshot(["main.customers"])
        return all(writer.poll() is not None for writer in writers)

    drain_until(source, shop.log, all_done)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["customers", "orders", "lines"])


def test_alters_under_load_end_identical(shop: Shop, seed: int) -> None:
    """Columns come by plain ALTER and by `alter`, one goes, indexes and triggers come and go, while others write."""
    make_tables(shop)
    source = shop.start(chunk_rows_max=5)
    threads = [threading.Thread(target=write, args=(shop.path, seed + n, 60)) for n in range(2)]
    for thread in threads:
        thread.start()
    ddl = [
        (False, "ALTER TABLE customers ADD COLUMN level INTEGER DEFAULT 3"),
        (False, "UPDATE customers SET level = id WHERE id % 2"),
        (True, "ALTER TABLE orders ADD COLUMN paid TEXT NOT NULL DEFAULT 'no'"),
        (False, "UPDATE orders SET paid = 'yes' WHERE id % 2"),
        (False, "CREATE TRIGGER late AFTER INSERT ON orders BEGIN UPDATE orders SET paid = '?' WHERE id = NEW.id; END"),
        (True, "ALTER TABLE customers RENAME COLUMN boss TO chief"),
        (False, "CREATE UNIQUE INDEX orders_u ON orders(customer, total)"),
        (False, "DROP TRIGGER late"),
        (
            False,
            "ALTER TABLE orders ADD COLUMN seen INTEGER DEFAULT 0",
        ),  # else five values fit again, a blob for `paid`
        (True, "ALTER TABLE orders DROP COLUMN note"),
    ]
    for told, sql in ddl:  # the writers' inserts with too few values fail from the first on; everything else goes on
        for _ in range(3):
            if (group := source.poll(5)) is not None:
                shop.log.append(group)
        with contextlib.suppress(sqlite3.IntegrityError):  # the index may not be possible
            if told:
                alter(shop.path, sql)
            else:
                shop.run(sql)
    drain_until(source, shop.log, lambda: not any(thread.is_alive() for thread in threads))
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["customers", "orders", "lines"])
