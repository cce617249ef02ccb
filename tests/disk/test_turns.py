"""Writers of one file on a disk: of all that found the same version, one has its way, and the others are told."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from databus.core import ServiceUnavailable
from databus.disk import Storage, WriteConflict, _lock, locate

WRITERS = 8


def test_of_many_writers_one_writes_and_the_others_are_told(tmp_path):
    begins = threading.Barrier(WRITERS)

    def put(content, after):
        file = locate(str(tmp_path), tmp_path, Storage()) / "notice.json"
        begins.wait()
        try:
            return file.put(content, after=after)
        except WriteConflict:
            return None

    tag = None
    with ThreadPoolExecutor(WRITERS) as pool:
        for turn in range(20):
            contents = [b"%d of turn %d" % (number, turn) for number in range(WRITERS)]
            tags = list(pool.map(put, contents, [tag] * WRITERS))
            (tag,) = filter(None, tags)
            assert (tmp_path / "notice.json").read_bytes() == contents[tags.index(tag)]
            assert [path.name for path in tmp_path.iterdir()] == ["notice.json"]


def test_a_writer_that_does_not_let_go_is_named_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_lock, "_TURN_S_MAX", 0.01)
    file = locate(str(tmp_path), tmp_path, Storage()) / "notice.json"
    with _lock.turn_of_writer(tmp_path), pytest.raises(ServiceUnavailable, match=str(tmp_path)):
        file.put(b"x", after=None)
    assert file.put(b"x", after=None)
