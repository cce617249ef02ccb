"""Each command, as `curl` would see it."""

import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus import __version__
from databus.core import Checkpoint, SourceCheckpoint
from databus.relay import Relay, _control
from databus.relay._command_table import table
from databus.relay._commands import ANSWERS
from databus.relay._stats import OpenStream, Stats
from databus.schema import TableSchema
from tests.relay.support import (
    AT_US,
    ORDERS,
    STOCK,
    WAIT_S,
    Answer,
    Database,
    get,
    order,
    parts,
    post,
    published,
    sale,
    scripted,
    truncate,
    until,
)


@pytest.fixture
def shop() -> Database:
    return Database(groups=[order(1), sale(2), truncate(3), order(4, "ü")])


@pytest.fixture
def relay(tmp_path: Path, shop: Database) -> Iterator[Relay]:
    with scripted(tmp_path, {"shop": shop}) as relay:
        published(relay, "shop", 4)
        until(lambda: relay.captures["shop"].counters.groups == 4)  # counted once it is published: a moment after
        yield relay


def scns(answer: Answer) -> list[int]:
    return [line["_commit_version"] for line in answer.lines if "_commit_version" in line]


def test_sources_answers_as_the_original_did(relay: Relay) -> None:
    assert get(relay, "/sources").json == [{"name": "shop/main.orders", "id": 1}, {"name": "shop/main.stock", "id": 2}]
    detailed = get(relay, "/sources", v=2).json
    assert detailed[0] == {
        "name": "shop/main.orders", "id": 1, "physical": "shop", "table": "main.orders", "version": 1,
        "fingerprint": f"{ORDERS.fingerprint:016x}", "key": ["id"],
    }  # fmt: skip


@pytest.mark.parametrize("sources", ["orders", "main.orders", "shop/main.orders", "1", "shop/main.ord*"])
def test_register_gives_definitions_by_every_form_of_name(relay: Relay, sources: str) -> None:
    (found,) = get(relay, "/register", sources=sources).json
    assert TableSchema.from_json(found["table"]) == ORDERS
    assert '"name":"orders"' in found["schema"]
    assert (found["id"], found["version"], found["current"]) == (1, 1, True)


def test_register_finds_a_fingerprint(relay: Relay) -> None:
    (found,) = get(relay, "/register", fingerprint=f"{STOCK.fingerprint:016x}").json
    assert found["name"] == "shop/main.stock"
    assert get(relay, "/register", fingerprint="12ab").status == 404


def test_stream_sends_whole_groups_as_frames(relay: Relay) -> None:
    answer = get(relay, "/stream", output="frames")
    assert [group.commit.last_scn for group in answer.groups] == [1, 2, 3, 4]
    assert answer.groups[1].rows[0].batch.column("name").to_pylist() == ["b"]
    assert answer.headers["content-type"] == "application/vnd.databus.frames"
    assert answer.headers["x-dbus-physical"] == "shop"
    assert answer.headers["x-dbus-uuid"] == "11111111-1111-1111-1111-111111111111"
    assert answer.headers["x-dbus-published"] == "4"
    log = relay.captures["shop"].log
    assert log is not None
    assert answer.headers["x-dbus-log"] == log.uuid


def test_stream_sends_rows_in_order_as_json_to_everybody_else(relay: Relay) -> None:
    answer = get(relay, "/stream", wait_ms=0)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = answer.lines
    assert [line.get("_source") for line in lines] == [
        "shop/main.orders", "shop/main.orders", "shop/main.stock", "shop/main.orders", "shop/main.orders", None,
    ]  # fmt: skip
    assert lines[3]["_control"] == {"kind": "truncate", "source": "main.orders"}
    assert (lines[4]["name"], lines[4]["_change_type"], lines[4]["_commit_version"]) == ("ü", "insert", 4)
    assert SourceCheckpoint.from_json(lines[-1]["_position"], "line").pair[0] == 4


def test_the_position_line_is_where_the_next_request_goes_on(relay: Relay, shop: Database) -> None:
    position = get(relay, "/stream", wait_ms=0, to=2).lines[-1]["_position"]
    assert scns(get(relay, "/stream", wait_ms=0, from_=position)) == [3, 4]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({}, [1, 2, 2, 3, 4]),
        ({"start": "beginning"}, [1, 2, 2, 3, 4]),
        ({"start": "earliest"}, [1, 2, 2, 3, 4]),
        ({"start": "latest"}, []),
        ({"scn": 2}, [3, 4]),
        ({"time": AT_US + 3}, [3, 4]),
        ({"time": "2023-11-14T22:13:20.000004Z"}, [4]),
        ({"from_": {"scn": 3}}, [4]),
        ({"from_": {"scn": 2, "seq": 1, "txid": "t2"}}, [2, 3, 4]),
        ({"from_": {"v": 1, "sources": {"shop": {"scn": 3, "txid": "t3"}, "other": {"scn": 1}}}}, [4]),
        ({"checkPoint": {"windowScn": 2, "windowOffset": -1, "prevScn": 2}}, [3, 4]),
        ({"checkPoint": {"windowScn": 2, "windowOffset": 1, "prevScn": 1}}, [2, 2, 3, 4]),
        ({"checkPoint": {"windowScn": -1, "windowOffset": -1}}, [1, 2, 2, 3, 4]),
        ({"checkPoint": {"windowScn": 0, "tsNsecs": (AT_US + 4) * 1000}}, [4]),
        ({"checkPoint": {"consumption_mode": "INIT"}}, [1, 2, 2, 3, 4]),
    ],
)
def test_a_stream_starts_where_it_is_told(relay: Relay, start: dict[str, Any], expected: list[int]) -> None:
    assert scns(get(relay, "/stream", wait_ms=0, **start)) == expected


def test_a_subset_of_tables_comes_with_every_commit_frame(relay: Relay) -> None:
    groups = get(relay, "/stream", output="frames", sources="stock").groups
    assert [group.commit.last_scn for group in groups] == [1, 2, 3, 4]
    assert [[frame.header.source_id for frame in group.frames] for group in groups] == [[], [2], [], []]


def test_max_bytes_bounds_an_answer_to_whole_groups_and_keeps_the_connection(relay: Relay) -> None:
    answer = get(relay, "/stream", output="frames", max_bytes=1)
    assert [group.commit.last_scn for group in answer.groups] == [1]
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_to_ends_after_the_group_that_reaches_it(relay: Relay) -> None:
    assert [g.commit.last_scn for g in get(relay, "/stream", output="frames", to=2).groups] == [1, 2]
    assert [g.commit.last_scn for g in get(relay, "/stream", output="frames", to="2:1", follow=1).groups] == [1, 2]
    assert get(relay, "/stream", output="frames", to=2, scn=2, follow=1).body == b""


def test_position_tells_what_a_start_means_and_what_is_held(relay: Relay) -> None:
    found = get(relay, "/position", scn=2).json
    assert found["position"]["scn"] == 2
    assert (found["oldest"]["scn"], found["published"]["scn"]) == (0, 4)
    assert found["published_us"] == AT_US + 4
    assert get(relay, "/position").json["position"]["txid"] == "t4"


def test_range_measures_and_splits(relay: Relay) -> None:
    found = get(relay, "/range", start="beginning").json
    assert (found["rows"], found["groups"], found["position"]["scn"]) == (4, 4, 4)
    limited = get(relay, "/range", start="beginning", rows_max=2).json
    assert (limited["rows"], limited["position"]["scn"]) == (1, 1)
    at_least_one = get(relay, "/range", scn=1, rows_max=1).json
    assert (at_least_one["rows"], at_least_one["position"]["scn"]) == (2, 2)
    split = get(relay, "/range", start="beginning", partitions=2).json
    assert [each["scn"] for each in split["splits"]] == [2]
    assert get(relay, "/range", start="beginning", sources="stock").json["rows"] == 1
    assert get(relay, "/range", start="latest").json["groups"] == 0


def test_the_bytes_that_range_measures_are_those_that_stream_sends(relay: Relay) -> None:
    subsets: list[dict[str, Any]] = [{}, {"sources": "stock"}]
    for sources in subsets:
        measured = get(relay, "/range", start="beginning", to=3, **sources).json["bytes"]
        assert measured == len(get(relay, "/stream", output="frames", to=3, **sources).body)


def test_buffer_info_has_the_originals_names(relay: Relay) -> None:
    info = get(relay, "/bufferInfo/inbound/shop").json
    assert (info["minScn"], info["maxScn"], info["timestampLatestEvent"]) == (0, 4, (AT_US + 4) // 1000)


def test_physical_sources_and_buffers_say_what_is_captured(relay: Relay) -> None:
    (found,) = get(relay, "/physicalSources").json
    assert (found["name"], found["type"], found["uuid"]) == ("shop", "mock", "11111111-1111-1111-1111-111111111111")
    assert found["sources"] == [{"id": 1, "name": "shop/main.orders"}, {"id": 2, "name": "shop/main.stock"}]
    assert get(relay, "/physicalBuffers", pretty=1).json == {"shop": ["shop"]}


def test_relay_stats_names_the_clients_and_counts_their_calls(relay: Relay) -> None:
    body = get(relay, "/stream", output="frames", headers={"x-dbus-client": "billing"}).body
    get(relay, "/stream", output="wrong", headers={"x-dbus-client": "billing"})
    assert get(relay, "/relayStats/outbound/http/clients").json == ["billing"]
    assert get(relay, "/relayStats/outbound/http/clients").json == ["billing", "localhost"]
    billing = get(relay, "/relayStats/outbound/http/client/billing").json
    assert (billing["numStreamCalls"], billing["numErrStreamCalls"], billing["numBytes"]) == (2, 1, len(body))
    assert get(relay, "/relayStats/outbound/http/total").json["numStreamCalls"] == 2
    assert get(relay, "/relayStats/outbound/http/client/biling").json["message"].endswith("did you mean 'billing'?")


def test_names_of_clients_are_kept_up_to_a_number(tmp_path: Path, shop: Database) -> None:
    with scripted(tmp_path, {"shop": shop}, serve={"clients_max": 3}) as relay:
        for i in range(5):
            get(relay, "/sources", headers={"x-dbus-client": f"c{i}"})
        assert get(relay, "/relayStats/outbound/http/clients").json == ["c2", "c3", "c4"]


def test_container_stats_count_what_came_in(relay: Relay) -> None:
    total = get(relay, "/containerStats/inbound/events/total").json
    assert (total["numDataEvents"], total["numSysEvents"], total["numGroups"]) == (4, 1, 4)
    assert get(relay, "/containerStats/inbound/events/psource/shop").json["numDataEvents"] == 4
    assert get(relay, "/containerStats/inbound/events/psources").json == ["shop"]
    sent = len(get(relay, "/stream", output="frames").body)
    assert get(relay, "/containerStats/outbound/total").json["numBytes"] == sent
    assert get(relay, "/containerStats/nothing").status == 400


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command waits for what it asks of a capture, on a busy machine too."""
    monkeypatch.setattr(_control, "_ACT_S_MAX", WAIT_S)
    monkeypatch.setattr(_control, "_LOOK_S_MAX", WAIT_S)


@pytest.mark.usefixtures("_patient")
def test_control_sources_pauses_and_goes_on(relay: Relay, shop: Database) -> None:
    assert post(relay, "/controlSources/pause", sources="shop").json[0]["status"] == "paused"
    assert post(relay, "/controlSources/pause", sources="shop").json[0]["status"] == "paused"
    shop.add(order(5))
    assert get(relay, "/stream", output="frames", scn=4, wait_ms=100).body == b""
    assert post(relay, "/controlSources/unpause").json[0]["status"] == "running"
    assert [g.commit.last_scn for g in get(relay, "/stream", output="frames", scn=4).groups] == [5]


@pytest.mark.usefixtures("_patient")
def test_a_look_at_the_lag_comes_after_all_that_the_source_had(relay: Relay, shop: Database) -> None:
    for scn in range(5, 25):
        shop.add(order(scn))
        (state,) = get(relay, "/controlSources/status", look=1).json
        assert (state["SCN"], state["lagIsNew"]) == (scn, True)


@pytest.mark.usefixtures("_patient")
def test_a_look_at_a_source_that_rests_does_not_wait(relay: Relay) -> None:
    post(relay, "/controlSources/pause")
    (state,) = get(relay, "/controlSources/status", look=1).json
    assert (state["status"], state["lagIsNew"]) == ("paused", False)
    assert "lagIsNew" not in get(relay, "/controlSources/status").json[0]


def test_a_snapshot_is_asked_of_the_source(relay: Relay, shop: Database) -> None:
    assert post(relay, "/controlSources/snapshot", tables="main.orders,shop/main.stock").status == 200
    assert sorted(shop.asked) == ["main.orders", "main.stock"]
    assert post(relay, "/controlSources/snapshot").status == 400
    assert post(relay, "/controlSources/pause", tables="main.orders").status == 400


def test_admin_is_good_while_every_source_runs(relay: Relay) -> None:
    answer = get(relay, "/admin")
    assert (answer.status, answer.body.strip()) == (200, b"GOOD")
    status = get(relay, "/admin/status").json
    assert (status["status"], status["code"], status["sources"][0]["SCN"]) == ("RUNNING", 100, 4)


def test_metrics_show_lag_three_ways_and_counters(relay: Relay) -> None:
    get(relay, "/stream", output="frames")
    text = get(relay, "/metrics").body.decode()
    for line in (
        'databus_capture_state{physical="shop",state="RUNNING"} 1.0',
        'databus_capture_lag_seconds{physical="shop"} 0.0125',
        'databus_capture_lag_changes{physical="shop"} 3.0',
        'databus_capture_lag_bytes{physical="shop"} 4096.0',
        'databus_capture_retention_left_seconds{physical="shop"} 60.0',
        'databus_capture_values_omitted_total{physical="shop",table="main.orders"} 2.0',
        'databus_capture_rows_total{physical="shop"} 4.0',
        'databus_log_published_scn{physical="shop"} 4.0',
        'databus_requests_total{command="stream"} 1.0',
    ):
        assert line in text


def test_metrics_name_the_version_and_each_help_text_stands_alone(relay: Relay) -> None:
    get(relay, "/stream", output="frames")
    text = get(relay, "/metrics").body.decode()
    assert f'databus_build_info{{python="{platform.python_version()}",version="{__version__}"' in text
    helps = [line.split(" ", 3)[3] for line in text.splitlines() if line.startswith("# HELP databus_")]
    assert len(helps) == len(set(helps))
    assert all(len(each.split()) >= 5 and "Of them" not in each for each in helps)


def test_where_a_named_client_stood_stays_in_the_metrics_when_it_has_vanished(relay: Relay, shop: Database) -> None:
    get(relay, "/stream", output="frames", scn=1, headers={"X-Dbus-Client": "copier"})
    get(relay, "/stream", output="frames", scn=1)
    shop.add(order(5))
    published(relay, "shop", 5)
    text = get(relay, "/metrics").body.decode()
    assert 'databus_client_lag_scn{client="copier",physical="shop"} 1.0' in text
    assert 'client="localhost"' not in text


def test_clients_that_are_gone_are_forgotten_after_an_hour_and_beyond_a_number() -> None:
    stats = Stats(clients_max=2)
    streams = [OpenStream(name, "shop", "", "frames", 0, SourceCheckpoint(scn=7)) for name in ("a", "b", "c")]
    for stream in streams:
        stats.opened(stream)
        stats.closed(stream, 100.0)
    assert [key for key, _ in stats.positions(101.0)] == [("b", "shop"), ("c", "shop")]
    stats.opened(streams[1])
    assert [key for key, _ in stats.positions(4_000.0)] == [("b", "shop")]


def test_help_names_every_command(relay: Relay) -> None:
    text = get(relay, "/help").body.decode()
    assert "](" not in text, "links are for pages"
    assert all(f"\n{command.path} " in text or f" {command.path} " in text for command in table())


def test_a_transaction_in_parts_is_seen_when_it_is_whole(relay: Relay, shop: Database) -> None:
    first, second, last = parts(5, 3)
    shop.add(first, second)
    until(lambda: relay.captures["shop"].counters.groups == 6)
    assert get(relay, "/stream", output="frames", scn=4, wait_ms=50).body == b""
    shop.add(last)
    groups = get(relay, "/stream", output="frames", scn=4).groups
    assert [group.commit.continues for group in groups] == [True, True, False]


def test_a_form_in_the_body_is_as_good_as_the_address(relay: Relay) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("no curl here")
    checkpoint = Checkpoint({"shop": SourceCheckpoint(scn=3)}).dumps()
    command = [curl, "-sS", f"{relay.url}/stream", "--data-urlencode", f"from={checkpoint}"]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=WAIT_S)
    assert b'"_commit_version":4' in ended.stdout
    named = subprocess.run([curl, "-sS", f"{relay.url}/sources"], capture_output=True, check=True, timeout=WAIT_S)
    assert named.stdout == b'[{"name": "shop/main.orders", "id": 1}, {"name": "shop/main.stock", "id": 2}]\n'


def test_every_command_of_the_table_is_answered_by_somebody() -> None:
    assert {command.path for command in table().commands} == set(ANSWERS)


def test_openapi_has_every_command_with_its_bounds_as_this_relay_is_configured(tmp_path: Path) -> None:
    with scripted(tmp_path, {"shop": Database()}, serve={"wait_ms_max": 77}) as relay:
        found = get(relay, "/openapi.json").json
    assert found["openapi"] == "3.1.0"
    assert set(found["paths"]) == {command.path for command in table()}
    stream = found["paths"]["/stream"]["get"]
    (wait,) = [each for each in stream["parameters"] if each["name"] == "wait_ms"]
    assert wait["schema"] == {"type": "integer", "minimum": 0, "maximum": 77}
    assert set(stream["responses"]) >= {"200", "400", "401", "409", "410"}
    assert "get" not in found["paths"]["/controlSources/pause"]
