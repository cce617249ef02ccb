"""MariaDB, from the machine's packages."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from databus.testing.servers._debian import unpacked_own_packages
from databus.testing.servers._fetch import ServerMissing
from databus.testing.servers._server import Server, data_template

_PLUGINS: Final = Path("usr/lib/mysql/plugin")


class MariaDb(Server):
    """MariaDB as the machine's packages have it; 10.11 is what it is made for."""

    flavor = "mariadb"

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__("mariadb-10.11", folder, **options)

    def prepare(self) -> Path:
        """See `Server.prepare`."""
        version = self._version()

        def initialise(folder: Path) -> list[str]:
            options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
            options.append("--force")  # also where the machine's own name is in no table of names
            return [_installed("mariadb-install-db"), "--no-defaults", f"--datadir={folder}", *options]

        privileges = "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR"
        return data_template(f"mariadb-{version}", initialise, MariaDb, privileges)

    def _version(self) -> str:
        program = _installed("mariadbd")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\d+\.\d+\.\d+", said.stdout)
        if version is None:
            raise ServerMissing(f"{program} does not say its version: {said.stdout}{said.stderr}")
        return version[0]

    def binlog_command(self) -> list[str]:
        """See `Server.binlog_command`."""
        return [_installed("mariadb-binlog", "mariadb-client")]

    def gtids(self) -> str:
        """See `Server.gtids`."""
        return str(self.query("SELECT @@gtid_binlog_pos")[0][0])

    def plugin_folder(self, plugin: str) -> Path:
        """See `Server.plugin_folder`. Debian's server without its service comes without the plugins: they are in the
        package `mariadb-server`, which is fetched and unpacked, not installed.
        """
        command = [_installed("mariadbd"), "--no-defaults", "--verbose", "--help"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        own = re.search(r"^plugin-dir\s+(\S+)", said.stdout, re.MULTILINE)
        if own is not None and (Path(own[1]) / plugin).exists():
            return Path(own[1])
        package = "mariadb-server"
        version = _package_version("mariadb-server-core")
        names = [package] if version is None else [f"{package}={version}", package]
        folder = unpacked_own_packages(f"mariadb-plugins-{self._version()}", [names]) / _PLUGINS
        if not (folder / plugin).exists():
            raise ServerMissing(f"the package {package} has no {plugin}")
        return folder

    def _command(self) -> list[str]:
        return [_installed("mariadbd")]

    def _own_options(self) -> Mapping[str, str | int]:
        options: dict[str, str | int] = {
            "gtid-strict-mode": "ON" if self.gtid else "OFF",
            "innodb-log-file-size": "64M",
            "aria-pagecache-buffer-size": "8M",
        }
        if self.row_metadata is not None:
            options["binlog-row-metadata"] = self.row_metadata
        return options

    def _before_following(self, primary: Server) -> list[str]:
        return ["SET GLOBAL gtid_slave_pos = @@gtid_current_pos"] if self._has_gtids_with(primary) else []

    def _from_gtids(self) -> str:
        return "MASTER_USE_GTID = slave_pos"

    def _from_place(self, file: str) -> str:
        return f"MASTER_USE_GTID = no, {super()._from_place(file)}"

    def _wait_for_gtids(self, gtids: str, seconds: int) -> bool:
        said = self.query("SELECT MASTER_GTID_WAIT(%s, %s)", gtids, seconds)[0][0]
        return bool(said == 0)


def _installed(name: str, package: str = "mariadb-server-core") -> str:
    program = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise ServerMissing(
            f"MariaDB's {name} is not installed: run `make servers`, which installs it, or apt-get install {package}"
        )
    return program


def _package_version(package: str) -> str | None:
    """The version of a package of Debian that is installed here."""
    if shutil.which("dpkg-query") is None:
        return None
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() or None
