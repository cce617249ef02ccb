"""SQL in front of a copy must handle each row alone, and give the same on a replay; what does not is named."""

import re

import pytest

from databus.pipeline.filters._rowwise import not_row_wise, parse, parse_predicate

ROW_WISE = [
    "SELECT * FROM t",
    "SELECT a, b + 1 AS c, upper(d), CASE WHEN a > 1 THEN 2 END FROM main.t WHERE a BETWEEN 1 AND 3 AND d LIKE 'x%'",
    "SELECT greatest(a, b), coalesce(a, b), array_max(c), date_add(d, 1), filter(e, x -> x > 1) FROM t",
    "SELECT cast(a AS DECIMAL(10, 2)), a::int, s.f, arr[0], m['k'], from_json(j, 'a INT').a FROM t WHERE a IN (1, 2)",
    "SELECT sha2(email, 256), regexp_replace(a, 'b', 'c'), date_format(at, 'yyyy') FROM t",
]

NOT_ROW_WISE = {
    "SELECT sum(a) FROM t": "an aggregate",
    "SELECT count(*) FROM t": "an aggregate",
    "SELECT first(a) FROM t": "an aggregate",
    "SELECT collect_set(a) FROM t": "an aggregate",
    "SELECT approx_count_distinct(a) FROM t": "an aggregate",
    "SELECT bool_and(a) FROM t": "an aggregate",
    "SELECT percentile(a, 0.5) FROM t": "an aggregate",
    "SELECT a FROM t GROUP BY a": "GROUP BY",
    "SELECT DISTINCT a FROM t": "DISTINCT",
    "SELECT a FROM t LIMIT 3": "LIMIT",
    "SELECT a FROM t ORDER BY a": "ORDER BY",
    "SELECT a FROM t JOIN u USING (id)": "a join",
    "SELECT a FROM t, u": "a join",
    "SELECT row_number() OVER (PARTITION BY a ORDER BY b) FROM t": "a window function",
    "SELECT lag(a) OVER (ORDER BY b) FROM t": "a window function",
    "SELECT a FROM (SELECT a FROM t)": "a subquery",
    "SELECT (SELECT max(a) FROM u) FROM t": "a subquery",
    "SELECT a FROM t WHERE a IN (SELECT b FROM u)": "a subquery",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u)": "a subquery",
    "WITH x AS (SELECT 1) SELECT * FROM x": "WITH",
    "SELECT a FROM t UNION ALL SELECT a FROM u": "a set operation",
    "SELECT explode(a) FROM t": "a function that makes several rows",
    "SELECT stack(2, 1, 2) FROM t": "a function that makes several rows",
    "SELECT a FROM t LATERAL VIEW explode(b) x AS y": "LATERAL VIEW",
    "SELECT rand() FROM t": "chance",
    "SELECT uuid() FROM t": "chance",
    "SELECT a FROM t WHERE at < now()": "the clock",
    "SELECT current_date() FROM t": "the clock",
    "SELECT a FROM t TABLESAMPLE (5 ROWS)": "TABLESAMPLE",
}


@pytest.mark.parametrize("text", ROW_WISE)
def test_ordinary_expressions_pass(text):
    assert list(not_row_wise(parse(text))) == []


@pytest.mark.parametrize("text", NOT_ROW_WISE)
def test_what_looks_beyond_its_row_is_named(text):
    assert NOT_ROW_WISE[text] in list(not_row_wise(parse(text)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a >", "does not parse: something is missing near `>`, at character 3 of line 1"),
        ("a > 1\nAND (b", "does not parse: Expecting ) near `b`, at character 6 of line 2"),
        ("SELECT a FROM WHERE b", "does not parse: something is wrong near `WHERE`, at character 19 of line 1"),
    ],
)
def test_what_does_not_parse_is_said_with_its_place_and_without_the_parser_s_classes(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse(text)


@pytest.mark.parametrize(
    "text", ["a > 1) OR (b > 2", "a > 1; DROP TABLE t", "a > 1 GROUP BY a", "a > 1 UNION SELECT 2", "a >"]
)
def test_a_condition_is_a_condition_and_nothing_more(text):
    with pytest.raises(ValueError, match=r"does not parse|nothing else|one statement"):
        parse_predicate(text)
