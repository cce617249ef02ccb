"""What a relay elsewhere says of tables and columns is known before a pipeline begins, where one asks for it."""

import pytest

from databus.pipeline import validate
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
