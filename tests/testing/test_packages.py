"""What servers need and a machine lacks is fetched, or is said together with what installs it."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from databus.testing.servers import ServerMissing
from databus.testing.servers._debian import _mirrors
from databus.testing.servers._mysql import command_with_libraries

LIBC = b"libc.so.6\0"


def _program_that_needs(name: bytes, folder: Path) -> Path:
    """A real program that the loader refuses for want of a library."""
    copy = folder / "program"
    whole = Path(shutil.which("true") or "/bin/true").read_bytes()
    if LIBC not in whole:
        pytest.skip("this machine's `true` is not linked against the C library")
    copy.write_bytes(whole.replace(LIBC, name + b"\0"))
    copy.chmod(0o755)
    return copy


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="servers that are fetched run on Linux")
def test_a_missing_library_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program_that_needs(b"libx.so.9", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no apt-get either
    with pytest.raises(
        ServerMissing, match=r"program needs libx.so.9, .*apt-get install libaio1 libnuma1.*dnf install"
    ):
        command_with_libraries(program)


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_another_suite_comes_from_where_the_machine_s_own_sources_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources.list"
    lines = ["https://other.example/tools any main", "https://mirror.example/some/debian bookworm main contrib"]
    sources.write_text("".join(f"deb {line}\n" for line in lines))
    config = tmp_path / "apt.conf"
    config.write_text(f'Dir::Etc::sourcelist "{sources}";\nDir::Etc::sourceparts "/dev/null";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    assert set(_mirrors("a package")) == {"https://mirror.example/some/debian", "https://other.example/tools"}


def test_no_mirror_of_packages_is_named_in_the_code() -> None:
    root = Path(__file__).parents[2]
    files = [
        *(root / "src").rglob("*.py"),
        *(path for path in (root / "scripts").iterdir() if path.is_file()),
        root / "Makefile",
    ]
    named = re.compile(r"\bdeb (\[.*\] )?https?://")
    assert [path.name for path in files if named.search(path.read_text())] == []
