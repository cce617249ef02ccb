"""What an output refuses of a query's tables stays left out, whatever the relay names meanwhile."""

import pytest

from databus.flow import TableChoice, selects
from databus.pipeline import load_pipeline
from databus.pipeline.engine._bringing import Bringing, feed_without
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._plan import Feed
from databus.pipeline.telling._progress import Progress, unwell, why_refused

ALL = ((TableChoice(("shop/*",)),),)


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
    for _ in range(2):  # as when the relay names one more source
        handle.bringing = {"a": Bringing("shop/*", ALL), "b": Bringing("other/*", ALL)}
        handle.refuse("a", {"shop/main.`b*`": "no key"})
        handle.bringing = {"a": Bringing("shop/*", ALL), "b": Bringing("other/*", ALL)}
        (mine,), (others,) = handle.bringing["a"].selections, handle.bringing["b"].selections
        assert not selects(mine, "shop/main.`b*`")
        assert selects(mine, "shop/main.big")  # a name is no pattern
        assert selects(others, "shop/main.`b*`")
        assert feed_without(Feed("outputs.copy", ALL), handle.refused["a"]).selections == (mine,)
    handle.refuse("a", {})
    assert handle.bringing["a"].selections == ALL


def test_an_output_that_refuses_tables_is_not_well_until_it_refuses_none():
    progress = Progress(["copy"])
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
