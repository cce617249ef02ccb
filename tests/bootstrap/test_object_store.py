"""Stores in an object store: filled, answered from, looked back into, expired, erased, and damaged."""

import itertools

import pytest
from typer.testing import CliRunner

from databus.cli._app import app
from databus.core import CorruptData, ServiceUnavailable, StreamCut
from databus.link import RelayClient
from databus.stores import NoteFolder, _notes
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.followers import Follower
from tests.bootstrap.test_keep import target_of
from tests.bootstrap.test_service import TABLES, churn
from tests.stores.store import BUCKET, object_store

pytestmark = pytest.mark.nightly

ORDERS = "shop/main.orders"
_folders = itertools.count()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with object_store(tmp_path_factory.mktemp("moto")) as found:
        yield found


@pytest.fixture
def shop(tmp_path, store):
    tables = f"{TABLES} CREATE TABLE notes (said TEXT); INSERT INTO ballast VALUES (1, 0, '{'x' * 2000}');"
    path = f"s3://{BUCKET}/shop {next(_folders)}/lake"
    with Shop(tmp_path, tables, {"s3": store.options}, path=path).running() as running:
        running.captured()
        churn(running, 1, 12)
        running.execute("INSERT INTO notes VALUES ('first')")
        running.fill()
        yield running


def assert_equal(shop, *followers):
    for follower in followers:
        assert follower.is_as(shop, "main.orders", "main.stock")


def said(shop, *words):
    found = CliRunner().invoke(app, [*words, "-f", str(shop.config.path)])
    assert found.exception is None, found.exception
    return found.stdout


def test_every_way_of_looking_back_works_from_an_object_store(shop, tmp_path):
    old, every = Follower().follow(shop.url), Follower().follow(shop.url)
    churn(shop, 12, 24)
    shop.execute("INSERT INTO notes VALUES ('second')")
    shop.forget()
    churn(shop, 24, 26)
    shop.captured()
    new = Follower().follow(shop.url)
    old.follow(shop.url)
    every.follow(shop.url, look_back="all")
    assert_equal(shop, old, new, every)
    assert [each.kinds - {None} for each in (old, new, every)] == [{"since"}, {"state"}, {"every"}]
    assert [kind["states"] for kind in RelayClient(shop.service_url)._get("/admin/status", {})["physicals"].values()]
    shop.fill()
    assert "right" in said(shop, "bootstrap", "verify")
    assert said(shop, "history", ORDERS, "--key", "id = 3")
    scn = str(shop.head().position.scn)
    said(shop, "state", ORDERS, "--at", scn, "--into", str(tmp_path / "copy"))


def test_what_is_forgotten_goes_with_its_files_and_a_key_is_erased(shop, monkeypatch):
    for number in range(12, 15):
        churn(shop, number, number + 1)
        shop.fill()
    folder, states = shop.config.root / "state" / "shop" / "main.orders", shop.states()
    named = {name for each in states for name, _ in each.tables["main.orders"].files}
    notes = NoteFolder(shop.config.root, PHYSICAL)
    notes.forget(states[:-1])
    target_of(shop)._remove_left()
    assert named <= {*folder.names()}
    monkeypatch.setattr(_notes, "_ANSWER_S", -1)
    notes.forget(())
    target_of(shop)._remove_left()
    assert {name for name, _ in states[-1].tables["main.orders"].files} <= {*folder.names()}
    assert named - {*folder.names()}
    shop.execute("DELETE FROM orders WHERE id = 8")
    shop.fill()
    assert "states were noted again" in said(shop, "bootstrap", "erase", ORDERS, "--key", "id = 8", "--reason", "asked")
    assert '"id":8' not in said(shop, "history", ORDERS, "--key", "id = 8")
    assert "right" in said(shop, "bootstrap", "verify")
    shop.forget()
    assert_equal(shop, Follower().follow(shop.url))


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_an_object_that_is_not_as_it_was_written_ends_the_answer_with_its_name(shop, caplog, damage):
    name, _ = shop.states()[-1].tables["main.orders"].files[0]
    file = shop.config.root / "state" / "shop" / "main.orders" / name
    content = bytearray(file.read().content)
    if damage == "missing":
        file.remove()
    else:
        content[40] ^= 1
        file.write(bytes(content) if damage == "flipped" else bytes(content[:-20]))
    with pytest.raises((CorruptData, StreamCut, ServiceUnavailable)) as found:
        service = RelayClient(shop.service_url)
        with service.stream(PHYSICAL, "beginning", sources=(ORDERS,), follow=True) as stream:
            list(stream)
    assert name in f"{found.value} {caplog.text}"
    assert not isinstance(found.value, ServiceUnavailable), "nobody would put the object back by asking again"
