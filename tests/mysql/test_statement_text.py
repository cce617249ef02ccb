"""Text that is no UTF-8, or is lost on the way: members that no catalogue shows, statements in any client's words.

The truth is what the server's SELECT says afterwards.
"""

from collections.abc import Iterator

import pytest

from databus.core import UnrepresentableValue
from databus.testing.servers import Server
from tests.mysql.following import Copy, Follower

# MySQL 5.7 keeps equal members of two columns once, in one of their character sets: so none are equal here.
CLIENTS = {
    "latin1": ("\xe9\xff", "cp1252"),
    "cp866": ("\u0416\u2592", "cp866"),
    "greek": ("\u03b1", "iso8859-7"),
    "hebrew": ("\u05d0", "iso8859-8"),
    "gbk": ("\u4e00\u4e02", "gbk"),
    "big5": ("\u529f", "big5"),  # its second byte is a backslash
    "sjis": ("\u8868\uff71", "shift_jis"),
    "cp932": ("\u2460", "cp932"),
    "euckr": ("\uac02", "cp949"),
    "ujis": ("\u3042", "euc_jp"),
    "koi8u": ("\u0456", "koi8-u"),
    "swe7": ("\xe4", None),
    "binary": ("\xe9", "utf-8"),
    "utf8mb4": ("\N{PILE OF POO}", "utf-8"),
}


@pytest.fixture
def marked(server: Server, database: str) -> Iterator[str]:
    """A database with the mark of a follower, and logs that name nothing of a table."""
    server.run(f"CREATE TABLE {database}.mark (id INT PRIMARY KEY, n BIGINT)")
    if server.kind != "mysql-5.7":
        little = "NO_LOG" if "mariadb" in server.kind else "MINIMAL"
        server.run(f"SET GLOBAL binlog_row_metadata = {little}")
    yield database
    if server.kind != "mysql-5.7":
        server.run(f"SET GLOBAL binlog_row_metadata = {server.row_metadata}")


def check(follower: Follower, server: Server, database: str) -> Copy:
    follower.catch_up(server, database)
    copy = follower.copy()
    found = copy.differences(server, database)
    assert not found, "\n".join(found)
    return copy


def test_members_that_the_catalogue_shows_as_question_marks_are_asked_for(server, marked: str, follow) -> None:
    members = "'a', '\N{PILE OF POO}', 'what?', '', '\N{GRINNING FACE}?\N{GRINNING FACE}', '\xe9', '?'"
    columns = ", ".join(
        f"e_{charset} ENUM({members}, '{charset}') CHARACTER SET {charset}, "
        f"s_{charset} SET({members}, 's{charset}') CHARACTER SET {charset}"
        for charset in ("utf8mb4", "utf16", "utf32", "utf16le")
    )
    server.run(f"CREATE TABLE {marked}.t (id INT PRIMARY KEY, n INT, {columns})")
    every = ", ".join(f"({i}, 0{f', {i}, {1 << i - 1}' * 4})" for i in range(1, 8))
    server.run(f"INSERT INTO {marked}.t VALUES {every}")
    follower = follow(marked, server)
    check(follower, server, marked)
    server.run(f"UPDATE {marked}.t SET n = n + 1")
    check(follower, server, marked)
    follower.kill()
    server.run(f"UPDATE {marked}.t SET n = n + 1")
    if server.kind != "mysql-5.7":
        server.run("SET GLOBAL binlog_row_metadata = FULL", f"UPDATE {marked}.t SET n = n + 1")
    assert check(follower, server, marked).kinds() == []


def test_members_of_binary_that_the_catalogue_shows_byte_by_byte_are_asked_for(server, marked: str, follow) -> None:
    if server.kind != "mariadb-10.11":
        pytest.skip("MySQL shows them as digits, or leaves them out")
    members = "'a', '\N{PILE OF POO}', 'what?', '\N{GRINNING FACE}?\xe9', '????', '?'"
    server.run(
        f"CREATE TABLE {marked}.t (id INT PRIMARY KEY, n INT, e ENUM({members}) CHARACTER SET binary, "
        f"s SET({members}) CHARACTER SET binary)"
    )
    server.run(f"INSERT INTO {marked}.t VALUES {', '.join(f'({i}, 0, {i}, {1 << i - 1})' for i in range(1, 7))}")
    wanted = server.query(f"SELECT id, CONVERT(e USING utf8mb4), CONVERT(s USING utf8mb4) FROM {marked}.t ORDER BY id")
    follower = follow(marked, server)
    for _ in ("read", "logged"):
        follower.catch_up(server, marked)
        rows = [row for _, row in follower.copy().tables[f"{marked}.t"].values()]
        assert sorted((row["id"], row["e"], row["s"]) for row in rows) == [*wanted]
        server.run(f"UPDATE {marked}.t SET n = n + 1")


def test_a_member_that_nothing_shows_is_refused_where_a_row_has_it(server, marked: str, follow) -> None:
    if server.kind not in ("mysql-8.0", "mysql-5.7"):
        pytest.skip("this server shows every member")
    server.run(f"CREATE TABLE {marked}.t (id INT PRIMARY KEY, e ENUM('a', '\N{PILE OF POO}') CHARACTER SET utf8mb4)")
    follower, replacing = follow(marked, server), follow(marked, server, invalid_text="replace")
    for each in (follower, replacing):
        check(each, server, marked)
    server.run(f"INSERT INTO {marked}.t VALUES (1, 'a'), (2, NULL)")
    for each in (follower, replacing):
        check(each, server, marked)
    server.run(f"INSERT INTO {marked}.t VALUES (3, 2)")
    with pytest.raises(UnrepresentableValue, match=r"member 2.*binlog_row_metadata"):
        follower.catch_up(server, marked)
    replacing.catch_up(server, marked)
    assert replacing.copy().tables[f"{marked}.t"][3,][1]["e"] == "\N{REPLACEMENT CHARACTER}"
    anew = follow(marked, server)  # a row has it now
    check(anew, server, marked)
    server.run(f"UPDATE {marked}.t SET id = 4 WHERE id = 3")
    check(anew, server, marked)


@pytest.mark.parametrize("client", CLIENTS)
def test_statements_in_every_clients_character_set_are_followed(server, marked: str, follow, client: str) -> None:
    text, codec = CLIENTS[client]
    raw = text.encode(codec) if codec else bytes([0x7B])
    follower = follow(marked, server)
    check(follower, server, marked)
    charsets = ["utf8mb4", "latin1"]  # of the latter any bytes are text
    if client != "binary":
        charsets = ["utf8mb4", "latin1", "ucs2", "utf16", "sjis", "swe7"]
    with server.connect(database=marked) as session:
        session.query(f"SET NAMES {client}")
        session.query("SET SESSION sql_mode = ''")

        def run(sql: bytes) -> None:
            session.query(sql.replace(b"[]", raw))

        enums = b",".join(
            b"e_%b ENUM('[]', '%b') CHARACTER SET %b" % (c.encode(), c.encode(), c.encode()) for c in charsets
        )
        run(b"CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARBINARY(9) DEFAULT '[]', c CHAR(9) CHARACTER SET utf8mb4 "
            b"DEFAULT '[]', " + enums + b", s SET('[]x', 'y[]') CHARACTER SET utf8mb4) COMMENT '[]'")  # fmt: skip
        session.query(f"INSERT INTO t VALUES (1, 1, 'v', 'c'{', 1' * len(charsets)}, 3)".encode())
        session.query(f"INSERT INTO t VALUES (2, 1, 'v', 'c'{', 2' * len(charsets)}, 1)".encode())
        check(follower, server, marked)
        run(b"ALTER TABLE t ADD COLUMN b VARBINARY(20) DEFAULT 'b[]b', ADD COLUMN d VARCHAR(20) CHARACTER SET utf8mb4 "
            b"NOT NULL DEFAULT 'd[]d'")  # fmt: skip
        session.query(b"INSERT INTO t (id) VALUES (3)")
    check(follower, server, marked)
    server.run(f"UPDATE {marked}.t SET n = 2")
    check(follower, server, marked)


def test_literals_become_what_the_connections_character_set_has_of_them(server, marked: str, follow) -> None:
    follower = follow(marked, server)
    check(follower, server, marked)
    with server.connect(database=marked, charset="utf8mb4") as session, session.cursor() as cursor:
        for number, connection in enumerate(("latin1", "sjis", "binary", "ucs2", "cp932")):
            cursor.execute(f"SET character_set_connection = {connection}, sql_mode = ''")
            cursor.execute(
                f"CREATE TABLE t{number} (id INT PRIMARY KEY, e ENUM('\xe9', '\u0416', '\N{PILE OF POO}', '\u6661') "
                f"CHARACTER SET utf8mb4, l ENUM('\xe9', '\u0416', 'b\u6661') CHARACTER SET latin1)"
            )
            cursor.execute(f"INSERT INTO t{number} VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, NULL)")
            cursor.execute(f"ALTER TABLE t{number} ADD COLUMN b VARBINARY(9) DEFAULT '\xe9a'")
    check(follower, server, marked)


def test_members_and_defaults_in_digits_are_bytes_of_the_columns_character_set(server, marked: str, follow) -> None:
    follower = follow(marked, server)
    check(follower, server, marked)
    server.run(
        f"CREATE TABLE {marked}.t (id INT PRIMARY KEY, n INT, l ENUM(x'e9', 0x41, b'01000010') CHARACTER SET latin1, "
        f"m ENUM(x'c3a9') CHARACTER SET latin1, u ENUM(x'00e900ea') CHARACTER SET ucs2, k ENUM(x'c1') "
        f"CHARACTER SET koi8r, h ENUM(x'61') CHARACTER SET utf32)",  # with zeros before it
        f"INSERT INTO {marked}.t VALUES (1, 1, 1, 1, 1, 1, 1), (2, 1, 2, 1, 1, 1, 1), (3, 1, 3, 1, 1, 1, 1)",
    )
    check(follower, server, marked)
    server.run(
        f"ALTER TABLE {marked}.t ADD COLUMN d VARCHAR(9) CHARACTER SET koi8r DEFAULT x'c1', ADD COLUMN w VARCHAR(9) "
        f"CHARACTER SET ucs2 DEFAULT x'00410416', ADD COLUMN b BINARY(4) DEFAULT x'e900'"
    )
    check(follower, server, marked)


def test_bytes_that_are_no_text_become_what_the_server_puts_there(server, marked: str, follow) -> None:
    """A question mark for each of them, or the text ends there: by server and by character set."""
    follower = follow(marked, server)
    check(follower, server, marked)
    with server.connect(database=marked, autocommit=True) as session:
        session.query("SET SESSION sql_mode = ''")
        for number, (client, raw) in enumerate({"utf8mb3": "\N{PILE OF POO}".encode(), "utf8mb4": b"\xff"}.items()):
            session.query(f"SET NAMES {client}")
            for charset in ("latin1", "ucs2", *(["utf8mb4"] if client == "utf8mb3" else [])):
                name = f"t{number}_{charset}".encode()
                enum, of_set = (
                    b"(%b) CHARACTER SET %b" % (each, charset.encode())
                    for each in (
                        b"'%b%d', 'x%by', 'b'" % (raw, number, raw),
                        b"'s%b%d', 's%by', 's'" % (raw, number, raw),
                    )
                )
                session.query(b"CREATE TABLE %b (id INT PRIMARY KEY, e ENUM %b, s SET %b)" % (name, enum, of_set))
                session.query(b"INSERT INTO %b VALUES (1, 1, 1), (2, 2, 2), (3, 3, 7)" % name)
    check(follower, server, marked)


def test_members_that_are_no_text_are_refused_or_replaced_in_snapshot_and_log(server, marked: str, follow) -> None:
    server.run(
        f"CREATE TABLE {marked}.t (id INT PRIMARY KEY, n INT, e ENUM('a', x'8a') CHARACTER SET cp1256)",
        f"INSERT INTO {marked}.t VALUES (1, 1, 2)",
    )
    replacing = follow(marked, server, invalid_text="replace")
    replacing.catch_up(server, marked)
    server.run(f"UPDATE {marked}.t SET n = 2", f"CREATE TABLE {marked}.o LIKE {marked}.t")
    server.run(f"CREATE TABLE {marked}.b (id INT PRIMARY KEY, e ENUM('a', x'e9') CHARACTER SET binary)")
    server.run(f"INSERT INTO {marked}.o SELECT * FROM {marked}.t", f"INSERT INTO {marked}.b VALUES (1, 2)")
    replacing.catch_up(server, marked)
    copy = replacing.copy()
    for name in "tob":
        ((_, row),) = copy.tables[f"{marked}.{name}"].values()
        assert row["e"] == "\N{REPLACEMENT CHARACTER}", name
    refusing = follow(marked, server, tables=[f"{marked}.t", f"{marked}.mark"])
    with pytest.raises(UnrepresentableValue, match="invalid_text"):
        refusing.catch_up(server, marked)


@pytest.mark.parametrize("row_metadata", ["FULL", None])
def test_a_table_made_from_a_query_over_binary_defaults_is_captured(kind, new_server, follow, row_metadata) -> None:
    if kind == "mysql-5.7" and row_metadata:
        pytest.skip("it has no such option")
    server = new_server(kind, gtid=row_metadata == "FULL", row_metadata=row_metadata)  # 5.7 refuses it with GTIDs
    server.run("CREATE DATABASE shop")
    server.run("CREATE TABLE shop.mark (id INT PRIMARY KEY, n BIGINT)")
    server.run(f"GRANT LOCK TABLES ON shop.* TO '{server.capture_user}'@'%'")
    follower = follow("shop", server)
    check(follower, server, "shop")
    server.run(
        "CREATE TABLE shop.a (id INT PRIMARY KEY, b VARBINARY(16) DEFAULT X'00ff41', c BINARY(4) DEFAULT X'e900', "
        "v VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT '\N{PILE OF POO}\xe9', "
        "e ENUM('a', '\N{PILE OF POO}', '?') CHARACTER SET utf8mb4 COMMENT '\N{PILE OF POO}')",
        "INSERT INTO shop.a (id, e) VALUES (1, 1), (2, 2), (3, 3)",
        "CREATE TABLE shop.c AS SELECT * FROM shop.a WHERE id = 2",
        "CREATE TABLE shop.d (PRIMARY KEY (id)) AS SELECT * FROM shop.a",
        "CREATE TABLE shop.l LIKE shop.a",
        "INSERT INTO shop.l SELECT * FROM shop.a",
        "ALTER TABLE shop.d ADD COLUMN z VARBINARY(3) DEFAULT X'fe00'",
        "UPDATE shop.d SET id = id + 10",
    )
    check(follower, server, "shop")
    follower.kill()
    server.run("CREATE TABLE shop.e (PRIMARY KEY (id)) AS SELECT * FROM shop.a")
    check(follower, server, "shop")


def test_a_table_that_is_made_like_one_that_the_log_does_not_know_has_its_character_set(server, marked, follow) -> None:
    """A server logs that in words of its own, without the character set."""
    follower = follow(marked, server)
    check(follower, server, marked)
    follower.kill()
    with server.connect(database=marked, charset="utf8mb4", autocommit=True) as session, session.cursor() as cursor:
        for statement in (
            "CREATE TEMPORARY TABLE m (id INT PRIMARY KEY, v TEXT, e ENUM('\xe9')) CHARACTER SET utf8mb4",
            f"ALTER DATABASE {marked} CHARACTER SET latin1",
            "CREATE TABLE t LIKE m",
            "INSERT INTO t VALUES (1, '\xe9', 1)",
            "CREATE TABLE IF NOT EXISTS gone LIKE m",
            "INSERT INTO gone VALUES (1, '\xe9', 1)",
            "ALTER TABLE t ADD w TINYTEXT",
            "UPDATE t SET w = v",
            "DROP TABLE gone",
        ):
            cursor.execute(statement)
        if server.flavor == "mariadb":
            cursor.execute("CREATE TABLE s LIKE information_schema.schemata")
            cursor.execute("ALTER TABLE s ENGINE=InnoDB, ADD PRIMARY KEY (schema_name)")
            cursor.execute("INSERT INTO s SELECT * FROM information_schema.schemata")
    assert check(follower, server, marked).tables[f"{marked}.t"]
