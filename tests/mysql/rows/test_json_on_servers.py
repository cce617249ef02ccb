"""MySQL's JSON, in full and as differences, written on real servers and compared with the text of their SELECT."""

import json
import random
from typing import Any

import pytest

from databus.testing.servers import Server
from tests.mysql.rows.walker import decode_all

pytestmark = pytest.mark.old_servers

SCALARS = [
    "CAST('null' AS JSON)", "CAST('true' AS JSON)", "CAST('false' AS JSON)", "CAST('\"\"' AS JSON)",
    "CAST(0 AS JSON)", "CAST(-32768 AS JSON)", "CAST(32767 AS JSON)", "CAST(65535 AS JSON)", "CAST(-32769 AS JSON)",
    "CAST(2147483647 AS JSON)", "CAST(-2147483648 AS JSON)", "CAST(4294967295 AS JSON)",
    "CAST(9223372036854775807 AS JSON)", "CAST(-9223372036854775808 AS JSON)", "CAST(18446744073709551615 AS JSON)",
    "CAST(CAST(9223372036854775808 AS UNSIGNED) AS JSON)",
    "CAST(CAST('2015-01-15' AS DATE) AS JSON)", "CAST(CAST('23:24:25.12' AS TIME(3)) AS JSON)",
    "CAST(CAST('-838:59:59' AS TIME) AS JSON)", "CAST(CAST('-00:00:00.5' AS TIME(1)) AS JSON)",
    "CAST(CAST('2015-01-15 23:24:25.000001' AS DATETIME(6)) AS JSON)",
    "CAST(TIMESTAMP'2015-01-15 23:24:25' AS JSON)",
    "CAST(CAST('12345678901234567890.123456' AS DECIMAL(40,10)) AS JSON)",
    "CAST(CAST('-0.10' AS DECIMAL(3,2)) AS JSON)",
    "CAST(CAST('9' AS DECIMAL(1,0)) AS JSON)", "CAST(CAST('-.5' AS DECIMAL(1,1)) AS JSON)",
    "CAST(x'cafebabe' AS JSON)", "CAST(x'' AS JSON)", "CAST(REPEAT(x'ff', 200) AS JSON)", "CAST(b'10101' AS JSON)",
    "CAST(ST_GeomFromText('POINT(1 2)') AS JSON)", "JSON_OBJECT('a', x'00', 'b', CAST('1.50' AS DECIMAL(5,2)))",
    "CAST(CAST(b'1' AS BINARY) AS JSON)", "JSON_QUOTE('x')", "NULL",
]  # fmt: skip
TEXTS = [
    "{}", "[]", "[[]]", '{"a": {}}', '{"": 0}', '{"b": 1, "a": 2, "aa": 3, "A": 4}', "[1, [2, [3, [4]]]]",
    '"\\u0001\\u001f\\b\\f\\n\\r\\t\\"\\\\/\\u007f\u2028\u20ac\U0001f4a9"', '{"k\\"ey\\n": "v"}',
    "[1.0, -0.0, 0.0, 1e0, 1E+2]",
    "[" * 99 + "]" * 99, json.dumps(list(range(1000))), json.dumps({f"key{i}": i for i in range(500)}),
    json.dumps(["x" * 70000]), json.dumps({"a" * 60000: "b" * 70000}), json.dumps([["y" * 100] * 100] * 30),
    json.dumps([100000, -5, 3000000000, 2**40, True, None, {"z": [100000]}] * 3000),
    json.dumps("short"), json.dumps("q" * 127), json.dumps("q" * 128), json.dumps("q" * 16384),
]  # fmt: skip
DOUBLES = [
    "1e14", "1e15", "1e16", "1.5e15", "123456789012345.6", "1234567890123456.7", "12345678901234567e3", "1e-14",
    "1e-15", "1.5e-14", "1.5e-15", "0.00001234", "1e100", "-1.7976931348623157e308", "5e-324", "2.5", "1e22", "1e23",
    "0.1", "1e-5", "9007199254740993.0", "4503599627370496.5", "100.0", "1e3", "123e-20", "3.0e0",
    "2.2250738585072014e-308",
]  # fmt: skip


@pytest.fixture
def with_json(server: Server) -> Server:
    if "mariadb" in server.kind:
        pytest.skip("MariaDB's JSON is text")
    return server


def expect(server: Server, database: str, since: tuple[str, int], session: Any) -> None:
    """What the log left of table t is what SELECT has of it."""
    with session.cursor() as cursor:
        cursor.execute("SELECT id, j FROM t ORDER BY id")
        want = dict(cursor.fetchall())
    form = "5.7" if server.kind == "mysql-5.7" else "8.0"
    changes, found = decode_all(server, since, "t", json_form=form)
    have: dict[int, str | None] = {}
    for change, number, text in zip(changes, *(c.to_pylist() for c in found.select(["id", "j"]).columns), strict=True):
        if change in (2, 4):
            assert have.pop(number) == text, number
        else:
            have[number] = text
    for number in sorted(want):
        assert have[number] == want[number], number
    assert have.keys() == want.keys()


def test_each_form_of_a_value(with_json: Server, database: str) -> None:
    numbers = [random.Random(7).randrange(10**18) / 10 ** (i % 40) for i in range(400)]
    values = [*SCALARS, *(f"CAST({text} AS JSON)" for text in [with_json.connect().escape(t) for t in TEXTS])]
    values += [f"CAST('[{text}]' AS JSON)" for text in [*DOUBLES, *map(repr, numbers)]]
    session = with_json.connect(charset="utf8mb4", database=database, autocommit=True)
    with session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, j JSON, note VARCHAR(10))")
        since = with_json.position()
        for value in values:
            cursor.execute(f"INSERT INTO t (j) VALUES ({value})")
        cursor.execute("UPDATE t SET note = 'x'")
        expect(with_json, database, since, session)


def test_decimals_of_any_size_are_in_documents(with_json: Server, database: str) -> None:
    values = []
    for precision in range(1, 66):
        for scale in range(min(precision, 30) + 1):
            whole, fraction = "1" * (precision - scale), "1" * scale
            largest = f"-{whole.replace('1', '9')}.{fraction.replace('1', '9')}"
            texts = (f"{whole}.{fraction}", largest, f"0.{fraction}")
            values += [f"CAST('{text}' AS DECIMAL({precision},{scale}))" for text in texts]
    nines = f"CAST('{'9' * 65}' AS DECIMAL(65,0))"
    values += [
        "1/3",
        "7/-11.000",
        "1.5*2.25",
        f"{nines}-1",
        "0.1+0.2",
        f"{nines}/3",
        f"1/{nines}",
        f"MOD({nines}, 7.5)",
    ]
    values += [
        "-0.000",
        "CAST(1 AS DECIMAL(65,30))/CAST(3 AS DECIMAL(65,30))",
        "ROUND(1.005, 2)",
        "1e2+0.5",
        "POW(0.1, 3)",
    ]
    session = with_json.connect(charset="utf8mb4", database=database, autocommit=True)
    with session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = '', SESSION div_precision_increment = 30")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, j JSON, note VARCHAR(10))")
        since = with_json.position()
        for at in range(0, len(values), 500):
            cursor.execute(f"INSERT INTO t (j) VALUES {','.join(f'(JSON_ARRAY({v}))' for v in values[at : at + 500])}")
        cursor.execute(
            "INSERT INTO t (j) SELECT JSON_OBJECT('avg', AVG(id), 'sum', SUM(id / 7), 'var', VARIANCE(id)) FROM t"
        )
        expect(with_json, database, since, session)
        if with_json.kind != "mysql-5.7":  # differences, which Python reads
            cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
            cursor.execute("UPDATE t SET j = JSON_INSERT(j, '$[1]', REPEAT('x', 2000))")
            cursor.execute("UPDATE t SET j = JSON_SET(j, '$[0]', 1)")
            expect(with_json, database, since, session)


def random_value(dice: random.Random, depth: int) -> Any:
    kind = dice.randrange(9 if depth else 6)
    if kind < 6:
        return dice.choice([None, True, 7, -70000, 2.5, "text", "", "\u20ac\n", 10**12, "w" * 300])
    if kind < 8:
        return {
            dice.choice("abcdefgh") * dice.randrange(4): random_value(dice, depth - 1) for _ in range(dice.randrange(5))
        }
    return [random_value(dice, depth - 1) for _ in range(dice.randrange(5))]


def random_path(dice: random.Random, value: Any) -> str:
    path = "$"
    while isinstance(value, dict | list) and dice.random() < 0.8:
        if isinstance(value, dict):
            key = dice.choice([*value, "new", 'q"uo te'])
            path += "." + json.dumps(key)
            value = value.get(key)
        else:
            place = dice.randrange(len(value) + 2)
            path += f"[{place}]"
            value = value[place] if place < len(value) else None
    return path


@pytest.mark.parametrize("seed", range(3))
def test_differences_of_partial_updates(with_json: Server, database: str, seed: int) -> None:
    """Any JSON_SET, JSON_REPLACE, JSON_REMOVE and JSON_ARRAY_INSERT, logged as differences, gives the server's text."""
    if with_json.kind == "mysql-5.7":
        pytest.skip("MySQL 5.7 logs no differences")
    dice = random.Random(seed)
    session = with_json.connect(charset="utf8mb4", database=database, autocommit=True)
    with session, session.cursor() as cursor:
        cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, k JSON, x INT, j JSON, v VARCHAR(9), l JSON)"
        )
        since = with_json.position()
        for _ in range(40):
            value = {"pad": "p" * 600, "list": [1, 2, 3], "o": {"a": 1}, "r": random_value(dice, 4)}
            cursor.execute("INSERT INTO t (j, k) VALUES (%s, '[1]')", (json.dumps(value),))
        for _ in range(200):
            number = dice.randrange(1, 41)
            cursor.execute("SELECT j FROM t WHERE id = %s", (number,))
            before = json.loads(cursor.fetchone()[0])
            value = f"CAST({session.escape(json.dumps(random_value(dice, 2)))} AS JSON)"
            path = session.escape(random_path(dice, before))
            change = dice.choice(["JSON_SET", "JSON_REPLACE", "JSON_REMOVE", "JSON_ARRAY_INSERT", "JSON_INSERT"])
            expression = f"{change}(j, {path}{'' if change == 'JSON_REMOVE' else ', ' + value})"
            more = dice.choice(["", ", x = id", ", k = JSON_SET(k, '$[0]', 5)", ", l = j"])
            try:
                cursor.execute(f"UPDATE t SET j = {expression}{more} WHERE id = {number}")
            except session.Error:
                continue  # a path that this function does not take
        cursor.execute("UPDATE t SET j = JSON_SET(j, '$.list[0]', 9, '$.o.b', 'new')")
        since_ = since
        expect(with_json, database, since_, session)
        data = (with_json.binlogs()[-1]).read_bytes()
        assert bytes([39]) in data  # differences were logged at all
