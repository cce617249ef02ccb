"""Changes of tables in the range that is asked for, on MySQL and MariaDB: each way of looking back is as following."""

import pytest

from tests.bootstrap.followers import Follower
from tests.bootstrap.mysql_shop import MysqlShop

pytestmark = pytest.mark.nightly

ALTERED = {
    "an index": "ALTER TABLE orders ADD INDEX by_total (total)",
    "a column that was added, with what rows have": "ALTER TABLE orders ADD COLUMN city VARCHAR(20) DEFAULT 'Bern'",
    "a column that was added, without": "ALTER TABLE orders ADD COLUMN zip INT",
    "a longer text": "ALTER TABLE orders MODIFY name VARCHAR(60)",
    "a column with another name": "ALTER TABLE orders CHANGE zip code INT",
    "a column that was taken away": "ALTER TABLE orders DROP COLUMN code",
    "one that comes back": "ALTER TABLE orders ADD COLUMN zip INT",
    "another type": "ALTER TABLE orders MODIFY total INT",
    "a time that the server makes": "ALTER TABLE orders ADD COLUMN made DATETIME DEFAULT CURRENT_TIMESTAMP",
    "the first type again": "ALTER TABLE orders MODIFY total DECIMAL(10, 2)",
    "a longer key": "ALTER TABLE orders MODIFY id BIGINT",
    "truncate": "TRUNCATE TABLE orders",
    "another table of the name": "DROP TABLE orders",
    "a table with another name": "RENAME TABLE stock TO shelves",
    "one of other columns": "DROP TABLE stock",
}
AGAIN = {
    "another table of the name": "CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(50), total DECIMAL(10, 2))",
    "a table with another name": "RENAME TABLE shelves TO stock",
    "one of other columns": "CREATE TABLE stock (id INT PRIMARY KEY, made DATE, `left` VARCHAR(9))",
}
ORDERS, STOCK = "main.orders", "main.stock"
ASKED = ["shop/main.orders", "shop/main.stock"]


def test_since_state_and_every_change_are_what_a_follower_has_over_each_change_of_a_table(tmp_path, database_server):
    with MysqlShop(tmp_path, database_server).running() as shop:
        shop.churn(1, 15)
        shop.captured()
        follower, number = Follower().follow(shop.url, sources=ASKED), 20
        filtered = Follower().follow(shop.url, sources=ASKED[:1], where="total >= 3")
        for what, statement in ALTERED.items():
            old, every = follower.saved(), follower.saved()
            shop.churn(number, number + 4)
            shop.execute(statement)
            shop.captured()
            if what in AGAIN:
                shop.execute(AGAIN[what])
            shop.churn(number + 4, number + 8)
            number += 10
            shop.captured()
            want = follower.follow(shop.url, sources=ASKED).images(ORDERS, STOCK)
            shop.forget()
            for copy in (follower, old, Follower()):
                copy.follow(shop.url, sources=ASKED)
                for table in (ORDERS, STOCK):
                    assert copy.rows(table) == shop.rows(table), (what, table, copy.kinds)
            filtered.follow(shop.url, sources=ASKED[:1], where="total >= 3")
            assert filtered.rows(ORDERS) == shop.rows(ORDERS, " WHERE total >= 3"), what
            every.follow(shop.url, sources=ASKED, look_back="all")
            assert every.images(ORDERS, STOCK) == want, what
            assert "every" in every.kinds
        assert filtered.kinds > {"since"}
