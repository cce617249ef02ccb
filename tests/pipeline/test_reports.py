"""The relay shows how far each output of a pipeline is, and a pipeline is none the worse where it cannot."""

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from databus.core import SourceCheckpoint, SystemClock
from databus.filters import TableChoice
from databus.link import Access, Groups, RelayClient
from databus.pipeline.running import _reports
from databus.pipeline.running._reports import Reports, report_of
from databus.places import Position
from databus.relay import Relay, parse_relay
from tests.client.conftest import mock, wait_for
from tests.pipeline.projects import Project


class LooksOften(SystemClock):
    """Its waits are short, and counted."""

    looks = 0

    def wait(self, event: threading.Event, s_max: float) -> bool:
        self.looks += 1
        return super().wait(event, 0.01)


def position(*patterns: str, scn: int, **elsewhere: int) -> Position:
    places = {f"shop/main.{name}": SourceCheckpoint(uuid="u", scn=each) for name, each in elsewhere.items()}
    return Position(SourceCheckpoint(uuid="u", scn=scn), ((TableChoice(patterns),),), places)


def test_an_output_is_where_the_last_of_its_tables_is():
    report = report_of({"shop": position("shop/*", scn=9, stock=7), "crm": position("crm/*", scn=3)})
    assert report is not None
    assert {name: each["scn"] for name, each in report["checkpoint"]["sources"].items()} == {"shop": 7, "crm": 3}
    assert report["sources"] == ["crm/*", "shop/*"]
    assert report_of({"shop": Position()}) is None


class Outputs:
    """What a run has: outputs `copy` and `index`, the first of which has come to an SCN; and where its relay is."""

    def __init__(self, url: str) -> None:
        self.url, self.config, self.clock = url, SimpleNamespace(name="shop", access=Access()), LooksOften()
        self.copy, self.index = (
            SimpleNamespace(name=name, guards=False, ledger=SimpleNamespace(positions={})) for name in ("copy", "index")
        )

    def relay(self) -> str:
        return self.url

    def wait_for_looks(self) -> None:
        """Wait for some more looks, at which nothing happens."""
        looks = self.clock.looks
        wait_for(lambda: self.clock.looks > looks + 3, "some more looks")

    def comes_to(self, scn: int) -> None:
        self.copy.ledger.positions = {"shop": position("shop/*", scn=scn)}

    @contextlib.contextmanager
    def reported(self) -> Iterator[Reports]:
        reports = Reports(self, lambda: [self.copy, self.index])  # type: ignore[arg-type, list-item]
        try:
            yield reports
        finally:
            reports.end()


def test_the_relay_keeps_its_log_for_an_output_with_guard_until_the_guard_has_ended(tmp_path: Path) -> None:
    """A guard that ended begins again with the next run, not with the next report."""
    with relay_in(tmp_path / "guarding") as relay:
        outputs = Outputs(relay.url)
        outputs.copy.guards = True
        outputs.comes_to(1)
        group = Groups(RelayClient(relay.url))
        with outputs.reported():
            wait_for(lambda: shown_at(relay.url) == {"shop.copy": 1}, "the report")
            assert group.group("shop.copy")["guard"]
            relay._commands.groups.keeper.end_guards("shop", "the disk is full")
            wait_for(lambda: not group.group("shop.copy")["guard"], "the end of the guard")
            outputs.comes_to(2)
            wait_for(lambda: shown_at(relay.url) == {"shop.copy": 2}, "the next report")
            assert not group.group("shop.copy")["guard"]
        with outputs.reported():
            wait_for(lambda: group.group("shop.copy")["guard"], "the guard of the next run")


def relay_in(folder: Path, **more: Any) -> Relay:
    value = {"listen": "127.0.0.1:0", "folder": "relay", "sources": {"shop": mock(transactions_total=1)}, **more}
    folder.mkdir()
    return Relay(parse_relay(value, folder=folder))


def shown_at(url: str) -> dict[str, int]:
    """The outputs that a relay shows, with their SCNs."""
    groups = Groups(RelayClient(url))
    names = [each["name"] for each in groups.page()["groups"]]
    places = {name: groups.group(name)["partitions"][0]["checkpoint"]["sources"] for name in names}
    return {name: int(each["shop"]["scn"]) for name, each in places.items()}


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    records = [each for each in caplog.records if "does not show how far" in each.getMessage()]
    return [(each.levelname, each.getMessage()) for each in records]


def test_what_a_ledger_says_is_shown_once_written_and_a_last_time_at_the_end(tmp_path):
    with relay_in(tmp_path / "a") as relay:
        outputs = Outputs(relay.url)
        with outputs.reported():
            outputs.comes_to(3)
            wait_for(lambda: shown_at(relay.url) == {"shop.copy": 3}, "a report")
            outputs.comes_to(5)
        assert shown_at(relay.url) == {"shop.copy": 5}


def test_the_relay_that_coordinates_is_told_though_another_is_read(tmp_path):
    with (
        relay_in(tmp_path / "a") as first,
        relay_in(tmp_path / "b", groups={"coordinator": first.url, "coordinates": False}) as second,
    ):
        outputs = Outputs(second.url)
        outputs.comes_to(3)
        with outputs.reported():
            wait_for(lambda: shown_at(first.url) == {"shop.copy": 3}, "a report")


def test_a_relay_that_is_away_is_told_when_it_is_back_and_spoken_of_once(tmp_path, caplog):
    caplog.set_level("INFO")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        away = f"http://127.0.0.1:{listening.getsockname()[1]}"
    outputs = Outputs(away)
    outputs.comes_to(3)
    with relay_in(tmp_path / "a") as relay, outputs.reported():
        wait_for(lambda: told(caplog), "a message")
        outputs.comes_to(4)
        outputs.wait_for_looks()
        outputs.url = relay.url
        wait_for(lambda: shown_at(relay.url) == {"shop.copy": 4}, "a report")
    assert [level for level, _ in told(caplog)] == ["INFO"]


def test_a_relay_that_takes_reports_and_never_answers_does_not_hold_up_the_end():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        outputs = Outputs(f"http://127.0.0.1:{listening.getsockname()[1]}")
        outputs.comes_to(3)
        began = time.monotonic()
        with outputs.reported():
            pass
        assert time.monotonic() - began < 2 * _reports._END_S_MAX


@contextlib.contextmanager
def relay_of_old() -> Iterator[tuple[str, list[str]]]:
    """One that has no groups: its address, and what it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_relay_without_groups_is_asked_once_a_minute_and_spoken_of_once(caplog):
    caplog.set_level("INFO")
    with relay_of_old() as (url, asked):
        outputs = Outputs(url)
        outputs.comes_to(3)
        with outputs.reported():
            wait_for(lambda: told(caplog), "a message")
            outputs.comes_to(4)
            outputs.wait_for_looks()
    assert asked == ["/groups/shop.copy/report"]
    assert [level for level, _ in told(caplog)] == ["INFO"]


def test_a_name_that_members_have_is_warned_of_once(tmp_path, caplog):
    body = b'{"member": "anne-aaaaaaaa", "call": 1, "start": "earliest"}'
    with relay_in(tmp_path / "a") as relay:
        wait_for(lambda: RelayClient(relay.url).sources(), "the sources")
        RelayClient(relay.url)._post("/groups/shop.copy", {}, body)
        outputs = Outputs(relay.url)
        outputs.comes_to(3)
        with outputs.reported():
            wait_for(lambda: told(caplog), "a message")
            outputs.wait_for_looks()
    ((level, message),) = told(caplog)
    assert (level, "members have this name" in message) == ("WARNING", True)


def test_where_there_is_no_room_for_one_output_the_others_are_shown(tmp_path, caplog):
    with relay_in(tmp_path / "a", groups={"names_max": 1}) as relay:
        outputs = Outputs(relay.url)
        outputs.index.ledger.positions = {"shop": position("shop/*", scn=2)}
        with outputs.reported():
            wait_for(lambda: shown_at(relay.url) == {"shop.index": 2}, "a report")
            outputs.comes_to(3)
            wait_for(lambda: told(caplog), "a message")
            outputs.index.ledger.positions = {"shop": position("shop/*", scn=4)}
            wait_for(lambda: shown_at(relay.url) == {"shop.index": 4}, "a report behind one that was refused")
    assert "names_max=1" in told(caplog)[0][1]


@pytest.mark.usefixtures("relay_in_thread")
def test_the_relay_shows_an_output_while_its_pipeline_runs_and_how_far_it_was_once_it_has_ended(engine, tmp_path):
    project = Project(tmp_path, "outputs: {copy: {type: files, from: shop, path: out, trigger_ms: 100}}", orders=5)
    with project.running(engine) as running:
        url = running.event(event="relay")["url"]

        def lag() -> Mapping[str, Any]:
            groups = {each["name"]: each for each in Groups(RelayClient(url)).page()["groups"]}
            found: Mapping[str, Any] = groups.get("shop.copy", {"lag": {"shop": {"changes": None}}})["lag"]["shop"]
            return found

        running.wait_for(lambda: lag()["changes"] == 0, "a report of all that was there")
        project.work(5)
        scn = shown_at(url)["shop.copy"]
        running.wait_for(lambda: shown_at(url)["shop.copy"] > scn and lag()["changes"] == 0, "the next one")
        assert Groups(RelayClient(url)).group("shop.copy")["sources"] == ["shop/main.*"]
    journal = (tmp_path / ".databus").rglob("groups.journal")
    assert '"shop.copy"' in next(journal).read_text()
