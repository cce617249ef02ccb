"""What a server says of itself: who it is, what it logs and how, what it still has."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import pymysql
from pymysql.constants import ER

from databus.core import InputError
from databus.sources._capabilities import Finding
from databus.sources.mysql.server._errors import error_of, telling

DENIED: Final = frozenset({ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})
Flavor = Literal["mysql", "mariadb"]
GtidMode = Literal["on", "permissive", "off"]

_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the binary log."""

    name: str
    bytes: int
    """Its size."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server said of itself when it was asked."""

    server: str
    """Its address, for texts."""
    flavor: Flavor
    version: tuple[int, int, int]
    version_text: str
    server_id: int
    uuid: str
    """MySQL's server_uuid. MariaDB has none that lasts (its server_uid follows the network card and the port), so it is
    `mariadb-<server_id>`: server ids must differ, and the content of a file shows whether it is the one that was known,
    see `gtids_at`.
    """
    logs_changes: bool
    gtid: GtidMode
    """`on` only if every transaction has a GTID and their order is reliable (MariaDB's strict mode)."""
    executed: str
    """MySQL's gtid_executed, MariaDB's gtid_binlog_pos."""
    purged: str
    """GTIDs that only purged files hold: MySQL's gtid_purged, MariaDB's position at the start of its oldest file."""
    logs: tuple[LogFile, ...]
    """The files that are there, oldest first."""
    file: str
    """The last of them."""
    offset: int
    """The end of `file`."""
    logged_only: frozenset[str]
    never_logged: frozenset[str]
    variables: Mapping[str, str]
    """All global variables, by lower-case name."""
    identity: Mapping[str, str]
    """See `identity_of`."""

    @property
    def lists_replicas_safely(self) -> bool:
        """Whether SHOW REPLICAS is harmless. MySQL before 8.0.20 crashes if a connection of one it lists is ending."""
        return self.is_mariadb or self.version >= (8, 0, 20)

    @property
    def heartbeat_ms_min(self) -> int:
        """The shortest time between heartbeats that may be asked for. MySQL before 8.0 rounds it down to seconds while
        it leaves out what we have: asked for less than one, it sends a heartbeat for each event of the file.
        """
        return 0 if self.is_mariadb or self.version >= (8, 0, 0) else 1_000

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB."""
        return self.flavor == "mariadb"

    @property
    def checksum(self) -> str:
        """`CRC32` or `NONE`."""
        return self.variables.get("binlog_checksum", "NONE").upper()

    @property
    def row_metadata(self) -> str | None:
        """`FULL`, `MINIMAL`, MariaDB's `NO_LOG`; None for a server that has no such option."""
        value = self.variables.get("binlog_row_metadata")
        return None if value is None else value.upper()

    @property
    def lower_case_table_names(self) -> int:
        """0: names are case-sensitive; 1: kept in lower case; 2: kept as written, compared in lower case."""
        return int(self.variables.get("lower_case_table_names", "0"))

    @property
    def expire_s(self) -> float | None:
        """After how many seconds the server purges a file of its log; None for never."""
        if self.variables.get("binlog_expire_logs_auto_purge", "ON").upper() == "OFF":
            return None
        seconds = float(self.variables.get("binlog_expire_logs_seconds") or 0)
        days = float(self.variables.get("expire_logs_days") or 0)
        return seconds or days * _DAY_S or None

    def has(self, file: str) -> bool:
        """Whether that file of the log is still there."""
        return any(log.name == file for log in self.logs)


def ask(connection: "pymysql.Connection[Any]", sql: str, *args: Any) -> list[dict[str, Any]]:
    """Run one statement; its rows, by column name. Raises PyMySQL's errors."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


def gtids_at(connection: "pymysql.Connection[Any]", file: str, offset: int) -> str | None:
    """MariaDB: the GTID position at a place of its log, strict or not; None if there is no such place.

    The same file and offset with another answer is another log.
    """
    gtids = _only(ask(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtids", file, offset))
    return None if gtids is None else str(gtids)


_IDENTITY: Final = {
    "mysql": "SELECT @@server_uuid AS server_uuid, @@server_id AS server_id, @@hostname AS hostname, @@port AS port",
    # Uptime is counted from the start to the begin of the statement, whatever becomes of the clock meanwhile; modulo
    # 2^64, since the clock may have been set back to before the start.
    "mariadb": "SELECT @@server_id AS server_id, @@hostname AS hostname, @@port AS port, @@datadir AS datadir, "
    "(UNIX_TIMESTAMP() + 18446744073709551616 - CAST(VARIABLE_VALUE AS DECIMAL(30))) % 18446744073709551616 AS started "
    "FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'UPTIME'",
}


def identity_of(connection: "pymysql.Connection[Any]", flavor: Flavor) -> Mapping[str, str]:
    """What distinguishes this server from every other one, as far as it says: two connections to which it is the same
    reach the same server. MariaDB has no name of its own that lasts, so when it was started is part of it.

    Empty where the server does not know what a server of that flavor is asked.
    """
    try:
        (row,) = ask(connection, _IDENTITY[flavor])
    except pymysql.MySQLError as error:
        if error_of(error)[0] in {ER.UNKNOWN_SYSTEM_VARIABLE, ER.UNKNOWN_TABLE}:
            return {}
        raise
    return {name: str(value) for name, value in row.items()}


def server_facts(connection: "pymysql.Connection[Any]", server: str) -> ServerFacts:
    """Ask for all of them; a few milliseconds. `server`: its address, for texts.

    Raises `InputError` with the statement to run where the user may not ask, and `ServiceUnavailable`.
    """
    with telling(server, "asking what it is"):
        variables = {
            str(row["Variable_name"]).lower(): str(row["Value"]) for row in ask(connection, "SHOW GLOBAL VARIABLES")
        }
        # the list above ends values after some 1,000 characters, in the middle of a number if need be
        variables |= {name: _whole(connection, name) for name in _LONG_VARIABLES if name in variables}
        version_text = str(_only(ask(connection, "SELECT VERSION() AS version")))
        flavor: Flavor = "mariadb" if "mariadb" in version_text.lower() else "mysql"
        version = version_of(version_text)
        logs_changes = variables.get("log_bin", "OFF").upper() == "ON"
        logs, status = _log_status(connection, server, flavor, version) if logs_changes else ((), {})
        purged = variables.get("gtid_purged", "")
        if flavor == "mariadb" and logs:
            purged = gtids_at(connection, logs[0].name, 4) or ""
        identity = identity_of(connection, flavor)
    server_id = int(variables.get("server_id", "0"))
    return ServerFacts(
        server=server,
        flavor=flavor,
        version=version,
        version_text=version_text,
        server_id=server_id,
        uuid=f"mariadb-{server_id}" if flavor == "mariadb" else variables.get("server_uuid", ""),
        logs_changes=logs_changes,
        gtid=_gtid_mode(variables),
        executed=_one_line(variables.get("gtid_binlog_pos" if flavor == "mariadb" else "gtid_executed", "")),
        purged=_one_line(purged),
        logs=logs,
        file=str(status.get("File", "")),
        offset=int(status.get("Position", 0)),
        logged_only=_names(status.get("Binlog_Do_DB")),
        never_logged=_names(status.get("Binlog_Ignore_DB")),
        variables=variables,
        identity=identity,
    )


_LONG_VARIABLES: Final = ("gtid_executed", "gtid_purged", "gtid_binlog_pos", "gtid_binlog_state", "gtid_slave_pos")


def _whole(connection: "pymysql.Connection[Any]", variable: str) -> str:
    value = _only(ask(connection, f"SELECT @@GLOBAL.{variable} AS value"))
    return value.decode() if isinstance(value, bytes) else str(value)


def log_end(connection: "pymysql.Connection[Any]", server: str) -> tuple[str, int]:
    """Where its log ends now: file and offset."""
    with telling(server, "asking where its log ends"):
        version_text = str(_only(ask(connection, "SELECT VERSION() AS version")))
        flavor: Flavor = "mariadb" if "mariadb" in version_text.lower() else "mysql"
        rows = ask(connection, _status_statement(flavor, version_of(version_text)))
    return (str(rows[0]["File"]), int(rows[0]["Position"])) if rows else ("", 0)


def log_files(connection: "pymysql.Connection[Any]", server: str) -> list[tuple[str, int]]:
    """The files of its log, each with its bytes, in order."""
    with telling(server, "asking for the files of its log"):
        return [(str(row["Log_name"]), int(row["File_size"])) for row in ask(connection, "SHOW BINARY LOGS")]


def version_of(text: str) -> tuple[int, int, int]:
    """The numbers at the head of a version.

    >>> version_of("5.5.5-10.11.19-MariaDB-log"), version_of("8.0.31")
    ((10, 11, 19), (8, 0, 31))
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text.removeprefix("5.5.5-"))
    if match is None:
        raise InputError(f"the server's version {text!r} is none of MySQL's or MariaDB's")
    return int(match[1]), int(match[2]), int(match[3])


def _log_status(
    connection: "pymysql.Connection[Any]", server: str, flavor: Flavor, version: tuple[int, int, int]
) -> tuple[tuple[LogFile, ...], Mapping[str, Any]]:
    try:
        files = ask(connection, "SHOW BINARY LOGS")
        rows = ask(connection, _status_statement(flavor, version))
    except pymysql.MySQLError as error:
        if error_of(error)[0] != ER.SPECIFIC_ACCESS_DENIED_ERROR:
            raise
        privilege = "BINLOG MONITOR" if flavor == "mariadb" else "REPLICATION CLIENT"
        raise InputError(
            f"{server}: the user may not see where the log stands; run there: "
            f"GRANT {privilege} ON *.* TO {account_of(connection)}"
        ) from error
    logs = tuple(LogFile(str(row["Log_name"]), int(row["File_size"])) for row in files)
    return logs, rows[0] if rows else {}


def _status_statement(flavor: Flavor, version: tuple[int, int, int]) -> str:
    return "SHOW BINARY LOG STATUS" if flavor == "mysql" and version >= (8, 2, 0) else "SHOW MASTER STATUS"


def account_of(connection: "pymysql.Connection[Any]") -> str:
    """Whom the server takes us for, as GRANT names it: `'databus'@'%'`."""
    name, _, host = str(_only(ask(connection, "SELECT CURRENT_USER() AS account"))).rpartition("@")
    return f"{quoted(name)}@{quoted(host)}"


def quoted(text: str) -> str:
    """As a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _gtid_mode(variables: Mapping[str, str]) -> GtidMode:
    if "gtid_strict_mode" in variables:
        return "on" if variables["gtid_strict_mode"].upper() == "ON" else "off"
    mode = variables.get("gtid_mode", "OFF").upper()
    if mode == "ON":
        return "on"
    return "permissive" if mode.endswith("PERMISSIVE") else "off"


def _only(rows: list[dict[str, Any]]) -> Any:
    return next(iter(rows[0].values()))


def _one_line(gtids: str) -> str:
    return "".join(gtids.split())


def _names(listed: object) -> frozenset[str]:
    return frozenset(name for name in str(listed or "").split(",") if name)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `InputError` with every error among the findings, if there is one."""
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        raise InputError("; ".join(errors))


def grants_of(connection: "pymysql.Connection[Any]", facts: ServerFacts) -> list[str]:
    """SHOW GRANTS, active roles included."""
    using = ""
    if not facts.is_mariadb and facts.version >= (8, 0, 0):
        roles = str(next(iter(ask(connection, "SELECT CURRENT_ROLE()")[0].values())) or "NONE")
        using = "" if roles == "NONE" else f" FOR CURRENT_USER() USING {roles}"
    return [str(next(iter(row.values()))) for row in ask(connection, f"SHOW GRANTS{using}")]


def has_global(grants: Iterable[str], privilege: str) -> bool:
    """Whether one of the grants gives it on everything."""
    for grant in grants:
        match = re.match(r"GRANT (.+?) ON \*\.\* TO ", grant)
        if match and not {privilege, "ALL PRIVILEGES"}.isdisjoint(match[1].upper().split(", ")):
            return True
    return False
