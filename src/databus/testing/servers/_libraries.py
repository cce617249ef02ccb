"""Shared libraries that a fetched program needs and this machine may lack: taken from its own packages, unpacked.

MySQL's programs are linked against libaio and libnuma, which a small machine or container does not have.
"""

import functools
import re
import subprocess
from pathlib import Path
from typing import Final

from databus.testing.servers._debian import has_apt, libraries_in, unpacked_own_packages
from databus.testing.servers._fetch import ServerMissing

_ASK_S_MAX: Final = 60
_PACKAGES: Final = (("libaio1", "libaio1t64"), ("libnuma1",))
_RENAMED: Final = ("libaio.so.1t64", "libaio.so.1")  # by Debian 13 and Ubuntu 24.04; the same on 64-bit machines
_MISSING: Final = re.compile(r"loading shared libraries: ([^:]+):")
_INSTALL: Final = (
    "install libaio and libnuma (Debian 12, Ubuntu 22.04: apt-get install libaio1 libnuma1; later ones: libaio1t64 "
    "libnuma1; Fedora, Red Hat: dnf install libaio numactl-libs)"
)


@functools.cache
def command_with_libraries(program: Path) -> tuple[str, ...]:
    """How `program` is run on this machine. Raises `ServerMissing` if it cannot be."""
    said = _why_not((str(program),))
    if said is None:
        return (str(program),)
    if _MISSING.search(said) is None or not has_apt():
        raise ServerMissing(_told(program, said))
    tree = unpacked_own_packages("libraries-v1", _PACKAGES)
    libraries = libraries_in(tree)
    there, wanted = (libraries / name for name in _RENAMED)
    if there.exists() and not wanted.exists():
        wanted.symlink_to(there.name)
    command = ("/usr/bin/env", f"LD_LIBRARY_PATH={libraries}", str(program))
    said = _why_not(command)
    if said is not None:
        raise ServerMissing(_told(program, said))
    return command


def _why_not(command: tuple[str, ...]) -> str | None:
    """What a program says instead of its version; None if it runs."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=_ASK_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip()[-400:]


def _told(program: Path, said: str) -> str:
    found = _MISSING.search(said)
    if found is None:
        return f"{program} does not run here: {said}"
    return f"{program} needs {found[1]}, which this machine lacks: {_INSTALL}"
