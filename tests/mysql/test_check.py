"""`databus check-source` finds each fault of a server, produced for real, and names the statement that mends it."""

import socket
import struct

import pymysql
import pytest

from databus.core import InputError
from databus.sources.mysql import MysqlSource
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server import check, check_source, connect, refuse, server_facts

LOGS_CASCADES = ("mysql-9.7",)
TO_ORDERS = "FOREIGN KEY (o) REFERENCES shop.orders (id)"


def config_of(*servers, **options):
    first = servers[0]
    login = {"user": first.capture_user, "password": first.capture_password}
    hosts = [f"{each.host}:{each.port}" for each in servers]
    return MysqlConfig(**{"hosts": hosts, "tables": ["shop.*"], **login, **options})


def make_shop(server):
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT)")


def named(findings, name, severity=None):
    return [each for each in findings if each.name == name and severity in (None, each.severity)]


def run_mend(server, finding):
    """Run the statements that a finding names, as they stand."""
    for statement in finding.mend.split("; "):
        server.query(statement)


VARIABLES = (
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_error_action",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "sync_binlog",
)


@pytest.fixture
def shop(server):
    """The shared server of each kind with a database `shop`, put back afterwards as it was."""
    account = f"'{server.capture_user}'@'%'"
    grants = [row[0] for row in server.query(f"SHOW GRANTS FOR {account}")]
    before = {name: value for name, value in server.query("SHOW GLOBAL VARIABLES") if name in VARIABLES}
    server.query("DROP DATABASE IF EXISTS shop")
    make_shop(server)
    yield server
    server.run("DROP DATABASE shop", f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {account}", *grants)
    for name, value in before.items():
        server.query(f"SET GLOBAL {name} = {value if value[0].isdigit() else repr(value)}")


@pytest.fixture
def fresh(kind, new_server):
    """A server of each kind with a database `shop`."""

    def make(**options):
        server = new_server(kind, **options)
        make_shop(server)
        return server

    return make


def test_a_server_as_documented_has_no_error_and_no_warning(shop):
    findings = check_source(config_of(shop))
    assert named(findings, "durability")  # the servers of the tests do not sync
    assert {(each.name, each.severity) for each in findings} - {("durability", "info")} <= {
        ("binlog_row_metadata", "info")  # 5.7 has none
    }
    refuse(findings)


@pytest.mark.parametrize(
    ("variable", "value", "severity"),
    [
        ("binlog_format", "MIXED", "error"),
        ("binlog_format", "STATEMENT", "error"),
        ("binlog_row_image", "MINIMAL", "error"),
        ("binlog_row_image", "NOBLOB", "error"),
        ("binlog_row_metadata", "MINIMAL", "warning"),
        ("binlog_error_action", "IGNORE_ERROR", "warning"),
    ],
)
def test_a_variable_that_keeps_something_out_of_the_log_is_mended_as_told(shop, variable, value, severity):
    try:
        shop.query(f"SET GLOBAL {variable} = '{value}'")
    except pymysql.err.OperationalError:
        pytest.skip(f"{shop.kind} has no {variable}")
    (finding,) = named(check_source(config_of(shop)), variable)
    assert finding.severity == severity
    assert value in finding.what
    run_mend(shop, finding)
    assert named(check_source(config_of(shop)), variable) == []


def test_a_server_without_a_binary_log_is_refused(fresh):
    server = fresh()
    server.restart(lines=["skip-log-bin"])
    findings = check_source(config_of(server))
    assert [each.name for each in findings] == ["log_bin"]
    with pytest.raises(InputError, match="log-bin=binlog"):
        refuse(findings)


def test_gtids_off_is_a_warning_for_one_host_and_an_error_for_two(fresh):
    server, other = fresh(gtid=False), fresh()
    (finding,) = named(check_source(config_of(server)), "gtid")
    assert finding.severity == "warning"
    assert named(check_source(config_of(server, other)), "gtid", "error")
    run_mend(server, finding)
    assert named(check_source(config_of(server)), "gtid") == []


def test_a_permissive_gtid_mode_is_named(fresh):
    server = fresh(gtid=False)
    if server.flavor == "mariadb":
        pytest.skip("MariaDB has no permissive modes")
    server.run("SET GLOBAL enforce_gtid_consistency = ON", "SET GLOBAL gtid_mode = OFF_PERMISSIVE")
    (finding,) = named(check_source(config_of(server)), "gtid")
    assert "OFF_PERMISSIVE" in finding.what
    assert "gtid_mode = ON_PERMISSIVE" in finding.mend
    run_mend(server, finding)
    assert server.query("SELECT @@gtid_mode") == [("ON",)]


def test_a_log_that_is_purged_sooner_than_configured_is_a_warning(shop):
    if shop.kind == "mysql-5.7":
        shop.query("SET GLOBAL expire_logs_days = 1")
    else:
        shop.query("SET GLOBAL binlog_expire_logs_seconds = 7200")
    assert named(check_source(config_of(shop, retention_warn_ms=3_600_000)), "log_expiry") == []
    config = config_of(shop, retention_warn_ms=48 * 3_600_000)
    (finding,) = named(check_source(config), "log_expiry", "warning")
    run_mend(shop, finding)
    assert named(check_source(config), "log_expiry") == []


def test_a_user_who_may_not_read_the_log_is_told_the_grant(shop):
    account = f"'{shop.capture_user}'@'%'"
    shop.query(f"REVOKE REPLICATION SLAVE ON *.* FROM {account}")
    (finding,) = named(check_source(config_of(shop)), "privileges", "error")
    assert finding.mend == f"GRANT REPLICATION SLAVE ON *.* TO {account}"
    run_mend(shop, finding)
    assert named(check_source(config_of(shop)), "privileges") == []


def test_a_user_who_may_not_see_the_log_is_told_the_grant(shop):
    privilege = "BINLOG MONITOR" if shop.flavor == "mariadb" else "REPLICATION CLIENT"
    shop.query(f"REVOKE {privilege} ON *.* FROM '{shop.capture_user}'@'%'")
    (finding,) = check_source(config_of(shop))
    assert finding.severity == "error"
    statement = finding.what.partition("run there: ")[2]
    assert statement == f"GRANT {privilege} ON *.* TO '{shop.capture_user}'@'%'"
    shop.query(statement)
    assert named(check_source(config_of(shop)), "connect") == []


def test_a_user_who_may_read_some_tables_only_is_told_the_others(shop):
    account = f"'{shop.capture_user}'@'%'"
    shop.run(
        "CREATE TABLE shop.`odd ``name` (id INT PRIMARY KEY)",
        f"REVOKE SELECT ON *.* FROM {account}",
        f"GRANT SELECT ON shop.orders TO {account}",
        f"GRANT INSERT ON shop.* TO {account}",
    )
    (finding,) = named(check_source(config_of(shop)), "privileges", "error")
    assert "shop.`odd ``name`" in finding.what
    assert "shop.orders" not in finding.what
    run_mend(shop, finding)
    assert named(check_source(config_of(shop)), "privileges") == []


def test_privileges_that_come_by_an_active_role_count(shop):
    if shop.kind == "mysql-5.7":
        pytest.skip("MySQL 5.7 has no roles")
    account = f"'{shop.capture_user}'@'%'"
    whose = f"{'FOR' if shop.flavor == 'mariadb' else 'TO'} {account}"
    client = "BINLOG MONITOR" if shop.flavor == "mariadb" else "REPLICATION CLIENT"
    shop.run(
        "CREATE ROLE reader",
        f"GRANT SELECT, REPLICATION SLAVE, {client} ON *.* TO reader",
        f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {account}",
        f"GRANT reader TO {account}",
        f"SET DEFAULT ROLE reader {whose}",
    )
    findings = check_source(config_of(shop))
    shop.run(f"SET DEFAULT ROLE NONE {whose}", "DROP ROLE reader")
    assert named(findings, "privileges") == named(findings, "tables") == []


def test_tables_that_cannot_be_seen_are_named(shop):
    (finding,) = named(check_source(config_of(shop, tables=["shop.orders", "shop.gone"])), "tables")
    assert finding.severity == "error"
    assert "shop.gone is not there" in finding.what
    (finding,) = named(check_source(config_of(shop, tables=["nowhere.*"])), "tables")
    assert "nowhere.*" in finding.what


def test_columns_of_types_that_are_not_there_are_named(shop):
    types = {"shop.orders": {"ID": "string", "gone": "string"}, "shop.order": {"id": "string"}}
    found = named(check_source(config_of(shop, types=types)), "types", "warning")
    assert [each.what.partition(", which")[0] for each in found] == [
        "`types` names the column 'gone' of shop.orders", "`types` names the column 'id' of shop.order",
    ]  # fmt: skip


@pytest.mark.parametrize("granted", ["shop", "sh%", "s_op", "*"])
def test_a_user_who_may_not_lock_tables_without_a_key_is_told_the_grant(shop, granted):
    account = f"'{shop.capture_user}'@'%'"
    shop.run("CREATE TABLE shop.keyless (n INT)", f"GRANT LOCK TABLES ON `other`.* TO {account}")
    config = config_of(shop, lock_tables_without_key=True)
    (finding,) = named(check_source(config), "privileges", "error")
    assert "shop.keyless" in finding.what
    assert "shop.orders" not in finding.what
    assert finding.mend == f"GRANT LOCK TABLES ON `shop`.* TO {account}"
    for_a_moment = named(check_source(config_of(shop)), "privileges")
    assert [each.severity for each in for_a_moment] == (["warning"] if shop.flavor == "mysql" else [])
    assert named(check_source(config_of(shop, lock_tables_without_key=True, snapshot="never")), "privileges") == []
    shop.run(f"GRANT LOCK TABLES ON {'*' if granted == '*' else f'`{granted}`'}.* TO {account}")
    assert named(check_source(config), "privileges") == []


def test_where_snapshots_lock_every_table_for_want_of_gtids_the_grant_is_named(new_server):
    server = new_server("mysql-8.0", gtid=False)
    make_shop(server)
    (finding,) = named(check_source(config_of(server)), "privileges")
    assert "no GTIDs" in finding.what
    run_mend(server, finding)
    assert named(check_source(config_of(server)), "privileges") == []


def test_our_server_id_must_not_be_the_servers_own(shop):
    (finding,) = named(check_source(config_of(shop, server_id=shop.server_id)), "server_id", "error")
    assert "the server's own" in finding.what
    assert named(check_source(config_of(shop, server_id=4_000_000_000)), "server_id", "error") == []


def register(connection, server_id, host):
    name = host.encode()
    body = struct.pack("<I", server_id) + bytes([len(name)]) + name + b"\0\0" + struct.pack("<HII", 0, 0, 0)
    connection._execute_command(0x15, body)
    connection._read_packet()


def test_a_server_that_may_crash_when_asked_for_its_replicas_is_not_asked(new_server):
    """MySQL before 8.0.20 reads what it knows of a replica while that one's connection may be gone already."""
    shop = new_server("mysql-5.7")
    make_shop(shop)
    shop.run("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON")
    (finding,) = named(check_source(config_of(shop, server_id=4_000_000_000)), "server_id")
    assert (finding.severity, "not checked" in finding.what) == ("info", True)
    asked = b"\n".join(row[0] for row in shop.query("SELECT argument FROM mysql.general_log")).upper()
    assert b"SHOW GRANTS" in asked
    assert b"HOSTS" not in asked


def test_a_replica_with_our_server_id_is_found_unless_it_is_ourselves(shop):
    if shop.kind == "mysql-5.7":
        pytest.skip("MySQL 5.7 is not asked for its replicas: it may crash; see the test before this one")
    config = config_of(shop, user=shop.user, password=shop.password, server_id=4_000_000_000)
    other = connect(config)
    register(other, 4_000_000_000, "elsewhere")
    with connect(config) as connection:
        facts = server_facts(connection, "here")
        (finding,) = named(check(connection, config, facts), "server_id", "error")
        assert "elsewhere" in finding.what
        assert named(check(connection, config, facts, report_host="elsewhere"), "server_id") == []
        made_up = config.model_copy(update={"server_id": None})
        (finding,) = named(check(connection, made_up, facts, server_id=4_000_000_000), "server_id")
        assert finding.severity == "warning"
        assert named(check(connection, made_up, facts, server_id=7), "server_id") == []
        register(other, 4_000_000_000, socket.gethostname())
        assert named(check(connection, config, facts), "server_id") == []
    other.close()


def test_a_server_id_that_cannot_be_compared_is_said(shop):
    if shop.flavor == "mysql":
        pytest.skip("on MySQL, who may read the log may see the replicas")
    (finding,) = named(check_source(config_of(shop, server_id=4_000_000_000)), "server_id")
    assert finding.severity == "info"
    run_mend(shop, finding)
    assert named(check_source(config_of(shop, server_id=4_000_000_000)), "server_id") == []


def test_a_server_that_hides_captured_tables_from_its_log_is_refused(fresh):
    server = fresh()
    server.restart(lines=["binlog-ignore-db=shop"])
    (finding,) = named(check_source(config_of(server)), "log_filter", "error")
    assert "shop.orders" in finding.what
    assert named(check_source(config_of(server, tables=["other.*"])), "log_filter") == []
    server.restart(lines=["binlog-do-db=other"])
    (finding,) = named(check_source(config_of(server)), "log_filter", "error")
    assert "binlog-do-db" in finding.mend
    server.restart(lines=["binlog-do-db=shop"])
    assert named(check_source(config_of(server)), "log_filter") == []


def test_a_replica_that_does_not_log_what_it_applies_is_refused(fresh, kind, new_server):
    primary, replica = fresh(), new_server(kind, lines=["log-slave-updates=OFF"])
    assert named(check_source(config_of(replica)), "log_replica_updates") == []
    assert named(check_source(config_of(primary, replica)), "log_replica_updates", "error")
    replica.replicate_from(primary)
    replica.catch_up(primary)
    assert named(check_source(config_of(replica)), "log_replica_updates", "error")
    assert named(check_source(config_of(primary)), "log_replica_updates") == []


def test_two_hosts_that_follow_each_other_are_fit(fresh, kind, new_server):
    primary, replica = fresh(), new_server(kind)
    replica.replicate_from(primary)
    replica.catch_up(primary)
    refuse(check_source(config_of(primary, replica)))


def test_two_hosts_with_one_server_id_are_refused(fresh, kind, new_server):
    primary, twin = fresh(), new_server(kind, server_id=1_000)
    primary.query("SET GLOBAL server_id = 1000")
    (finding,) = named(check_source(config_of(primary, twin)), "hosts", "error")
    run_mend(twin, finding)
    assert named(check_source(config_of(primary, twin)), "hosts") == []


def test_a_host_that_does_not_answer_is_a_finding_of_its_own(fresh, kind, new_server):
    primary, gone = fresh(), new_server(kind)
    gone.kill()
    findings = check_source(config_of(primary, gone))
    (finding,) = named(findings, "connect", "error")
    assert finding.server == f"127.0.0.1:{gone.port}"
    assert "refused" in finding.what


def test_a_merge_table_is_refused_since_the_log_has_the_rows_of_its_parts_under_its_name(shop):
    shop.run(
        "CREATE TABLE shop.part (a INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE shop.whole (a INT NOT NULL, PRIMARY KEY (a)) ENGINE=MERGE UNION=(shop.part) INSERT_METHOD=LAST",
    )
    if shop.flavor == "mysql":  # MariaDB has the engine as a plugin of its own
        shop.run("CREATE TABLE shop.nothing (a INT PRIMARY KEY) ENGINE=BLACKHOLE")
        said = named(check_source(config_of(shop)), "engine", "warning")
        assert any("shop.nothing of engine BLACKHOLE" in each.what for each in said)
    (merged,) = named(check_source(config_of(shop)), "engine", "error")
    assert "shop.whole of engine MERGE" in merged.what
    found = named(check_source(config_of(shop, exclude=["shop.whole"])), "engine")
    assert {each.severity for each in found} == {"warning"}
    assert any("shop.whole of engine MERGE" in each.what for each in found)


def test_tables_that_are_hard_to_capture_are_told(shop):
    shop.run(
        "CREATE TABLE shop.keyless (a INT, b INT, UNIQUE (a))",
        "CREATE TABLE shop.unique_key (a INT NOT NULL, UNIQUE (a))",
        "CREATE TABLE shop.old (id INT PRIMARY KEY) ENGINE = MyISAM",
        f"CREATE TABLE shop.line (id INT PRIMARY KEY, o INT, {TO_ORDERS} ON DELETE CASCADE)",
        f"CREATE TABLE shop.note (id INT PRIMARY KEY, o INT, CONSTRAINT `x ON DELETE CASCADE` {TO_ORDERS})",
    )
    findings = check_source(config_of(shop))
    (keyless,) = named(findings, "no_key", "info")
    assert "shop.keyless" in keyless.what
    assert "shop.unique_key" not in keyless.what
    (engine,) = named(findings, "engine", "warning")
    assert "shop.old of engine MyISAM" in engine.what
    run_mend(shop, engine)
    assert named(check_source(config_of(shop)), "engine") == []
    if shop.kind in LOGS_CASCADES:
        assert named(findings, "foreign_key") == []
        return
    (cascade,) = named(findings, "foreign_key", "warning")
    assert "shop.line" in cascade.what
    assert "shop.note" not in cascade.what
    run_mend(shop, cascade)
    assert named(check_source(config_of(shop)), "foreign_key") == []


def test_what_a_foreign_key_deletes_is_in_no_log_of_older_servers(shop):
    """The reason for that warning, and for leaving it out from MySQL 9.6 on."""
    shop.run(
        f"CREATE TABLE shop.line (id INT PRIMARY KEY, o INT, {TO_ORDERS} ON DELETE CASCADE)",
        "INSERT INTO shop.orders VALUES (1, '')",
        "INSERT INTO shop.line VALUES (7, 1)",
        "FLUSH LOGS",
        "DELETE FROM shop.orders",
    )
    assert shop.query("SELECT COUNT(*) FROM shop.line") == [(0,)]
    events = shop.query(f"SHOW BINLOG EVENTS IN '{shop.position()[0]}'")
    deletes = [row for row in events if row[2].startswith("Delete_rows")]
    assert len(deletes) == (2 if shop.kind in LOGS_CASCADES else 1)


def test_patterns_that_may_fit_tables_that_cannot_be_seen_are_named(shop):
    shop.query("CREATE TABLE shop.secret (id INT PRIMARY KEY)")
    shop.run(
        f"REVOKE SELECT ON *.* FROM '{shop.capture_user}'@'%'",
        f"GRANT SELECT ON shop.orders TO '{shop.capture_user}'@'%'",
    )
    (finding,) = named(check_source(config_of(shop)), "tables")
    assert (finding.severity, finding.mend.partition(" TO ")[0]) == ("warning", "GRANT SELECT ON *.*")
    assert "shop.* may fit tables that the user may not see" in finding.what
    shop.query(f"GRANT SELECT ON shop.* TO '{shop.capture_user}'@'%'")
    assert named(check_source(config_of(shop)), "tables") == []


def test_a_pattern_that_fits_nothing_tells_what_there_is(shop):
    (finding,) = named(check_source(config_of(shop, tables=["shpo.*"])), "tables")
    assert (finding.severity, finding.mend) == ("error", "correct `tables`")
    assert finding.what.startswith("no table fits shpo.*: there is none; databases with tables: ")
    assert "shop" in finding.what.partition("databases with tables: ")[2]


def test_tables_that_cannot_be_captured_are_named_before_a_start_stops_at_them(shop):
    if shop.flavor != "mariadb":
        pytest.skip("only MariaDB has versioned tables")
    shop.run(
        "CREATE TABLE shop.past (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        "CREATE TABLE shop.past_too (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
    )
    findings = named(check_source(config_of(shop)), "table", "error")
    assert [each.what.partition(" ")[0] for each in findings] == ["shop.past", "shop.past_too"]
    assert "exclude" in findings[0].what
    assert named(check_source(config_of(shop, exclude=["shop.past*"])), "table") == []


def test_a_column_that_is_left_out_is_no_fault(shop):
    shop.query("CREATE TABLE shop.wide (id INT PRIMARY KEY, v INT)")
    columns = {"shop.wide": {"exclude": ["v"]}}
    assert named(check_source(config_of(shop, columns=columns)), "table") == []
    (finding,) = named(check_source(config_of(shop, columns={"shop.wide": {"exclude": ["id"]}})), "table")
    assert "shop.wide" in finding.what


def test_a_generated_column_that_depends_on_the_time_zone_is_told(shop):
    shop.run(
        "CREATE TABLE shop.moments (id INT PRIMARY KEY, m TIMESTAMP NULL, d DATETIME, d1 DATE AS (DATE(m)), "
        "d2 DATETIME AS (FROM_UNIXTIME(id)), n2 INT AS (YEAR(d)), n3 VARCHAR(20) AS (CONCAT(id, ' `m` ')))"
    )
    if shop.flavor == "mariadb":  # MySQL refuses it
        shop.run("ALTER TABLE shop.moments ADD COLUMN n1 BIGINT AS (UNIX_TIMESTAMP(m)) VIRTUAL")
    (found,) = named(check_source(config_of(shop)), "time_zone", "warning")
    assert found.what.startswith("shop.moments.d1, shop.moments.d2: ")


def test_a_generated_primary_key_counts_though_the_catalogue_hides_it(plain_server):
    server = plain_server("mysql-8.0")
    server.run("DROP DATABASE IF EXISTS shop")
    make_shop(server)
    option = "show_gipk_in_create_table_and_information_schema"
    server.run(f"SET GLOBAL {option} = OFF")
    try:
        with server.connect(init_command="SET sql_generate_invisible_primary_key = ON") as connection:
            connection.query("CREATE TABLE shop.gipk (v INT)")
        assert named(check_source(config_of(server)), "no_key") == []
        source = MysqlSource("shop", config_of(server))
        source.identify()
        assert {table.source: table.key for table in source.tables()}["shop.gipk"] == ("my_row_id",)
        source.close()
    finally:
        server.run(f"SET GLOBAL {option} = ON", "DROP DATABASE shop")


def test_names_are_compared_as_the_server_compares_them(fresh, kind):
    if kind not in ("mariadb-10.11", "mysql-5.7"):
        pytest.skip("the servers of the tests are made with names of either case, which MySQL 8 keeps to")
    server = fresh(lines=["lower_case_table_names=1"])
    config = config_of(server, tables=["Shop.Orders"])
    assert named(check_source(config), "tables") == []
    assert config.unmatched(["shop.orders"]) == {}
    assert config.unmatched(["shop.other"]) == {"Shop.Orders": "tables"}
