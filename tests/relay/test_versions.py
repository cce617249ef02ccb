"""Clients of other versions: an older one is refused by name before it gets a byte that it cannot read."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from databus.core import MalformedRequest
from databus.link import RelayClient
from databus.link import _relay as client_module
from databus.relay import Relay
from databus.wire import Commit, Group, OpenSnapshot
from tests.relay.support import AT_US, ORDERS, Database, get, order, published, rows_of, scripted

MANY = {f"main.a_table_with_a_name_of_some_length_{i:05}": OpenSnapshot(1 << 41, None, (9, 1)) for i in range(300)}


def with_large_position(scn: int) -> Group:
    commit = Commit(scn, 1, f"t{scn}", {"n": scn, "gtids": "g" * (100 << 10)}, AT_US + scn, MANY)
    return Group(commit, (rows_of(ORDERS, scn, [{"id": scn, "name": "a"}]),))


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    database = Database(groups=[order(1), with_large_position(2), order(3)])
    with scripted(tmp_path_factory.mktemp("versions"), {"shop": database}) as relay:
        published(relay, "shop", 3)
        yield relay


def test_an_older_client_is_refused_by_name(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ACCEPTED", "application/vnd.databus.frames")  # as version 1 asks
    with (
        closing(RelayClient(relay.url)) as client,
        pytest.raises(MalformedRequest, match=r"this relay sends frames of version 2.*update the client"),
    ):
        client.stream("shop", "beginning")


def test_who_asks_by_hand_gets_frames(relay: Relay) -> None:
    assert [group.commit.last_scn for group in get(relay, "/stream", output="frames").groups] == [1, 2, 3]


@pytest.mark.parametrize("sources", [None, ["main.stock"]])
def test_positions_of_any_size_come_through(relay: Relay, sources: list[str] | None) -> None:
    with closing(RelayClient(relay.url)) as client, client.stream("shop", "beginning", sources=sources) as stream:
        commits = [Commit.from_header(group.commit) for groups in stream for group in groups]
    assert commits[1].position["gtids"] == "g" * (100 << 10)
    assert [len(each.snapshots) for each in commits] == [0, 300, 0]


def test_a_checkpoint_with_many_open_snapshots_fits_a_request(relay: Relay) -> None:
    with closing(RelayClient(relay.url)) as client:
        position = client.range("shop", client.position("shop", start="beginning"), rows_max=2).position
        assert position.snapshots == {name: each.generation for name, each in MANY.items()}
        assert client.position("shop", start=position).pair == position.pair
