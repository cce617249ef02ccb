"""The history behind the charts: one file, over restarts and kills, bounded."""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.dashboard import _history
from databus.dashboard._history import BYTES_MAX, COARSE_S, FINE_S, NODES_MAX, History
from databus.dashboard._numbers import Numbers

DAY_S = 86_400
NOW_S = 1_800_000_000


def rows(value):
    return {"rows_s": value, "lag_s": None}


def test_a_point_each_ten_seconds_for_a_day_and_each_two_minutes_for_a_month(tmp_path):
    history = History(tmp_path)
    for at_s in range(NOW_S - 600, NOW_S, FINE_S):
        history.put("shop/outputs.copy", at_s, rows(float(at_s - NOW_S)))
    found = history.of("shop/outputs.copy", NOW_S - 300, NOW_S)
    assert found["at_us"] == [at_s * 10**6 for at_s in range(NOW_S - 300, NOW_S, FINE_S)]
    assert found["rows_s"] == [float(at_s - NOW_S) for at_s in range(NOW_S - 300, NOW_S, FINE_S)]
    assert "lag_s" not in found, "nothing is known of it"
    month = history.of("shop/outputs.copy", NOW_S - 2 * DAY_S, NOW_S)
    assert len(month["at_us"]) == 600 // COARSE_S - 1, "what is not over has no mean yet"
    assert month["rows_s"][0] == pytest.approx(-545)
    far = history.of("shop/outputs.copy", NOW_S - 30 * DAY_S, NOW_S)
    assert len(far["at_us"]) <= 2, "never more than 2,000 points"
    assert history.of("other", 0, NOW_S) is None
    history.close()


def test_a_clock_that_is_set_back_by_an_hour_leaves_no_gap_of_an_hour(tmp_path):
    history = History(tmp_path)
    numbers = Numbers(history)
    for at_s in (NOW_S, NOW_S - 3_600, NOW_S - 3_590):
        numbers.note("x", at_s * 10**6, {}, {"lag_s": 1.0})
    assert history.of("x", NOW_S - 3_600, NOW_S - 3_000)["lag_s"] == [1.0, 1.0]
    history.close()


def test_it_outlives_a_restart_and_another_dashboard_s_file_is_left_alone(tmp_path):
    history = History(tmp_path)
    history.put("n", NOW_S, rows(1.0))
    other = History(tmp_path)
    assert other.of("n", 0, NOW_S) is None, "it is ours alone"
    other.put("n", NOW_S, rows(2.0))
    other.close()
    history.close()
    again = History(tmp_path)
    assert again.of("n", NOW_S - 60, NOW_S)["rows_s"] == [1.0]
    again.close()


def test_a_kill_costs_at_most_the_point_that_was_written(tmp_path):
    code = f"""
import itertools, sys
from pathlib import Path
from databus.dashboard._history import History
history = History(Path({str(tmp_path)!r}))
for number in itertools.count():
    history.put(f"node {{number % 3}}", {NOW_S} + number // 3 * 10, {{"rows_s": float(number // 3)}})
    if number == 3_000:
        print("written", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"written\n"
        os.kill(process.pid, signal.SIGKILL)
    history = History(tmp_path)
    for number in range(3):
        found = history.of(f"node {number}", NOW_S, NOW_S + 9_000)
        assert found["rows_s"] == [float(each) for each in range(len(found["rows_s"]))]
        assert len(found["rows_s"]) >= 900
    history.close()


@pytest.mark.parametrize("left", [b"something else", b"databus history 2\n" + bytes(100)])
def test_a_file_that_is_none_is_put_aside(tmp_path, left):
    (tmp_path / "history.bin").write_bytes(left)
    history = History(tmp_path)
    history.put("n", NOW_S, rows(1.0))
    assert history.of("n", NOW_S - 60, NOW_S)["rows_s"] == [1.0]
    assert (tmp_path / "history.unknown").read_bytes() == left
    history.close()


def test_its_size_is_bounded_and_who_is_gone_for_long_makes_room(tmp_path):
    history = History(tmp_path)
    for number in range(NODES_MAX):
        history.put(f"node {number}", NOW_S, rows(1.0))
    history.put("late", NOW_S + 60, rows(1.0))
    assert history.of("late", 0, NOW_S + 60) is None, "all are in use"
    history.put("node 0", NOW_S + 7_200, rows(2.0))
    history.put("late", NOW_S + 7_200, rows(3.0))
    assert history.of("late", NOW_S, NOW_S + 7_200)["rows_s"] == [3.0]
    assert history.of("node 0", NOW_S + 7_100, NOW_S + 7_200)["rows_s"] == [2.0]
    assert history.of("x" * 10_000, 0, NOW_S) is None
    history.put("x" * 10_000, NOW_S, rows(1.0))
    assert (tmp_path / "history.bin").stat().st_size <= BYTES_MAX
    history.close()


def test_a_full_disk_costs_a_gap_in_a_chart_and_no_more(tmp_path, monkeypatch, caplog):
    history = History(tmp_path)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_history.os, "pwrite", refuse)
        for second in range(5):
            history.put("n", NOW_S + 10 * second, rows(1.0))
    assert sum("history of charts" in each.getMessage() for each in caplog.records) == 1
    history.put("n", NOW_S + 100, rows(2.0))
    assert history.of("n", NOW_S, NOW_S + 100)["rows_s"] == [2.0]
    history.close()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3 * DAY_S // FINE_S), min_size=1, max_size=40))
def test_whatever_the_times_what_is_read_was_put_at_its_time(slots):
    """Law: a point that comes back is the last that was put at its time, none of another day; clocks may go back."""
    history, put = History(None), {}
    for number, slot in enumerate(slots):
        at_s = NOW_S + slot * FINE_S
        history.put("n", at_s, rows(float(number)))
        put[at_s] = float(number)
    now_s = NOW_S + slots[-1] * FINE_S
    found = history.of("n", now_s - DAY_S // 8, now_s)
    given_back = dict(zip(found["at_us"], found["rows_s"], strict=True))
    assert given_back[now_s * 10**6] == put[now_s]
    assert all(put[at_us // 10**6] == value for at_us, value in given_back.items() if at_us // 10**6 in put)
    history.close()
