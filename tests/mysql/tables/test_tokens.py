"""Tokens: any text ends in tokens or in an error, quickly; comments and quotes as the servers have them."""

import contextlib
import itertools
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from databus.sources.mysql.tables._lexer import ServerKind, SqlMode, Token, UnreadableStatement, tokens_of, words
from databus.sources.mysql.tables._statements import read_statement
from databus.sources.mysql.tables._touched_tables import touched_names

MYSQL = ServerKind("mysql", (8, 0, 31))
OLD_MYSQL = ServerKind("mysql", (5, 7, 22))
MARIADB = ServerKind("mariadb", (10, 11, 19))
MODES = (0, int(SqlMode.ANSI_QUOTES), int(SqlMode.NO_BACKSLASH_ESCAPES), int(SqlMode.ORACLE | SqlMode.ANSI_QUOTES))

_PIECES = st.sampled_from(
    (
        *words(
            "CREATE TABLE ALTER DROP RENAME TO IF NOT EXISTS ADD COLUMN MODIFY CHANGE FIRST AFTER INT VARCHAR ( ) , . "
            "; ' \" ` \\ /* */ /*! /*!80000 /*M! -- # 0x1F x'1' 1.5e 1e5 @a @@b = DEFAULT NULL PRIMARY KEY UNIQUE "
            "ENUM SET CHARACTER COLLATE utf8 PARTITION BY LIKE SELECT AS GENERATED ALWAYS DATABASE INDEX ON VIEW t a é "
            "t.a `x` 'y'"
        ),
        "\n",
        "\0",
        "",
    )
)
_SQL = st.lists(_PIECES, max_size=60).map(" ".join) | st.lists(_PIECES, max_size=60).map("".join)


def _texts(text: str, server: ServerKind = MYSQL, sql_mode: int = 0) -> list[str]:
    return [token.text for token in tokens_of(text, server, sql_mode)]


@given(st.text() | _SQL, st.sampled_from((MYSQL, MARIADB)), st.sampled_from(MODES))
@example("/*!", MYSQL, 0)
@example("'" + "\\" * 9, MYSQL, 0)
def test_any_text_ends_in_tokens_or_in_an_error(text: str, server: ServerKind, mode: int) -> None:
    try:
        found = list(tokens_of(text, server, mode))
    except UnreadableStatement:
        return
    for left, right in itertools.pairwise(found):
        assert left.end <= right.start
    assert all(isinstance(token, Token) and token.start < token.end for token in found)


@given(_SQL, st.sampled_from((MYSQL, OLD_MYSQL, MARIADB)), st.sampled_from(MODES))
def test_any_statement_is_read_or_refused(text: str, server: ServerKind, mode: int) -> None:
    for start in ("", "CREATE TABLE t (", "ALTER TABLE t ", "CREATE "):
        with contextlib.suppress(UnreadableStatement):
            read_statement(start + text, server, mode, "db")
        touched_names(start + text, server, mode, "db")


@pytest.mark.parametrize(
    "text",
    [
        "'" + "\\" * 1_000_001,
        "'" + "''" * 500_000,
        "`" * 1_000_001,
        "/*" * 200_000,
        "/*!" * 300_000,
        "/*!99999 " * 100_000,
        "1" * 1_000_000,
        "1e" * 500_000,
        "--" * 100_000,
        "(" * 60_000,
        "CREATE TABLE t (" + "(" * 60_000,
        "CREATE TABLE t (a ENUM(" + "'x'," * 60_000,
        "CREATE TABLE t (" + "a INT DEFAULT 'x\\'y' /* c */, " * 10_000,
        "ALTER TABLE t " + "ADD (" * 30_000,
        "INSERT INTO t VALUES " + "(1, 'x')," * 30_000,
        "CREATE VIEW v AS SELECT " + "1, " * 60_000,
    ],
    ids=lambda text: text[:24],
)
def test_long_texts_take_no_longer_than_they_should(text: str) -> None:
    """Time grows with the length, not with its square: a bound that only the latter breaks."""
    began = time.process_time()
    with contextlib.suppress(UnreadableStatement):
        read_statement(text, MYSQL, 0, "db")
    touched_names(text, MYSQL, 0, "db")
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("text", "server", "tokens"),
    [
        ("a /*!80000 b */ c", MYSQL, "a b c"),
        ("a /*!80000 b */ c", OLD_MYSQL, "a c"),
        ("a /*!50700 b */ c", MARIADB, "a c"),  # MySQL's features from 5.7 on are none of MariaDB's
        ("a /*!50600 b */ c", MARIADB, "a b c"),
        ("a /*!100301 b */ c", MARIADB, "a b c"),
        ("a /*M! b */ c", MARIADB, "a b c"),
        ("a /*M! b */ c", MYSQL, "a c"),
        ("a /*M!110000 b */ c", MARIADB, "a c"),
        ("a /*!99999 b /* c */ d */ e", MYSQL, "a e"),
        ("a /*! b /* c */ d */ e", MYSQL, "a b d e"),
        ("a /* b /* c */ d", MYSQL, "a d"),
        ("a--b\n--c\n-- d\ne#f\ng", MYSQL, "a - - b - - c e g"),
        ("db.1t .2 1.5 1e5 1e 1a", MYSQL, "db . 1t .2 1.5 1e5 1e 1a"),
        ("5 * /*! 6 */ 7 */ 8", MYSQL, "5 * 6 7 */ 8"),
    ],
)
def test_comments_and_numbers_are_cut_as_the_servers_cut_them(text: str, server: ServerKind, tokens: str) -> None:
    assert " ".join(_texts(text, server)) == tokens


def test_quotes_are_as_sql_mode_says() -> None:
    assert [token.kind for token in tokens_of("\"a\" 'b' `c`", MYSQL)] == ["string", "string", "quoted"]
    assert [token.kind for token in tokens_of("\"a\" 'b'", MYSQL, SqlMode.ANSI_QUOTES)] == ["quoted", "string"]
    assert _texts(r"'a\'b' 'c\\' '\%\n' 'd''e'") == ["a'b", "c\\", "\\%\n", "d'e"]
    assert _texts(r"'a\' 'b\\'", sql_mode=SqlMode.NO_BACKSLASH_ESCAPES) == ["a\\", "b\\\\"]
    assert _texts("N'a' n'b' x'1F' b'01' 0x1f 0b1") == ["a", "b", "x'1F'", "b'01'", "0x1f", "0b1"]


def test_a_quoted_word_is_never_a_key_word() -> None:
    assert [token.upper for token in tokens_of("table `table`", MYSQL)] == ["TABLE", ""]


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("RENAME TABLE a TO `b c`, e.d WAIT 5 TO f", {"db.a", "db.b c", "e.d", "db.f"}),
        ("ALTER TABLE a RENAME = b", {"db.a", "db.b"}),
        ("/*!50000 ALTER */ TABLE e . a EXCHANGE PARTITION p WITH TABLE `b`", {"e.a", "db.b"}),
        ("DROP TABLE IF EXISTS .a, /* b, */ `e`.`c`", {"db.a", "e.c"}),
        ("SET STATEMENT max_statement_time=1 FOR DROP TABLE a, b", {"db.a", "db.b"}),
        ("SET STATEMENT max_statement_time=1 FOR RENAME TABLE a TO b, c TO d", {"db.a", "db.b", "db.c", "db.d"}),
        (";TRUNCATE a", {"db.a"}),
        ("ALTER TABLE a CONVERT PARTITION p TO TABLE b", {"db.a", "db.b"}),
    ],
)
def test_all_tables_that_a_statement_changes_are_named(text: str, certain: set[str]) -> None:
    found = touched_names(text, MARIADB, 0, "db")
    assert {".".join(name) for name in found.certain} >= certain
    assert found.is_all


@pytest.mark.parametrize("text", ["ALTER TABLE a ADD b INT COMMENT 'cut", "UPDATE a SET b = 1", "CALL p(1)"])
def test_what_does_not_name_all_tables_says_so(text: str) -> None:
    found = touched_names(text, MARIADB, 0, "db")
    assert not found.is_all


def test_of_a_text_that_is_cut_names_with_their_database_are_possible_too() -> None:
    assert ("e", "a") in touched_names("ALTER TABLE `e`.`a` ADD b INT COMMENT 'cut", MARIADB, 0, "db").possible
