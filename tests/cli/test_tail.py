"""`databus tail`: from where, up to where, how much, and where it goes on."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from databus.cli._app import app
from databus.client import load_checkpoint
from databus.core import ConfigError
from databus.relay import Relay, parse_relay
from tests.client.conftest import captured, mock, wait_for

LAST = 9
TABLE = "shop/main.t0"


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    """Transactions 1 to 9, of two rows or more, seconds apart."""
    sources = {"shop": mock(transactions_total=LAST), "crm": mock(transactions_total=1)}
    value = {"listen": "127.0.0.1:0", "folder": "relay", "sources": sources}
    with Relay(parse_relay(value, folder=tmp_path_factory.mktemp("tail"))) as running:
        captured(running, LAST)
        captured(running, 1, "crm")
        yield running


def tail(*arguments):
    """What it prints; in this process, which is much faster. Raises what it failed by."""
    return CliRunner().invoke(app, ["tail", *map(str, arguments)], catch_exceptions=False).stdout


def lines(relay, *arguments):
    return [json.loads(line) for line in tail(TABLE, "--relay", relay.url, "--json", *arguments).splitlines()]


def scns(relay, *arguments):
    return sorted({each["_commit_version"] for each in lines(relay, *arguments)})


def test_a_file_that_is_not_there_is_said_where_the_relay_is_named_too(relay):
    with pytest.raises(ConfigError, match=r"nosuch\.yml: No such file"):
        tail("nosuch.yml", "--no-follow", "--relay", relay.url)


def test_a_number_is_an_scn_from_which_and_up_to_which_changes_are_printed(relay):
    assert scns(relay, "--from", 4, "--until", 6) == [4, 5, 6]
    assert scns(relay, "--from", 8, "--no-follow") == [8, 9]
    assert scns(relay, "--from", 1, "--until", 2) == [1, 2]
    assert scns(relay, "--from", "beginning", "--until", 900, "--no-follow") == list(range(1, LAST + 1))


def test_a_time_is_one_from_which_and_up_to_which_changes_are_printed(relay):
    every = lines(relay, "--from", "beginning", "--no-follow")
    at = {each["_commit_version"]: each["_commit_timestamp"] for each in every}
    assert len(set(at.values())) == LAST
    assert scns(relay, "--from", at[4], "--until", at[6]) == [4, 5, 6]
    assert scns(relay, "--from", "beginning", "--until", at[2]) == [1, 2]
    assert scns(relay, "--from", "90000d", "--no-follow") == sorted(at)
    soon = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)).isoformat()
    assert scns(relay, "--from", 8, "--until", soon) == [8, 9]


def test_an_scn_of_several_physical_sources_and_words_that_mean_nothing_are_errors(relay):
    for arguments, said in (
        (["--from", 4], "these tables are of crm, shop"),
        (["--from", "yesterday"], "--from yesterday: is neither a time .* or the file of a checkpoint"),
        (["--until", "x"], "--until x: is neither a time .* or an SCN"),
        (["--stats", "-n", 1], "leave out -n"),
        (["--from", 4, "--since", "1h"], "only one"),
    ):
        with pytest.raises(ConfigError, match=said):
            tail("--relay", relay.url, *arguments)


@pytest.mark.parametrize("form", ["--json", "--format=text"])
def test_resume_goes_on_behind_what_was_printed_and_repeats_what_was_printed_in_part(relay, tmp_path, form):
    asked = [TABLE, "--relay", relay.url, "--from", "beginning", "--no-follow", form]
    whole = tail(*asked).splitlines()
    kept = ["--resume", tmp_path / "place"]
    first = tail(*asked, *kept, "--until", 3).splitlines()
    part = tail(*asked, *kept, "-n", 1).splitlines()
    rest = tail(*asked, *kept).splitlines()
    assert first + rest == whole
    assert part == rest[: len(part)]
    assert tail(*asked, *kept) == ""
    assert load_checkpoint(tmp_path / "place").sources["shop"].scn == LAST


def test_resume_after_a_time_has_not_passed_over_what_is_behind_it(relay, tmp_path):
    at = {each["_commit_version"]: each["_commit_timestamp"] for each in lines(relay, "--from", 1, "--no-follow")}
    kept = ["--resume", tmp_path / "place", "--from", "beginning"]
    assert scns(relay, *kept, "--until", at[5]) == [1, 2, 3, 4, 5]
    assert scns(relay, *kept, "--no-follow") == [6, 7, 8, 9]


def test_who_is_killed_goes_on_where_it_stood_and_what_is_printed_is_kept_while_nothing_comes(relay, tmp_path):
    place = tmp_path / "place"
    command = [sys.executable, "-m", "databus.cli", "tail", TABLE, "--relay", relay.url, "--json"]
    command += ["--from", "beginning", "--resume", str(place)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: place.exists() and load_checkpoint(place).sources["shop"].scn == LAST, "the place")
        os.kill(process.pid, signal.SIGKILL)
    assert scns(relay, "--resume", place, "--no-follow") == []


def test_stats_say_how_much_came(relay):
    rows = len(lines(relay, "--from", "beginning", "--no-follow"))
    told = lines(relay, "--from", "beginning", "--no-follow", "--stats")[-1]
    assert told["rows"] == rows
    assert told.keys() == {"rows", "rowsPerS", "transactionsPerS", "lagMs"}
    said = tail(TABLE, "--relay", relay.url, "--from", 1, "--no-follow", "--stats", "--format", "text")
    assert "rows/s" in said
    assert f"{rows} rows" in said


def test_tail_takes_several_addresses(relay):
    asked = [TABLE, "--relay", f"http://127.0.0.1:1,{relay.url}", "--json", "--from", "beginning"]
    assert len(tail(*asked, "-n", 2).splitlines()) >= 2
