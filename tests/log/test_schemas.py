"""The schema store: numbers once given stay, definitions outlive the frames, forced ids are held to."""

import json
from threading import Thread

import pytest

from databus.core import ConfigError, CorruptData
from databus.log import LogConfig
from databus.schema import Column, TableSchema
from tests.log.make import ORDERS, ORDERS_2, SMALL, STOCK, group, open_log


def test_numbers_are_given_at_first_sight_and_kept(tmp_path):
    with open_log(tmp_path) as log:
        log.append(group(1, tables=(ORDERS, STOCK)))
        log.append(group(2, tables=(ORDERS_2,)))
        log.append(group(3, tables=(ORDERS,)))
    with open_log(tmp_path) as log:
        store = log.schemas
        assert [store.number_of(table) for table in (ORDERS, STOCK, ORDERS_2)] == [(1, 1), (2, 1), (1, 2)]
        assert [each.table for each in store.by_id(1)] == [ORDERS, ORDERS_2]
        assert store.by_fingerprint(ORDERS_2.fingerprint).version == 2
        assert store.by_fingerprint(7) is None
        assert {name: each.table for name, each in store.current().items()} == {
            "main.orders": ORDERS,
            "main.stock": STOCK,
        }
        assert store.full_name("main.stock") == "shop/main.stock"


def test_definitions_outlive_their_frames(tmp_path):
    config = LogConfig(**{**SMALL.model_dump(), "retention_bytes_max": 0})
    with open_log(tmp_path, config) as log:
        log.append(group(1, tables=(STOCK,)))
        while log.head().segments < 4:
            log.append(group(log.resume().scn + 1))
        log.sync()
        log.retain()
        assert log.head().segments == 1
    with open_log(tmp_path) as log:
        assert log.schemas.by_fingerprint(STOCK.fingerprint) is not None
        assert set(log.resume().schemas) == {"main.orders", "main.stock"}


def test_forced_ids_are_given_and_conflicts_refused(tmp_path):
    with open_log(tmp_path, ids={"main.stock": 40}) as log:
        log.append(group(1, tables=(ORDERS, STOCK)))
        assert dict(log.schemas.ids()) == {"main.orders": 1, "main.stock": 40}
    with open_log(tmp_path) as log:
        assert dict(log.schemas.ids()) == {"main.orders": 1, "main.stock": 40}
    with pytest.raises(ConfigError, match=r"main\.stock is known by id 40"):
        open_log(tmp_path, ids={"main.stock": 41})
    with pytest.raises(ConfigError, match=r"that id belongs to main\.stock"):
        open_log(tmp_path, ids={"main.new": 40})


def test_a_free_id_is_never_one_that_is_forced_for_another(tmp_path):
    with open_log(tmp_path, ids={"main.stock": 2}) as log:
        other = TableSchema("main.other", ORDERS.columns)
        assert [log.schemas.number_of(table)[0] for table in (ORDERS, other, STOCK)] == [1, 3, 2]


def test_many_are_registered_in_one_write_and_readable_meanwhile(tmp_path):
    tables = [TableSchema(f"main.t{i}", (Column("id", "int64"),)) for i in range(500)]
    with open_log(tmp_path) as log:
        store = log.schemas
        seen = []
        thread = Thread(target=lambda: seen.extend(len(store.all()) for _ in range(2000)))
        thread.start()
        store.register(tables)
        thread.join()
        assert set(seen) <= {0, 500}
        assert store.number_of(tables[499]) == (500, 1)
    assert len(json.loads((tmp_path / "schemas.json").read_text())["store"]["sources"]) == 500


def test_a_missing_store_is_named_when_frames_need_it(tmp_path):
    with open_log(tmp_path) as log:
        log.append(group(1))
    (tmp_path / "schemas.json").unlink()
    with pytest.raises(CorruptData, match=r"schemas\.json: the definition [0-9a-f]{16} of source 1"):
        open_log(tmp_path)
