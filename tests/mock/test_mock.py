"""The mock source is checkable: what it yields is a function of its options, and it can say what a copy must hold."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import ConfigError, SourceChanged, UnknownSource
from databus.log import Resume
from databus.sources import parse_source
from databus.sources.mock import MockConfig, MockSource, MockTable
from databus.wire import Group

TABLES = {
    "main.a": MockTable(
        columns={
            "id": "int64",
            "price": "decimal(12,2)",
            "day": "date",
            "big": "uint64",
            "raw": "binary",
            "at": "timestamp",
        }
    ),
    "main.b": MockTable(columns={"id": "string", "n": "int32", "ok": "bool", "x": "float32"}),
}


SCHEMA = {"schema": {"source": "main.t", "columns": [{"name": "id", "type": "int64"}], "key": ["id"]}}


def taken(source: MockSource, resume: Resume | None = None) -> list[Group]:
    source.start(resume or Resume())
    groups = []
    while (group := source.poll(0)) is not None:
        groups.append(group)
    return groups


def rows_in_order(groups: list[Group]) -> list[dict]:
    rows = [{"table": r.table.source, **row} for g in groups for r in g.rows for row in r.batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"]))


options = st.fixed_dictionaries(
    {
        "rows_per_transaction": st.integers(1, 40),
        "transactions_total": st.integers(0, 60),
        "inserts": st.integers(5, 12),
        "updates": st.integers(0, 30),
        "deletes": st.integers(0, 5),
        "seed": st.integers(0, 2**63 - 1),
        "group_bytes_max": st.sampled_from([1024, 8192, 4 << 20]),
        "group_transactions_max": st.sampled_from([1, 3, 1_000_000]),
    }
)


@given(options)
def test_applying_the_changes_gives_what_the_source_says_a_copy_holds(chosen):
    source = MockSource("m", MockConfig(schemas=TABLES, **chosen))
    groups = taken(source)
    state: dict[str, dict] = {name: {} for name in TABLES}
    last = (0, 0)
    for row in rows_in_order(groups):
        pair = (row["_commit_version"], row["_seq"])
        assert pair == (last[0], last[1] + 1) or pair == (last[0] + 1, 1)
        last = pair
        image = {k: v for k, v in row.items() if k in TABLES[row["table"]].columns}
        held = state[row["table"]]
        if row["_change_type"] in (1, 3):
            assert row["_change_type"] == 3 or image["id"] not in held
            held[image["id"]] = image
        else:
            assert held.pop(image["id"]) == image
    for name, held in state.items():
        expected = source.expected(name, chosen["transactions_total"]).to_pylist()
        assert {row["id"]: row for row in expected} == held


@given(options, st.data())
def test_capture_from_any_commit_yields_the_same_rest(chosen, data):
    groups = taken(MockSource("m", MockConfig(schemas=TABLES, **chosen)))
    ends = [at for at, group in enumerate(groups) if not group.commit.continues]
    if not ends:
        return
    at = data.draw(st.sampled_from(ends))
    commit = groups[at].commit
    resume = Resume(commit.position, commit.scn, commit.seq, commit.txid)
    again = taken(MockSource("m", MockConfig(schemas=TABLES, **chosen)), resume)
    assert rows_in_order(again) == rows_in_order(groups[at + 1 :])


def test_a_transaction_above_the_limit_comes_in_parts_that_never_cut_an_update():
    config = MockConfig(
        rows_per_transaction=5000, transactions_total=1, group_bytes_max=10_000, inserts=50, updates=50, deletes=0
    )
    groups = taken(MockSource("m", config))
    assert len(groups) > 50
    assert [group.commit.continues for group in groups] == [True] * (len(groups) - 1) + [False]
    for group in groups:
        kinds = [kind for rows in group.rows for kind in rows.batch.column("_change_type").to_pylist()]
        assert kinds.count(2) == kinds.count(3)


def test_a_snapshot_holds_what_a_copy_holds_and_goes_on_from_its_last_key():
    config = MockConfig(schemas=TABLES, transactions_total=50, chunk_rows=7)
    source = MockSource("m", config)
    groups = taken(source)
    source.request_snapshot(["main.a"])
    kinds, rows, opened = [], [], None
    for _ in range(100):
        group = source.poll(0)
        if group is None:
            break
        assert group.snapshot
        kinds.append(group.control.kind if group.control else "rows")
        rows += [row for r in group.rows for row in r.batch.to_pylist()]
        commit = group.commit
        if len(kinds) == 3:  # as if the relay had died here
            opened = commit.snapshots
            source = MockSource("m", config)
            source.start(Resume(commit.position, commit.scn, commit.seq, commit.txid, snapshots=opened))
    assert opened
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("snapshot_begin", "snapshot_end", {"rows"})
    expected = source.expected("main.a", 50).to_pylist()
    assert [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows] == expected
    pairs = [(row["_commit_version"], row["_seq"]) for row in rows]
    assert pairs == sorted(set(pairs))
    assert pairs[0] > groups[-1].commit.pair


def test_a_script_is_followed_exactly(tmp_path):
    update = {"table": "main.t", "update": {"id": 2}, "before": {"id": 1}}
    lines = [
        {"changes": [SCHEMA, {"table": "main.t", "insert": {"id": 1}}]},
        {"changes": [update, {"control": {"kind": "truncate", "source": "main.t"}}]},
    ]
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    groups = taken(MockSource("m", MockConfig(script=str(path))))
    assert [(g.commit.scn, g.commit.seq, g.commit.continues) for g in groups] == [
        (1, 1, False),
        (2, 2, True),
        (2, 3, False),
    ]
    assert groups[-1].control is not None
    assert groups[-1].control.pair == (2, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "main.x", "insert": {}}, "transaction 1, change 2: table 'main.x' has no schema yet"),
        ({"table": "main.t", "insert": {"nope": 1}}, "transaction 1, change 2: main.t has no column 'nope'"),
        ({"table": "main.t", "upsert": {}}, "transaction 1, change 2: expected insert, update"),
    ],
)
def test_a_mistake_in_a_script_is_named_by_transaction_and_change(change, words):
    with pytest.raises(ConfigError) as caught:
        MockSource("m", MockConfig(script=[{"changes": [SCHEMA, change]}]))
    assert words in str(caught.value)


def test_options_that_cannot_be_are_named_all_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_source({"type": "mock", "row_bytes": 1, "rows_per_transactoin": 3}, "sources.m")
    assert "sources.m.row_bytes" in str(caught.value)
    assert "sources.m.rows_per_transactoin" in str(caught.value)
    with pytest.raises(ConfigError, match='did you mean "mock"'):
        parse_source({"type": "mokc"}, "sources.m")


def test_another_logs_position_is_refused():
    with pytest.raises(SourceChanged):
        MockSource("m", MockConfig()).start(Resume({"file": "x"}, 5, 1, "a"))
    with pytest.raises(UnknownSource, match=r"main\.events"):
        MockSource("m", MockConfig()).request_snapshot(["main.nope"])


def test_rows_have_the_size_that_was_asked_for():
    (group,) = taken(MockSource("m", MockConfig(transactions_total=100, row_bytes=254)))
    batch = group.rows[0].batch
    user = pa.Table.from_batches([batch]).select(["id", "source", "at", "key", "payload"])
    assert 240 < user.get_total_buffer_size() / len(batch) < 280
