"""What a token allows holds for answers as for the relay's log: what it hides is not there."""

import pytest

from databus.bootstrap._commands import Commands
from databus.core import AccessDenied, DatabusError, MalformedRequest, RightMissing, SourceCheckpoint, UnknownSource
from databus.link import LookBack, RelayClient
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_answers import MORE
from tests.bootstrap.test_service import TABLES, churn

TOKENS = {"all": "a" * 40, "some": "s" * 40, "steers": "c" * 40}
ACCESS = [
    {"name": "all", "token_file": "all", "rights": ["read"]},
    {
        "name": "some",
        "token_file": "some",
        "rights": ["read"],
        "tables": ["shop/main.orders"],
        "where": {"shop/main.orders": "total >= 3"},
        "hide": {"shop/main.orders": ["name"]},
    },
    {"name": "steers", "token_file": "steers", "rights": ["control"]},
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    for name, token in TOKENS.items():
        (folder / name).write_text(token)
    with Shop(folder, TABLES + MORE, access=ACCESS).running() as running:
        running.captured()
        churn(running, 1, 20)
        running.fill()
        running.old = running.captured()
        churn(running, 20, 30)
        running.execute("UPDATE orders SET total = 6 - total")
        running.fill()
        yield running


def service_of(shop, name):
    return RelayClient(shop.service_url, token=TOKENS.get(name))


def given(shop, name, start="beginning", **asked):
    """What a stream has: tables, columns and rows."""
    client, found = service_of(shop, name), []
    with client.stream(PHYSICAL, start, follow=True, **asked) as stream:
        for group in (group for groups in stream for group in groups):
            for frame in group.rows:
                table = client.table_of(frame.header.fingerprint)
                found += [(table.source, {name: row[name] for name in table.names}) for row in frame.batch.to_pylist()]
    return found


@pytest.mark.parametrize("since", [False, True])
@pytest.mark.parametrize("every", [False, True])
def test_an_answer_has_what_the_token_lets_see(shop, since, every):
    """No other tables, rows and columns, in whatever way they come."""
    start = shop.old if since else "beginning"
    how = LookBack(every=every)
    service = service_of(shop, "some").looking_back(how)
    service.asks = how.query()
    found = []
    with service.stream(PHYSICAL, start, follow=True) as stream:
        for group in (group for groups in stream for group in groups):
            for frame in group.rows:
                table = service.table_of(frame.header.fingerprint)
                assert (table.source, table.names) == ("main.orders", ("id", "total"))
                found += frame.batch.to_pylist()
    assert found
    assert all(row["total"] >= 3 for row in found)
    assert {source for source, _ in given(shop, "all", start)} > {"main.orders"}


def test_tables_that_a_token_does_not_see_are_not_there(shop):
    some = service_of(shop, "some")
    assert [each.name for each in some.sources()] == ["shop/main.orders"]
    assert {(each.name, tuple(each.table.names)) for each in some.register(["*"])} == {
        ("shop/main.orders", ("id", "total"))
    }
    with pytest.raises(UnknownSource):
        some.range(PHYSICAL, SourceCheckpoint(), sources=["shop/main.stock"])
    assert some.range(PHYSICAL, SourceCheckpoint()).rows <= len(shop.select("SELECT * FROM orders"))
    with pytest.raises(MalformedRequest):
        given(shop, "some", sources=["shop/main.orders"], start=SourceCheckpoint(scn=1, seq=1, log="bootstrap:x"))


def test_who_has_no_token_or_no_right_is_told_as_the_relay_does(shop):
    with pytest.raises(AccessDenied):
        service_of(shop, "nobody").sources()
    with pytest.raises(RightMissing, match="needs the right `read`"):
        service_of(shop, "steers").sources()


def test_a_defect_is_said_to_be_one_of_the_service(shop, monkeypatch):
    monkeypatch.setattr(Commands, "_looks", lambda *_: 1 / 0)
    with pytest.raises(DatabusError, match="a defect in the bootstrap service"):
        service_of(shop, "all").sources()
