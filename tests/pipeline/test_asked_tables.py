"""What a relay elsewhere says of tables and columns is known before a pipeline begins, where one asks for it."""

import pytest

from databus.core import ServiceUnavailable
from databus.pipeline import load_pipeline, run_filter_tests, validate
from databus.relay import Relay, parse_relay
from databus.testing.shop import create_shop

GOOD = """
name: shop
relay: {url: '%s'}
inputs: {shop: {type: databus, tables: [shop/main.orders, shop/main.stock]}}
filters:
  slim: {type: mask, from: shop, redact: [status], tables: [main.orders]}
  large: {type: sql, from: shop, table: main.orders, where: total_cents > 10000}
outputs:
  copy: {type: delta, from: slim, mode: mirror, path: lake/copy}
  large: {type: delta, from: large, mode: mirror, path: lake/large}
"""
WRONG = {
    "redact: [status]": ("redact: [phone]", 'filters.slim.redact: shop/main.orders has no column "phone"', False),
    "where: total_cents": ("where: totl_cents", 'filters.large.where: main.orders has no column "totl_cents"', False),
    "path: lake/copy": (
        "path: lake/copy, key: {main.orders: [nosuch]}",
        "outputs.copy: main.orders has no column 'nosuch', by which a mirror",
        False,
    ),
    "[shop/main.orders,": ("[shop/main.orders, shop/main.ordrs,", "inputs.shop.tables[1]: no table called", True),
}


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relay")
    create_shop(folder / "shop.db", customers=1, products=1, orders=1)
    given = {"listen": "127.0.0.1:0", "folder": "log", "sources": {"shop": {"type": "sqlite", "path": "shop.db"}}}
    with Relay(parse_relay(given, folder=folder)) as started:
        yield started


def asked(folder, text, **options):
    path = folder / "databus.yml"
    path.write_text(text)
    return validate(path, **options)


@pytest.mark.parametrize("before", WRONG)
def test_names_that_no_table_has_are_found_where_the_relay_is_asked(tmp_path, relay, before):
    after, told, is_warning = WRONG[before]
    assert asked(tmp_path, GOOD % relay.url, asks_sources=True) == []
    text = (GOOD % relay.url).replace(before, after, 1)
    assert asked(tmp_path, text) == []
    (found,) = asked(tmp_path, text, asks_sources=True)
    assert str(found).startswith(told)
    assert found.is_warning == is_warning


def test_a_relay_that_does_not_answer_is_a_warning(tmp_path):
    (found,) = asked(tmp_path, GOOD % "http://127.0.0.1:9", asks_sources=True)
    assert found.is_warning
    assert str(found).startswith("relay.url: does not say which tables there are")


TESTED = (
    GOOD
    + """
tests:
  t:
    table: main.orders
    to: copy
    rows: [{id: 1, total_cents: 5, status: open}]
    expect: [{id: 1, total_cents: 5}]
"""
)


def test_tests_of_a_file_without_sources_take_the_columns_from_the_relay(tmp_path, relay):
    assert asked(tmp_path, TESTED % relay.url, asks_sources=True) == []
    (result,) = run_filter_tests(load_pipeline(tmp_path / "databus.yml"))
    assert result.is_passed, result


def test_tests_of_tables_that_the_pipeline_s_own_relay_has_captured_need_no_columns(tmp_path, relay):
    text = (TESTED % "").replace(
        "relay: {url: ''}", f"relay: {{folder: '{relay.config.folder}'}}\nsources: {{shop: {{type: mock}}}}"
    )
    assert asked(tmp_path, text) == []
    (result,) = run_filter_tests(load_pipeline(tmp_path / "databus.yml"))
    assert result.is_passed, result


def test_a_test_that_needs_a_relay_that_is_away_says_so_and_may_be_tried_again(tmp_path):
    assert asked(tmp_path, TESTED % "http://127.0.0.1:9") == []
    with pytest.raises(ServiceUnavailable, match=r"tests\.t\.columns: missing, and the relay, .*127\.0\.0\.1:9"):
        list(run_filter_tests(load_pipeline(tmp_path / "databus.yml")))


def test_a_test_that_does_not_fit_the_relay_s_table_is_a_warning(tmp_path, relay):
    (found,) = asked(
        tmp_path, (TESTED % relay.url).replace("total_cents: 5, status", "totl_cents: 5, status"), asks_sources=True
    )
    assert (found.path, found.is_warning) == ("tests.t.rows[0]", True)
    assert "no column totl_cents" in found.message
