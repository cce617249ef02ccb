"""docs/http.md and the format of frames are enough: examples/own-consumer follows a relay without databus."""

import ast
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay import Relay, parse_relay
from databus.testing.shop import create_shop
from tests.relay.support import ORDERS, WAIT_S, Database, get, order, parts, published, sale, scripted, until

FOLDER = Path(__file__).parents[2] / "examples" / "own-consumer"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("own_consumer_frames", FOLDER / "frames.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


frames = load()


@pytest.fixture
def shop() -> Database:
    return Database(groups=[order(1), sale(2), *parts(3, 3), order(4, "ü")])


@pytest.fixture
def relay(tmp_path: Path, shop: Database) -> Iterator[Relay]:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 4)
        yield relay


def test_the_consumer_imports_the_standard_library_and_pyarrow_alone() -> None:
    imports = [each for each in ast.walk(ast.parse((FOLDER / "frames.py").read_text())) if isinstance(each, ast.Import)]
    names = {alias.name.partition(".")[0] for each in imports for alias in each.names}
    assert names - {"pyarrow"} <= sys.stdlib_module_names


def read(relay: Relay, place: Any, **query: Any) -> list[tuple[int, int]]:
    """(source id, rows) of each batch that comes, with the place moved behind it."""
    asked = {"physical": "shop", "wait_ms": 0, **frames.start_at(place), **query}
    with frames.ask(relay.url, "/stream", asked) as response:
        return [
            (source, batch.num_rows) for batches, _ in frames.groups_of(response, place) for source, batch in batches
        ]


def test_it_names_what_it_reads_by_sources_and_register(relay: Relay) -> None:
    sources = json.load(frames.ask(relay.url, "/sources", {}))
    assert {each["name"]: each["id"] for each in sources} == {"shop/main.orders": 1, "shop/main.stock": 2}
    with frames.ask(relay.url, "/stream", {"start": "beginning"}) as response:
        header, _, body = next(frames.frames_of(response))
    (definition,) = json.load(frames.ask(relay.url, "/register", {"fingerprint": header["fingerprint"]}))
    assert definition["table"] == ORDERS.to_json()
    row = frames.pa.ipc.open_stream(body).read_next_batch().to_pylist()[0]
    assert {name: row[name] for name in ("id", "name", "_change_type", "_commit_version")} == {
        "id": 1, "name": "a", "_change_type": 1, "_commit_version": 1,
    }  # fmt: skip


def test_it_goes_on_from_any_place_in_mid_transaction_too(relay: Relay) -> None:
    whole = read(relay, frames.Place())
    assert whole == [(1, 1), (1, 1), (2, 1), (1, 10), (1, 10), (1, 10), (1, 1)]
    stepped: list[tuple[int, int]] = []
    text = "null"
    for _ in range(20):
        place = frames.Place(json.loads(text))  # as a process does that has only the file
        stepped += read(relay, place, max_bytes=1)
        text = json.dumps(place.value)
    assert stepped == whole


def test_its_long_poll_waits_for_the_next_change(relay: Relay, shop: Database) -> None:
    place = frames.Place()
    read(relay, place)
    began = time.monotonic()
    threading.Timer(0.2, shop.add, [order(5)]).start()
    assert read(relay, place, wait_ms=30_000) == [(1, 1)]
    assert 0.15 < time.monotonic() - began < 30
    assert read(relay, place) == []


def test_it_is_told_of_another_history_and_of_a_place_that_has_left_the_log(tmp_path: Path) -> None:
    shop = Database(groups=[order(scn, "x" * 2000) for scn in range(1, 30)])
    log = {"segment_bytes_max": 8192, "retention_bytes_max": 20_000}
    with scripted(tmp_path, {"shop": shop}, log=log) as relay:
        published(relay, "shop", 29)
        held = until(lambda: (info := get(relay, "/bufferInfo/inbound/shop").json)["bytes"] <= 20_000 and info)
        with pytest.raises(frames.Refused) as purged:
            read(relay, frames.Place({"scn": 1}))
        assert (purged.value.status, purged.value.error["oldest"]) == (410, held["minScn"])
        with pytest.raises(frames.Refused) as foreign:
            read(relay, frames.Place({"scn": 29, "txid": "somebody-else"}))
        assert (foreign.value.status, foreign.value.error["error"]) == (409, "PositionForeign")
        assert read(relay, frames.Place({"scn": purged.value.error["oldest"]}))


def test_it_notices_a_byte_that_has_changed(relay: Relay) -> None:
    content = frames.ask(relay.url, "/stream", {"start": "beginning", "to": 1}).read()
    assert [each[0]["kind"] for each in frames.frames_of(io.BytesIO(content))] == [1, 2]
    for at in (70, 140, len(content) - 100):
        bent = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(ValueError, match="checksum"):
            list(frames.frames_of(io.BytesIO(bent)))


def test_its_place_is_good_inside_of_a_snapshot(tmp_path: Path) -> None:
    create_shop(tmp_path / "shop.db", customers=20, orders=50)
    source = {"type": "sqlite", "path": str(tmp_path / "shop.db"), "tables": ["main.*"], "chunk_rows_max": 10}
    with relay_of(tmp_path, source) as relay:
        capture = relay.captures["shop"]
        until(lambda: capture.counters.snapshot_rows and not capture.reading)
        stepped: list[tuple[int, int]] = []
        place, before = frames.Place(), None
        while place.value != before:
            before, place = place.value, frames.Place(json.loads(json.dumps(place.value)))
            stepped += read(relay, place, max_bytes=1)
        assert len(stepped) > 5
        assert stepped == read(relay, frames.Place(), to=f"{place.value['scn']}:{place.value['seq'] or 0}")


def relay_of(folder: Path, source: dict[str, Any]) -> Relay:
    return Relay(parse_relay({"listen": "127.0.0.1:0", "sources": {"shop": source}}, folder=folder))


def test_the_one_in_javascript_prints_changes_and_goes_on_after_them(
    tmp_path: Path, relay: Relay, shop: Database
) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")

    def follow() -> "subprocess.CompletedProcess[str]":
        command = [node, str(FOLDER / "follow.mjs"), relay.url, "shop", str(tmp_path / "place.json"), "--once"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)

    first = follow()
    assert first.returncode == 0, first.stderr
    assert 'insert shop/main.orders {"id":4,"name":"ü"}' in first.stdout.splitlines()
    assert len(first.stdout.splitlines()) == 34
    shop.add(order(5, "new"))
    published(relay, "shop", 5)
    assert follow().stdout.splitlines() == ['insert shop/main.orders {"id":5,"name":"new"}']
    (tmp_path / "place.json").write_text('{"scn": 5, "txid": "somebody-else"}')
    refused = follow()
    assert (refused.returncode, refused.stderr.partition(":")[0]) == (2, "409 PositionForeign")
