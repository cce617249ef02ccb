"""Where there is no terminal, the screen says in lines what it would show."""

from databus.cli._screen import Line, Screen, SourceLine


def test_a_line_says_what_is_waited_for_and_why(capsys):
    screen = Screen()
    with screen:
        screen.show(
            [Line("copy", 0, 0.0, "-", "-", "waits for its first batch")],
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
