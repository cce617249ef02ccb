"""Where there is no terminal, the screen says in lines what it would show."""

import time

from databus.cli import _screen
from databus.cli._screen import ReaderLine, Screen, ScreenView, SourceLine, _Doing
from databus.testing import FakeClock


def test_a_line_says_what_is_waited_for_and_why(capsys):
    screen = Screen()
    with screen:
        screen.show(
            [ReaderLine("copy", 0, 0.0, "-", "-", "waits for its first batch")],
            [SourceLine("shop", "initializing", "connecting: compiling the decoder")],
        )
    said = capsys.readouterr().out
    assert "shop initializing: connecting: compiling the decoder" in said
    assert "copy 0 rows, 0/s (waits for its first batch)" in said


def test_brackets_and_colons_in_a_message_stay(capsys):
    screen = Screen()
    with screen:
        screen.say("leave it out (`exclude: [main.log]`), says db:key:7")
    assert "leave it out (`exclude: [main.log]`), says db:key:7" in capsys.readouterr().out


def test_the_last_state_is_shown_though_it_came_right_behind_another(capsys, monkeypatch):
    """Else a log says for ever that an output waits for its first batch, which has been written long since."""
    monkeypatch.setattr(_screen, "_LINE_EVERY_S", 0.5)
    said, limit = "", time.monotonic() + 60
    with Screen() as screen:
        screen.show([ReaderLine("copy", 0, 0.0, "-", "-", "waits for the first batch")])
        screen.show([ReaderLine("copy", 7, 0.0, "-", "-", "running")])
        while "copy 7 rows" not in said:
            assert time.monotonic() < limit, said
            time.sleep(0.01)  # a screen tells nobody when it has written
            said += capsys.readouterr().out
    assert "waits for the first batch" in said
    assert (said + capsys.readouterr().out).count("copy 7 rows") == 1


def test_what_takes_long_is_said_again_with_its_seconds(capsys, monkeypatch):
    """A start of Spark takes minutes on a slow machine, and must not look as if it hung."""
    monkeypatch.setattr(_screen, "_LINE_EVERY_S", 0.01)
    clock, said, limit = FakeClock(), "", time.monotonic() + 60
    with Screen(lambda: ScreenView("starting Spark"), clock):
        while "starting Spark (" not in said:
            assert time.monotonic() < limit, said
            clock.advance_ms(1_000)
            time.sleep(0.01)  # a screen tells nobody when it has written
            said += capsys.readouterr().out
    assert "s so far)" in said


def test_seconds_count_from_where_something_else_began_and_are_said_twice_a_minute():
    clock = FakeClock()
    doing = _Doing(clock)
    said = []
    for what in ("starting the relay", "starting Spark", ""):
        for _ in range(0, 70, 5):
            said.append((doing.text(what), doing.reminder(what)))
            clock.advance_ms(5_000)
    assert [reminder for _, reminder in said if reminder] == [
        *("starting the relay (30 s so far)", "starting the relay (60 s so far)"),
        *("starting Spark (30 s so far)", "starting Spark (60 s so far)"),
    ]
    assert [text for text, _ in said[14:16]] == ["starting Spark", "starting Spark (5 s so far)"]
    assert said[-1] == ("", "")
