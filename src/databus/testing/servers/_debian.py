"""Programs, plugins and libraries from packages of Debian, fetched by apt and unpacked. Nothing is installed.

A package of the machine's own release comes from where the machine's apt gets its packages. One of another suite comes
from the same mirror, by an apt with a state of its own, together with all that it depends on, and runs with the
libraries that came with it. No mirror is named here: those in the machine's own sources are used.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from databus.testing.servers._fetch import ServerMissing, kept, on_linux_x86_64

_FETCH_S_MAX: Final = 600
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_NOT_UNPACKED: Final = ("perl", "libperl", "gcc-", "libc-gconv")  # what no server needs to run
_LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")
_RELEASE_FILE: Final = re.compile(r"'(\S+)/dists/([^/' ]+)/InRelease'")


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """Packages of a suite of Debian, with all that they depend on."""

    suite: str
    names: tuple[str, ...]


def unpacked_packages(name: str, packages: DebianPackages) -> Path:
    """A folder with the packages' files below it, `usr` and all. Raises `ServerMissing`."""
    return kept(name, lambda draft: _fetch(packages, draft))


def unpacked_own_packages(name: str, packages: Sequence[Sequence[str]]) -> Path:
    """A folder with the files of packages of the machine's own release, without what they depend on.

    packages: for each package its possible names, the best first; `name=version` is one too. Raises
    `ServerMissing`.
    """
    return kept(name, lambda draft: _fetch_own(packages, draft))


def command_in(tree: Path, program: str) -> list[str]:
    """How a program of the tree is run: by the tree's own loader and libraries."""
    libraries = tree / _LIBRARIES
    return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(tree / program)]


def libraries_in(tree: Path) -> Path:
    """Where the libraries of an unpacked tree are."""
    return tree / _LIBRARIES


def has_apt() -> bool:
    """Whether packages can be fetched here at all."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None


def _fetch(packages: DebianPackages, target: Path) -> None:
    what = f"{', '.join(packages.names)} of Debian {packages.suite}"
    on_linux_x86_64(what)
    if not has_apt() or not _KEYRING.exists():
        raise ServerMissing(f"{what}: this is no Debian (no apt-get, no dpkg-deb, or no {_KEYRING})")
    failures = []
    for mirror in _mirrors(what):
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            folder = Path(name)
            sources = folder / "sources.list"
            sources.write_text(f"deb [signed-by={_KEYRING}] {mirror} {packages.suite} main\n")
            environment = _apt_of_its_own(folder, sources)
            try:  # of the machine's mirrors, only one of Debian itself has the suite, signed by Debian's key
                _run(["apt-get", "-qq", "update", "--error-on=any"], what, environment)
            except ServerMissing as missing:
                failures.append(str(missing))
                continue
            _run(["apt-get", "-qq", "-y", "--download-only", "install", *packages.names], what, environment)
            _unpack(sorted((folder / "cache" / "archives").glob("*.deb")), target, what)
            return
    raise ServerMissing("; ".join(failures) or f"{what}: apt's sources name no mirror")


def _fetch_own(packages: Sequence[Sequence[str]], target: Path) -> None:
    what = ", ".join(names[-1] for names in packages)
    on_linux_x86_64(what)
    if not has_apt():
        raise ServerMissing(f"{what}: there is no apt-get here to fetch it with")
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        try:
            archives = _download(packages, folder, what, _environment())
        except ServerMissing:  # the machine's lists of packages are absent, or too old
            environment = _apt_of_its_own(folder, None)
            _run(["apt-get", "-qq", "update"], what, environment)
            archives = _download(packages, folder, what, environment)
        _unpack(archives, target, what)


def _download(packages: Sequence[Sequence[str]], folder: Path, what: str, environment: Mapping[str, str]) -> list[Path]:
    into = Path(tempfile.mkdtemp(dir=folder))
    for names in packages:
        for number, package in enumerate(names, 1):
            try:
                _run(["apt-get", "-qq", "download", package], what, environment, into)
                break
            except ServerMissing:
                if number == len(names):
                    raise
    return sorted(into.glob("*.deb"))


def _unpack(archives: Sequence[Path], target: Path, what: str) -> None:
    for archive in archives:
        if not archive.name.startswith(_NOT_UNPACKED):
            _run(["dpkg-deb", "-x", str(archive), str(target)], what, _environment())


def _mirrors(what: str) -> list[str]:
    """Where the machine's own sources point, that of its own release first."""
    said = _run(["apt-get", "--print-uris", "update"], what, _environment())
    mirrors = _RELEASE_FILE.findall(said)
    own = _codename()
    return list(dict.fromkeys(url for url, _ in sorted(mirrors, key=lambda mirror: mirror[1] != own)))


def _codename() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "")


def _apt_of_its_own(folder: Path, sources: Path | None) -> dict[str, str]:
    """The environment of an apt that writes nothing of this machine's. With `sources`: that knows nothing of it
    either, as if no package were installed; else the machine's sources and the packages that it has.
    """
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    settings = {
        "Dir::State": folder / "state",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": "amd64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    if sources is not None:
        (folder / "status").touch()
        settings |= {
            "Dir::State::status": folder / "status",
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
        }
    else:
        settings["Dir::State::status"] = Path("/var/lib/dpkg/status")
    path = folder / "apt.conf"
    path.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return {**_environment(), "APT_CONFIG": str(path)}


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _run(command: Sequence[str], what: str, environment: Mapping[str, str], folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
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
    return done.stdout
