"""All images of a key are gone from both stores, whatever is killed, and everything else is what it was."""

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from databus.bootstrap import BootstrapServer, NoteTaker, erase, run_bootstrap
from databus.bootstrap._erase import _output, _Record
from databus.cli._app import app
from databus.core import LockHeld
from databus.pipeline import load_pipeline, while_stopped
from databus.pipeline.engine import Ledger, ledger_path
from databus.stores import NoteFolder
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_service import TABLES, Copy, assert_equal, churn, follow

ORDERS = "shop/main.orders"


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, f"{TABLES} INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');").captured_by_a_relay() as shop:
        churn(shop, 1, 10)
        shop.fill()
        shop.execute("UPDATE orders SET name = 'secret' WHERE id = 6")
        shop.fill()
        shop.execute("DELETE FROM orders WHERE id = 6")
        churn(shop, 10, 20)
        shop.fill()
        yield shop


def images(shop):
    """Files, beside their rows of order 6."""
    found = {}
    for path in (shop.folder / "lake").rglob("*.parquet"):
        if path.parent.name == "main.orders":
            found[path] = pq.read_table(path).column("id").to_pylist().count(6)
    return {path: count for path, count in found.items() if count}


def others(shop):
    """What the newest state has of other tables and keys."""
    stores = shop.folder / "lake/state/shop/main.orders"
    names = [name for name, _ in shop.states()[-1].tables["main.orders"].files]
    return sorted(row["id"] for name in names for row in pq.read_table(stores / name).to_pylist() if row["id"] != 6)


def test_no_file_holds_an_image_of_an_erased_key_and_states_stay_right(shop):
    assert images(shop)
    before, rows = len(shop.states()), others(shop)
    command = ["bootstrap", "erase", ORDERS, "--key", "id = 6", "--reason", "ticket 12", "-f", str(shop.config.path)]
    said = CliRunner().invoke(app, command)
    assert said.exception is None, said.exception
    assert "states were noted again" in said.stdout
    assert "the relay's log begins at SCN" in said.stdout
    assert images(shop) == {}
    assert len(shop.states()) == before
    assert others(shop) == rows
    assert CliRunner().invoke(app, ["bootstrap", "verify", "-f", str(shop.config.path)]).exit_code == 0
    (record,) = (shop.folder / "lake/notes/shop").glob("erased-*.json")
    assert "ticket 12" in record.read_text()
    assert "id = 6" not in record.read_text()


def test_consumers_go_on_over_an_erased_key(shop):
    erase(shop.config, ORDERS, "id = 6", "asked for")
    with BootstrapServer(shop.config) as server:
        shop.name_service(server.url)
        churn(shop, 20, 25)
        shop.forget()
        new = Copy()
        follow(shop, new)
        assert_equal(shop, new)


def test_a_kill_half_way_is_made_good_by_the_same_call(shop, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    for killing in ("add", "remove"):
        with monkeypatch.context() as patched:
            patched.setattr(NoteFolder, killing, killed)
            with pytest.raises(KeyboardInterrupt):
                erase(shop.config, ORDERS, "id = 6", "asked for")
    erase(shop.config, ORDERS, "id = 6", "asked for")
    assert images(shop) == {}
    assert CliRunner().invoke(app, ["bootstrap", "verify", "-f", str(shop.config.path)]).exit_code == 0
    assert {each.position.pair for each in NoteFolder(shop.config.root, PHYSICAL).states()}


def test_a_service_and_an_erasure_that_begin_at_once_do_not_both_write(shop, monkeypatch):
    """Neither where the service has never run here, nor where it runs elsewhere, with another state."""
    graph = load_pipeline(shop.config.pipeline_path)
    elsewhere = Ledger.load(ledger_path(_output(shop.config, "state"), graph.config.state), graph.config.name, "state")
    elsewhere.take()
    shop.config.pipeline_path.unlink()
    did = []

    def begin_service(*_, **counts):
        with pytest.raises(LockHeld, match="runs already"):
            run_bootstrap(shop.config)
        did.append("refused")

    monkeypatch.setattr("databus.bootstrap._noting._LOOK_S", 0.0)
    monkeypatch.setattr(NoteTaker, "look", lambda _: did.append("noted"))
    monkeypatch.setattr(_Record, "put", begin_service)
    erase(shop.config, ORDERS, "id = 6", "asked for")
    assert did == ["refused", "refused"]
    with pytest.raises(LockHeld, match="has begun to write"):
        elsewhere.check_epoch()


def test_a_service_that_runs_is_not_touched_and_a_row_that_is_there_is_said(shop):
    config = load_pipeline(shop.config.pipeline_path).config
    with (
        while_stopped(config.state, config.name),
        pytest.raises(LockHeld, match=r"runs already.*end `databus bootstrap run"),
    ):
        erase(shop.config, ORDERS, "id = 8", "asked for")
    assert erase(shop.config, ORDERS, "id = 8", "asked for").is_still_there
