"""What a server holds is read for a comparison exactly, by nothing that decodes its log."""

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from databus.core import SourceCheckpoint, make_scn
from databus.pipeline import Comparison, compare, load_pipeline, read_source, run
from databus.sources.mysql import MysqlConfig
from databus.sources.mysql._oracle import mysql_oracle
from databus.testing.servers import KINDS, Server, ServerMissing, open_server
from databus.testing.shop import TABLES, MysqlWorkload, create_shop_on

TABLE = """
CREATE TABLE values_of.everything (
  id BIGINT UNSIGNED PRIMARY KEY, small SMALLINT ZEROFILL, flag BIT, bits BIT(40), price DECIMAL(12, 2),
  huge DECIMAL(60, 2), ratio FLOAT, exact DOUBLE, year_of YEAR, day DATE, took TIME(6), at DATETIME(6),
  at_utc TIMESTAMP(3) NULL, name VARCHAR(20) CHARACTER SET latin1, fixed BINARY(4), kind ENUM('a', 'b'),
  labels SET('x', 'y'), body JSON, secret TEXT
)"""
ROW = """
INSERT INTO values_of.everything VALUES (
  18446744073709551615, 7, b'1', 1099511627775, -12.50, 123456789012345678901234567890123456789012345678.25, 0.1, 0.1,
  2026, '2026-02-28', '-100:00:00.5', '2026-11-21 10:00:00.123456', '2026-11-21 10:00:00.123', 'Åse', 'ab', 'b', 'x,y',
  '[1, 2]', 'not captured'
)"""


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = open_server(request.param, tmp_path_factory.mktemp(request.param))
    try:
        found.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    found.run("SET GLOBAL time_zone = '+05:00'", "CREATE DATABASE values_of")
    yield found
    found.close()


def options(server: Server, **more) -> MysqlConfig:
    given = {"hosts": [f"{server.host}:{server.port}"], "tables": ["values_of.*"], **more}
    return MysqlConfig.model_validate(
        {"user": server.capture_user, "password": server.capture_password, **given}  # what is captured is what is read
    )


@pytest.fixture(autouse=True)
def clean(server: Server) -> None:
    server.run("DROP DATABASE values_of", "CREATE DATABASE values_of")


def test_where_nothing_was_compared_nothing_is_called_identical():
    nothing = Comparison(())
    assert not nothing.is_identical
    assert "nothing was compared" in nothing.details()


def test_values_are_those_that_a_mirror_holds(server):
    with server.connect(init_command="SET time_zone = '+00:00'") as connection:
        connection.cursor().execute(TABLE)
        connection.cursor().execute(ROW)
    config = options(server, columns={"values_of.everything": {"exclude": ["secret"]}})
    found = read_source("shop", config)["values_of.everything"]
    key = (Decimal(18446744073709551615),)
    (float32,) = [0.10000000149011612]
    assert found == {
        key: (
            *key,
            *(7, True, Decimal(1099511627775), Decimal("-12.50")),
            *("123456789012345678901234567890123456789012345678.25", float32, 0.1, 2026),
            *(date(2026, 2, 28), -360_000_500_000, datetime(2026, 11, 21, 10, 0, 0, 123456)),  # noqa: DTZ001
            *(datetime(2026, 11, 21, 10, 0, 0, 123000, tzinfo=UTC), "Åse", b"ab\0\0", "b", "x,y", "[1, 2]"),
        )
    }


def test_the_key_is_the_primary_one_or_the_first_that_cannot_be_null(server):
    server.run(
        "CREATE TABLE values_of.a (v INT, w INT, PRIMARY KEY (w, v))",
        "CREATE TABLE values_of.b (v INT NULL, w INT NOT NULL, x INT NOT NULL, UNIQUE (v), UNIQUE (x, w))",
        "CREATE TABLE values_of.c (v INT)",
    )
    with mysql_oracle(options(server))() as reading:
        assert [table.key for table in reading.tables()] == [("w", "v"), ("x", "w"), ()]


def test_zero_dates_follow_the_policy_of_the_source(server):
    with server.connect(init_command="SET sql_mode = ''") as connection:
        connection.cursor().execute("CREATE TABLE values_of.d (id INT PRIMARY KEY, at DATE)")
        connection.cursor().execute("INSERT INTO values_of.d VALUES (1, '0000-00-00')")
    assert read_source("shop", options(server, zero_dates="null"))["values_of.d"] == {(1,): (1, None)}
    assert read_source("shop", options(server))["values_of.d"] == {(1,): (1, "0000-00-00")}


def test_columns_that_come_as_text_are_compared_as_text(server):
    with server.connect(init_command="SET sql_mode = ''") as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE values_of.g (d DATE PRIMARY KEY, n DECIMAL(5,2), y YEAR, b BIT(9), i INT(5) ZEROFILL)"
        )
        cursor.execute("INSERT INTO values_of.g VALUES (0, 1.5, 0, 300, 7)")
    row = ("0000-00-00", "1.50", "0000", "300", "7")
    found = read_source("shop", options(server, types={"values_of.g": dict.fromkeys("DNYBI", "string")}))
    assert found["values_of.g"] == {row[:1]: row}
    found = read_source("shop", options(server, zero_dates="text"))
    assert found["values_of.g"] == {row[:1]: (row[0], Decimal("1.50"), 0, 300, 7)}


def test_a_copy_that_lacks_a_transaction_has_not_reached_the_reading(server):
    server.run("CREATE TABLE values_of.e (id INT PRIMARY KEY)", "INSERT INTO values_of.e VALUES (1)")
    with mysql_oracle(options(server))() as reading:
        assert reading.not_reached(None)
        assert reading.not_reached(at(reading.cut - 1))
        assert not reading.not_reached(at(reading.cut))


def test_a_reading_knows_that_the_source_does_not_rest(server):
    server.run("CREATE TABLE values_of.f (id INT PRIMARY KEY)")
    with mysql_oracle(options(server))() as reading:
        assert reading.rests()
        server.run("INSERT INTO values_of.f VALUES (1)")
        assert not reading.rests()
        (table,) = reading.tables()
        assert list(reading.rows(table)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_without_gtids_the_last_transaction_is_looked_up_in_the_log(kind: str, tmp_path: Path):
    try:
        server = open_server(kind, tmp_path, gtid=False)
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with server:
        server.run("CREATE DATABASE values_of")
        file, before = server.position()
        server.run("CREATE TABLE values_of.g (id INT PRIMARY KEY)")
        last = server.position()[1]
        server.run("INSERT INTO values_of.g VALUES (1)")
        number = int(file.rpartition(".")[2])
        server.run("FLUSH BINARY LOGS")
        with mysql_oracle(options(server))() as reading:
            assert reading.not_reached(at(number << 32 | before))
            assert not reading.not_reached(at(number << 32 | last))
            server.run("INSERT INTO values_of.g VALUES (2)")
            assert reading.not_reached(at(number << 32 | last))


def at(ordinal: int) -> SourceCheckpoint:
    return SourceCheckpoint(scn=make_scn(0, ordinal))


PIPELINE = """\
name: shop
sources:
  shop: {{type: mysql, hosts: ["127.0.0.1:{port}"], user: {user}, password: {password}, tables: [shop.*]}}
inputs:
  shop: {{type: databus, tables: [shop/shop.*]}}
outputs:
  copy: {{type: delta, from: shop, mode: mirror, path: lake}}
"""


@pytest.mark.spark
@pytest.mark.parametrize("server", [KINDS[0]], indirect=True)
def test_a_copy_is_compared_by_value_with_what_the_server_holds(server, tmp_path, spark):
    create_shop_on(server.connect, customers=50, products=20, orders=60, seed=3)
    path = tmp_path / "databus.yml"
    path.write_text(PIPELINE.format(port=server.port, user=server.capture_user, password=server.capture_password))
    workload = MysqlWorkload(server.connect, random.Random(3))
    for _ in range(2):
        assert run(path, once=True, session=spark) == 0
        found = compare(load_pipeline(path), "copy")
        assert found.is_identical, found.details()
        assert found.rows == sum(server.query(f"SELECT count(*) FROM shop.{name}")[0][0] for name in TABLES)
        for _ in range(100):
            workload.step()
    workload.close()
    assert run(path, once=True, session=spark) == 0
    stock = DeltaTable(tmp_path / "lake" / "stock")
    stock.delete("product_id = 7")
    stock.update({"weight": "weight + 0.001"}, predicate="product_id = 9")
    (different,) = [each for each in compare(load_pipeline(path), "copy").tables if not each.is_identical]
    assert (different.name, different.only_in_source, different.different) == ("shop.stock", ((7,),), ((9,),))
    server.run("DROP DATABASE shop")
