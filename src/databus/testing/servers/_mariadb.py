"""MariaDB, from the machine's packages."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from databus.testing.servers._fetch import ServerMissing
from databus.testing.servers._server import Server
from databus.testing.servers._template import data_template


class MariaDb(Server):
    """MariaDB as the machine's packages have it; 10.11 is what it is made for."""

    flavor = "mariadb"

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__("mariadb-10.11", folder, **options)

    def prepare(self) -> Path:
        """See `Server.prepare`."""
        program = _installed("mariadbd")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\d+\.\d+\.\d+", said.stdout)
        if version is None:
            raise ServerMissing(f"{program} does not say its version: {said.stdout}{said.stderr}")

        def initialise(folder: Path) -> list[str]:
            options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
            return [_installed("mariadb-install-db"), "--no-defaults", f"--datadir={folder}", *options]

        privileges = "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR"
        return data_template(f"mariadb-{version[0]}", initialise, MariaDb, privileges)

    def binlog_command(self) -> list[str]:
        """See `Server.binlog_command`."""
        return [_installed("mariadb-binlog", "mariadb-client")]

    def gtids(self) -> str:
        """See `Server.gtids`."""
        return str(self.query("SELECT @@gtid_binlog_pos")[0][0])

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
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ServerMissing(f"MariaDB's {name} is not installed: apt-get install {package}")
    return found
