"""The relay as a process: signals, kills, and who else wants its folder."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from databus.relay import parse_relay
from databus.sources.mock import MockConfig, MockSource
from databus.testing import RelayProcess
from databus.testing.shop import create_shop
from tests.relay.support import get, until

TOTAL = 400
MOCK: dict[str, Any] = {
    "type": "mock", "transactions_total": TOTAL, "transactions_per_s": 800, "rows_per_transaction": 3,
    "group_transactions_max": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here they are started as users start them."""
    monkeypatch.setattr(RelayProcess, "nursery", None)


def published_scn(url: str) -> int:
    """What is published; nothing as long as a slow machine has not opened the log."""
    answer = get(url, "/position")
    return int(answer.json["published"]["scn"]) if answer.status == 200 else 0


def check_complete(url: str) -> None:
    """Every transaction once, in order, with all its rows."""
    until(lambda: published_scn(url) == TOTAL, "all transactions")
    rows = 0
    last = 0
    for group in get(url, "/stream", output="frames").groups:
        for frame in group.rows:
            scns = frame.batch.column("_commit_version").to_pylist()
            assert scns == sorted(scns)
            assert scns[0] > last
            rows += len(scns)
        assert group.commit.first_scn == last + 1 or group.commit.rows == 0
        last = group.commit.last_scn
    source = MockSource("shop", MockConfig.model_validate(MOCK))
    assert (last, rows) == (TOTAL, source.expected_rows("main.events", TOTAL))


@pytest.mark.parametrize("place", ["capture.before_durable", "capture.after_durable", "capture.after_durable:3"])
def test_a_relay_that_dies_while_it_tells_the_source_what_is_durable_loses_nothing(tmp_path: Path, place: str) -> None:
    relay = RelayProcess(tmp_path, {"shop": MOCK}, capture={"progress_ms": 100})
    relay.env = {"DATABUS_CRASH_AT": place}
    with relay:
        assert relay.wait_until_dead() == -signal.SIGKILL
        relay.env = {}
        relay.start()
        check_complete(relay.url)


def test_a_relay_that_is_killed_at_any_moment_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    with RelayProcess(tmp_path, {"shop": MOCK}) as relay:
        for scn in (40, 150, 290):
            until(lambda scn=scn: published_scn(relay.url) >= scn)  # type: ignore[misc]
            relay.kill()
            relay.start()
        check_complete(relay.url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_relay_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with RelayProcess(tmp_path, {"shop": MOCK}) as relay:
        until(lambda: published_scn(relay.url) > 20)
        os.kill(relay.pid, number)
        assert relay.wait_until_dead() == 0
        assert "Traceback" not in relay.log_end()
        assert not (tmp_path / "relay" / "relay.json").exists()
        relay.start()
        check_complete(relay.url)


@pytest.mark.skipif(find_spec("pandas") is None, reason="nobody could import pandas here")
def test_a_relay_does_not_import_pandas(tmp_path: Path) -> None:
    """Which costs each start half a second, and nothing in a relay is made of it."""
    shop = tmp_path / "shop.db"
    create_shop(shop, customers=5, orders=5)
    with RelayProcess(tmp_path, {"shop": {"type": "sqlite", "path": str(shop)}}) as relay:
        until(lambda: b'"name"' in get(relay.url, "/stream").body, "rows")
        mapped = Path(f"/proc/{relay.pid}/maps").read_text()
    assert "/pyarrow/" in mapped
    assert "/pandas/" not in mapped


LATE = """
import pyarrow as pa
from databus.relay import RelayConfig
from databus.relay._relay import _leave_pandas_out
from databus.sources import SourceConfig

class Own(SourceConfig):
    pass

_leave_pandas_out(RelayConfig.model_construct(sources={"shop": Own.model_construct()}))
import pandas
print(pa.array(pandas.Series([1.0, None])).null_count)
"""


@pytest.mark.skipif(find_spec("pandas") is None, reason="nobody could import pandas here")
def test_a_source_of_somebodys_own_may_import_pandas_late() -> None:
    """Arrow knows its objects then: NaN of a series is null."""
    said = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "1"


def run(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "databus.relay", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_second_process_on_the_same_folder_is_refused_and_told_which_process_has_it(tmp_path: Path) -> None:
    with RelayProcess(tmp_path, {"shop": MOCK}) as relay:
        config = tmp_path / "second.yml"
        config.write_text(
            yaml.safe_dump({"listen": "127.0.0.1:0", "folder": str(tmp_path / "relay"), "sources": {"shop": MOCK}})
        )
        ended = run(config)
        assert ended.returncode == 2
        assert f"process {relay.pid} " in ended.stderr
        assert "Traceback" not in ended.stderr
        assert json.loads((tmp_path / "relay" / "relay.json").read_text()) == {"url": relay.url, "pid": relay.pid}


def test_a_wrong_configuration_ends_with_every_error_and_its_place(tmp_path: Path) -> None:
    config = tmp_path / "relay.yml"
    config.write_text(
        "listen: nowhere\nlogg: {}\nlog: {segment_bytes_max: much}\nserve: {streams_max: 0}\n"
        "sources:\n  shop: {type: mokc}\n  b/c: {type: mock}\n  d: {type: mock, rows_per_transaction: 0}\n"
    )
    ended = run(config)
    assert ended.returncode == 2
    for line in (
        "1: listen: 'nowhere' is not host:port",
        '2: logg: there is no such option; did you mean "log"?',
        "3: log.segment_bytes_max: ",
        "4: serve.streams_max: ",
        '6: sources.shop.type: no kind of source called "mokc"; did you mean "mock"?',
        "8: sources.d.rows_per_transaction: ",
    ):
        assert f"{config}:{line}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_relative_paths_start_at_the_configurations_folder(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    config = tmp_path / "etc" / "relay.yml"
    config.write_text("token_file: gone\nsources: {shop: {type: mock}}\n")
    ended = run(config)
    assert str(tmp_path / "etc" / "gone") in ended.stderr


def test_paths_of_sources_start_there_too(tmp_path: Path) -> None:
    config = parse_relay({"sources": {"shop": {"type": "sqlite", "path": "shop.db"}}}, folder=tmp_path)
    assert config.sources["shop"].path == str(tmp_path / "shop.db")  # type: ignore[attr-defined]
    assert config.folder == tmp_path / ".databus" / "relay"


BROKEN = """
from databus.relay.__main__ import main
from databus.sources.mock import MockSource

def broken(self, *_given, **_more):
    password = "hunter2"
    raise TypeError("a defect")

MockSource.start = broken
main()
"""


def test_a_defect_is_logged_without_what_the_code_held(tmp_path: Path) -> None:
    config = tmp_path / "relay.yml"
    config.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", "folder": "relay", "sources": {"shop": MOCK}}))
    with (tmp_path / "stderr").open("wb") as log:
        relay = subprocess.Popen([sys.executable, "-c", BROKEN, str(config)], stdout=log, stderr=log)
    try:
        until(lambda: "a defect" in (tmp_path / "stderr").read_text(), "the defect in the log")
    finally:
        relay.terminate()
        relay.wait(120)
    said = (tmp_path / "stderr").read_text()
    assert "Traceback" in said
    assert "in broken" in said
    assert "hunter2" not in said


COLLECTED = """
import gc, signal
from pathlib import Path
from databus.relay import load_relay, run_relay

def ready(relay):
    print(gc.isenabled(), gc.get_freeze_count() > 50_000 > len(gc.get_objects()), flush=True)
    signal.raise_signal(signal.SIGTERM)

run_relay(load_relay(Path("relay.yml")), ready=ready)
"""


def test_a_relay_that_runs_looks_for_garbage_but_not_in_what_its_start_has_made(tmp_path: Path) -> None:
    """A look at all modules would stop it, all of its threads, for some 70 ms each time."""
    (tmp_path / "relay.yml").write_text("listen: '127.0.0.1:0'\nfolder: log\nsources: {shop: {type: mock}}\n")
    command = [sys.executable, "-c", COLLECTED]
    said = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    assert "True True" in said.splitlines()
