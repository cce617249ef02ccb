"""What a token allows holds for answers as for the relay's log: what it hides is not there."""

import json
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from databus.bootstrap._commands import ANSWERS, ServiceCommands
from databus.core import AccessDenied, DatabusError, MalformedRequest, RightMissing, SourceCheckpoint, UnknownSource
from databus.link import LookBack, RelayClient
from tests.bootstrap.filled import PHYSICAL, Shop
from tests.bootstrap.test_answers import MORE
from tests.bootstrap.test_service import TABLES, churn
from tests.certificates import Authority

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
    monkeypatch.setattr(ServiceCommands, "_looks", lambda *_: 1 / 0)
    with pytest.raises(DatabusError, match="a defect in the bootstrap service"):
        service_of(shop, "all").sources()


HIDDEN = ("stock", "ballast", "notes", "order 1", "x" * 50)
"""Tables, and values of a column and of tables, that `some` does not see."""


def got(shop, path, who="some", **headers):
    """Status and text of an answer."""
    headers = {"Authorization": f"Bearer {TOKENS[who]}", **headers} if who in TOKENS else headers
    try:
        with urlopen(Request(f"{shop.service_url}{path}", headers=headers)) as answer:  # noqa: S310 - our own
            return answer.status, answer.read().decode(errors="replace")
    except HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def answer_at(position):
    return quote(json.dumps(position.to_json()))


@pytest.mark.parametrize("path", sorted(ANSWERS))
def test_whatever_is_asked_a_token_has_nothing_that_it_does_not_see(shop, path):
    """As a list, as a number, as a filter, as a state's name, as a fingerprint, and in the text of an error."""
    state, given = shop.states()[-1], shop.client.register(["shop/main.stock", "shop/main.orders"])
    stock = next(each for each in given if each.name == "shop/main.stock")
    inside = SourceCheckpoint(
        scn=state.position.scn, seq=state.base + 1, log=f"bootstrap:state;{state.name};;0.-1;00", snapshots={"*": 0}
    )
    asked = [
        "",
        "?physical=shop",
        "?physical=shop&start=beginning&output=frames",
        "?physical=shop&start=beginning&sources=shop/main.stock&output=frames",
        "?physical=shop&start=beginning&sources=main.sto*&output=frames",
        f"?physical=shop&start=beginning&sources={stock.id}&output=frames",
        "?sources=shop/main.stock",
        f"?sources={stock.id}",
        *(f"?fingerprint={each.fingerprint:016x}" for each in given),
        "?v=2",
        "?physical=shop&start=beginning&estimate=1",
        "?physical=shop&start=beginning&look_back=all&output=frames&sources=shop/*",
        f"?physical=shop&output=frames&from={answer_at(inside)}",
        f"?physical=shop&output=frames&from={answer_at(shop.old)}&first_images=1&by_table=1",
    ]
    for query in asked:
        _, text = got(shop, f"{path}{query}")
        text = text.replace("'shop/main.stock'", "")  # what was asked for, in an error
        shown = [each for each in HIDDEN if each in text]
        assert shown == [], (path, query, text[:500])


def test_a_condition_over_a_hidden_column_is_one_over_none(shop):
    """Otherwise how much is read would tell its values."""
    for path in ("/range", "/stream"):
        for column in ("name", "nothing"):
            where = quote(f"{column} >= 'order 2'")
            status, text = got(shop, f"{path}?physical=shop&start=beginning&where={where}&output=frames&estimate=1")
            assert status == 400, (path, text)
        status, text = got(shop, f"{path}?physical=shop&start=beginning&columns=name&output=frames")
        assert status == 400, (path, text)


def test_how_much_is_read_does_not_tell_of_rows_that_are_hidden(shop):
    """The bounds of a row group are of all of its rows: by conditions over them one could look for the greatest."""
    shop.execute("INSERT INTO orders VALUES (90000, 'hidden', 0)")
    shop.fill()

    def rows(where):
        asked = f"?physical=shop&start=beginning&sources=main.orders&estimate=1&where={quote(where)}"
        return json.loads(got(shop, f"/range{asked}")[1])["rows"]

    assert rows("id >= 80000") == rows("id >= 95000") == rows("id >= 1")


@pytest.mark.parametrize("path", sorted(ANSWERS))
def test_without_a_token_that_is_known_nothing_is_answered(shop, path):
    for who, headers in (("", {}), ("", {"Authorization": "Bearer wrong"}), ("", {"Authorization": "Basic YTpi"})):
        assert got(shop, path, who, **headers)[0] == 401, path
    allowed = (200,) if path in ("/admin", "/admin/live", "/admin/ready", "/help", "/openapi.json") else (403,)
    assert got(shop, path, "steers")[0] in allowed


def test_a_service_answers_by_tls_whoever_knows_its_authority(tmp_path):
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    (tmp_path / "all").write_text(TOKENS["all"])
    secured = {"tls": ours.sign("service").relay, "token_file": "all"}
    with Shop(tmp_path, TABLES + MORE, **secured).running() as shop:
        churn(shop, 1, 10)
        shop.fill()
        assert shop.service_url.startswith("https://")
        service = RelayClient(shop.service_url, token=TOKENS["all"], ca_file=ours.ca)
        with service.stream(PHYSICAL, "beginning", follow=True) as stream:
            assert [group for groups in stream for group in groups]
        with pytest.raises(DatabusError, match="certificate"):
            RelayClient(shop.service_url, token=TOKENS["all"], ca_file=other.ca).sources()
        with pytest.raises(AccessDenied):
            RelayClient(shop.service_url, token=TOKENS["some"], ca_file=ours.ca).sources()
        with pytest.raises(DatabusError, match="TLS"):
            RelayClient(shop.service_url.replace("https", "http"), token=TOKENS["all"]).sources()
