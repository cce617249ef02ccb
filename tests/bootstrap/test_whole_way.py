"""The service as `databus bootstrap run` runs it: Spark fills the stores, states are noted, clients look back."""

import queue
import threading

import pytest

from databus.bootstrap import TablePast, run_bootstrap, status_of
from databus.log import LogConfig
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_service import TABLES, Copy, assert_equal, churn, follow
from tests.client.conftest import wait_for


@pytest.mark.spark
def test_the_service_keeps_what_the_relay_forgets_and_gives_it_back(tmp_path, spark):
    """A keyless table too; whoever goes on from an old position, or from nothing, ends equal to SELECT."""
    shop = Shop(tmp_path, f"{TABLES} INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');")
    stop, codes = queue.SimpleQueue(), []

    def state_scn():
        return status_of(shop.config).get(PHYSICAL, {}).get("state_scn", 0)

    with shop.captured_by_a_relay():
        churn(shop, 1, 10)
        service = threading.Thread(
            target=lambda: codes.append(run_bootstrap(shop.config, shop.name_service, session=spark, stop=stop))
        )
        service.start()
        try:
            old = Copy()
            end = shop.captured().scn
            follow(shop, old)
            wait_for(lambda: state_scn() >= end, "the first state")
            churn(shop, 10, 40)
            log = shop.relay.captures[PHYSICAL].log
            log.config = LogConfig(**{**log.config.model_dump(), "retention_bytes_max": 150_000})
            begin = shop.client.head(PHYSICAL).published.scn
            while shop.client.head(PHYSICAL).oldest.scn <= begin:
                for _ in range(8):  # less than the relay keeps
                    shop.execute("UPDATE ballast SET n = n + 1")
                end = shop.captured().scn
                wait_for(lambda end=end: state_scn() >= end, f"a state at {end}")
            churn(shop, 40, 45)
            shop.captured()
            new = Copy()
            follow(shop, new)
            assert_equal(shop, new)
            follow(shop, old, checkpoint=old.checkpoint)
            assert_equal(shop, old)
            assert (new.kinds, old.kinds) == ({"state", None}, {"since", None})
        finally:
            stop.put("the test is over")
            service.join(90)
    assert codes == [0]


@pytest.mark.spark
@pytest.mark.nightly
def test_a_table_without_a_key_that_comes_while_the_service_runs_is_left_to_the_log_store(tmp_path, spark):
    """And the others go on in both."""
    shop = Shop(tmp_path, TABLES)
    stop, codes = queue.SimpleQueue(), []

    def state_scn():
        return status_of(shop.config).get(PHYSICAL, {}).get("state_scn", 0)

    def notes():
        past = TablePast.of(shop.config, "shop/main.notes")
        tables = [item.rows for item in past.items((0, -1), past.end) if hasattr(item, "rows")]
        return {said for rows in tables for said in rows.column("said").to_pylist()}

    with shop.captured_by_a_relay():
        churn(shop, 1, 3)
        service = threading.Thread(
            target=lambda: codes.append(run_bootstrap(shop.config, shop.name_service, session=spark, stop=stop))
        )
        service.start()
        try:
            end = shop.captured().scn
            wait_for(lambda: state_scn() >= end, "the first state")
            shop.execute("CREATE TABLE notes (said TEXT)", "INSERT INTO notes VALUES ('first')")
            churn(shop, 3, 6)
            end = shop.captured().scn
            wait_for(lambda: state_scn() >= end, "a state with the new table beside")
            wait_for(lambda: "first" in notes(), "the new table's row in the log store")  # perhaps by a snapshot
        finally:
            stop.put("the test is over")
            service.join(90)
    assert codes == [2], "the state store refuses the table, and the run says so at its end"
