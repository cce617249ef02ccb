"""Law: any rows of any tables, in any interleaving, go through relay and Spark and come back equal and in order."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from databus.schema import TableSchema
from databus.testing import RelayProcess
from tests.spark.conftest import load_batch, wait_until_captured
from tests.spark.script import insert, schema, transaction, write
from tests.spark.strategies import images, tables

pytestmark = pytest.mark.spark


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[TableSchema], list[list[tuple[int, dict[str, Any]]]]]:
    """Three tables, and transactions of rows of any of them."""
    chosen = [draw(tables(f"main.t{number}")) for number in range(3)]
    one = st.integers(0, 2).flatmap(
        lambda number: images(chosen[number], 4).map(lambda rows: [(number, row) for row in rows])
    )
    transactions = draw(
        st.lists(
            st.lists(one, max_size=4).map(lambda parts: [row for part in parts for row in part]),
            min_size=3,
            max_size=12,
        )
    )
    return chosen, transactions


@pytest.mark.timeout(240)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(history=histories())
def test_any_history_comes_back_equal_and_in_order(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, history: Any
) -> None:
    chosen, transactions = history
    folder: Path = tmp_path_factory.mktemp("law")
    lines = [transaction(*map(schema, chosen))]
    lines += [transaction(*(insert(chosen[number], **row) for number, row in rows)) for rows in transactions]
    expected: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for scn, rows in enumerate(transactions, 2):
        for seq, (number, row) in enumerate(rows, 1):
            expected[number].append(((scn, seq), row))
    with RelayProcess(folder, {"shop": write(folder / "script.jsonl", lines)}) as relay:
        wait_until_captured(relay.url, "shop", len(lines))
        for number, table in enumerate(chosen):
            frame = load_batch(spark, relay, shape="typed", sources=table.source, meta="full", partitions=2)
            seen = [
                ((row["_commit_version"], row["_seq"]), {name: row[name] for name in table.names})
                for row in frame.toArrow().to_pylist()
            ]
            assert seen == expected[number]
