"""What the relay refuses: the status, the error's class, and a message that says where."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from databus.core import ConfigError, LockHeld, timeline_of
from databus.link import RelayClient
from databus.relay import Relay, parse_relay
from databus.testing.servers._ports import Port
from tests.relay.support import (
    WAIT_S,
    Answer,
    Database,
    config_of,
    connect,
    get,
    order,
    path_of,
    post,
    published,
    sale,
    scripted,
    until,
)

TOKEN = "correct-horse-battery"  # noqa: S105 - a test's


def refusal(answer: Answer, status: int, error: str, *words: str) -> None:
    assert (answer.status, answer.headers["x-dbus-error"]) == (status, error), answer.body
    assert answer.json["error"] == error
    for word in words:
        assert word in answer.json["message"]
        assert word in answer.headers["x-dbus-error-message"] or not word.isascii()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """A relay of two physical sources that have a table of the same name."""
    databases = {
        "shop": Database(groups=[order(1), sale(2), order(5)]),
        "east": Database(uuid="22222222-2222-2222-2222-222222222222", groups=[order(1)]),
    }
    with scripted(tmp_path_factory.mktemp("two"), databases) as relay:
        published(relay, "shop", 5)
        published(relay, "east", 1)
        yield relay


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/stream", {}, ["physical: ", "east, shop"]),
        ("/stream", {"sources": "orders"}, ["physical: ", "east, shop"]),
        ("/stream", {"sources": "shop/main.orders,east/main.orders"}, ["not of one physical source"]),
        ("/stream", {"physical": "shop", "scn": "x"}, ["scn: 'x'"]),
        ("/stream", {"physical": "shop", "scn": "-1"}, ["scn: '-1'"]),
        ("/stream", {"physical": "shop", "scn": str(1 << 63)}, ["scn: "]),
        ("/stream", {"physical": "shop", "scn": "\u0661"}, ["scn: "]),
        ("/stream", {"physical": "shop", "scn": 1, "start": "latest"}, ["scn, start: only one"]),
        ("/stream", {"physical": "shop", "start": "middle"}, ["start: 'middle' is none of beginning"]),
        ("/stream", {"physical": "shop", "time": "yesterday"}, ["time: 'yesterday'"]),
        ("/stream", {"physical": "shop", "from_": "{"}, ["from: not JSON"]),
        ("/stream", {"physical": "shop", "from_": "[1]"}, ["from: expected a JSON object"]),
        ("/stream", {"physical": "shop", "from_": {"scn": "7 or so"}}, ["from.scn: str"]),
        ("/stream", {"physical": "shop", "from_": {"scn": 1, "x": 1}}, ["from: unknown field 'x'"]),
        ("/stream", {"physical": "shop", "from_": {"v": 9, "sources": {}}}, ["from.v: "]),
        ("/stream", {"physical": "shop", "from_": {"v": 1, "sources": {}}}, ["from.sources: ", "'shop'"]),
        ("/stream", {"physical": "shop", "checkPoint": {"windowScn": "1"}}, ["checkPoint.windowScn"]),
        ("/stream", {"physical": "shop", "checkPoint": {"consumption_mode": "BOOTSTRAP_SNAPSHOT"}}, ["bootstrap"]),
        ("/stream", {"physical": "shop", "to": "1:2:3"}, ["to: "]),
        ("/stream", {"physical": "shop", "wait_ms": 60_001}, ["wait_ms: '60001'", "0..60000"]),
        ("/stream", {"physical": "shop", "max_bytes": 0}, ["max_bytes: '0'"]),
        ("/stream", {"physical": "shop", "max_bytes": 1, "size": 1}, ["max_bytes, size"]),
        ("/stream", {"physical": "shop", "follow": "perhaps"}, ["follow: 'perhaps'"]),
        ("/stream", {"physical": "shop", "follow": 1, "max_bytes": 9}, ["max_bytes: "]),
        ("/stream", {"physical": "shop", "output": "avro"}, ["output: 'avro'"]),
        ("/stream", {"physical": "shop", "sources": "a,,b"}, ["sources: "]),
        ("/stream", {"physical": "shop", "folow": 1}, ["folow: no such parameter", "follow"]),
        ("/range", {"physical": "shop", "partitions": 0}, ["partitions: '0'"]),
        ("/range", {"physical": "shop", "rows_max": "many"}, ["rows_max: 'many'"]),
        ("/register", {"fingerprint": "xyz"}, ["fingerprint: 'xyz'"]),
        ("/sources", {"v": 3}, ["v: '3'", "1..2"]),
        ("/bufferInfo", {}, ["/bufferInfo/inbound/"]),
        ("/bufferInfo/outbound/shop", {}, ["/bufferInfo/inbound/"]),
        ("/controlSources", {}, ["/controlSources/status, /controlSources/pause"]),
        ("/controlSources/shutdown", {}, ["/controlSources/status, /controlSources/pause"]),
        ("/relayStats/inbound", {}, ["/relayStats: "]),
        ("/admin/nothing", {}, ["/admin/status"]),
        ("/config", {"a": 1}, ["a: no such parameter"]),
    ],
)
def test_a_wrong_parameter_is_400_and_named(two: Relay, path: str, query: dict[str, Any], words: list[str]) -> None:
    refusal(get(two, path, **query), 400, "MalformedRequest", *words)


def test_a_snapshot_of_an_ambiguous_table_is_400_and_named(two: Relay) -> None:
    answer = post(two, "/controlSources/snapshot", tables="main.orders")
    refusal(answer, 400, "MalformedRequest", "tables: 'main.orders'")
    refusal(post(two, "/controlSources/pause", sources="x"), 404, "UnknownSource", "no physical source called 'x'")


def test_a_condition_that_a_source_does_not_take_is_400_and_named(tmp_path: Path) -> None:
    config = parse_relay({"listen": "127.0.0.1:0", "sources": {"gen": {"type": "mock"}}}, folder=tmp_path)
    with Relay(config) as relay:
        until(lambda: get(relay, "/admin/ready", sources="gen").status == 200)
        answer = post(relay, "/controlSources/snapshot", tables=relay_tables(relay)[0], where="id > 3")
    refusal(answer, 400, "MalformedRequest", "where: ", "leave `where` out")


def relay_tables(relay: Relay) -> list[str]:
    return [each["table"] for each in get(relay, "/sources", v=2).json]


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/stream", {"physical": "shpo"}, ["no physical source called 'shpo'; did you mean 'shop'?"]),
        ("/stream", {"physical": "shop", "sources": "ordrs"}, ["no source called 'ordrs'"]),
        ("/stream", {"sources": "west/main.orders"}, ["no physical source called 'west'", "east"]),
        ("/stream", {"sources": "ordrs"}, ["no source called 'ordrs'"]),
        ("/stream", {"physical": "shop", "sources": "77"}, ["no source called '77'"]),
        ("/range", {"physical": "shop", "sources": "main.order"}, ["did you mean 'shop/main.orders'?"]),
        ("/register", {"sources": "shop/main.stocks"}, ["did you mean 'shop/main.stock'?"]),
        ("/bufferInfo/inbound/x", {}, ["no physical source called 'x'; there are east, shop"]),
        ("/controlSources/status", {"sources": "x"}, ["no physical source called 'x'"]),
        ("/admin/ready", {"sources": "x"}, ["no physical source called 'x'"]),
        ("/relayStats/outbound/http/client/nobody-at-all", {}, ["no client called 'nobody-at-all'"]),
    ],
)
def test_an_unknown_name_is_404_and_the_nearest_is_offered(
    two: Relay, path: str, query: dict[str, Any], words: list[str]
) -> None:
    refusal(get(two, path, **query), 404, "UnknownSource", *words)


def test_an_unknown_command_or_method_names_those_that_there_are(two: Relay) -> None:
    refusal(get(two, "/straem"), 404, "MalformedRequest", "/straem", "/stream")
    refusal(get(two, "/"), 404, "MalformedRequest", "/sources")
    connection = connect(two)
    connection.request("DELETE", "/sources")
    response = connection.getresponse()
    assert response.status == 405
    assert "GET or POST" in json.loads(response.read())["message"]
    connection.close()


def test_a_parameter_given_twice_is_refused(two: Relay) -> None:
    refusal(get(two, "/stream?physical=shop&scn=1&scn=2"), 400, "MalformedRequest", "scn: given twice")


@pytest.mark.parametrize("path", ["/stream", "/position", "/range"])
def test_another_transaction_at_its_scn_is_409(two: Relay, path: str) -> None:
    answer = get(two, path, physical="shop", from_={"scn": 2, "txid": "somebody-else"})
    refusal(answer, 409, "PositionForeign", "t2", "somebody-else")


def test_another_databases_position_is_409(two: Relay) -> None:
    answer = get(two, "/stream", from_={"uuid": "33333333-3333-3333-3333-333333333333", "scn": 1}, physical="shop")
    refusal(answer, 409, "PositionForeign", "33333333-3333-3333-3333-333333333333")


def test_a_timeline_that_this_log_never_had_is_409(two: Relay) -> None:
    scn = (1 << 55) + 1
    assert timeline_of(scn) == 1
    refusal(get(two, "/stream", physical="shop", scn=scn), 409, "PositionForeign", "timeline 1")


def test_a_position_that_the_log_has_not_reached_again_is_503(two: Relay) -> None:
    refusal(get(two, "/stream", physical="shop", scn=99), 503, "ServiceUnavailable", "99", "5")


def test_what_has_left_the_log_is_410_with_what_is_still_there(tmp_path: Path) -> None:
    shop = Database(groups=[order(scn, "x" * 2000) for scn in range(1, 30)])
    log = {"segment_bytes_max": 8192, "retention_bytes_max": 20_000}
    with scripted(tmp_path, {"shop": shop}, log=log) as relay:
        published(relay, "shop", 29)
        held = until(lambda: (info := get(relay, "/bufferInfo/inbound/shop").json)["bytes"] <= 20_000 and info)
        oldest = held["minScn"]
        refusal(get(relay, "/stream", scn=1), 410, "PositionPurged", f"SCN {oldest}")
        refusal(get(relay, "/stream"), 410, "PositionPurged", "earliest")
        refusal(get(relay, "/range", scn=1), 410, "PositionPurged", f"SCN {oldest}")
        found = get(relay, "/stream", output="frames", start="earliest").groups
        assert found[0].commit.first_scn > oldest
        assert found[-1].commit.last_scn == 29


def test_one_stream_too_many_is_429_and_a_place_is_free_again_when_one_goes(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database()}, serve={"streams_max": 2}) as relay:
        open_streams = []
        for _ in range(2):
            connection = connect(relay)
            connection.request("GET", "/stream?output=frames&follow=1")
            open_streams.append(connection.getresponse())  # which holds the connection from here on
            assert open_streams[-1].status == 200
        refusal(get(relay, "/stream", follow=1), 429, "TooManyRequests", "streams_max=2")
        assert get(relay, "/sources").status == 200
        open_streams[0].close()
        until(lambda: get(relay, "/stream", wait_ms=0).status == 200, "a place is free")
        open_streams[1].close()


def test_too_long_a_request_is_refused_and_the_next_one_served(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database()}, serve={"request_bytes_max": 8192}) as relay:
        assert get(relay, "/sources", client="x" * 10_000).status in (400, 414)
        assert get(relay, "/sources", headers={"x-long": "x" * 10_000}).status in (400, 431)
        connection = connect(relay)
        body = "from=" + "x" * 10_000
        connection.request("POST", "/stream", body, {"Content-Type": "application/x-www-form-urlencoded"})
        assert connection.getresponse().status == 413
        connection.close()
        assert get(relay, "/sources").status == 200


# Tokens


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Relay]:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}, token_file="token") as relay:  # noqa: S106 - a path
        published(relay, "shop", 1)
        yield relay


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


ALL_COMMANDS = [
    "/sources", "/register", "/stream?wait_ms=0", "/position", "/range", "/bufferInfo/inbound/shop",
    "/relayStats/outbound/http/clients", "/containerStats/outbound/total", "/controlSources/status", "/config",
    "/admin", "/admin/live", "/admin/ready", "/admin/status", "/metrics",
]  # fmt: skip


@pytest.mark.parametrize("path", [*ALL_COMMANDS, "/nothing"])
def test_without_the_token_everything_is_401(guarded: Relay, path: str) -> None:
    refusal(get(guarded, path), 401, "AccessDenied", "Authorization: Bearer")
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "ä"):
        assert get(guarded, path, headers=bearer(wrong)).status == 401
    assert get(guarded, path, headers={"Authorization": TOKEN}).status == 401


def test_the_token_opens_everything_and_is_told_nowhere(
    guarded: Relay, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    told = []
    for path in ALL_COMMANDS:
        answer = get(guarded, path, headers=bearer(TOKEN))
        assert answer.status == 200, path
        told.append(answer.body)
    get(guarded, "/stream", headers=bearer("wrong-" + TOKEN))
    told += [path.read_bytes() for path in (tmp_path / "relay").rglob("*") if path.is_file()]
    out = capsys.readouterr()
    assert TOKEN not in b"".join(told).decode(errors="replace") + out.out + out.err + caplog.text


def test_the_configuration_is_shown_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TABLES", "main.very-secret")
    config = config_of(tmp_path, {"shop": Database()})
    assert config.shown()["folder"] == str(tmp_path / "relay")
    with scripted(
        tmp_path, {"shop": Database()}, sources={"shop": {"type": "mock", "exclude": ["${SHOP_TABLES}"]}}
    ) as relay:
        shown = get(relay, "/config")
        assert b"very-secret" not in shown.body
        assert shown.json["sources"]["shop"]["exclude"] == ["${SHOP_TABLES}"]


def test_without_a_token_only_programs_of_this_machine_are_answered(two: Relay) -> None:
    refusal(get(two, "/sources", headers={"Host": "evil.example:11115"}), 401, "AccessDenied", "localhost")
    refusal(get(two, "/sources", headers={"Origin": "http://localhost:3000"}), 401, "AccessDenied", "Origin")
    for host in ("localhost", "127.0.0.1:1", "[::1]:1"):
        assert get(two, "/sources", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]", "relay.example"])  # noqa: S104 - refused
def test_a_relay_does_not_listen_beyond_the_loopback_without_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="token_file"):
        Relay(config_of(tmp_path, {"shop": Database()}, listen=f"{host}:0"))


def test_with_a_token_it_does(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with scripted(tmp_path, {"shop": Database()}, token_file="token", listen="0.0.0.0:0") as relay:  # noqa: S106
        assert get(relay, "/sources", headers={**bearer(TOKEN), "Host": "relay.example"}).status == 200


def test_a_token_is_replaced_while_the_relay_runs(guarded: Relay, tmp_path: Path) -> None:
    """Both count while both stand in the file; clients that read the same file send the first."""
    file, new = tmp_path / "token", "another-token-9"

    def status(token: str) -> int:
        return get(guarded, "/sources", headers=bearer(token)).status

    assert status(new) == 401
    file.write_text(f"{TOKEN}\n{new}\n")
    until(lambda: status(new) == 200)
    assert status(TOKEN) == 200
    assert len(RelayClient(guarded.url, token_file=file).sources()) == 2
    file.write_text(f"{new}\n")
    until(lambda: status(TOKEN) == 401)
    assert len(RelayClient(guarded.url, token_file=file).sources()) == 2
    assert status(f"{TOKEN}\t{new}") == 401


@pytest.mark.parametrize("content", [None, "", "\n\n", "short\n", "has blanks in it"])
def test_a_tokens_file_that_became_no_good_leaves_the_token_as_it_was(
    guarded: Relay, tmp_path: Path, content: str | None
) -> None:
    """A relay that has wanted a token never begins to answer everybody."""
    with capture_logs() as logs:
        if content is None:
            (tmp_path / "token").unlink()
        else:
            (tmp_path / "token").write_text(content)
        until(lambda: any("cannot be used" in each["event"] for each in logs))
    assert get(guarded, "/sources").status == 401
    assert get(guarded, "/sources", headers=bearer(TOKEN)).status == 200


@pytest.mark.parametrize("token", ["", "short", "has blanks in it", "ümlautümlaut"])
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    with pytest.raises(ConfigError, match="token_file"):
        Relay(config_of(tmp_path, {"shop": Database()}, token_file="token"))  # noqa: S106 - a path
    with pytest.raises(ConfigError, match="token_file"):
        Relay(config_of(tmp_path, {"shop": Database()}, token_file="gone"))  # noqa: S106 - a path


# One relay for a folder, one for a port


def test_a_second_relay_on_the_same_folder_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database()}) as first:
        with pytest.raises(LockHeld, match=r"owned by process \d+"), scripted(tmp_path, {"shop": Database()}):
            pass
        assert get(first, "/admin").status == 200
        assert json.loads((tmp_path / "relay" / "relay.json").read_text())["url"] == first.url


def test_a_port_that_is_taken_is_a_configuration_error_that_names_it(tmp_path: Path) -> None:
    claim = Port.claim()
    listen = f"127.0.0.1:{claim.number}"
    with (
        socket.create_server(("127.0.0.1", claim.number)),
        pytest.raises(ConfigError, match=f"listen: {listen}: "),
        scripted(tmp_path, {"shop": Database()}, listen=listen),
    ):
        pass
    with scripted(tmp_path, {"shop": Database()}, listen=listen) as relay:
        assert relay.url == f"http://{listen}"
    claim.close()


# Anything at all

NAMES = [
    "physical", "sources", "from", "scn", "time", "start", "checkPoint", "to", "follow", "wait_ms", "max_bytes", "size",
    "output", "rows_max", "bytes_max", "partitions", "fingerprint", "v", "tables", "client", "filter",
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["shop", "beginning"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "v",
                    "sources",
                    "shop",
                    "scn",
                    "seq",
                    "txid",
                    "uuid",
                    "log",
                    "ts_us",
                    "snapshots",
                    "windowScn",
                    "windowOffset",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)
values = (
    st.sampled_from(
        ["shop", "east", "orders", "1", "2:3", "*", "shop/*", "beginning", "latest", "frames", "json", "[", "0"]
    )
    | st.integers().map(str)
    | json_values.map(json.dumps)
    | st.text(max_size=20)
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
@given(
    path=st.sampled_from(
        ["/stream", "/position", "/range", "/register", "/sources", "/bufferInfo/inbound/shop", "/config"]
    ),
    query=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), values, max_size=5),
)
def test_no_request_is_answered_with_500_or_not_at_all(two: Relay, path: str, query: dict[str, str]) -> None:
    """Law: whatever the parameters are, the answer is data or an error that names what is wrong."""
    query = {
        name: value for name, value in query.items() if name != "follow" and not (name == "wait_ms" and len(value) > 2)
    }
    if path in ("/stream", "/range"):
        query.setdefault("wait_ms", "0")
    answer = get(two, path_of(path, query))
    assert answer.status in (200, 400, 404, 409, 410, 503), (answer.status, answer.body)
    if answer.status != 200:
        assert answer.json["message"]
        assert answer.headers["x-dbus-error"] == answer.json["error"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
@given(request_=st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_request_harm_nobody(two: Relay, request_: bytes) -> None:
    """Law: no bytes on a connection make the relay fail for anybody else."""
    host, _, port = two.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as sock:
        sock.sendall(request_ + b"\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while piece := sock.recv(65536):
            received += piece
        assert b" 500 " not in received.split(b"\r\n", 1)[0]
    assert get(two, "/sources").status == 200
