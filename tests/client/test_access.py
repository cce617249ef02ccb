"""How a client says who it is: a token by option, by file or by the environment, and a name for the statistics."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.client import Client, Consumer, MemoryCheckpoints
from databus.core import AccessDenied, ConfigError
from databus.link import RelayClient
from databus.testing import RelayProcess

TOKEN = "a-token-of-a-test"  # noqa: S105 - of a test


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    folder = tmp_path_factory.mktemp("relay")
    (folder / "token").write_text(TOKEN)
    sources = {"gen": {"type": "mock", "transactions_total": 3}}
    with RelayProcess(folder, sources, token_file=str(folder / "token")) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABUS_TOKEN", raising=False)


class Seen(Consumer):
    """Stops its client when it has been given something."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.windows = 0

    def on_end_window(self, window: object) -> None:
        self.windows += 1
        assert self.client is not None
        self.client.stop()


def consumed(relay: RelayProcess, **options: str) -> int:
    consumer = Seen()
    consumer.client = Client(relay.url, consumer, **options)
    consumer.client.run()
    return consumer.windows


def test_a_client_takes_a_token_as_text_or_as_a_file(relay: RelayProcess, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert consumed(relay, token=TOKEN) == 1
    assert consumed(relay, token_file=str(tmp_path / "token")) == 1


def test_without_either_the_environment_is_looked_at(relay: RelayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABUS_TOKEN", TOKEN)
    assert consumed(relay) == 1
    with pytest.raises(AccessDenied):
        consumed(relay, token="another-token")  # noqa: S106 - of a test


def test_who_has_no_token_or_a_wrong_one_is_told_the_option(relay: RelayProcess) -> None:
    for token in (None, "another-token"):
        with pytest.raises(AccessDenied) as caught:
            RelayClient(relay.url, token=token).sources()
        said = str(caught.value)
        assert "DATABUS_TOKEN" in said
        assert "`token_file`" in said
        assert "Bearer" not in said


def test_a_client_is_known_to_the_relay_by_its_name(relay: RelayProcess) -> None:
    consumed(relay, token=TOKEN, name="copier")
    request = urllib.request.Request(  # noqa: S310 - our own relay
        f"{relay.url}/relayStats/outbound/http/clients", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
        assert "copier" in json.load(answer)


@pytest.mark.parametrize("name", ["", "ü", "x" * 101, "a\nb"])
def test_a_name_that_no_header_can_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name "):
        Client("http://127.0.0.1:1", Consumer(), name=name)


def test_a_relay_client_has_its_token_already(tmp_path: Path) -> None:
    relay = RelayClient("http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="already"):
        Client(relay, Consumer(), token_file=tmp_path)
    with pytest.raises(ConfigError, match="already"):
        Client(relay, Consumer(), name="copier", checkpoints=MemoryCheckpoints())  # by which it is no group's name
