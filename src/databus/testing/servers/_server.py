"""Server: one database server with its folder, its port and its life.

A subclass says which program, how an empty data folder is made, and where the flavours' words differ.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import pymysql
import pymysql.constants.ER

from databus.core import LimitExceeded, ServiceUnavailable
from databus.testing.servers._fetch import ServerMissing, kept
from databus.testing.servers._ports import Port
from databus.testing.servers._server_process import ServerProcess

_TEMPLATE_VERSION: Final = "v2"  # to be counted up when the way a data folder is made changes
_INIT_S_MAX: Final = 180
_START_S_MAX: Final = 120
_CATCH_UP_S_MAX: Final = 60
_LINES_MAX: Final = 30
_server_ids: Final = itertools.count(101)

ADMIN: Final = ("admin", "admin-of-tests")  # no server makes a user of this name by itself
CAPTURE: Final = ("databus_test", "databus-of-tests")  # `databus` is for who follows the documentation


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: the authority's certificate, the server's certificate, its key."""

    ca: Path
    certificate: Path
    key: Path


class Server(ServerProcess):
    """A server that listens on 127.0.0.1 only. Made stopped; as a context it is started, and thrown away at the end.

    folder: gets the data, the logs and the option file. gtid, binlog_format, row_metadata (None: what the server has
    by itself), checksum: how it logs. server_id: counted up by default. lines: more lines for the option file, which
    win over ours. certificates: what it shows for TLS; without, what the server makes by itself, if anything.

    `user` may do everything; `capture_user` what the documentation asks for, no more.
    """

    flavor: ClassVar[str]

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        gtid: bool = True,
        binlog_format: str = "ROW",
        row_metadata: str | None = "FULL",
        checksum: str = "CRC32",
        server_id: int | None = None,
        lines: Sequence[str] = (),
        certificates: Certificates | None = None,
    ) -> None:
        super().__init__(folder)
        self.kind = kind
        self.user, self.password = ADMIN
        self.capture_user, self.capture_password = CAPTURE
        self.gtid = gtid
        self.binlog_format = binlog_format
        self.row_metadata = row_metadata
        self.checksum = checksum
        self.server_id = next(_server_ids) if server_id is None else server_id
        self.lines = list(lines)
        self.certificates = certificates
        self.data_folder = folder / "data"
        self.option_file = folder / "my.cnf"
        self._replica, self._primary, self._change = "SLAVE", "MASTER", "MASTER"  # newer servers have other words
        self._status, self._reset = "SHOW MASTER STATUS", "RESET MASTER"
        self._port: Port | None = None
        self._log_start = 0
        self._connection: pymysql.Connection[Any] | None = None
        self._lock = threading.Lock()

    # What a subclass says.

    @abstractmethod
    def prepare(self) -> Path:
        """Fetch what is missing, and return an empty data folder to copy. Raises `ServerMissing`."""

    @abstractmethod
    def plugin_folder(self, plugin: str) -> Path:
        """The folder to name as `plugin_dir` so that the server finds the file `plugin`, which is fetched if it has to
        be. Raises `ServerMissing`.
        """

    @abstractmethod
    def _command(self) -> list[str]:
        """The program, and what stands between it and its options."""

    @abstractmethod
    def _own_options(self) -> Mapping[str, str | int]:
        """What this flavour and version wants in the option file."""

    @abstractmethod
    def _from_gtids(self) -> str:
        """How CHANGE MASTER says to begin after what is here already."""

    @abstractmethod
    def _wait_for_gtids(self, gtids: str, seconds: int) -> bool:
        """Whether these have been applied here within so many seconds."""

    @abstractmethod
    def gtids(self) -> str:
        """What has been executed: MySQL's gtid_executed, MariaDB's gtid_binlog_pos."""

    @abstractmethod
    def binlog_command(self) -> list[str]:
        """The program that prints binary logs as this server's own tools do. Raises `ServerMissing`."""

    def _from_place(self, file: str) -> str:
        return f"{self._primary}_LOG_FILE = '{file}', {self._primary}_LOG_POS = 4"

    def _before_following(self, primary: "Server") -> list[str]:
        """Statements to run before CHANGE MASTER."""
        del primary
        return []

    # Its life.

    def start(self, *, lines: Sequence[str] | None = None) -> None:
        """Start it and wait until it answers; the port is chosen at the first start and kept.

        lines: replace the further lines of the option file from now on. Raises `ServerMissing`, and
        `ServiceUnavailable` with the end of its log if it does not come up.
        """
        if self.is_running:
            return
        if lines is not None:
            self.lines = list(lines)
        if not self.data_folder.exists():
            template = self.prepare()
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.copytree(template, self.data_folder)
        if self._port is None:
            self._port = Port.claim(self.port)
            self.port = self._port.number
        self._write_options()
        self._log_start = self._launch([*self._command(), f"--defaults-file={self.option_file}"])
        try:
            self._wait_until_it_answers()
        except ServiceUnavailable:
            self.kill()
            raise

    def _write_options(self) -> None:
        temporary = self.folder / "tmp"  # its own: a server that starts removes the #sql files of others
        temporary.mkdir(parents=True, exist_ok=True)
        options: dict[str, str | int] = {
            "datadir": str(self.data_folder),
            "tmpdir": str(temporary),
            "bind-address": self.host,
            "port": self.port,
            "socket": "server.sock",  # inside the data folder: an absolute path may be too long for a socket
            "pid-file": "server.pid",
            "skip-name-resolve": "ON",
            "server-id": self.server_id,
            "log-bin": "binlog",
            f"log-{self._replica.lower()}-updates": "ON",
            f"skip-{self._replica.lower()}-start": "ON",
            "binlog-format": self.binlog_format,
            "binlog-checksum": self.checksum,
            "character-set-server": "utf8mb4",
            "local-infile": "ON",
            "secure-file-priv": "",
            "performance-schema": "OFF",
            "innodb-buffer-pool-size": "64M",
            "key-buffer-size": "1M",
            "max-allowed-packet": "1G",
            # A process that is killed loses nothing by these; only a machine that fails would.
            "sync-binlog": 0,
            "innodb-flush-log-at-trx-commit": 2,
            **self._own_options(),
        }
        if os.geteuid() == 0:
            options["user"] = "root"
        if self.certificates is not None:
            options |= {
                "ssl-ca": str(self.certificates.ca),
                "ssl-cert": str(self.certificates.certificate),
                "ssl-key": str(self.certificates.key),
            }
        written = "\n".join(f"{name}={value}" for name, value in options.items())
        client = f"[client]\nhost={self.host}\nport={self.port}\nuser={self.user}\npassword={self.password}\n"
        self.option_file.write_text("\n".join(["[mysqld]", written, *self.lines, "", client]))
        self.option_file.chmod(0o600)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                self.connect(connect_timeout=5).close()
                return
            except pymysql.err.OperationalError as error:
                is_refused = error.args[0] == pymysql.constants.ER.ACCESS_DENIED_ERROR
                if is_refused or not self.is_running or time.monotonic() > deadline:
                    raise ServiceUnavailable(
                        f"{self.kind} did not start ({error}); {self.log_file}:\n{self.errors()}"
                    ) from error
            time.sleep(0.02)

    def restart(self, *, lines: Sequence[str] | None = None) -> None:
        """Stop and start, on the same port with the same data."""
        self.stop()
        self.start(lines=lines)

    def close(self) -> None:
        """Kill it, free its port and remove its data; its log and option file stay."""
        self.kill()
        if self._port is not None:
            self._port.close()
            self._port = None
        shutil.rmtree(self.data_folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        self._forget_connection()
        super()._end(how)

    def errors(self) -> str:
        """What it logged as errors since it was last started; the last lines of its log if none."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if "[ERROR]" in line][-_LINES_MAX:] or lines[-_LINES_MAX:])

    # Talking to it.

    def connect(self, **options: Any) -> "pymysql.Connection[Any]":
        """A new connection of the all-powerful user, committing by itself; `options` are PyMySQL's and win."""
        plain: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "autocommit": True,
            "ssl_disabled": "ssl" not in options,  # to set up TLS takes 50 ms, a connection without it less than one
        }
        return pymysql.connect(**{**plain, **options})

    def query(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run one statement on a connection that is kept, and return its rows. Any thread. Changes of the session's
        variables stay until the server is stopped; use `connect` for those.
        """
        with self._lock:
            if self._connection is None:
                self._connection = self.connect()
            with self._connection.cursor() as cursor:
                cursor.execute(sql, args or None)
                return list(cursor.fetchall())

    def run(self, *statements: str) -> None:
        """Run statements one after the other."""
        for statement in statements:
            self.query(statement)

    def _forget_connection(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.err.Error, OSError):
                connection.close()

    @property
    def version(self) -> str:
        """What it says of itself, such as `8.0.31` or `10.11.19-MariaDB-...`."""
        return str(self.query("SELECT VERSION()")[0][0])

    def position(self) -> tuple[str, int]:
        """The end of its log: file and offset."""
        row = self.query(self._status)[0]
        return str(row[0]), int(row[1])

    def binlogs(self) -> list[Path]:
        """The files of its log, in order."""
        return [self.data_folder / str(row[0]) for row in self.query("SHOW BINARY LOGS")]

    # Replicas.

    def replicate_from(self, primary: "Server") -> None:
        """Follow `primary` from now on: with GTIDs after what is here already, else from its first file."""
        address = {"HOST": f"'{primary.host}'", "PORT": primary.port, "USER": f"'{primary.user}'"}
        address |= {"PASSWORD": f"'{primary.password}'", "CONNECT_RETRY": 1}
        named = ", ".join(f"{self._primary}_{name} = {value}" for name, value in address.items())
        begin = self._from_gtids() if self._has_gtids_with(primary) else self._from_place(primary.binlogs()[0].name)
        self.run(
            f"STOP {self._replica}",
            *self._before_following(primary),
            f"CHANGE {self._change} TO {named}, {begin}",
            f"START {self._replica}",
        )

    def catch_up(self, primary: "Server") -> None:
        """Wait until this replica has applied everything that `primary` has logged by now. Raises `LimitExceeded`."""
        if self._has_gtids_with(primary):
            is_there = self._wait_for_gtids(primary.gtids(), _CATCH_UP_S_MAX)
        else:
            wait = f"SELECT {self._primary}_POS_WAIT(%s, %s, %s)"
            said = self.query(wait, *primary.position(), _CATCH_UP_S_MAX)[0][0]
            is_there = said is not None and int(said) >= 0
        if not is_there:
            with self.connect(cursorclass=pymysql.cursors.DictCursor).cursor() as cursor:
                cursor.execute(f"SHOW {self._replica} STATUS")
                status = cursor.fetchall()
            raise LimitExceeded(f"{self} has not caught up with {primary} after {_CATCH_UP_S_MAX} s: {status}")

    def _has_gtids_with(self, primary: "Server") -> bool:
        return self.gtid and primary.gtid

    def promote(self) -> None:
        """Stop following, forget the primary, accept writes."""
        self.run(f"STOP {self._replica}", f"RESET {self._replica} ALL", "SET GLOBAL read_only = 0")

    def reset_logs(self) -> None:
        """As RESET MASTER does: throw all logs and GTIDs away and begin at file 1."""
        self.run(self._reset)


def data_template(
    name: str, initialise: Callable[[Path], Sequence[str]], server: Callable[[Path], Server], privileges: str
) -> Path:
    """A data folder with the users in it and whatever a server makes at its first start, and nothing logged.

    initialise: the command that makes a data folder. privileges: what the user for capture gets besides SELECT.
    """
    users = [
        f"CREATE USER '{ADMIN[0]}'@'%' IDENTIFIED BY '{ADMIN[1]}'",
        f"GRANT ALL PRIVILEGES ON *.* TO '{ADMIN[0]}'@'%' WITH GRANT OPTION",
        f"CREATE USER '{CAPTURE[0]}'@'%' IDENTIFIED BY '{CAPTURE[1]}'",
        f"GRANT SELECT, {privileges} ON *.* TO '{CAPTURE[0]}'@'%'",
        "CREATE DATABASE test",
    ]

    def make(draft: Path) -> None:
        _initialise(initialise(draft / "data"))
        script = draft / "users.sql"
        script.write_text("".join(f"{statement};\n" for statement in users))
        first = server(draft)
        first.start(lines=["skip-log-bin", f"init-file={script}"])
        first.stop()
        (first.data_folder / "auto.cnf").unlink(missing_ok=True)  # the server's uuid: each copy makes its own

    return kept(f"{name}-{_TEMPLATE_VERSION}", make) / "data"


def _initialise(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INIT_S_MAX, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"a data folder could not be made: {error}") from error
    if done.returncode != 0:
        raise ServerMissing(f"{command[0]} could not make a data folder: {(done.stdout + done.stderr)[-800:]}")
