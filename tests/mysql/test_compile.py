"""Kernels on disk: taken from there while nothing that they are made of has changed, by many processes at once.

And those that check every access to an array, which are kept apart.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import databus
from databus.sources import mysql
from databus.sources.mysql._compile import sources_of

FOLDER = Path(mysql.__file__).parent
USE = """
import numpy as np
from databus.sources.mysql.binlog import _packet_kernels as kernels
from databus.sources.mysql.binlog import _kernel_state as s
packet, out = np.zeros(64, np.int64), np.zeros(64, np.uint8)
packet[s.P_STATUS] = -1
message = bytes(1) + bytes(9) + (19).to_bytes(4, "little") + bytes(6)
data = np.frombuffer(len(message).to_bytes(3, "little") + bytes(1) + message, np.uint8)
assert kernels.split(data, out, packet) == s.SPLIT_MORE and out[9] == 19 and packet[s.P_WHOLE] == 19, packet
print("kept" if kernels.split.stats.cache_hits else "compiled")
"""

SMALL = """
from databus.sources.mysql import _kernels
_kernels._FOLLOWING, _kernels._READING = ("binlog._packet_kernels",), ("rows._bus_kernels",)
_kernels._DECODING = ("rows._small_kernels",)
"""

LOAD = f"""{SMALL}
said, begun = [], []
begin = _kernels.subprocess.Popen
_kernels.subprocess.Popen = lambda command, **more: begun.append(command[3:]) or begin(command, **more)
_kernels.load_kernels("shop", said.append)
print(bool(said) and said[0].startswith("compiling the decoder") and said[-1] == "", begun[:1])
"""

LATER = f"""{SMALL}
said = []
_kernels.load_first_kernels("shop", said.append, reads=False)
is_loaded = "databus.sources.mysql.rows._bus_kernels" in _kernels.sys.modules
_kernels._progress.end()
said.clear()
from databus.sources.mysql.rows import _bus_kernels
print(is_loaded, said[0].partition(", since")[0], said[-1] == "")
"""

BEYOND = """
import numpy as np
from databus.sources.mysql.binlog import _packet_kernels, _crc_kernels
from databus.sources.mysql.binlog import _kernel_state as s
packet = np.zeros(s.P_SIZE, np.int64)
table, zero = _crc_kernels.make_crc_table(), np.zeros(1, np.uint8)
message = np.frombuffer(bytes([30, 0, 0, 0]) + bytes(30), np.uint8)
packet[s.P_STATUS] = -1
accesses = [
    lambda room: _packet_kernels.split(message, np.zeros(29 - room, np.uint8), packet.copy()),  # a copy's end
    lambda room: _crc_kernels.crc32(table[: 256 - room], zero),  # a load of the item 255
]
for access in accesses:
    access(0)
    try:
        access(1)
    except IndexError as error:
        print(error)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, whose files a test may change."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(databus.__file__).parent, tmp_path / "src" / "databus", ignore=ignored)
    return tmp_path


def start(copy: Path, code: str = USE, **more: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "NUMBA_CACHE_DIR": str(copy / "cache"), **more}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def told(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return said.strip()


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_a_kernel_is_compiled_anew_when_a_part_of_it_in_another_file_has_changed(copy: Path) -> None:
    package = copy / "src" / "databus" / "sources" / "mysql"
    assert told(start(copy)) == "compiled"
    append(package / "_session.py", "# nothing of a kernel\n")
    append(package / "binlog" / "_scan_buffer.py", "# nor this\n")
    assert told(start(copy)) == "kept"
    append(package / "binlog" / "_kernel_types.py", "# a part of it\n")
    assert told(start(copy)) == "compiled"
    append(package / "binlog" / "_kernel_state.py", "SPLIT_MANY = 9\n")
    assert told(start(copy)) == "compiled"
    assert told(start(copy)) == "kept"


def test_of_many_processes_one_compiles_and_the_others_wait_for_it(copy: Path) -> None:
    said = [told(each) for each in [start(copy) for _ in range(4)]]
    assert sorted(said) == ["compiled", "kept", "kept", "kept"]
    assert told(start(copy)) == "kept"


@pytest.mark.nightly
def test_a_first_start_says_what_it_does_and_another_process_shares_it_and_a_later_one_does_neither(
    copy: Path,
) -> None:
    found = told(start(copy, LOAD)).splitlines()[-1]
    if len(os.sched_getaffinity(0)) > 1:
        assert found == "True [['rows._small_kernels', 'rows._bus_kernels']]"
    assert told(start(copy, LOAD)).splitlines()[-1] == "False []"


@pytest.mark.nightly
def test_what_a_session_does_not_begin_with_is_compiled_where_it_is_needed_which_is_said_too(copy: Path) -> None:
    found = told(start(copy, LATER)).splitlines()[-1]
    assert found == "False compiling the decoder, once on this machine, part 2 of 3 True"


def test_checked_kernels_are_kept_apart_and_find_one_byte_beyond_an_array(copy: Path) -> None:
    plain, checked = {"NUMBA_BOUNDSCHECK": "0"}, {"NUMBA_BOUNDSCHECK": "1"}
    assert told(start(copy, **plain)) == "compiled"
    assert told(start(copy, **checked)) == "compiled"
    assert [told(start(copy, **each)) for each in (plain, checked)] == ["kept", "kept"]
    assert told(start(copy, BEYOND, **checked)).splitlines() == ["index is out of bounds"] * 2


@pytest.mark.parametrize(
    ("module", "some"),
    [
        (
            "binlog/_scan_kernels.py",
            [
                "binlog/_kernel_state.py",
                "binlog/_crc_kernels.py",
                "binlog/_transaction_kernels.py",
            ],
        ),
        (
            "rows/_image_kernels.py",
            [
                "rows/_column_kernels.py",
                "rows/_program.py",
                "rows/_number_kernels.py",
                "rows/_utf8_kernels.py",
                "rows/_memory.py",
            ],
        ),
        ("snapshot/_result_kernels.py", ["snapshot/_result_codes.py", "rows/_number_kernels.py", "rows/_memory.py"]),
    ],
)
def test_what_a_kernel_is_made_of_is_found_through_its_imports(module: str, some: list[str]) -> None:
    found = {str(Path(path).relative_to(FOLDER)) for path, _ in sources_of(FOLDER / module)}
    assert {module, "_compile.py", *some} <= found
    assert not {"_session.py", "rows/__init__.py", "binlog/_scanner.py"} & found
