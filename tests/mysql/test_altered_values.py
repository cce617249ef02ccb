# ruff: noqa: E501 - statements read best whole
"""ALTERs that may change stored values, or take rows away, played over rows: a mirror holds what SELECT answers.

A server that refuses a statement has changed nothing: the table must come out the same all the more.
"""

from collections.abc import Callable
from contextlib import suppress

import pymysql

from databus.testing.servers import Server
from tests.mysql.following import Follower

CASES: dict[str, tuple[str, str, list[str]]] = {
    "a_counter_begins_at_a_zero": ("id INT NOT NULL PRIMARY KEY, v INT", "(0, 1), (5, 2)", ["MODIFY id INT NOT NULL AUTO_INCREMENT"]),
    "a_counter_keeps_its_zero": ("id INT AUTO_INCREMENT PRIMARY KEY, v INT", "(0, 1), (5, 2)", ["MODIFY id BIGINT AUTO_INCREMENT", "CHANGE id i BIGINT AUTO_INCREMENT"]),
    "a_counter_fills_nulls": ("id INT PRIMARY KEY, n INT NULL", "(1, NULL), (2, NULL), (3, 7)", ["MODIFY n INT NOT NULL AUTO_INCREMENT, ADD UNIQUE (n)"]),
    "a_counter_fills_nulls_and_is_wider": ("id INT PRIMARY KEY, n INT NULL", "(1, NULL), (2, 0)", ["CHANGE n m BIGINT AUTO_INCREMENT UNIQUE"]),
    "a_counter_becomes_another_columns": ("id INT AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL, KEY (n)", "(1, 0), (2, 9)", ["MODIFY id INT NOT NULL, MODIFY n INT NOT NULL AUTO_INCREMENT"]),
    "a_counter_by_other_words": ("id INT PRIMARY KEY, n BIGINT NOT NULL", "(1, 0), (2, 9)", ["MODIFY n BIGINT NOT NULL SERIAL DEFAULT VALUE"]),
    "nulls_that_a_lenient_server_fills": ("id INT PRIMARY KEY, n INT, s VARCHAR(9), d DECIMAL(5,2)", "(1, NULL, NULL, NULL)", ["MODIFY n INT NOT NULL", "MODIFY s VARCHAR(9) NOT NULL DEFAULT 'x', MODIFY d DECIMAL(5,2) NOT NULL"]),
    "nulls_that_a_key_fills": ("id INT PRIMARY KEY, n INT", "(1, NULL)", ["DROP PRIMARY KEY, ADD PRIMARY KEY (n)"]),
    "digits_of_a_decimal_stored": ("id INT PRIMARY KEY, d DECIMAL(5,2), g VARCHAR(40) AS (CONCAT('x', d)) STORED", "(1, 1.5, DEFAULT)", ["MODIFY d DECIMAL(9,4)"]),
    "digits_of_a_decimal_virtual": ("id INT PRIMARY KEY, d DECIMAL(5,2), g VARCHAR(40) AS (CONCAT('x', d)) VIRTUAL", "(1, 1.5, DEFAULT)", ["MODIFY d DECIMAL(9,4)"]),
    "digits_by_a_column_between": ("id INT PRIMARY KEY, d DECIMAL(5,2), g VARCHAR(40) AS (CONCAT('x', d)) STORED, h INT AS (LENGTH(g)) STORED", "(1, 1.5, DEFAULT, DEFAULT)", ["MODIFY d DECIMAL(9,4)"]),
    "fractions_of_a_time": ("id INT PRIMARY KEY, t DATETIME, g VARCHAR(40) AS (CONCAT(t)) STORED", "(1, '2020-01-02 10:11:12', DEFAULT)", ["MODIFY t DATETIME(3)"]),
    "zeros_before_a_number": ("id INT PRIMARY KEY, n INT UNSIGNED, g VARCHAR(40) AS (CONCAT(n)) STORED", "(1, 5, DEFAULT)", ["MODIFY n INT(4) UNSIGNED ZEROFILL"]),
    "the_number_of_a_member": ("id INT PRIMARY KEY, e ENUM('a','b'), g INT AS (e + 0) STORED", "(1, 'b', DEFAULT)", ["MODIFY e ENUM('c','a','b')"]),
    "a_comparison_stored": ("id INT PRIMARY KEY, s VARCHAR(9) COLLATE utf8mb4_general_ci, g INT AS (s = 'A') STORED", "(1, 'a', DEFAULT)", ["MODIFY s VARCHAR(9) COLLATE utf8mb4_bin"]),
    "a_comparison_virtual": ("id INT PRIMARY KEY, s VARCHAR(9) COLLATE utf8mb4_general_ci, g INT AS (s = 'A') VIRTUAL", "(1, 'a', DEFAULT)", ["MODIFY s VARCHAR(9) COLLATE utf8mb4_bin"]),
    "a_comparison_by_convert": ("id INT PRIMARY KEY, s VARCHAR(9) COLLATE utf8mb4_general_ci, g INT AS (s = 'A') STORED", "(1, 'a', DEFAULT)", ["CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"]),
    "a_comparison_by_a_default": ("id INT PRIMARY KEY, s VARCHAR(9) COLLATE utf8mb4_bin, g INT AS (s = 'A') STORED", "(1, 'a', DEFAULT)", ["COLLATE utf8mb4_general_ci", "MODIFY s VARCHAR(9)"]),
    "columns_that_change_names": ("id INT PRIMARY KEY, a INT, b INT, g INT AS (a + 1) STORED", "(1, 5, 50, DEFAULT)", ["CHANGE a b INT, CHANGE b a INT"]),
    "a_column_of_a_new_name": ("id INT PRIMARY KEY, d DECIMAL(5,2), g VARCHAR(40) AS (CONCAT('x', d)) STORED", "(1, 1.5, DEFAULT)", ["CHANGE d e DECIMAL(5,2)", "MODIFY e DECIMAL(9,4)"]),
    "another_expression": ("id INT PRIMARY KEY, a INT, d DECIMAL(5,2), g VARCHAR(40) AS (CONCAT('x', a)) STORED", "(1, 1, 1.5, DEFAULT)", ["MODIFY g VARCHAR(40) AS (CONCAT('x', d)) STORED", "MODIFY d DECIMAL(9,4)"]),
    "a_generated_column_added": ("id INT PRIMARY KEY, d DECIMAL(5,2)", "(1, 1.5)", ["ADD g VARCHAR(40) AS (CONCAT('x', d)) STORED", "MODIFY d DECIMAL(9,4)"]),
    "ignore_and_unique": ("id INT PRIMARY KEY, v INT", "(1, 5), (2, 5), (3, 6)", ["IGNORE ADD UNIQUE (v)"]),
    "ignore_and_a_collation": ("id INT PRIMARY KEY, s VARCHAR(9) COLLATE utf8mb4_bin, UNIQUE (s)", "(1, 'a'), (2, 'A')", ["IGNORE MODIFY s VARCHAR(9) COLLATE utf8mb4_general_ci"]),
    "ignore_and_convert": ("id INT PRIMARY KEY, s VARCHAR(9) COLLATE utf8mb4_bin, UNIQUE (s)", "(1, 'a'), (2, 'A')", ["IGNORE CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"]),
    "ignore_and_a_check": ("id INT PRIMARY KEY, v INT", "(1, -5), (2, 5)", ["IGNORE ADD CHECK (v > 0)"]),
    "ignore_and_partitions": ("id INT PRIMARY KEY, v INT", "(1, 5), (20, 5)", ["IGNORE PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10))"]),
    "ignore_and_a_period": ("id INT PRIMARY KEY, s DATE, e DATE", "(1, '2020-01-01', '2019-01-01')", ["IGNORE ADD PERIOD FOR p (s, e)"]),
    "ignore_and_an_old_check": ("id INT PRIMARY KEY, v INT", "(1, -5), (2, 5)", ["ADD CHECK (v > 0)", "IGNORE FORCE"]),
    "partitions": ("id INT PRIMARY KEY, v INT", "(1, 5), (20, 5)", ["PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10))", "PARTITION BY HASH (id) PARTITIONS 3", "COALESCE PARTITION 1", "REMOVE PARTITIONING"]),
    "checks": ("id INT PRIMARY KEY, v INT", "(1, -5), (2, 5)", ["ADD CHECK (v > 0)", "ADD CONSTRAINT c CHECK (v < 9)"]),
    "a_period_over_nulls": ("id INT PRIMARY KEY, s DATE, e DATE", "(1, '2020-01-01', '2021-01-01'), (2, '2020-01-01', NULL)", ["ADD PERIOD FOR p (s, e)", "DROP PERIOD FOR p"]),
    "a_period": ("id INT PRIMARY KEY, s DATE, e DATE", "(1, '2020-01-01', '2021-01-01')", ["ADD PERIOD FOR p (s, e)", "DROP PERIOD FOR p"]),
    "a_default_taken_away_at_once": ("id INT PRIMARY KEY", "(1)", ["ADD COLUMN c INT NOT NULL DEFAULT 2, ALTER COLUMN c DROP DEFAULT", "ADD d INT DEFAULT 3, ALTER d DROP DEFAULT"]),
    "a_default_set_at_once": ("id INT PRIMARY KEY", "(1)", ["ADD COLUMN c INT NOT NULL DEFAULT 2, ALTER COLUMN c SET DEFAULT 5", "ALTER d SET DEFAULT 5, ADD COLUMN d INT", "ADD e INT, MODIFY e BIGINT DEFAULT 7"]),
    "columns_that_come_again": ("id INT AUTO_INCREMENT PRIMARY KEY, v INT", "(5, 7), (9, 8)", ["DROP id, ADD id INT AUTO_INCREMENT FIRST", "DROP v, ADD v INT DEFAULT 1", "DROP v, DROP COLUMN IF EXISTS v"]),
    "if_exists_of_a_column_that_is_added": ("id INT PRIMARY KEY, v INT", "(1, 7)", [
        "ADD COLUMN IF NOT EXISTS c VARCHAR(9) DEFAULT 'x', MODIFY COLUMN IF EXISTS c INT DEFAULT 1", "ADD d INT DEFAULT 1, CHANGE COLUMN IF EXISTS d e INT DEFAULT 2",
        "ALTER COLUMN IF EXISTS f SET DEFAULT 5, ADD COLUMN f INT DEFAULT 3", "ADD g INT DEFAULT 2, RENAME COLUMN IF EXISTS g TO h", "ADD i INT DEFAULT 2, DROP COLUMN IF EXISTS i",
        "ADD COLUMN IF NOT EXISTS v BIGINT, MODIFY COLUMN IF EXISTS v BIGINT", "CHANGE v w INT, ADD COLUMN IF NOT EXISTS v INT DEFAULT 4"]),
    "if_exists_of_a_column_that_comes_again": ("id INT PRIMARY KEY, v INT, w INT", "(1, 7, 8)", [
        "DROP v, ADD v INT, MODIFY COLUMN IF EXISTS v VARCHAR(9) DEFAULT 'y'", "DROP w, ADD w INT, ALTER COLUMN IF EXISTS w SET DEFAULT 4", "DROP COLUMN IF EXISTS w, ADD COLUMN IF NOT EXISTS w INT DEFAULT 1"]),
    "members_that_are_equal_now": ("id INT PRIMARY KEY, e ENUM('a','b') COLLATE utf8mb4_general_ci, s SET('a','b') COLLATE utf8mb4_general_ci", "(1, 'a', 'a,b'), (2, 'b', 'a')", ["MODIFY e ENUM('A','a','b') COLLATE utf8mb4_general_ci", "MODIFY s SET('A','a','b') COLLATE utf8mb4_general_ci"]),
    "members_by_another_collation": ("id INT PRIMARY KEY, e ENUM('a','A','e','é') COLLATE utf8mb4_bin", "(1, 'A'), (2, 'é')", ["CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "MODIFY e ENUM('a','A','e','é','x') COLLATE utf8mb4_general_ci"]),
    "defaults_that_are_rounded": ("id INT PRIMARY KEY", "(1)", ["ADD a INT DEFAULT 2.5e0", "ADD c DECIMAL(6,2) DEFAULT -0.001", "ADD d DATE DEFAULT '1999-12-31 23:59:59.500'"]),
    "defaults_of_other_words": ("id INT PRIMARY KEY", "(1)", ["ADD a YEAR DEFAULT 0070", "ADD b VARCHAR(9) DEFAULT -0", "ADD c VARCHAR(3) DEFAULT 'abc   '", "ADD d INT DEFAULT x'3132'", "ADD e DOUBLE DEFAULT -0.0"]),
    "engines": ("id INT PRIMARY KEY, c CHAR(5), d DECIMAL(5,2), g VARCHAR(40) AS (CONCAT('x', d)) STORED", "(1, 'a ', 1.5, DEFAULT)", ["ENGINE=MyISAM", "FORCE", "ENGINE=InnoDB", "ORDER BY c", "ENGINE=CSV"]),
}  # fmt: skip
"""By the table's name: its columns, its rows, and what is done to it."""
STRICT = {
    name: case for name, case in CASES.items() if name.startswith(("a_counter", "nulls", "a_period", "a_default", "ignore_and_unique"))
}  # fmt: skip
"""Where it matters whether the server refuses what it may make fit."""


def test_a_mirror_holds_what_alters_made_of_the_rows(
    server: Server, database: str, follow: Callable[..., Follower]
) -> None:
    server.run(
        f"ALTER DATABASE {database} CHARACTER SET utf8mb4",
        f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)",
    )
    modes = {"STRICT_TRANS_TABLES": ("_strict", STRICT), "": ("", CASES)}
    follower = follow(database, server)
    with server.connect(database=database, charset="utf8mb4", autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
        for suffix, cases in modes.values():
            for name, (columns, rows, _) in cases.items():
                cursor.execute(f"CREATE TABLE {name}{suffix} ({columns})")
                cursor.execute(f"INSERT INTO {name}{suffix} VALUES {rows}")
        follower.catch_up(server, database)
        for mode, (suffix, cases) in modes.items():
            cursor.execute("SET sql_mode = %s", (mode,))
            for name, (_, _, alters) in cases.items():
                for actions in alters:
                    ignores = "IGNORE" if actions.startswith("IGNORE") else ""
                    with suppress(pymysql.err.MySQLError):
                        cursor.execute(f"ALTER {ignores} TABLE {name}{suffix} {actions.removeprefix('IGNORE')}")
    follower.check(server, database)
