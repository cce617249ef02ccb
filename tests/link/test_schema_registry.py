"""What something says that answers in the place of a registry, or without end: it becomes no id, and nothing hangs."""

import contextlib
import gzip
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.core import ConfigError, DatabusError, FatalError, LimitExceeded, ServiceUnavailable
from databus.link import RegistryAccess
from tests.certificates import Authority
from tests.listening import taken_by
from tests.registry import Answer, AnsweringServer, answering
from tests.relay.support import until

SCHEMA = {"type": "record", "name": "a", "fields": []}
KNOWN = Answer(200, json.dumps({"schema": json.dumps(SCHEMA)}).encode())
MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with answering(lambda _: Answer(200)) as found:
        yield found


def says(server: AnsweringServer, answer: Answer) -> None:
    server.answer = lambda _: answer


def asking() -> list[threading.Thread]:
    """Threads that ask a registry."""
    return [thread for thread in threading.enumerate() if thread.name == "databus-registry"]


def behind_tls(server: AnsweringServer, folder: Path) -> None:
    """Have it speak TLS, with a certificate that `ca.pem` in the folder has signed."""
    signed = Authority(folder).sign("registry")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.certificate, signed.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)


@pytest.mark.parametrize("said", [{}, {"id": None}, {"id": "abc"}, {"id": -5}, {"id": 0}, {"id": True}])
@pytest.mark.parametrize("is_new_allowed", [True, False])
def test_what_is_no_id_is_used_for_no_message(
    server: AnsweringServer, said: dict[str, object], is_new_allowed: bool
) -> None:
    says(server, Answer(200, json.dumps(said).encode()))
    with pytest.raises((ConfigError, ServiceUnavailable)):
        RegistryAccess(server.url).registered("a-value", SCHEMA, is_new_allowed=is_new_allowed)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (422, b'{"error_code": 42201, "message": "Invalid schema"}', FatalError),
        (500, b'{"error_code": 50001, "message": "store"}', ServiceUnavailable),
        (502, b"<html>bad gateway</html>", ServiceUnavailable),
        (200, b"<html>log in</html>", ServiceUnavailable),
        (301, b"", FatalError),
    ],
    ids=["invalid", "store", "gateway", "html", "moved"],
)
def test_refusals_stop_and_accidents_are_tried_again(
    server: AnsweringServer, status: int, body: bytes, kind: type[DatabusError]
) -> None:
    says(server, Answer(status, body))
    access = RegistryAccess(server.url)
    for ask in (lambda: access.registered("a", SCHEMA, is_new_allowed=True), lambda: access.schema(7)):
        with pytest.raises(kind):
            ask()


def test_an_answer_without_an_end_is_not_waited_for_and_leaves_no_thread(server: AnsweringServer) -> None:
    """A piece comes so often that no wait for one ends."""
    goes_on = threading.Event()

    def drips() -> Iterator[bytes]:
        while not goes_on.wait(0.02):
            yield b" "

    server.answer = lambda _: Answer(200, drips())
    access = RegistryAccess(server.url, request_ms_max=200)
    for _ in range(3):
        with pytest.raises(ServiceUnavailable, match="no whole answer"):
            access.schema(7)
    until(lambda: not asking())
    goes_on.set()


def test_the_head_of_an_answer_that_has_no_end_leaves_no_thread_either() -> None:
    """Its first line comes byte by byte."""
    is_over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not is_over.wait(0.02):
                connection.send(b"H")

    with taken_by(drip) as port:
        try:
            access = RegistryAccess(f"http://127.0.0.1:{port}", request_ms_max=200)
            with pytest.raises(ServiceUnavailable, match="no whole answer"):
                access.schema(7)
            until(lambda: not asking())
        finally:
            is_over.set()


def test_only_so_many_questions_are_under_way(server: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.BoundedSemaphore(1)
    monkeypatch.setattr("databus.link._schema_registry._asking", free)
    says(server, KNOWN)
    access = RegistryAccess(server.url, request_ms_max=200)
    assert access.schema(7) == access.schema(7) == SCHEMA
    with free, pytest.raises(ServiceUnavailable, match="questions are under way"):
        access.schema(7)


def test_a_packed_answer_is_not_unpacked(server: AnsweringServer) -> None:
    says(server, Answer(200, gzip.compress(b" " * 100 * MIB), {"Content-Encoding": "gzip"}))
    with pytest.raises(LimitExceeded, match="packed"):
        RegistryAccess(server.url).schema(7)
    assert server.asked[-1].headers["accept-encoding"] == "identity"


def test_an_answer_of_any_length_is_read_up_to_its_limit(server: AnsweringServer) -> None:
    sent = 0

    def much() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(300):
            yield b" " * MIB
            sent += MIB

    server.answer = lambda _: Answer(200, much())
    with pytest.raises(LimitExceeded, match="answer_bytes_max"):
        RegistryAccess(server.url).schema(7)
    assert sent < 100 * MIB  # what buffers of sockets hold comes on top of the limit
    says(server, Answer(200, json.dumps({"schema": json.dumps({**SCHEMA, "doc": "a" * MIB})}).encode()))
    with pytest.raises(LimitExceeded, match=r"65,536 bytes.*answer_bytes_max"):
        RegistryAccess(server.url, answer_bytes_max=65_536).schema(7)
    assert RegistryAccess(server.url).schema(7)["doc"] == "a" * MIB


def test_who_we_are_is_said_as_registries_want_it(server: AnsweringServer) -> None:
    says(server, Answer(200, b'{"id": 4}'))
    for access, said in (
        (RegistryAccess(server.url, "Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
        (RegistryAccess(server.url, None, None, "abc"), "Bearer abc"),
    ):
        assert access.registered("a/b c-value", SCHEMA, is_new_allowed=True) == 4
        asked = server.asked[-1]
        assert asked.headers["authorization"] == said
        assert (asked.method, asked.path) == ("POST", "/subjects/a%2Fb%20c-value/versions?normalize=False")
        assert json.loads(json.loads(asked.body)["schema"]) == SCHEMA
        assert not {"open sesame", "abc"} & set(repr(access).split("'"))


def test_a_certificate_is_judged_by_the_given_authority(server: AnsweringServer, tmp_path: Path) -> None:
    behind_tls(server, tmp_path)
    says(server, KNOWN)
    url = server.url.replace("http:", "https:")
    assert RegistryAccess(url, ca_file=str(tmp_path / "ca.pem")).schema(7) == SCHEMA
    with pytest.raises(ServiceUnavailable, match="certificate verify failed"):
        RegistryAccess(url).schema(7)
