"""Statements: what their first words say, and what their events hold."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.sources.mysql.binlog._query_event import Query, databases_of, kind_of, parse_query


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BEGIN", "begin"),
        ("begin", "begin"),
        ("START TRANSACTION READ ONLY", "begin"),
        ("XA START X'61',X'',1", "xa-begin"),
        ("XA END X'61',X'',1", "nothing"),
        ("XA COMMIT X'61',X'',1", "xa-commit"),
        ("XA ROLLBACK X'61',X'',1", "xa-rollback"),
        ("xa rollback 'a'", "xa-rollback"),
        ("COMMIT", "commit"),
        ("ROLLBACK", "rollback"),
        ("ROLLBACK TO `a`", "rollback-to"),
        ("ROLLBACK WORK TO SAVEPOINT a", "rollback-to"),
        ("SAVEPOINT `begin`", "savepoint"),
        ("GRANT SELECT ON *.* TO 'create'", "nothing"),
        ("CREATE TABLE t (a INT)", "ddl"),
        ("  /* alter */ -- x\n # y\n (create) ", "ddl"),
        ("/*!40000 ALTER TABLE t DISABLE KEYS */", "ddl"),
        ("/*M!100100 ALTER TABLE t ADD a INT */", "ddl"),
        ("/*comment*/TRUNCATE t", "ddl"),
        ("/*Mine*/ DROP TABLE t", "ddl"),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", "ddl"),
        ("DROP TEMPORARY TABLE IF EXISTS t", "nothing"),
        ("CREATE USER a@b", "nothing"),
        ("DROP FUNCTION f", "nothing"),
        ("INSERT INTO t VALUES (1)", "rows"),
        ("WITH x AS (SELECT 1) DELETE FROM t", "rows"),
        ("SET STATEMENT max_statement_time=5 FOR ALTER TABLE t ADD a INT", "ddl"),
        ("SET STATEMENT max_statement_time=5 FOR UPDATE t SET a = 1", "rows"),
        ("SET PASSWORD = 'for'", "nothing"),
        ("FROBNICATE t", "ddl"),
        ("", "nothing"),
    ],
)
def test_first_words_say_what_a_statement_can_do(text: str, expected: str) -> None:
    assert kind_of(text) == expected


def test_every_database_that_a_statement_may_name_is_found() -> None:
    text = "UPDATE `a``b`.t JOIN plain . u JOIN \"ansi\".v SET x = 'y'"
    assert databases_of(Query(text, "default")) == {"a`b", "plain", "ansi", "default"}


@given(st.text(max_size=300))
def test_any_text_has_a_kind(text: str) -> None:
    kind_of(text)
    databases_of(Query(text, ""))


@pytest.mark.parametrize("piece", ["a", "`", '"', "a ", "(", "/*", "--", "# ", "a.", " ", "/*x*/"])
@pytest.mark.timeout(60)
def test_a_long_statement_does_not_take_the_square_of_its_length(piece: str) -> None:
    kind_of(piece * 200_000)
    databases_of(Query(piece * 200_000, ""))


@given(st.binary(max_size=120))
def test_any_body_is_a_statement_or_an_error(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_query(body)
