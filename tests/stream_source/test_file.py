"""A file that is followed: no line twice, none missing, whatever becomes of the file and of who reads it."""

import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import ConfigError, PositionPurged, SourceChanged, UnrepresentableValue
from databus.sources.stream import StreamConfig
from databus.sources.stream._lines import LineBuffer, texts_of
from tests.stream_source.support import Followed, config_of, numbered, numbers


@pytest.fixture
def app(tmp_path):
    made = Followed(tmp_path)
    yield made
    made.close()


def test_a_line_comes_when_it_is_whole(app):
    app.start().write("one\ntw")
    assert app.poll() == ["one"]
    app.write("o\n")
    assert app.poll() == ["one", "two"]
    assert [(row["stream"], row["offset"]) for row in app.rows] == [("file-1", 0), ("file-1", 4)]


def test_a_file_that_is_not_there_is_waited_for(app):
    assert app.start().poll() == []
    app.start().write("one\n")
    assert app.poll() == ["one"]
    assert app.start().poll() == ["one"]


def test_a_new_log_may_begin_at_the_end(app):
    app.write("old\nnot wh")
    app.start(start="end").poll()
    app.write("ole\nnew\n")
    app.start(start="end")
    assert app.poll() == ["not whole", "new"]


@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
def test_a_file_rotated_by_rename_is_read_to_its_end_first(app, is_down):
    app.start().write(numbered(0, 3))
    app.poll()
    if is_down:
        app.close()
    app.path.rename(app.folder / "app.log.1")
    app.write(numbered(3, 5) + '{"n": 5}', "app.log.1")  # by who has it open still
    app.write(numbered(6, 8))
    if is_down:
        app.start()
    assert numbers(app.poll()) == list(range(8))
    assert app.gaps == []
    assert numbers(app.start().poll()) == list(range(8))


def test_files_that_were_rotated_while_nobody_read_are_read_in_their_order(app):
    app.start().write(numbered(0, 3))
    app.poll()
    app.close()
    for number, name in ((3, "app.log.2"), (6, "app.log.1")):
        app.write(numbered(number, number + 1))
        app.path.rename(app.folder / name)
        at_ns = 1_700_000_000_000_000_000 + number * 1_000_000_000
        os.utime(app.folder / name, ns=(at_ns, at_ns))
    app.write(numbered(7, 9))
    assert numbers(app.start().poll()) == [0, 1, 2, 3, 6, 7, 8]


@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
def test_a_file_that_is_copied_and_truncated_is_read_on_in_the_copy(app, is_down):
    app.start().write(numbered(0, 3))
    app.poll()
    if is_down:
        app.close()
    app.write(numbered(3, 5))
    shutil.copyfile(app.path, app.folder / "app.log.1")
    os.truncate(app.path, 0)
    app.write(numbered(5, 20))
    if is_down:
        app.start()
    assert numbers(app.poll()) == list(range(20))
    assert app.gaps == []


def test_a_truncation_without_a_copy_is_a_gap_where_lines_were_not_read(app):
    app.start(on_gap="continue").write(numbered(0, 3))
    app.poll()
    os.truncate(app.path, 0)
    app.write(numbered(3, 4))
    assert numbers(app.poll()) == [0, 1, 2, 3]
    assert app.gaps == []
    app.write("never whole")
    app.poll()
    os.truncate(app.path, 0)
    app.write(numbered(4, 5))
    assert numbers(app.poll()) == [0, 1, 2, 3, 4]
    assert len(app.gaps) == 1
    assert "11 bytes of it" in app.gaps[0]


@pytest.mark.parametrize("before", ["", "one\n"], ids=["none", "one"])
def test_the_begin_of_a_line_is_not_joined_to_what_took_its_place(app, before):
    app.start(on_gap="continue").write(f"{before}a line that is")
    app.poll()
    os.truncate(app.path, len(before))
    app.write("another line, and a longer one\n")
    assert app.poll() == [*before.split(), "another line, and a longer one"]
    assert "14 bytes of it" in app.gaps[0]


def test_a_file_of_one_line_that_is_not_whole_is_found_in_its_copy(app):
    app.start().write("not wh")
    app.poll()
    app.write("ole\n")
    shutil.copyfile(app.path, app.folder / "app.log.1")
    os.truncate(app.path, 0)
    app.write("another, longer one\n")
    assert app.poll() == ["not whole", "another, longer one"]
    assert app.gaps == []


def test_the_copy_is_not_an_older_one_that_begins_alike(app):
    app.write("started\nlong ago\n", "app.log-20200101")
    os.utime(app.folder / "app.log-20200101", ns=(1, 1))
    app.start().write("started\n")
    app.poll()
    app.write("now\n")
    shutil.copyfile(app.path, app.folder / "app.log-20261124")
    os.truncate(app.path, 0)
    app.write("later\n")
    assert app.poll() == ["started", "now", "later"]


def test_what_is_written_to_a_rotated_file_after_it_was_left_is_a_gap(app):
    app.start(on_gap="continue").write(numbered(0, 1))
    app.poll()
    app.path.rename(app.folder / "app.log.1")
    app.write(numbered(1, 2))
    assert numbers(app.poll()) == [0, 1]
    app.write(numbered(5, 6), "app.log.1")  # by who opens the new one late
    app.write(numbered(2, 3))
    assert numbers(app.poll()) == [0, 1, 2]
    assert ["9 bytes were written to the file that was rotated away" in each for each in app.gaps] == [True]


def test_what_is_no_file_is_refused_and_blocks_nothing(app):
    os.mkfifo(app.path)
    with pytest.raises(ConfigError, match=r"app\.log: is no file.*`command`"):
        app.start()


def test_a_file_that_is_nowhere_found_stops_the_source_or_is_a_gap(app):
    app.start().write(numbered(0, 3))
    app.poll()
    app.close()
    app.path.unlink()
    app.write("another\n")
    with pytest.raises(PositionPurged, match=r"is not in it.*app.log.*on_gap"):
        app.start()
    assert app.start(on_gap="continue").poll()[3:] == ["another"]
    assert len(app.gaps) == 1


def test_a_file_that_was_compressed_unread_is_a_gap(app):
    app.start(on_gap="continue").write(numbered(0, 1))
    app.poll()
    app.path.rename(app.folder / "app.log.2")
    os.utime(app.folder / "app.log.2", ns=(1, 1))
    app.write("compressed", "app.log.1.gz")
    app.write(numbered(9, 10))
    assert numbers(app.poll()) == [0, 9]
    assert "app.log.1.gz: compressed before it was read" in app.gaps[0]


def test_another_file_under_another_configuration_is_refused(app):
    app.start().write("one\n")
    app.poll()
    app.path = app.folder / "other.log"
    with pytest.raises(SourceChanged, match="under another name"):
        app.start()


BAD = '{"n": 0}\nno json\n\n{"n": 1}\n' + '"' + "x" * 50 + '"\n{"n": 2}\n'


def test_a_bad_line_stops_at_its_place_and_again_after_a_restart(app):
    app.write(BAD)
    app.start(format="json")
    for _ in range(2):
        with pytest.raises(UnrepresentableValue, match=r"the line at byte 9 of file-1: it is not JSON.*on_poison"):
            app.poll()
        assert app.lines == ['{"n": 0}']
        app.start(format="json")


def test_bad_lines_are_gaps_or_rows_that_say_what_is_wrong(app):
    app.write(BAD)
    app.start(format="json", on_poison="skip", line_bytes_max=20)
    assert numbers(app.poll()) == [0, 1, 2]
    assert len(app.gaps) == 1
    assert "2 lines of file-1" in app.gaps[0]
    assert "52 bytes, more than line_bytes_max=20" in app.gaps[0]
    other = Followed(app.folder)
    other.start(format="json", on_poison="text", line_bytes_max=20)
    other.poll()
    other.close()
    problems = [row["problem"] for row in other.rows]
    assert [each is None for each in problems] == [True, False, True, False, True]
    assert other.lines[1] == "no json"
    assert other.lines[3] == '"' + "x" * 19


def test_bytes_that_are_no_text_are_a_bad_line(app):
    app.path.write_bytes(b"good\n\xff\xfe\nalso good\n")
    app.start(on_poison="text")
    assert app.poll() == ["good", "\ufffd\ufffd", "also good"]
    assert "not text in UTF-8" in app.rows[1]["problem"]


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 60), max_size=8), st.integers(1, 40))
def test_lines_are_the_same_however_they_come(content, cuts, limit):
    """Law: the lines of a stream and their places do not depend on how it is cut; a long one is cut, and says so."""
    buffer, taken, at = LineBuffer(100, limit), [], 0
    for size in [*cuts, len(content)]:
        taken.append(buffer.feed(content[at : at + size]))
        at += size
    taken.append(buffer.finish())
    found = [pair for each in taken for pair in zip(each.starts.tolist(), each.texts.to_pylist(), strict=True)]
    expected, start = [], 100
    pieces = content.split(b"\n")
    for piece in pieces if pieces[-1] else pieces[:-1]:
        expected.append((start, piece[:limit]))
        start += len(piece) + 1
    assert found == expected
    assert sum(len(each.problems) for each in taken) == sum(len(piece) > limit for piece in pieces)
    for each in taken:
        texts_of(each, "json")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give one of them"),
        ({"path": "a", "command": ["b"]}, "give one of them"),
        ({"path": "a", "table": "lines"}, "pattern"),
        ({"path": "a", "tables": ["x.*"]}, "selects none"),
        ({"path": "a", "environment": {"A": "b"}}, "`command` only"),
    ],
)
def test_options_that_make_no_sense_are_told(options, says):
    with pytest.raises(ValueError, match=says):
        StreamConfig.model_validate({"type": "stream", **options})


def test_relative_paths_start_at_the_configuration_s_folder(tmp_path):
    found = StreamConfig.model_validate({"type": "stream", "path": "x.log"}, context={"folder": tmp_path})
    assert found.path == str(tmp_path / "x.log")
    assert config_of(path="x.log").path == "x.log"
