"""What a comparison says while it waits, and how it compares tables in parts."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from databus.core import ConfigError, ServiceUnavailable, SourceCheckpoint
from databus.pipeline import compare, load_pipeline
from databus.pipeline.comparing._compare import Side, _not_reached, difference_of, oracle_of
from databus.pipeline.comparing._differences import difference
from databus.pipeline.graph._state import StateLock
from databus.pipeline.telling._status import write_status
from databus.sources.sqlite import install
from databus.testing import FakeClock
from databus.testing.shop import create_shop

READING = SimpleNamespace(not_captured=lambda: "", not_reached=lambda position: f"the copy is at {position.scn}")


@pytest.mark.parametrize(
    ("position", "said"),
    [(None, "the copy has had no batch yet"), (SourceCheckpoint(scn=7), "the copy is at 7")],
)
def test_a_copy_without_a_batch_is_not_said_to_stand_somewhere(position, said):
    copy = SimpleNamespace(position=lambda: position, published=lambda: None)
    assert _not_reached(copy, READING).startswith(said)


def test_two_sides_in_parts_differ_as_they_do_in_whole(seed, tmp_path):
    rng = random.Random(seed)
    source = {(n, n % 7 or None): (n, n % 7 or None, f"row {n}") for n in range(120_000)}
    copied = {key: row for key, row in source.items() if rng.random() > 0.0003}
    for key in rng.sample(sorted(copied, key=repr), 40):
        copied[key] = (*key, "another")
    copied |= {(n, None): (n, None, "more") for n in range(200_000, 200_030)}
    sides = []
    for name, rows in (("source", source), ("copy", copied)):
        (tmp_path / name).mkdir()
        side = Side(tmp_path / name, [0, 1])
        side.fill(rows.values())
        sides.append(side)
    assert difference_of("t", *sides, 10) == difference("t", source, copied, 10)


def test_a_side_without_rows_has_empty_parts(tmp_path: Path):
    side = Side(tmp_path, [0])
    side.fill([])
    assert side.part(0) == {}
    assert difference_of("t", side, side, 10).is_identical


def test_a_database_that_the_file_does_not_name_is_asked_for_by_option(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^shop: .*`--relay-config relay.yml`.*`--database`"):
        oracle_of("shop", None, folder=tmp_path)


def test_a_comparison_that_waits_says_why_the_output_writes_nothing(tmp_path: Path):
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=1)
    install(str(tmp_path / "shop.db"))
    (tmp_path / "databus.yml").write_text(
        "name: shop\nsources: {shop: {type: sqlite, path: shop.db}}\ninputs: {shop: {type: databus}}\n"
        "outputs: {copy: {type: delta, from: shop, mode: mirror, path: lake}}\n"
    )
    graph = load_pipeline(tmp_path / "databus.yml")
    with pytest.raises(ServiceUnavailable, match=r"no batch yet.*; the pipeline does not run"):
        compare(graph, "copy", wait_ms_max=0)
    clock, waits = FakeClock(), []
    with pytest.raises(ServiceUnavailable, match="not compared"):
        compare(graph, "copy", wait_ms_max=3_000, on_wait=waits.append, clock=clock)
    assert 3 < clock.monotonic_s() < 4
    assert len(waits) == 1, "a reason that lasts is said once"
    running = StateLock(graph.config.state, "shop")
    running.take()
    write_status(graph.config.state, {"outputs": {"copy": {"state": "failed", "message": "no key", "error": "X"}}})
    with pytest.raises(ServiceUnavailable, match=r"no batch yet.*; copy is failed: no key"):
        compare(graph, "copy", wait_ms_max=0)
    running.release()
