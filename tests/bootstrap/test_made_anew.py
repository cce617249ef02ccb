"""A table of the log store that is removed, or made again by somebody, is never taken for all that happened."""

import shutil

import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from databus.cli._app import app
from databus.core import CorruptData, DatabusError
from databus.link import RelayClient
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_service import TABLES, churn

ORDERS = "shop/main.orders"


@pytest.fixture
def shop(tmp_path):
    filler = f"INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');"
    with Shop(tmp_path, TABLES + filler).running() as shop:
        churn(shop, 1, 10)
        shop.fill()
        yield shop


def rebuilt(shop, *words):
    return CliRunner().invoke(app, ["rebuild", *words, "--yes", "--file", str(shop.config.pipeline_path)])


def log_folder(shop):
    return shop.folder / "lake/log/shop/main.orders"


@pytest.mark.parametrize("tables", [(), (ORDERS,)])
def test_a_rebuild_of_the_log_store_is_refused_and_removes_nothing(shop, tables):
    """What it holds is older than what the relay could give it again; its notes say that it is there."""
    before = sorted(log_folder(shop).rglob("*"))
    said = rebuilt(shop, "log", *tables)
    assert said.exit_code != 0
    assert "log store" in str(said.exception)
    assert "docs/bootstrap.md" in str(said.exception)
    assert sorted(log_folder(shop).rglob("*")) == before
    assert rebuilt(shop, "state", ORDERS).exit_code == 0


def every_change_of_orders(shop):
    service = RelayClient(shop.service_url)
    service.asks = {"look_back": "all"}
    with service.stream(PHYSICAL, "beginning", sources=(ORDERS,), follow=True) as stream:
        return sum(frame.header.rows for groups in stream for group in groups for frame in group.rows)


def test_a_table_that_is_gone_from_the_log_store_is_not_one_of_which_nothing_happened(shop):
    """Nor is one that somebody has filled again from what the relay still had."""
    count = every_change_of_orders(shop)
    assert count
    aside = shop.folder / "aside"
    log_folder(shop).rename(aside)
    with pytest.raises(DatabusError, match=r"main\.orders"):
        every_change_of_orders(shop)
    with pytest.raises(CorruptData, match=r"main\.orders"):
        shop.note()
    write_deltalake(log_folder(shop), DeltaTable(aside).to_pyarrow_table().slice(2))
    with pytest.raises(DatabusError, match=r"main\.orders.*is missing.*docs/bootstrap\.md"):
        every_change_of_orders(shop)  # a server reads the files that it knows
    with pytest.raises(CorruptData, match="another table"):
        shop.note()
    shutil.rmtree(log_folder(shop))
    aside.rename(log_folder(shop))
    churn(shop, 10, 12)
    shop.fill()
    assert every_change_of_orders(shop) > count
