"""Tables that are read because somebody asks: as a whole, or narrowed by a condition for this one time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from databus.core import InputError
from databus.testing.servers import Server
from tests.mysql.following import Follower, config_of, create


@pytest.fixture
def follower(server: Server, database: str, tmp_path: Path) -> Iterator[Follower]:
    """One that has captured the tables so far."""
    create(server, database)
    made = Follower(config_of(database, server, chunk_rows_max=3), tmp_path / "source")
    made.check(server, database)
    yield made
    made.kill()


def test_a_reading_by_a_condition_outlives_a_restart_and_is_not_complete(server, database, follower) -> None:
    server.run("SET SESSION sql_log_bin = 0", f"UPDATE {database}.a SET name = 'unlogged' WHERE id <= 30")
    server.run("SET SESSION sql_log_bin = 1")
    assert follower.source is not None
    begun = len(follower.tape.groups)
    follower.source.request_snapshot([f"{database}.a"], "id <= 20 -- and no more")

    def chunks() -> int:
        return sum(bool(group.snapshot and group.rows) for group in follower.tape.groups[begun:])

    follower.until(lambda: chunks() >= 2)
    opened = follower.tape.groups[-1].commit.snapshots[f"{database}.a"]
    assert opened.where == "id <= 20 -- and no more"
    follower.kill()
    follower.catch_up(server, database)
    copy = follower.copy()
    end = [each for each in copy.controls if each["kind"] == "snapshot_end" and each["source"] == f"{database}.a"][-1]
    assert (end["complete"], end["as_configured"]) == (False, False)
    names = {key[0]: row["name"] for key, (_, row) in copy.tables[f"{database}.a"].items()}
    assert {number for number, name in names.items() if name == "unlogged"} == set(range(1, 21)) & set(names)
    assert len(names) > 90
    assert follower.source is not None
    follower.source.request_snapshot([f"{database}.a"])
    follower.until(lambda: f"{database}.a" in follower.tape.groups[-1].commit.snapshots)
    follower.check(server, database)


def test_a_reading_that_the_configuration_narrows_is_all_that_it_asks_for(server, database, tmp_path) -> None:
    create(server, database)
    made = Follower(config_of(database, server, where={f"{database}.a": "id <= 20"}), tmp_path / "source")
    made.catch_up(server, database)
    ends = {each["source"]: each for each in made.copy().controls if each["kind"] == "snapshot_end"}
    made.kill()
    told = ends[f"{database}.a"]
    assert (told["complete"], told["as_configured"]) == (False, True)
    others = [each for name, each in ends.items() if name != f"{database}.a"]
    assert others
    assert all(each["complete"] and each["as_configured"] for each in others)


def test_a_reading_that_is_cancelled_ends_as_it_is_and_stays_so_over_a_restart(server, database, follower) -> None:
    assert follower.source is not None
    name = f"{database}.a"
    controls = len(follower.copy().controls)
    follower.source.request_snapshot([name])
    follower.until(lambda: bool(follower.tape.groups[-1].snapshot and follower.tape.groups[-1].rows))
    follower.source.cancel_snapshot([name])
    follower.until(lambda: name not in follower.tape.groups[-1].commit.snapshots)
    begin, end = follower.copy().controls[controls:]
    assert (begin["kind"], end["kind"], end["complete"], end["as_configured"]) == (
        "snapshot_begin", "snapshot_end", False, False,
    )  # fmt: skip
    assert end["generation"] == begin["generation"]
    follower.kill()
    follower.check(server, database)
    assert len(follower.copy().controls) == controls + 2


def test_a_condition_that_the_server_does_not_take_is_refused_at_once(server, database, follower) -> None:
    assert follower.source is not None
    for wrong in ("no_such_column = 1", "id = ", "1) OR (", "1) OR (1", "1; SELECT 2", "name = 'x", "id = (1 /* ) */"):
        with pytest.raises(InputError, match="where"):
            follower.source.request_snapshot([f"{database}.a"], wrong)
    follower.check(server, database)


def test_how_far_a_reading_is_stands_in_the_log_of_the_process(server, database, follower) -> None:
    assert follower.source is not None
    follower.source.request_snapshot([f"{database}.a"])
    said = structlog.testing.CapturingLogger()
    follower.source._notices._logger = said
    begun = len(follower.tape.groups)
    follower.until(lambda: any(group.snapshot and group.rows for group in follower.tape.groups[begun:]))
    follower.source._notices.progress_due_s = 0.0  # something may have been said just now
    follower.source.lag()
    told = [call.kwargs for call in said.calls if call.args == ("reading a table",)][-1]
    assert told["table"] == f"{database}.a"
    assert told["rows"] > 0
    assert told["bytes"] > 0
    assert told["percent_estimated"] is None or 0 < told["percent_estimated"] < 100
    follower.check(server, database)
