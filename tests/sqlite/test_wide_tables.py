"""Tables as wide as SQLite has them."""

import pytest

from databus.core import ConfigError
from databus.sources.sqlite import SqliteConfig, SqliteSource
from tests.sqlite.conftest import Shop
from tests.sqlite.model import assert_identical, drain


def create_wide(shop: Shop, columns: int, key: str = "id INTEGER PRIMARY KEY") -> None:
    shop.run(f"CREATE TABLE wide ({key}, {', '.join(f'c{i} TEXT' for i in range(1, columns))})")


def test_each_change_of_a_table_with_more_columns_than_an_expression_has_levels_is_captured(shop: Shop) -> None:
    create_wide(shop, 1_100)  # of 1,997 a start takes ten seconds of processor time
    shop.run("INSERT INTO wide (id, c1, c1099) VALUES (1, 'a', 'z'), (2, 'b', 'y')")
    source = shop.start()
    drain(source, shop.log)
    shop.run("UPDATE wide SET c3 = 'x'", "DELETE FROM wide WHERE id = 2")
    shop.run("INSERT OR REPLACE INTO wide(id, c1099) VALUES (1, 'r')")
    drain(source, shop.log)
    assert_identical(shop.path, shop.log, ["wide"])


@pytest.mark.parametrize(
    ("columns", "key", "most"),
    [
        (1_998, "id INTEGER PRIMARY KEY", 1_997),
        (2_000, "id INTEGER PRIMARY KEY", 1_997),
        (1_996, "id INTEGER PRIMARY KEY, u UNIQUE, UNIQUE (id, u)", 1_994),
    ],
)
def test_more_columns_are_refused_with_what_to_do_before_anything_is_installed(
    shop: Shop, columns: int, key: str, most: int
) -> None:
    names = [name for name in ("id", "u") if f"{name} " in key]
    create_wide(shop, columns - len(names) + 1, key.partition(", UNIQUE")[0])
    if "UNIQUE (id, u)" in key:
        shop.run("CREATE UNIQUE INDEX both ON wide (id, u)")
    said = rf"main\.wide: {columns:,} columns, of which {most:,} can be captured.* name {columns - most} "
    with pytest.raises(ConfigError, match=said):
        shop.start()
    (found,) = [each for each in SqliteSource.check(SqliteConfig(path=shop.path)) if each.severity == "error"]
    assert "main.wide" in found.what
    left_out = {"main.wide": {"exclude": [f"c{i}" for i in range(1, columns - most + 1)]}}
    allowed = SqliteConfig.model_validate({"path": shop.path, "columns": left_out})
    assert [each for each in SqliteSource.check(allowed) if each.severity == "error"] == []
