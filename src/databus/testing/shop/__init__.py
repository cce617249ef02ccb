"""A small shop in a database, and a workload that keeps it busy: the application that demos and tests capture.

    python -m databus.testing.shop shop.db --create --seconds 30 --rate 200

Money is in cents. The workload knows nothing of databus: it is an ordinary program with ordinary transactions, of one
row to a thousand, with upserts, REPLACE, changed keys, savepoints, rollbacks and deletes of whole orders. What happens
is in `_workload`; the SQL of SQLite and of MySQL and MariaDB is in a module each.
"""

from databus.testing.shop._mysql import MysqlWorkload, create_shop_on
from databus.testing.shop._sqlite import SqliteWorkload, connect, create_shop
from databus.testing.shop._workload import TABLES, Workload

__all__ = ["TABLES", "MysqlWorkload", "SqliteWorkload", "Workload", "connect", "create_shop", "create_shop_on"]
