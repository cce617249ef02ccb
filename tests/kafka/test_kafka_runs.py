"""Pipelines into topics, as users run them: what a reader makes of them is what SQL selects."""

import base64
import json
import shutil
from typing import Any

import pytest

from databus.core import FatalError, PositionForeign
from databus.pipeline import load_pipeline, outputs_with_letters, run
from databus.pipeline.engine._handle import OutputHandle
from tests.kafka.mirrors import produce, told
from tests.kafka.support import new_prefix, rows_in
from tests.kafka_source.support import Topics
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

IN_PARTS = HEAD.replace("tables: [shop/main.*]", "tables: [shop/main.*], partitions: 2, max_rows_per_trigger: 300")
TABLES = ("customers", "stock", "orders", "order_lines")


def died(*_: object) -> None:
    raise FatalError("killed before the ledger")


def sections(server: Any, prefix: str, **options: Any) -> str:
    given = {
        "type": "kafka",
        "from": "shop",
        "kafka": {"bootstrap.servers": server.bootstrap},
        "topic": f"{prefix}.{{table}}",
        "control_topic": f"{prefix}.control",
        "create_topics": {"partitions": 3},
        **options,
    }
    return f"outputs: {{topics: {json.dumps(given)}}}"


def key_of(project: Project, table: str) -> list[str]:
    return [
        name for (name,) in project.select(f"SELECT name FROM pragma_table_info('{table}') WHERE pk > 0 ORDER BY pk")
    ]


def assert_readers_see_what_sql_selects(project: Project, server: Any, prefix: str) -> None:
    """Nothing twice; each key in one partition, in order; what is left of each key is its row."""
    for table in TABLES:
        key = key_of(project, table)
        parts = rows_in(server, f"{prefix}.{table}")
        pairs = [(row["_commit_version"], row["_seq"]) for part in parts for row in part]
        assert len(set(pairs)) == len(pairs), table
        alive: dict[Any, Any] = {}
        for part in parts:
            last: dict[Any, Any] = {}
            for row in part:
                name = tuple(row[each] for each in key)
                pair = row["_commit_version"], row["_seq"]
                assert last.get(name, (0, 0)) < pair, table
                last[name] = pair
                if row["_change_type"] in ("insert", "update_postimage"):
                    alive[name] = row
                else:
                    alive.pop(name, None)
        columns = [name for _, name in project.select(f"SELECT cid, name FROM pragma_table_info('{table}')")]
        found = [[row.get(name) for name in columns] for row in alive.values()]
        rows = [[*map(as_json, row)] for row in project.select(f"SELECT {', '.join(columns)} FROM {table}")]
        assert sorted(found, key=repr) == sorted(rows, key=repr), table


def snapshot_rows(server: Any, prefix: str) -> int:
    rows = (row for table in TABLES for part in rows_in(server, f"{prefix}.{table}") for row in part)
    return sum(row["_snapshot"] for row in rows)


def as_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def test_topics_hold_what_happened_whatever_becomes_of_rows_and_runs(
    tmp_path: Any, spark: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the ledger, and its input renamed; ledger and checkpoints lost; another number of buckets."""
    prefix = new_prefix()
    project = Project(tmp_path, sections(kafka, prefix), head=IN_PARTS)
    project.work(80)
    events = project.once(spark)
    assert {event["driver_row_bytes"] for event in events if event["event"] == "batch"} == {0}
    assert_readers_see_what_sql_selects(project, kafka, prefix)
    project.work(60)
    project.execute("UPDATE customers SET id = id + 100000 WHERE id IN (SELECT min(id) FROM customers)")
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(spark)
    project.work(20)
    project.write(
        sections(kafka, prefix, **{"from": "store"}), head=IN_PARTS.replace("inputs: {shop:", "inputs: {store:")
    )
    project.once(spark)
    assert_readers_see_what_sql_selects(project, kafka, prefix)
    for name in ("ledgers", "queries"):
        shutil.rmtree(project.state / name)
    project.work(20)
    text = project.path.read_text()
    project.path.write_text(text.replace('"create_topics"', '"buckets": 3, "create_topics"'))
    project.once(spark)
    assert_readers_see_what_sql_selects(project, kafka, prefix)


@pytest.mark.nightly
def test_topics_hold_what_happened_however_tables_move_between_inputs(
    tmp_path: Any, engine: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two inputs become one, and two again, each time after a run that was killed before the ledger."""
    prefix = new_prefix()
    apart = {"a": ["shop/main.customers", "shop/main.orders"], "b": ["shop/main.stock", "shop/main.order_lines"]}
    together = {"a": [*apart["a"], *apart["b"]]}
    anew = {"all": together["a"]}

    def head(tables: Any) -> str:
        inputs = {name: {"type": "databus", "tables": its, "partitions": 2} for name, its in tables.items()}
        return IN_PARTS[: IN_PARTS.index("inputs:")] + f"inputs: {json.dumps(inputs)}\n"

    def told(tables: Any) -> str:
        return sections(kafka, prefix, **{"from": [*tables]})

    project = Project(tmp_path, told(apart), head=head(apart))
    project.work(60)
    project.once(engine)
    read = snapshot_rows(kafka, prefix)
    for tables in (together, apart, anew):
        project.work(40)
        with monkeypatch.context() as patch:
            patch.setattr(OutputHandle, "advance", died)
            with pytest.raises(AssertionError, match="killed before the ledger"):
                project.once(engine)
        project.work(20)
        project.write(told(tables), head=head(tables))
        project.once(engine)
        assert_readers_see_what_sql_selects(project, kafka, prefix)
    assert snapshot_rows(kafka, prefix) == read


def test_a_pipeline_of_the_same_name_over_another_database_is_told_and_leaves_no_row_out(
    tmp_path: Any, engine: Any, kafka: Any
) -> None:
    """What the other one has written says nothing of its rows."""
    prefix = new_prefix()
    events: list[Any] = []
    for number in (1, 2):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        options = {"control_topic": f"{prefix}.control"}
        project = Project(folder, sections(kafka, f"{prefix}-{number}", **options), seed=number)
        code = run(project.path, once=True, session=engine, on_event=events.append)
    assert code == PositionForeign.exit_code, events
    assert any("give one of them another name" in event.get("message", "") for event in events)
    assert rows_in(kafka, f"{prefix}-2.orders") == []


@pytest.mark.nightly
def test_topics_hold_what_happened_once_dead_letters_are_replayed(tmp_path: Any, engine: Any, kafka: Any) -> None:
    """Some rows are larger than the client takes; what follows of their keys is behind them, over several runs."""
    prefix = new_prefix()
    small = {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 4_000}
    project = Project(tmp_path, sections(kafka, prefix, kafka=small, on_error="dead_letter"), head=IN_PARTS)
    project.once(engine)
    large = {str(key) for (key,) in project.select("SELECT id FROM customers WHERE id % 10 = 3")}
    project.execute("UPDATE customers SET city = hex(zeroblob(4000)) WHERE id % 10 = 3")
    project.work(40)
    project.once(engine)
    project.execute("UPDATE customers SET city = 'Bern'")
    project.once(engine)
    (before,) = outputs_with_letters(load_pipeline(project.path))
    assert {file.source for file in before.files()} == {"shop/main.customers"}
    keys = {letter.id for letters in before.read() for letter in letters.letters}
    assert keys == large
    project.write(sections(kafka, prefix, on_error="dead_letter"), head=IN_PARTS)
    (found,) = outputs_with_letters(load_pipeline(project.path))
    assert found.replay().refused == 0
    project.work(20)
    project.once(engine)
    assert_readers_see_what_sql_selects(project, kafka, prefix)


MIRROR = """\
name: mirror
sources: {{east: {{type: kafka, topics: ["{prefix}.*"], kafka: {{bootstrap.servers: "{servers}"}}}}}}
inputs: {{east: {{type: databus, tables: ["east/kafka.*"], max_rows_per_trigger: 80}}}}
outputs:
  west:
    type: kafka
    from: east
    format: message
    topic: "mirror-of-{{table}}"
    control_topic: "{prefix}-control"
    create_topics: {{replication_factor: 1, config: {{retention.ms: -1}}}}
    buckets: {buckets}
    kafka: {{bootstrap.servers: "{servers}"}}
"""


def test_a_mirror_is_whole_whatever_becomes_of_its_runs(
    tmp_path: Any, engine: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the ledger; its ledger and all checkpoints lost; another number of buckets. Two topics, one of
    which has a partition without messages.
    """
    topics, path = Topics(kafka), tmp_path / "databus.yml"
    names = [topics.create(partitions=3, **{"retention.ms": -1}), topics.create(**{"retention.ms": -1})]

    def go_on(turn: int, buckets: int = 2, code: int = 0) -> None:
        for name, partitions in zip(names, (3, 1), strict=True):
            produce(topics, name, partitions, seed=turn, count=60)
        path.write_text(MIRROR.format(prefix=topics.prefix, servers=kafka.bootstrap, buckets=buckets))
        events: list[Any] = []
        assert run(path, once=True, session=engine, on_event=events.append) == code, events

    go_on(0)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        go_on(1, code=FatalError.exit_code)
    go_on(2)
    for name in ("ledgers", "queries"):
        shutil.rmtree(tmp_path / ".databus" / "pipelines" / "mirror" / name)
    go_on(3, buckets=3)
    for name in names:
        assert told(kafka, f"mirror-of-{name}") == told(kafka, name)
