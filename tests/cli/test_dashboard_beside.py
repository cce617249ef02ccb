"""`--dashboard`: one beside a relay or a run, which says its link, and ends with it, however that ends."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.commands import databus, failed
from tests.dashboard.parts import WAIT_S, ask, is_gone, wait_until
from tests.dashboard.running import MARK

RELAY = "folder: logs\nlisten: 127.0.0.1:0\nsources: {shop: {type: mock}}\n"


@contextmanager
def beside(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process with a dashboard, and what it has said up to the link."""
    process = subprocess.Popen(
        [sys.executable, "-m", "databus.cli", *command, "--dashboard"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line.strip())
            if sum("dashboard at" in each or "#once=" in each for each in said) == 2:
                break
        yield process, said
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stdout.close()


def link_of(said: list[str]) -> str:
    return next(word for line in said for word in line.split() if "#once=" in word)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_dashboard_beside_a_relay_shows_it_and_ends_with_it(tmp_path, number):
    (tmp_path / "relay.yml").write_text(RELAY)
    with beside(tmp_path, "relay", "relay.yml") as (process, said):
        url, _, token = link_of(said).partition("/#once=")
        signed_in = ask(url, "/api/v1/session", {"token": token}, headers=MARK)
        assert signed_in[0] == 200
        cookie = {"Cookie": signed_in[2]["set-cookie"].partition(";")[0]}

        def sources():
            return ask(url, "/api/v1/status", headers=cookie)[1]["sources"]

        (source,) = wait_until(sources)
        assert source["source"] == "shop"
        process.send_signal(number)
        assert process.wait(WAIT_S) == (0 if number == signal.SIGTERM else -number)
        wait_until(lambda: is_gone(url))


def test_two_dashboards_take_ports_of_their_own(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "relay.yml").write_text(RELAY)
    with (
        beside(tmp_path / "one", "relay", "relay.yml") as (_, said),
        beside(tmp_path / "two", "relay", "relay.yml") as (
            _,
            other,
        ),
    ):
        assert urlsplit(link_of(said)).port != urlsplit(link_of(other)).port


def test_a_wrong_address_is_said_where_it_was_typed(tmp_path):
    command = [sys.executable, "-m", "databus.cli", "dashboard", "--listen", "127.0.0.1:0", "--log-format", "text"]
    command += ["--relay", "http://127.0.0.1:1", "--pipeline", "http://127.0.0.1:2"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        said = ""
        while not all(f"127.0.0.1:{port}" in said for port in (1, 2)):
            line = process.stderr.readline()
            assert line, said
            said += line
        process.terminate()
    assert "does not answer" in said
    for wrong in (("--relay", "ftp://127.0.0.1:1"), ("--pipeline", "127.0.0.1:2")):
        assert "expected" in failed(databus("dashboard", *wrong, cwd=tmp_path), 2)


def test_a_file_that_is_none_ends_the_run_and_no_dashboard_is_left(tmp_path):
    (tmp_path / "databus.yml").write_text("inputs: {}\n")
    assert "there is none" in failed(databus("run", "--dashboard", cwd=tmp_path), 2)
