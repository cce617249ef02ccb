"""Whether a server is fit to be captured: what `databus check-source` reports, and every start checks first.

Each finding names the statement that mends it. An error stops a start; a warning is logged; the rest is for people.
"""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pymysql

from databus.core import DatabusError
from databus.sources._capabilities import Finding, Severity
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server._check_replication import asked, of_replication, says_replica
from databus.sources.mysql.server._check_tables import of_definitions, of_tables
from databus.sources.mysql.server._connection import close_quietly, connect
from databus.sources.mysql.server._errors import telling
from databus.sources.mysql.server._status import ServerFacts, account_of, grants_of, has_global, server_facts

_REPORT_HOST_MAX: Final = 60  # what a server keeps of it


def check(
    connection: "pymysql.Connection[Any]",
    config: MysqlConfig,
    facts: ServerFacts,
    *,
    server_id: int | None = None,
    report_host: str | None = None,
) -> list[Finding]:
    """All findings about one server, the worst first.

    server_id: our id as a replica, if it is not the configuration's. report_host: the name that we register with, by
    default this machine's. A replica of that name with our id is ourselves: a server may take minutes to notice that a
    connection is dead, and does as soon as we ask for the log again.
    """
    findings: list[Finding] = []
    with telling(facts.server, "checking"):
        if facts.logs_changes:
            findings += _of_logging(facts, config)
            findings += _of_gtids(facts, config)
            findings += _of_retention(facts, config)
            findings += _of_durability(facts)
            findings += _of_privileges(connection, facts)
            host = socket.gethostname()[:_REPORT_HOST_MAX] if report_host is None else report_host
            findings += _of_server_ids(connection, facts, config.server_id, server_id, host)
            findings += of_replication(connection, facts, config)
            findings += of_tables(connection, facts, config)
        else:
            gtids = "gtid-strict-mode=ON" if facts.is_mariadb else "gtid-mode=ON, enforce-gtid-consistency=ON"
            lines = (
                f"log-bin=binlog, server-id=1, binlog-format=ROW, {gtids} under [mysqld] in its option file, and a "
                f"restart"
            )
            findings.append(Finding("error", "log_bin", facts.server, "the server keeps no binary log", lines))
    return _worst_first(findings)


def check_source(config: MysqlConfig) -> list[Finding]:
    """Connect to every server of the configuration and check it, and whether they may stand in for each other.

    A server that cannot be reached or asked is a finding too; nothing is raised for it.
    """
    findings: list[Finding] = []
    known: list[ServerFacts] = []
    for address in config.hosts:
        connection: pymysql.Connection[Any] | None = None
        try:
            connection = connect(config, address)
            facts = server_facts(connection, address)
            known.append(facts)
            findings += [_stricter(finding, config) for finding in check(connection, config, facts)]
            if facts.logs_changes:
                findings += of_definitions(connection, facts, config)
        except DatabusError as error:
            findings.append(Finding("error", "connect", address, str(error).removeprefix(f"{address}: ")))
        finally:
            close_quietly(connection)
    return _worst_first([*findings, *_of_likeness(known)])


def _stricter(finding: Finding, config: MysqlConfig) -> Finding:
    """For `databus check-source`: a missing table is a misspelt one. A start waits for it to appear."""
    is_named = any(finding.what.startswith(f"{table} is not there") for table in config.tables)
    is_absent = finding.name == "tables" and (is_named or finding.what.startswith("no table fits"))
    return replace(finding, severity="error") if is_absent else finding


def _worst_first(findings: list[Finding]) -> list[Finding]:
    order: tuple[Severity, ...] = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


# What the variables say.


def _of_logging(facts: ServerFacts, config: MysqlConfig) -> Iterator[Finding]:
    variables, server = facts.variables, facts.server
    logged_as = variables.get("binlog_format", "ROW").upper()
    if logged_as != "ROW":
        what = f"binlog_format is {logged_as}: the log holds statements, not rows. Sessions that are open keep theirs"
        yield Finding("error", "binlog_format", server, what, _set(facts, "binlog_format", "'ROW'"))
    image = variables.get("binlog_row_image", "FULL").upper()
    if image != "FULL":
        what = f"binlog_row_image is {image}: the log lacks columns. Sessions that are open keep theirs"
        yield Finding("error", "binlog_row_image", server, what, _set(facts, "binlog_row_image", "'FULL'"))
    if facts.row_metadata is None:
        what = (
            "the log does not name columns (binlog_row_metadata came with MySQL 8.0.1 and MariaDB 10.5): names and "
            "types are followed through the log's DDL, and DDL that was not logged (sql_log_bin=0) can pass unseen if "
            "every column keeps its width and nullability"
        )
        yield Finding("info", "binlog_row_metadata", server, what)
    elif facts.row_metadata != "FULL":
        past = " and the log is to be read from before now" if config.start != "latest" else ""
        what = (
            f"binlog_row_metadata is {facts.row_metadata}{past}: names and types must be followed through the log's "
            f"DDL, and DDL that was not logged (sql_log_bin=0, a replica that drifted) can pass unseen if it renames "
            f"or swaps columns, or reorders members of ENUM or SET"
        )
        mend = _set(facts, "binlog_row_metadata", "'FULL'")
        yield Finding("warning", "binlog_row_metadata", server, what, mend)
    if variables.get("binlog_error_action", "ABORT_SERVER").upper() == "IGNORE_ERROR":
        what = "binlog_error_action is IGNORE_ERROR: when its log cannot be written, the server goes on without one"
        mend = _set(facts, "binlog_error_action", "'ABORT_SERVER'")
        yield Finding("warning", "binlog_error_action", server, what, mend)


def _of_gtids(facts: ServerFacts, config: MysqlConfig) -> Iterator[Finding]:
    if facts.gtid == "on":
        return
    if facts.is_mariadb:
        what, mend = "gtid_strict_mode is OFF", _set(facts, "gtid_strict_mode", "ON")
    else:
        what = f"gtid_mode is {facts.variables.get('gtid_mode', 'OFF')}"
        mend = "; ".join(_gtid_steps(facts))
    what += ": changes are numbered by file and offset, which hold on this server only"
    if len(config.hosts) > 1:
        yield Finding("error", "gtid", facts.server, f"{what}, but there are {len(config.hosts)} hosts", mend)
    else:
        yield Finding("warning", "gtid", facts.server, what, mend)


def _gtid_steps(facts: ServerFacts) -> list[str]:
    """MySQL's way is one mode at a time, on every server of a topology before the next."""
    modes = ("OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")
    at = modes.index(facts.variables.get("gtid_mode", "OFF").upper())
    return [
        _set(facts, "enforce_gtid_consistency", "ON"),
        *(_set(facts, "gtid_mode", mode) for mode in modes[at + 1 :]),
    ]


def _of_retention(facts: ServerFacts, config: MysqlConfig) -> Iterator[Finding]:
    expire_s = facts.expire_s
    if expire_s is not None and expire_s * 1e3 < config.retention_warn_ms:
        what = (
            f"the server purges its log after {expire_s / 3600:g} h, less than retention_warn_ms "
            f"({config.retention_warn_ms / 3_600_000:g} h): after a longer halt, what we need is gone"
        )
        if "binlog_expire_logs_seconds" in facts.variables:
            mend = _set(facts, "binlog_expire_logs_seconds", str(max(3 * 86_400, config.retention_warn_ms // 1_000)))
        else:
            mend = _set(facts, "expire_logs_days", str(max(3, -(-config.retention_warn_ms // 86_400_000))))
        yield Finding("warning", "log_expiry", facts.server, what, mend)
    for name in ("max_binlog_total_size", "binlog_space_limit"):
        if int(facts.variables.get(name, "0") or 0) > 0:
            what = f"{name} is {facts.variables[name]}: the server purges its log by size, however old it is"
            yield Finding("warning", "log_expiry", facts.server, what, _set(facts, name, "0"))


def _of_durability(facts: ServerFacts) -> Iterator[Finding]:
    lax = [
        f"{name} is {facts.variables[name]}"
        for name in ("sync_binlog", "innodb_flush_log_at_trx_commit")
        if facts.variables.get(name, "1") != "1"
    ]
    if lax:
        what = f"{' and '.join(lax)}: if the server's machine fails, its log and its tables may differ by some commits"
        mend = "; ".join(_set(facts, setting.split()[0], "1") for setting in lax)
        yield Finding("info", "durability", facts.server, what, mend)


def _of_likeness(known: Sequence[ServerFacts]) -> Iterator[Finding]:
    """Whether several servers may stand in for each other."""
    for at, facts in enumerate(known):
        for other in known[:at]:
            if facts.flavor != other.flavor:
                what = f"is {facts.version_text}, but {other.server} is {other.version_text}"
                yield Finding("error", "hosts", facts.server, what)
            if facts.server_id == other.server_id:
                what = f"has the server_id {facts.server_id} of {other.server}"
                yield Finding("error", "hosts", facts.server, what, _set(facts, "server_id", str(facts.server_id + 1)))
            if facts.lower_case_table_names != other.lower_case_table_names:
                what = f"has another lower_case_table_names than {other.server}: tables would change their names"
                yield Finding("error", "hosts", facts.server, what)


# What has to be asked.


def _of_privileges(connection: "pymysql.Connection[Any]", facts: ServerFacts) -> Iterator[Finding]:
    if not has_global(grants_of(connection, facts), "REPLICATION SLAVE"):
        mend = f"GRANT REPLICATION SLAVE ON *.* TO {account_of(connection)}"
        yield Finding("error", "privileges", facts.server, "the user may not read the log", mend)


def _of_server_ids(
    connection: "pymysql.Connection[Any]", facts: ServerFacts, chosen: int | None, in_use: int | None, report_host: str
) -> Iterator[Finding]:
    """chosen: our id by configuration. in_use: the id in use. databus may have made it up, and then another replica has
    it by a chance of one in billions only.
    """
    if facts.server_id == 0:
        what = "its server_id is 0, with which it serves no replica"
        yield Finding("error", "server_id", facts.server, what, _set(facts, "server_id", "1"))
    replica_id = in_use or chosen
    if replica_id is None:
        return
    if replica_id == facts.server_id:
        what = f"server_id {replica_id} is the server's own; we need another"
        yield Finding("error", "server_id", facts.server, what, f"server_id: {_other_than(replica_id)}")
    if not facts.lists_replicas_safely:
        if chosen is not None:
            what = (
                "whether a replica has our server_id is not checked: MySQL before 8.0.20 may crash when asked for its "
                "replicas while one of them disconnects"
            )
            yield Finding("info", "server_id", facts.server, what, "choose one that no other replica has")
        return
    replicas = asked(connection, "SHOW REPLICAS" if says_replica(facts) else "SHOW SLAVE HOSTS")
    if replicas is None:
        if chosen is not None:
            privilege = "REPLICATION MASTER ADMIN" if facts.is_mariadb else "REPLICATION SLAVE"
            what = "other replicas cannot be seen, so whether one has our server_id cannot be checked"
            mend = f"GRANT {privilege} ON *.* TO {account_of(connection)}"
            yield Finding("info", "server_id", facts.server, what, mend)
        return
    for replica in replicas:
        row = {name.lower(): value for name, value in replica.items()}
        if int(row["server_id"]) == replica_id and row.get("host") != report_host:
            where = row.get("host") or "an unnamed host"
            what = f"a replica at {where} has server_id {replica_id} already: the two would throw each other out"
            severity: Severity = "error" if chosen == replica_id else "warning"
            yield Finding(severity, "server_id", facts.server, what, f"server_id: {_other_than(replica_id)}")


# Words.


def _set(facts: ServerFacts, name: str, value: str) -> str:
    """The statement that sets a variable for good, as far as the server can."""
    if not facts.is_mariadb and facts.version >= (8, 0, 0):
        return f"SET PERSIST {name} = {value}"
    line = f"{name}={value}".replace("'", "")
    return f"SET GLOBAL {name} = {value} /* and {line} under [mysqld] in its option file */"


def _other_than(server_id: int) -> int:
    return server_id % (2**32 - 2) + 1
