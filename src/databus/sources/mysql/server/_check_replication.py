"""Whether a captured replica logs everything that its primary logged.

A replica's log holds what the replica itself applied and chose to log. What a filter dropped is missing from it
without a trace: with GTIDs, MySQL even logs the transaction's name. So a replica that may hide captured tables is
never followed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pymysql

from databus.sources._capabilities import Finding
from databus.sources.mysql._captured_tables import TableSelection
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server._errors import error_of
from databus.sources.mysql.server._replication_filters import Hidden, names_of
from databus.sources.mysql.server._status import DENIED, ServerFacts, account_of, ask

_IDS: Final = {
    "replicate_ignore_server_ids": "whatever first came from these servers",
    "replicate_do_domain_ids": "whatever is of other GTID domains",
    "replicate_ignore_domain_ids": "whatever is of these GTID domains",
}
_SHOWN_MAX: Final = 200  # characters of a filter in a message


def of_replication(connection: "pymysql.Connection[Any]", facts: ServerFacts, config: MysqlConfig) -> Iterator[Finding]:
    """Whether the log of a server that follows another has all that the other one logged."""
    status = _status(connection, facts)
    yield from _of_updates(facts, config, status)
    yield from _of_filters(connection, facts, config, status)
    yield from _of_laxity(facts, status)


def says_replica(facts: ServerFacts) -> bool:
    """Whether its statements have the newer word for it."""
    return not facts.is_mariadb and facts.version >= (8, 0, 26)


def asked(connection: "pymysql.Connection[Any]", sql: str) -> list[dict[str, Any]] | None:
    """The rows, or None where the user may not ask."""
    try:
        return ask(connection, sql)
    except pymysql.MySQLError as error:
        if error_of(error)[0] in DENIED:
            return None
        raise


def _status(connection: "pymysql.Connection[Any]", facts: ServerFacts) -> list[dict[str, Any]] | None:
    """A row for each primary that it follows; None where the user may not see them."""
    if facts.is_mariadb:
        return asked(connection, "SHOW ALL SLAVES STATUS")
    return asked(connection, "SHOW REPLICA STATUS" if says_replica(facts) else "SHOW SLAVE STATUS")


def _of_updates(
    facts: ServerFacts, config: MysqlConfig, status: Sequence[Mapping[str, Any]] | None
) -> Iterator[Finding]:
    """It must write what it applies into a log of its own."""
    variables = facts.variables
    if variables.get("log_replica_updates", variables.get("log_slave_updates", "ON")).upper() == "ON":
        return
    word = "log-replica-updates" if says_replica(facts) else "log-slave-updates"
    mend = f"{word}=ON under [mysqld] in its option file, and a restart"
    if status:
        what = "it is a replica, and what it gets from its primary is not in its own log"
        yield Finding("error", "log_replica_updates", facts.server, what, mend)
    elif len(config.hosts) > 1:
        what = "while it follows another of the hosts, what it gets is not in its own log"
        yield Finding("error", "log_replica_updates", facts.server, what, mend)
    elif status is None:
        what = "if it is a replica (we may not see it), what it gets from its primary is not in its own log"
        yield Finding("warning", "log_replica_updates", facts.server, what, mend)


def _of_filters(
    connection: "pymysql.Connection[Any]",
    facts: ServerFacts,
    config: MysqlConfig,
    status: Sequence[Mapping[str, Any]] | None,
) -> Iterator[Finding]:
    """It must apply all that its primary logged of the captured tables."""
    if status is None:
        is_likely = len(config.hosts) > 1 or facts.variables.get("read_only", "OFF").upper() == "ON"
        privilege = "SLAVE MONITOR" if facts.is_mariadb else "REPLICATION CLIENT"
        what = "the user may not see whether it is a replica, and which replication filters keep changes from its log"
        mend = f"GRANT {privilege} ON *.* TO {account_of(connection)}"
        yield Finding("error" if is_likely else "warning", "replication_filter", facts.server, what, mend)
        return
    hidden = Hidden(
        config, TableSelection(config, fold=facts.lower_case_table_names != 0), facts.lower_case_table_names
    )
    if status:
        for channel_status in status:
            row = {name.lower(): str(value or "") for name, value in channel_status.items()}
            channel = row.get("connection_name") or row.get("channel_name") or ""
            yield from _of_row(facts, hidden, row, f" of the channel {channel!r}" if channel else "")
    elif len(config.hosts) > 1:
        yield from _of_row(facts, hidden, _set_for_later(connection, facts), ", once it follows another of the hosts")
    marked = facts.variables.get("replicate_events_marked_for_skip", "REPLICATE").upper()
    if marked != "REPLICATE" and (status or len(config.hosts) > 1):
        yield _finding(
            facts, "replicate_events_marked_for_skip", marked, "", "whatever was logged with skip_replication"
        )


def _set_for_later(connection: "pymysql.Connection[Any]", facts: ServerFacts) -> Mapping[str, str]:
    """The filters that it will have once it is a replica, as far as it shows them before."""
    if facts.is_mariadb:
        return facts.variables
    if facts.version < (8, 0, 0):
        return {}
    sql = "SELECT FILTER_NAME AS name, FILTER_RULE AS rule FROM performance_schema.replication_applier_global_filters"
    return {str(row["name"]).lower(): str(row["rule"] or "") for row in asked(connection, sql) or ()}


def _of_row(facts: ServerFacts, hidden: Hidden, row: Mapping[str, str], where: str) -> Iterator[Finding]:
    for name, tables in hidden.by(row):
        yield _finding(facts, name, row[name], where, tables)
    for name, what in _IDS.items():
        if names_of(row.get(name, "")):
            yield _finding(facts, name, row[name], where, what)


def _finding(facts: ServerFacts, name: str, value: str, where: str, hidden: str) -> Finding:
    excerpt = value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}..."
    what = f"{name} = {excerpt}{where} keeps {hidden} from its log, and nothing in the log shows it"
    mend = (
        "capture its primary, or a replica without that filter. To use this one: remove the filter, and build the "
        "replica again, since what it has dropped stays missing"
    )
    return Finding("error", "replication_filter", facts.server, what, mend)


def _of_laxity(facts: ServerFacts, status: Sequence[Mapping[str, Any]] | None) -> Iterator[Finding]:
    """Settings with which a replica continues although it cannot apply a change."""
    if not status:
        return
    for name in ("slave_skip_errors", "replica_skip_errors", "slave_exec_mode", "replica_exec_mode"):
        value = facts.variables.get(name, "OFF").upper()
        if value not in {"OFF", "STRICT", ""}:
            what = f"it is a replica and {name} is {value}: changes that it cannot apply are missing from its log"
            harmless = "STRICT" if name.endswith("mode") else "OFF"
            yield Finding("warning", "replica_errors", facts.server, what, f"{name}={harmless} in its option file")
            return
