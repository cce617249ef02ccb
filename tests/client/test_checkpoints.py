"""Checkpoint files: whole or an error, never half; one consumer a file."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.client import FileCheckpoints, load_checkpoint
from databus.core import Checkpoint, CorruptData, DiskFull, LockHeld, SourceCheckpoint

CHECKPOINT = Checkpoint({"shop": SourceCheckpoint("u", 17, None, "tx17", 99, None, {})})


def saved(path, checkpoint=CHECKPOINT):
    store = FileCheckpoints(path)
    store.open()
    store.save(checkpoint)
    store.close()
    return path


def test_what_was_saved_is_found_by_the_next_one(tmp_path):
    path = saved(tmp_path / "deep" / "c.json")
    store = FileCheckpoints(path)
    assert store.open() == CHECKPOINT
    store.close()
    assert load_checkpoint(path) == CHECKPOINT


def test_whoever_looks_while_it_is_saved_sees_the_old_or_the_new_one(tmp_path):
    path = saved(tmp_path / "c.json")
    store = FileCheckpoints(path)
    store.open()
    seen, stopping = set(), threading.Event()

    def look():
        while not stopping.is_set():
            seen.add(load_checkpoint(path).sources["shop"].scn)
        seen.add(-1)

    looking = threading.Thread(target=look)
    looking.start()
    for scn in range(18, 218):
        store.save(Checkpoint({"shop": SourceCheckpoint("u" * 4_000, scn)}))
    stopping.set()
    looking.join()
    store.close()
    assert -1 in seen, "a torn file was seen"


def test_a_file_that_is_none_of_ours_is_neither_shown_nor_to_be_removed(tmp_path):
    path = tmp_path / "shop.db"
    path.write_bytes(b"SQLite format 3\0\n" + b"a row of somebody's" * 100)
    with pytest.raises(CorruptData, match="is no checkpoint's file; name another") as told:
        load_checkpoint(path)
    assert "somebody" not in str(told.value)


def test_no_file_is_no_checkpoint(tmp_path):
    assert FileCheckpoints(tmp_path / "c.json").open() is None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_torn_or_changed_file_is_an_error_that_names_it_and_never_another_position(tmp_path_factory, data):
    path = saved(tmp_path_factory.mktemp("c") / "c.json")
    content = path.read_bytes()
    if data.draw(st.booleans()):
        broken = content[: data.draw(st.integers(0, len(content) - 2))]
    else:
        at = data.draw(st.integers(0, len(content) - 2))
        broken = bytearray(content)
        broken[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(broken))
    with pytest.raises(CorruptData, match=r"c\.json"):
        load_checkpoint(path)


def test_a_second_consumer_on_the_same_file_is_refused_and_the_first_is_named(tmp_path):
    path = tmp_path / "c.json"
    program = (
        "import sys; from databus.client import FileCheckpoints\n"
        "store = FileCheckpoints(sys.argv[1]); store.open(); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockHeld, match=rf"c\.json.*process {holder.pid} on"):
            FileCheckpoints(path).open()
        holder.kill()
        holder.wait()
        assert FileCheckpoints(path).open() is None, "the lock ends with its process"
    finally:
        holder.kill()
        holder.communicate()


def test_a_second_consumer_in_the_same_process_is_refused_too(tmp_path):
    first = FileCheckpoints(tmp_path / "c.json")
    first.open()
    with pytest.raises(LockHeld):
        FileCheckpoints(tmp_path / "c.json").open()
    first.close()
    second = FileCheckpoints(tmp_path / "c.json")
    second.open()
    second.close()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    path = saved(tmp_path / "c.json")
    program = (
        "import resource, signal, sys; from databus.client import FileCheckpoints\n"
        "from databus.core import Checkpoint, DiskFull, SourceCheckpoint\n"
        "store = FileCheckpoints(sys.argv[1]); store.open()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))\n"
        "try: store.save(Checkpoint({'shop': SourceCheckpoint('u', 18)}))\n"
        "except DiskFull as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True, text=True)
    assert "no room for the checkpoint" in done.stdout, DiskFull
    assert load_checkpoint(path) == CHECKPOINT


def test_folders_that_it_makes_survive_a_crash_of_the_machine(tmp_path, monkeypatch):
    """Whoever makes a name in a folder has to fsync that folder: what is fsynced is looked at, as a crash would."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), fsync(fd)))
    store = FileCheckpoints(tmp_path / "a" / "b" / "c.json")
    store.open()
    store.save(Checkpoint({"shop": SourceCheckpoint(scn=1)}))
    store.close()
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)
