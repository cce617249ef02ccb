"""What an output refuses of a query's tables stays left out, whatever the relay names meanwhile."""

import pytest

from databus.pipeline import load_pipeline
from databus.pipeline.engine._handle import Brought, OutputHandle
from databus.pipeline.telling._progress import RunProgress, unwell, why_refused
from databus.places import chosen_by
from tests.feeds import feed_of


@pytest.fixture
def handle(tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(
        "relay: {url: 'http://127.0.0.1:9'}\n"
        "inputs: {shop: {type: databus}}\n"
        "outputs: {copy: {type: delta, from: shop, mode: mirror, path: copy}}\n"
    )
    config = load_pipeline(path).config
    node = config.nodes["outputs.copy"]
    return OutputHandle("copy", node.plugin(node.config, config.context_of("copy")), config.state)


def test_what_is_refused_is_left_out_also_when_the_queries_are_planned_anew(handle):
    feeds = {"shop": feed_of("shop/*"), "other": feed_of("other/*")}
    for _ in range(2):  # as when the relay names one more source
        handle.brought = {physical: Brought(feed, lambda _: "") for physical, feed in feeds.items()}
        handle.refuse("shop", {"shop/main.`b*`": "no key"})
        handle.brought = {physical: Brought(feed, lambda _: "") for physical, feed in feeds.items()}
        mine, others = handle.choice("shop"), handle.choice("other")
        assert not chosen_by(mine, "shop/main.`b*`")
        assert chosen_by(mine, "shop/main.big")  # a name is no pattern
        assert chosen_by(others, "other/main.`b*`")
        assert feeds["shop"].without(handle.refused["shop"]).choice == mine
    handle.refuse("shop", {})
    assert handle.choice("shop") == feeds["shop"].choice


def test_an_output_that_refuses_tables_is_not_well_until_it_refuses_none():
    progress = RunProgress(["copy"])
    progress.expect("q", ["copy"], [])
    event = {"event": "refused", "query": "q", "output": "copy", "at_us": 1}

    def lines():
        return unwell({"outputs": progress.to_json()})

    progress.take({**event, "tables": {"shop/main.t": "main.t comes without a key"}})
    progress.take({"event": "started", "query": "q", "at_us": 2})
    (line,) = lines()
    assert line.startswith("copy: refuses tables: 1 table is not written")
    assert "main.t comes without a key" in line
    progress.take({**event, "tables": {}})
    assert lines() == []
    many = why_refused({f"shop/main.t{each}": f"t{each} has no key" for each in range(8)})
    assert many.startswith("8 tables are not written")
    assert "; and 3 more. " in many
