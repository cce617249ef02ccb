"""What a database file does not have is found before anything starts; what only a server knows is left to it."""

import pytest

from databus.pipeline import load_pipeline, validate
from databus.testing.shop import create_shop
from tests.pipeline.validated import GOOD, problems_of, written


@pytest.fixture(autouse=True)
def shop(tmp_path) -> None:
    """The database that the files here name."""
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("{main.nosuch: [id]}", "outputs.copy.key.main.nosuch: no table called main.nosuch; "),
        ("{main.orders: [number]}", 'outputs.copy.key.main.orders: main.orders has no column "number"; '),
    ],
)
def test_keys_are_looked_up_in_a_database_file(tmp_path, key, told):
    found = problems_of(tmp_path, GOOD.replace("path: lake/mirror", f"path: lake/mirror, key: {key}"))
    assert len(found) == 1
    assert found[0].startswith(told)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("shop.db", "shpo.db", "sources.shop.path: "),
        (
            "path: shop.db",
            "path: shop.db, tables: [main.orders, main.ordrs]",
            'sources.shop.tables[1]: no table called main.ordrs; did you mean "main.orders"?',
        ),
        (
            "path: shop.db",
            "path: shop.db, columns: {main.customers: {exclude: [nmae]}}",
            'sources.shop.columns.main.customers.exclude[0]: main.customers has no column "nmae"; did you mean "name"?',
        ),
        (
            "path: shop.db",
            "path: shop.db, columns: {main.custmers: {exclude: [name]}}",
            'sources.shop.columns.main.custmers: there is no such table; did you mean "main.customers"?',
        ),
        (
            "path: shop.db",
            "path: shop.db, exclude: [main.stock], ids: {main.stock: 7}",
            "sources.shop.ids.main.stock: is not captured; see `tables` and `exclude`",
        ),
        (
            "tables: [shop/main.*]",
            "tables: [shop/main.orders, shop/main.custmers]",
            'inputs.shop.tables[1]: no table called shop/main.custmers; did you mean "shop/main.customers"?',
        ),
        (
            "table: main.orders",
            "table: main.ordrs",
            'filters.big.table: no table called main.ordrs; did you mean "main.orders"?',
        ),
        (
            "total_cents > 10000",
            "totl_cents > 10000",
            'filters.big.where: main.orders has no column "totl_cents"; did you mean "total_cents"?',
        ),
    ],
)
def test_what_a_database_file_does_not_have_is_found_without_starting_anything(tmp_path, before, after, problem):
    assert before in GOOD
    (found,) = problems_of(tmp_path, GOOD.replace(before, after, 1))
    assert found.startswith(problem)


def test_a_misspelt_table_of_a_source_is_told_alone(tmp_path):
    """Filters and keys that name it rightly would be said to name what is not there."""
    text = GOOD.replace("path: shop.db", "path: shop.db, tables: [main.ordrs, main.customers]", 1)
    (found,) = problems_of(tmp_path, text.replace("path: lake/mirror", "path: lake/mirror, key: {main.orders: [id]}"))
    assert found.startswith('sources.shop.tables[0]: no table called main.ordrs; did you mean "main.orders"?')


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "shop.db").write_text("not a database, but long enough to be looked at as one" * 50)
    (found,) = problems_of(tmp_path, GOOD)
    assert found.startswith("sources.shop.path: ")
    assert "not a database" in found


@pytest.mark.parametrize(
    "where",
    ["_commit_version > 7", "size(filter(array(1), x -> x > total_cents)) > 0", "TOTAL_CENTS > 7", "orders.id > 1"],
)
def test_columns_of_the_bus_and_names_inside_an_expression_are_no_mistakes(tmp_path, where):
    assert problems_of(tmp_path, GOOD.replace("total_cents > 10000", where)) == []


def test_a_file_may_be_loaded_before_its_database_is_there(tmp_path):
    (tmp_path / "shop.db").unlink()
    load_pipeline(written(tmp_path, GOOD))


def test_what_a_server_would_have_to_be_asked_is_left_to_check_source(tmp_path):
    text = GOOD.replace("{type: sqlite, path: shop.db}", "{type: mysql, hosts: [db1], user: u, tables: [main.ordrs]}")
    assert problems_of(tmp_path, text.replace("[shop/main.*]", "['shop/*']").replace("main.orders", "main.ordrs")) == []


@pytest.mark.parametrize("option", ["invalid_text: replace", "zero_dates: 'null'", "on_large_row: marker"])
def test_a_key_that_an_option_of_the_source_may_make_one_is_warned_of(tmp_path, option):
    source = f"{{type: mysql, hosts: [db1], user: u, tables: [main.orders], {option}}}"
    text = GOOD.replace("{type: sqlite, path: shop.db}", source).replace("[shop/main.*]", "['shop/*']")
    keyed = text.replace("path: lake/mirror", "path: lake/mirror, key: {main.orders: [status]}")
    (tmp_path / "pipeline.yml").write_text(keyed)
    (found,) = validate(tmp_path / "pipeline.yml")
    assert found.is_warning
    assert str(found).startswith(
        f"outputs.copy.key: `{option.replace(chr(39), '')}` of sources.shop may make different values equal"
    )
    (tmp_path / "pipeline.yml").write_text(text)
    assert validate(tmp_path / "pipeline.yml") == []
