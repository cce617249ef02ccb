"""Programs of another release of Debian, beside the machine's own: fetched by apt with a state of its own, unpacked,
and run with the libraries that came with them. Nothing is installed.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from databus.testing.servers._fetch import ServerMissing, kept, on_linux_x86_64

_FETCH_S_MAX: Final = 600
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LEFT_OUT: Final = ("perl", "libperl", "gcc-", "libc-gconv")  # what no server needs to run
_LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """Packages of a suite of Debian, with all that they depend on."""

    suite: str
    names: tuple[str, ...]


def unpacked_packages(name: str, packages: DebianPackages) -> Path:
    """A folder with the packages' files below it, `usr` and all. Raises `ServerMissing`."""
    return kept(name, lambda draft: _fetch(packages, draft))


def command_in(tree: Path, program: str) -> list[str]:
    """How a program of the tree is run: by the tree's own loader and libraries."""
    libraries = tree / _LIBRARIES
    return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(tree / program)]


def _fetch(packages: DebianPackages, target: Path) -> None:
    what = f"{', '.join(packages.names)} of Debian {packages.suite}"
    on_linux_x86_64(what)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None or not _KEYRING.exists():
        raise ServerMissing(f"{what}: this is no Debian (no apt-get, no dpkg-deb, or no {_KEYRING})")
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        environment = {**os.environ, "APT_CONFIG": str(_configure(folder, packages.suite)), "LC_ALL": "C"}
        _run(["apt-get", "-qq", "update"], what, environment)
        _run(["apt-get", "-qq", "-y", "--download-only", "install", *packages.names], what, environment)
        for each in sorted((folder / "cache" / "archives").glob("*.deb")):
            if not each.name.startswith(_LEFT_OUT):
                _run(["dpkg-deb", "-x", str(each), str(target)], what, environment)


def _configure(folder: Path, suite: str) -> Path:
    """An apt that knows nothing of this machine, as if no package were installed."""
    for each in ("state/lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] http://deb.debian.org/debian {suite} main\n")
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    path = folder / "apt.conf"
    path.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return path


def _run(command: Sequence[str], what: str, environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_FETCH_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"{what} could not be fetched: {error}") from error
    if done.returncode != 0:
        raise ServerMissing(f"{what} could not be fetched: {(done.stdout + done.stderr).strip()[-400:]}")
