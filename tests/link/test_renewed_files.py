"""A process that begins while certificates are renewed: it takes files that go together, or waits for them."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from databus.core import ConfigError
from databus.link import FILES_VARIABLE, Access, _tls, travelling_name
from tests.certificates import Authority, Signed


@pytest.fixture
def shown(tmp_path: Path) -> Signed:
    """What is shown, of which the certificate was renewed and the key was not."""
    signed = Authority(tmp_path).sign("pipeline", hosts=())
    for folder in ("before", "newer"):
        (tmp_path / folder).mkdir()
    for path in (signed.certificate, signed.key):
        shutil.copy(path, tmp_path / "before")
    renewed = Authority(tmp_path / "newer").sign("pipeline", hosts=())
    shutil.copy(renewed.certificate, signed.certificate)
    return signed


def test_an_executor_that_has_files_of_its_own_takes_the_copies_while_those_do_not_go_together(
    shown: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = tmp_path / "sent"
    sent.mkdir()
    for path in (shown.certificate, shown.key):
        shutil.copy(tmp_path / "before" / path.name, sent / travelling_name(path))
    (tmp_path / "token").write_text("")  # it is being written
    (sent / travelling_name(tmp_path / "token")).write_text("the-token-of-before")
    monkeypatch.setenv(FILES_VARIABLE, str(sent))
    access = Access.of(tmp_path / "token", None, shown.certificate, shown.key)
    access.context()
    assert access.token() == "the-token-of-before"


def test_a_process_that_has_no_copies_waits_for_the_key_of_a_certificate_that_was_renewed_just_now(
    shown: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tls, "_SETTLED_S", 3600.0)
    monkeypatch.setattr(_tls, "_CHANGES_S_MAX", 3600.0)
    other = SimpleNamespace(time=time.time, monotonic=time.monotonic)
    other.sleep = lambda _: shutil.copy(tmp_path / "newer" / shown.key.name, shown.key)
    monkeypatch.setattr(_tls, "time", other)
    Access.of(None, None, shown.certificate, shown.key).context()


def test_files_that_rest_and_do_not_go_together_are_a_mistake(shown: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tls, "_SETTLED_S", 0.0)
    with pytest.raises(ConfigError, match="not a certificate and its key"):
        Access.of(None, None, shown.certificate, shown.key).context()
