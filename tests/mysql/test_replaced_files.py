"""Files of a log that others of the same names have replaced, between two runs and during one."""

import itertools
import os
import shutil
import time
from dataclasses import replace

import pytest

from databus.core import ServiceUnavailable, SourceChanged
from databus.testing._source_suite import Tape
from tests.mysql.following import ARRIVE_S_MAX
from tests.mysql.test_files import copied, read, source_of
from tests.mysql.test_reset_unseen import fill


@pytest.fixture
def copy_logs(server, tmp_path):
    """Copies the server's files into a folder: each put in its place at once, as rsync does, or written into."""
    folder = tmp_path / "logs"
    folder.mkdir()

    def copy(*, at_once=True):
        server.run("FLUSH LOGS")
        for path in server.binlogs():
            draft = folder / f".draft of {path.name.replace('.', ' ')}"
            shutil.copy(path, draft if at_once else folder / path.name)
            if at_once:
                draft.replace(folder / path.name)
        return folder

    return copy


def started(folder, database, tape, state):
    source = source_of(folder, database)
    source.identify()
    source.start(replace(tape.resume(), folder=state))
    return source


def read_until(source, tape, is_there):
    end = time.monotonic() + ARRIVE_S_MAX
    while not is_there():
        assert time.monotonic() < end
        group = source.poll(50)
        if group is not None:
            tape.append(group)


def values_of(tape, database):
    return {row["v"] for _, row in copied(tape).tables.get(f"{database}.t", {}).values()}


def grown_beyond(server, database, position):
    """Log until the file of that name is longer than what was captured of it."""
    for number in itertools.count(100):
        server.run(f"INSERT INTO {database}.t VALUES ({number}, 2)")
        if server.position()[1] > position["offset"]:
            return


@pytest.mark.parametrize("kind", ["mysql-8.0", "mariadb-10.11"])
def test_files_of_a_reset_log_are_not_taken_for_those_that_were_captured(server, database, copy_logs, tmp_path):
    fill(server, database, 1)
    tape, state = Tape(), tmp_path / "state"
    source = started(copy_logs(), database, tape, state)
    read_until(source, tape, lambda: len(copied(tape).tables.get(f"{database}.t", {})) == 3)
    source.close()
    position = tape.groups[-1].commit.position
    assert position["began_s"] > 0
    time.sleep(1.1)  # files begun within one second cannot be told apart
    fill(server, database, 2)
    grown_beyond(server, database, position)
    folder = copy_logs()
    with pytest.raises(SourceChanged, match=r"was begun at .* and the file of that name that was captured at .*RESET"):
        read(source_of(folder, database), tape, state)
    assert values_of(tape, database) == {1}


@pytest.mark.parametrize("at_once", [True, False], ids=["renamed", "written into"])
@pytest.mark.parametrize("kind", ["mysql-8.0"])
def test_a_file_that_is_replaced_while_it_is_read_stops_capture(server, database, copy_logs, tmp_path, at_once):
    fill(server, database, 1)
    folder, tape, state = copy_logs(), Tape(), tmp_path / "state"
    last = max(folder.iterdir())
    last.unlink()  # so that the first is the one at which reading waits
    source = started(folder, database, tape, state)
    read_until(source, tape, lambda: len(copied(tape).tables.get(f"{database}.t", {})) == 3)
    time.sleep(1.1)  # files begun within one second cannot be told apart
    fill(server, database, 2)
    grown_beyond(server, database, tape.groups[-1].commit.position)
    with pytest.raises(SourceChanged, match="has been read at"):
        copy_logs(at_once=at_once)
        read_until(source, tape, lambda: False)
    source.close()
    assert values_of(tape, database) == {1}


@pytest.mark.parametrize("kind", ["mysql-8.0"])
def test_a_longer_copy_in_the_place_of_a_file_is_followed(server, database, copy_logs, tmp_path):
    server.run("FLUSH LOGS", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    path, tape = server.binlogs()[-1], Tape()
    folder = tmp_path / "copies"
    folder.mkdir()
    source = None
    for number in range(4):
        server.run(f"INSERT INTO {database}.t VALUES ({number}, {number})")
        shutil.copy(path, folder / "draft")
        (folder / "draft").replace(folder / path.name)
        source = source or started(folder, database, tape, tmp_path / "state")
        read_until(source, tape, lambda found=number: values_of(tape, database) == set(range(found + 1)))
    os.truncate(folder / path.name, 200)
    with pytest.raises(ServiceUnavailable, match="being copied again"):
        read_until(source, tape, lambda: False)
    source.close()
