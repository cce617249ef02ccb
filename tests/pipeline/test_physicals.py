"""A relay elsewhere that has nothing for a pipeline: an error that says which, how long, and what to do."""

import json
import threading

import pytest

from databus.core import ServiceUnavailable, UnknownSource
from databus.link import RelayClient
from databus.pipeline import load_pipeline, run
from databus.pipeline.running._physicals import Physicals
from databus.relay import Relay, parse_relay
from databus.testing import FakeClock
from databus.testing.shop import create_shop
from tests.client.conftest import wait_for

PIPELINE = """\
name: far
relay: {{url: '{url}'}}
run: {{start_ms_max: 1000}}
inputs: {{all: {{type: databus, tables: ['{tables}']}}, hr: {{type: databus, tables: ['hr/*']}}}}
outputs:
  copy: {{type: files, from: all, path: out}}
  more: {{type: files, from: hr, path: more}}
"""


@pytest.fixture
def relay(tmp_path, request):
    """A relay of one database, which is there or not."""
    if getattr(request, "param", None) != "without":
        create_shop(tmp_path / "shop.db", customers=4, products=3, orders=5, seed=8)
    sources = {"shop": {"type": "sqlite", "path": "shop.db"}}
    with Relay(parse_relay({"listen": "127.0.0.1:0", "folder": "log", "sources": sources}, folder=tmp_path)) as relay:
        yield relay


def written(folder, relay, tables):
    path = folder / "databus.yml"
    path.write_text(PIPELINE.format(url=relay.url, tables=tables))
    return path


@pytest.mark.parametrize("relay", ["without"], indirect=True)
def test_a_relay_that_names_no_source_is_an_error_that_says_which_relay_and_how_long(tmp_path, relay):
    config = load_pipeline(written(tmp_path, relay, "shop/*")).config
    with pytest.raises(ServiceUnavailable) as raised:
        Physicals(config, lambda: relay.url, threading.Event(), FakeClock()).wait(bool)
    said = str(raised.value)
    assert said.startswith(f"the relay at {relay.url} has named no table of any source within run.start_ms_max=1000 (")
    assert "shop is " in said, "what the relay says of its own sources"
    assert f"databus sources --relay {relay.url}" in said


def test_all_that_is_named_is_taken_when_what_was_waited_for_does_not_come(tmp_path, relay):
    config = load_pipeline(written(tmp_path, relay, "shop/*")).config
    wait_for(RelayClient(relay.url).sources, "its tables")
    assert Physicals(config, lambda: relay.url, threading.Event(), FakeClock()).wait(lambda _: False) == ["shop"]


@pytest.mark.parametrize(("tables", "unfed"), [("shop/*", ["more"]), ("elsewhere/*", ["copy", "more"])])
def test_with_once_an_output_without_a_source_fails_and_the_others_are_written(engine, tmp_path, relay, tables, unfed):
    events = []
    code = run(written(tmp_path, relay, tables), once=True, session=engine, on_event=events.append)
    assert code == UnknownSource.exit_code
    (told,) = [each for each in events if each["event"] == "no_source"]
    assert told["outputs"] == unfed
    assert f"no source to read; the relay at {relay.url} has shop" in told["message"]
    assert [each["failed"] for each in events if each["event"] == "stopped"] == [unfed]
    written_by = {each["output"] for each in events if each["event"] == "batch" and each["rows"]}
    assert written_by == {"copy", "more"}.difference(unfed), json.dumps(events, default=str)


@pytest.mark.parametrize("relay", ["without"], indirect=True)
def test_a_run_over_a_relay_without_sources_fails(engine, tmp_path, relay):
    with pytest.raises(ServiceUnavailable, match="has named no table of any source"):
        run(written(tmp_path, relay, "shop/*"), once=True, session=engine)
