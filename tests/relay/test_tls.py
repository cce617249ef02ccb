"""TLS between a relay and its clients: what is let in, what is refused and how it is said, and renewal."""

import json
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from databus.core import (
    AccessDenied,
    ConfigError,
    DatabusError,
    InputError,
    ServiceUnavailable,
    SourceCheckpoint,
    StreamCut,
)
from databus.link import Access, Arrived, Channel, Reader, ReaderState, RelayClient
from databus.relay import Relay
from tests.certificates import Authority
from tests.listening import taken_by
from tests.relay.support import WAIT_S, Database, config_of, order, parts, published, scripted, until

TOKEN = "correct-horse-battery"  # noqa: S105 - a test's
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture
def relay(tmp_path: Path, authority: Authority) -> Iterator[Relay]:
    tls = authority.sign("relay").relay
    with scripted(tmp_path, {"shop": Database(groups=[order(1), *parts(2, 40)])}, tls=tls) as relay:
        published(relay, "shop", 2)
        yield relay


def port_of(relay: Relay) -> int:
    return int(relay.url.rpartition(":")[2])


def asked(relay: Relay, **options: Any) -> int:
    return len(RelayClient(relay.url, **options).sources())


def raised(url: str, **options: Any) -> DatabusError:
    with pytest.raises(DatabusError) as caught:
        RelayClient(url, **options).sources()
    return caught.value


# What is let in


def test_a_client_that_knows_the_authority_reads_everything(relay: Relay, authority: Authority) -> None:
    assert relay.url.startswith("https://127.0.0.1:")
    told = json.loads((relay.config.folder / "relay.json").read_text())
    assert told["url"] == relay.url
    client = RelayClient(relay.url, ca_file=authority.ca)
    assert [each.name for each in client.sources()] == ["shop/main.orders", "shop/main.stock"]
    with client.stream("shop", "beginning") as stream:
        assert [group.commit.last_scn for groups in stream for group in groups] == [1, *[2] * 40]


@pytest.mark.parametrize("has_tls", [False, True])
def test_the_kernel_sends_the_logs_files_where_nothing_is_to_be_encrypted(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    sent, sendfile = [], os.sendfile
    monkeypatch.setattr(os, "sendfile", lambda *given: sent.append(sendfile(*given)) or sent[-1])
    tls = {"tls": authority.sign("relay").relay} if has_tls else {}
    shop = Database(groups=[order(scn, os.urandom(200_000).hex()) for scn in range(1, 11)])
    with scripted(tmp_path, {"shop": shop}, **tls) as relay:
        published(relay, "shop", 10)
        client = RelayClient(relay.url, access=Access(ca_file=authority.ca) if has_tls else None)
        with client.stream("shop", "beginning") as stream:
            assert sum(len(groups) for groups in stream) == 10
    assert (sum(sent) > 4_000_000) is not has_tls
    assert bool(sent) is not has_tls


@pytest.mark.parametrize("version", VERSIONS)
def test_both_versions_of_tls_are_spoken_and_no_older_one(
    relay: Relay, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=authority.ca)
    context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("localhost", port_of(relay)), timeout=WAIT_S) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as secured,
    ):
        assert secured.version() == version.name.replace("_", ".")
        secured.sendall(b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert secured.recv(100).startswith(b"HTTP/1.1 200 ")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("localhost", port_of(relay)), timeout=WAIT_S) as sock, pytest.raises(ssl.SSLError):
        old.wrap_socket(sock)


def test_a_follower_gets_what_is_captured_while_it_follows(tmp_path: Path, authority: Authority) -> None:
    database = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": database}, tls=authority.sign("relay").relay) as relay:
        client = RelayClient(relay.url, ca_file=authority.ca)
        with client.stream("shop", "beginning", follow=True) as stream:
            found: list[int] = []
            while len(found) < 200:
                found += [group.commit.last_scn for group in next(stream)]
                database.add(order(found[-1] + 1))
            assert found[:200] == list(range(1, 201))


def test_a_large_group_comes_whole_to_a_slow_reader_at_the_tail(tmp_path: Path, authority: Authority) -> None:
    """More than sockets hold, so that the relay stops in the middle and goes on there."""
    database = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": database}, tls=authority.sign("relay").relay) as relay:
        client = RelayClient(relay.url, ca_file=authority.ca)
        with client.stream("shop", "beginning", follow=True) as stream:
            assert next(stream)
            for scn in range(2, 10):
                database.add(order(scn, os.urandom(1_000_000).hex()))
            published(relay, "shop", 9)
            found: list[int] = []
            while not found or found[-1] < 9:
                found += [group.commit.last_scn for group in next(stream)]
            assert found == list(range(2, 10))


def test_the_environment_names_the_authority_for_who_names_none(
    relay: Relay, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABUS_CA_FILE", str(authority.ca))
    assert asked(relay) == 2


# What is refused, and how it is said


def test_an_unknown_authority_is_a_mistake_in_the_configuration(relay: Relay, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    wrong, none = raised(relay.url, ca_file=other.ca), raised(relay.url)
    assert isinstance(wrong, ConfigError)
    assert isinstance(none, ConfigError)
    assert str(wrong).startswith(f"relay at 127.0.0.1:{port_of(relay)}: no authority in {other.ca} has signed")
    assert "nobody that this machine trusts has signed" in str(none)
    assert "--ca-file" in str(none)


def test_another_name_than_the_certificates_is_refused(tmp_path: Path, authority: Authority) -> None:
    tls = authority.sign("relay", hosts=("relay.internal",)).relay
    with scripted(tmp_path, {"shop": Database()}, tls=tls) as relay:
        for host in ("127.0.0.1", "localhost"):
            error = raised(f"https://{host}:{port_of(relay)}", ca_file=authority.ca)
            assert isinstance(error, ConfigError)
            assert f"its certificate is not for {host}" in str(error)


@pytest.mark.parametrize(("days", "says"), [((-20, -1), "has expired"), ((1, 2), "not valid yet")])
def test_an_expired_certificate_is_asked_again_since_it_may_be_renewed(
    tmp_path: Path, authority: Authority, days: tuple[int, int], says: str
) -> None:
    with scripted(tmp_path, {"shop": Database()}, tls=authority.sign("relay", days=days).relay) as relay:
        error = raised(relay.url, ca_file=authority.ca)
        assert isinstance(error, ServiceUnavailable)
        assert says in str(error)
        authority.sign("relay")
        until(lambda: _is_let_in(relay, authority), "the renewed certificate is shown")


def test_a_follower_waits_for_a_certificate_to_be_renewed_and_goes_on(tmp_path: Path, authority: Authority) -> None:
    """Not one group is lost, and nobody has to start it again."""
    tls = authority.sign("relay", days=(-20, -1)).relay
    with scripted(tmp_path, {"shop": Database(groups=[order(1), order(2)])}, tls=tls) as relay:
        channel = Channel(threading.Condition(), 1 << 20)
        reader = Reader(RelayClient(relay.url, ca_file=authority.ca), "shop", SourceCheckpoint(), channel)
        until(lambda: reader.state is ReaderState.WAITING)
        assert "has expired" in str(reader.last_error)
        authority.sign("relay")
        scns: list[int] = []
        while len(scns) < 2:
            event = until(channel.take)
            scns += [each.commit.last_scn for each in event.groups] if isinstance(event, Arrived) else []
        reader.close()
    assert scns == [1, 2]


def test_a_follower_that_does_not_trust_the_relay_ends_and_does_not_ask_for_ever(relay: Relay) -> None:
    channel = Channel(threading.Condition(), 1 << 20)
    reader = Reader(RelayClient(relay.url), "shop", SourceCheckpoint(), channel)
    until(lambda: reader.state is ReaderState.FAILED)
    assert isinstance(reader.last_error, ConfigError)
    reader.close()


def _is_let_in(relay: Relay, authority: Authority) -> bool:
    try:
        return asked(relay, ca_file=authority.ca) >= 0
    except ServiceUnavailable:
        return False


def test_plain_http_at_a_port_with_tls_is_told_so(relay: Relay) -> None:
    error = raised(f"http://127.0.0.1:{port_of(relay)}")
    assert isinstance(error, ConfigError)
    assert "this port speaks TLS" in str(error)
    with socket.create_connection(("127.0.0.1", port_of(relay)), timeout=WAIT_S) as sock:
        sock.sendall(b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 400 ")


def test_tls_at_a_port_without_is_told_so(tmp_path: Path, authority: Authority) -> None:
    with scripted(tmp_path, {"shop": Database()}) as relay:
        error = raised(relay.url.replace("http:", "https:"), ca_file=authority.ca)
    assert isinstance(error, ConfigError)
    assert "does not speak TLS; if the relay has no `tls`, its address begins with http://" in str(error)


def test_a_port_that_says_nothing_does_not_answer(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        error = raised(url, ca_file=authority.ca, connect_ms_max=200)
    assert isinstance(error, ServiceUnavailable)
    assert "no TLS handshake in time" in str(error)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_relay_that_wants_certificates_lets_in_who_shows_one_and_tells_the_others(
    tmp_path: Path, authority: Authority, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ssl.create_default_context

    def limited(**options: Any) -> ssl.SSLContext:
        context = made(**options)
        context.maximum_version = version
        return context

    monkeypatch.setattr(ssl, "create_default_context", limited)
    (tmp_path / "other").mkdir()
    stranger, late = Authority(tmp_path / "other").sign("anna"), authority.sign("late", days=(-9, -1))
    tls = {**authority.sign("relay").relay, "client_ca_file": str(authority.ca)}
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}, tls=tls) as relay:
        published(relay, "shop", 1)
        assert asked(relay, ca_file=authority.ca, **authority.sign("anna").client) == 2
        missing = raised(relay.url, ca_file=authority.ca)
        foreign = raised(relay.url, ca_file=authority.ca, **stranger.client)
        expired = raised(relay.url, ca_file=authority.ca, **late.client)
    assert isinstance(missing, AccessDenied)
    assert "lets in only who shows a certificate; give `certificate_file` and `key_file`" in str(missing)
    assert isinstance(foreign, AccessDenied)
    assert f"refuses our certificate {stranger.certificate}" in str(foreign)
    assert isinstance(expired, ServiceUnavailable)
    assert "has expired; renew the file" in str(expired)


def test_a_session_that_is_resumed_shows_no_certificate_and_is_refused(tmp_path: Path, authority: Authority) -> None:
    """By its time the certificate of its beginning may have expired."""
    signed = authority.sign("anna")
    client = ssl.create_default_context(cafile=authority.ca)
    client.load_cert_chain(signed.certificate, signed.key)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = {**authority.sign("relay").relay, "client_ca_file": str(authority.ca)}

    def ask(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        plain = socket.create_connection(("127.0.0.1", port_of(relay)), timeout=WAIT_S)
        with client.wrap_socket(plain, server_hostname="localhost", session=session) as sock:
            sock.sendall(b"GET /admin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return sock.recv(65_536), sock.session

    with scripted(tmp_path, {"shop": Database()}, tls=tls) as relay:
        first, session = ask(None)
        again, _ = ask(session)
        anew, _ = ask(None)
    assert [each.partition(b"\r\n")[0] for each in (first, anew)] == [b"HTTP/1.1 200 OK"] * 2
    assert again.startswith(b"HTTP/1.1 403 Forbidden")
    assert b"resume no sessions" in again


def test_a_token_is_wanted_with_tls_as_without(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "token").write_text(TOKEN)
    tls = authority.sign("relay").relay
    with scripted(tmp_path, {"shop": Database()}, token_file="token", tls=tls) as relay:  # noqa: S106 - a path
        assert isinstance(raised(relay.url, ca_file=authority.ca), AccessDenied)
        assert asked(relay, ca_file=authority.ca, token=TOKEN) == 2


def test_an_answer_that_is_cut_off_is_not_taken_for_the_whole(relay: Relay, authority: Authority) -> None:
    """The relay's end of a stream is a message of TLS; a connection that ends without it was cut by somebody."""

    def pass_on(client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port_of(relay))) as server:
            back = threading.Thread(target=_copy, args=(server, client, 6_000))
            back.start()
            _copy(client, server, None)
            back.join()

    with taken_by(pass_on) as port:
        url = f"https://127.0.0.1:{port}"
        with pytest.raises(StreamCut), RelayClient(url, ca_file=authority.ca).stream("shop", "beginning") as stream:
            assert sum(len(groups) for groups in stream) < 41


def _copy(source: socket.socket, target: socket.socket, bytes_max: int | None) -> None:
    """Copy until the end, or for so many bytes; then end both in good order, as far as TCP is concerned."""
    left = bytes_max
    with suppress(OSError):  # the other direction has ended it
        while (left is None or left > 0) and (piece := source.recv(65_536 if left is None else left)):
            target.sendall(piece)
            left = None if left is None else left - len(piece)
    for each in (source, target):
        with suppress(OSError):  # it was
            each.shutdown(socket.SHUT_WR)


# The files


def test_a_renewed_certificate_is_shown_without_a_restart(relay: Relay, authority: Authority) -> None:
    before = _shown(relay)
    client = RelayClient(relay.url, ca_file=authority.ca)
    with client.stream("shop", "beginning", follow=True) as stream:
        assert next(stream)
        authority.sign("relay")
        until(lambda: _shown(relay) != before, "another certificate is shown")
        assert asked(relay, ca_file=authority.ca) == 2


def test_a_renewal_that_is_no_good_leaves_the_certificate_as_it_was(
    relay: Relay, authority: Authority, tmp_path: Path
) -> None:
    before = _shown(relay)
    with capture_logs() as logs:
        (tmp_path / "relay.pem").write_text("half a cert")
        until(lambda: any("cannot be used" in each["event"] for each in logs))
    assert _shown(relay) == before
    assert asked(relay, ca_file=authority.ca) == 2


def _shown(relay: Relay) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port_of(relay)))


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "relay.pem").unlink(), r"tls\.certificate_file: .*relay\.pem: No such file"),
        (lambda folder: (folder / "relay.key").unlink(), r"tls\.key_file: .*relay\.key: No such file"),
        (lambda folder: (folder / "relay.pem").write_text("x"), r"do not hold a certificate and its key in PEM"),
        (lambda folder: (folder / "anna.key").replace(folder / "relay.key"), r"is not the key of the certificate in"),
        (lambda folder: (folder / "ca.pem").write_text("x"), r"tls\.client_ca_file: .*ca\.pem holds no certificate"),
    ],
)
def test_files_that_are_no_good_are_named_at_the_start(
    tmp_path: Path, authority: Authority, break_it: Any, says: str
) -> None:
    authority.sign("anna")
    authority.sign("relay")
    break_it(tmp_path)
    tls = {"certificate_file": "relay.pem", "key_file": "relay.key", "client_ca_file": "ca.pem"}
    with pytest.raises(ConfigError, match=says):
        Relay(config_of(tmp_path, {"shop": Database()}, tls=tls))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path, authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization

    signed = authority.sign("relay")
    key = serialization.load_pem_private_key(signed.key.read_bytes(), None)
    form, secret = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    signed.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    with pytest.raises(ConfigError, match="the key is encrypted"):
        Relay(config_of(tmp_path, {"shop": Database()}, tls=signed.relay))


def test_a_key_that_everybody_can_read_is_warned_of(tmp_path: Path, authority: Authority) -> None:
    signed = authority.sign("relay")
    signed.key.chmod(0o644)
    with capture_logs() as logs, scripted(tmp_path, {"shop": Database()}, tls=signed.relay):
        assert any("can read the relay's key" in each["event"] for each in logs)


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_relay_beyond_the_loopback_without_tls_warns(tmp_path: Path, authority: Authority, has_tls: bool) -> None:
    (tmp_path / "token").write_text(TOKEN)
    tls = {"tls": authority.sign("relay").relay} if has_tls else {}
    shop = {"shop": Database()}
    with capture_logs() as logs, scripted(tmp_path, shop, token_file="token", listen="0.0.0.0:0", **tls):  # noqa: S106
        assert any("cross the network in clear" in each["event"] for each in logs) is not has_tls


def test_config_shows_where_the_files_are_and_no_key(relay: Relay, authority: Authority) -> None:
    found = RelayClient(relay.url, ca_file=authority.ca)._get("/config", {})
    assert found["tls"]["key_file"].endswith("relay.key")
    assert "PRIVATE" not in json.dumps(found)


# What a client is given


def test_options_that_do_not_go_together_are_refused(authority: Authority) -> None:
    signed = authority.sign("anna")
    for url, options, says in (
        ("http://127.0.0.1:1", {"ca_file": authority.ca}, "ca_file is of use with TLS only; ask the relay by https://"),
        ("127.0.0.1:1", signed.client, "certificate_file is of use with TLS only"),
        ("https://127.0.0.1:1", {"key_file": signed.key}, "give certificate_file too"),
        ("ftp://127.0.0.1:1", {}, "expected http://host:port or https://host:port"),
    ):
        with pytest.raises(ConfigError, match=says):
            RelayClient(url, **options)


def test_files_that_were_good_may_be_replaced_one_after_the_other(tmp_path: Path, authority: Authority) -> None:
    signed = authority.sign("client", hosts=())
    access = Access.of(certificate_file=signed.certificate, key_file=signed.key)
    access.context()
    other = Authority(tmp_path, "other").sign("other", hosts=())
    shutil.copy(other.certificate, signed.certificate)
    with pytest.raises(ServiceUnavailable, match="was good before"):
        access.context()  # the new certificate with the old key
    shutil.copy(other.key, signed.key)
    access.context()


def test_a_token_that_is_being_replaced_is_waited_for_and_one_that_never_was_good_is_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    access = Access.of(tmp_path / "token")
    with pytest.raises(ConfigError, match="token is empty"):
        access.token()
    (tmp_path / "token").write_text("the-first-token\n")
    assert access.token() == "the-first-token"
    (tmp_path / "token").write_text("")
    with pytest.raises(ServiceUnavailable, match=r"token is empty.* was good before"):
        access.token()
    (tmp_path / "token").unlink()
    with pytest.raises(ServiceUnavailable, match=r"No such file.* was good before"):
        access.token()
    (tmp_path / "token").write_text("the-second-token")
    assert access.token() == "the-second-token"


def test_files_of_a_client_that_are_no_good_are_named(relay: Relay, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for options, says in (
        ({"ca_file": tmp_path / "gone"}, "ca_file .*gone: No such file"),
        ({"ca_file": tmp_path / "empty"}, "ca_file .*empty: no certificate in PEM"),
        ({"ca_file": authority.ca, "certificate_file": tmp_path / "empty"}, "certificate_file .*empty, key_file in"),
    ):
        with pytest.raises(InputError, match=says):
            RelayClient(relay.url, **options).sources()
