"""Connecting: what is verified, what each failure is called, and that no secret shows."""

import socket

import pymysql
import pytest

from databus.core import ConfigError, InputError, ServiceUnavailable
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server import account_of, ask, connect, gtids_at, scheme_of, server_facts, socket_of, telling
from databus.testing import TcpProxy
from tests.certificates import server_certificates

SECRET = "s3cret'\"`\\"  # noqa: S105 - of a user of the tests


def config_of(server, **options):
    login = {"user": server.capture_user, "password": server.capture_password}
    return MysqlConfig(**{"hosts": [f"127.0.0.1:{server.port}"], **login, **options})


@pytest.fixture
def dead():
    """The address of a port where nobody listens, and which nobody else gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_a_session_does_not_depend_on_the_servers_defaults(server):
    with connect(config_of(server)) as connection:
        (row,) = ask(connection, "SELECT @@time_zone z, @@sql_mode m, @@autocommit a, @@character_set_results c")
        assert row == {"z": "+00:00", "m": "", "a": 1, "c": "utf8mb4"}
        assert isinstance(socket_of(connection), socket.socket)
        assert account_of(connection) == f"'{server.capture_user}'@'%'"


def test_the_password_may_be_in_a_file(server, tmp_path):
    path = tmp_path / "password"
    path.write_text(server.capture_password + "\n")
    connect(config_of(server, password="", password_file=str(path))).close()
    with pytest.raises(ConfigError, match="gone"):
        connect(config_of(server, password="", password_file=str(tmp_path / "gone")))


@pytest.mark.parametrize(
    ("kind", "plugin"),
    [
        ("mysql-8.0", "caching_sha2_password"),
        ("mysql-8.0", "mysql_native_password"),
        ("mysql-8.0", "sha256_password"),
        ("mysql-5.7", "mysql_native_password"),
        ("mariadb-10.11", "mysql_native_password"),
    ],
)
def test_each_way_to_log_in_works_over_plain_tcp(plain_server, kind, plugin):
    server = plain_server(kind)
    name = f"by_{plugin}"
    word = SECRET.replace("\\", "\\\\").replace("'", "''")
    way = f"VIA {plugin} USING PASSWORD('{word}')" if kind.startswith("mariadb") else f"WITH {plugin} BY '{word}'"
    server.run(f"DROP USER IF EXISTS {name}", f"CREATE USER {name} IDENTIFIED {way}")
    for _ in range(2):  # the second time the server has it in its cache
        with connect(config_of(server, user=name, password=SECRET)) as connection:
            assert ask(connection, "SELECT 1 AS one") == [{"one": 1}]


def test_a_wrong_password_is_wrong_input_and_is_not_shown(server):
    with pytest.raises(InputError, match="Access denied") as raised:
        connect(config_of(server, password=SECRET))
    assert f"127.0.0.1:{server.port}: connecting" in str(raised.value)
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r}"


def test_an_unknown_host_is_wrong_input_and_a_dead_one_is_not(dead):
    with pytest.raises(InputError, match="no such host"):
        connect(MysqlConfig(hosts=["no-such-host.invalid:3306"], user="x"))
    with pytest.raises(ServiceUnavailable, match="connection refused"):
        connect(MysqlConfig(hosts=[dead], user="x"))


def test_the_first_host_that_answers_is_taken_and_all_failures_are_told(server, dead):
    alive = f"127.0.0.1:{server.port}"
    connect(config_of(server, hosts=[dead, alive])).close()
    with pytest.raises(ServiceUnavailable, match=r"connection refused.*Access denied"):
        connect(config_of(server, hosts=[dead, alive], password=SECRET))
    with pytest.raises(InputError, match="Access denied"):
        connect(config_of(server, hosts=[alive, alive], password=SECRET))


def test_a_server_that_says_nothing_is_unavailable_in_time(server):
    with TcpProxy("127.0.0.1", server.port) as proxy:
        config = config_of(server, hosts=[f"127.0.0.1:{proxy.port}"])
        with connect(config, read_ms_max=300) as connection:
            proxy.is_silent = True
            with pytest.raises(ServiceUnavailable), telling("here", "asking"):
                ask(connection, "SELECT 1")
        with pytest.raises(ServiceUnavailable):
            connect(config.model_copy(update={"connect_ms_max": 300}))


def test_a_connection_that_is_cut_is_unavailable(server):
    with TcpProxy("127.0.0.1", server.port) as proxy:
        connection = connect(config_of(server, hosts=[f"127.0.0.1:{proxy.port}"]))
        proxy.cut()
        with pytest.raises(ServiceUnavailable, match="here: asking"), telling("here", "asking"):
            ask(connection, "SELECT 1")
        proxy.truncate_after(30)
        with pytest.raises(ServiceUnavailable):
            connect(config_of(server, hosts=[f"127.0.0.1:{proxy.port}"]))


def test_a_session_that_is_killed_is_unavailable(server):
    connection = connect(config_of(server))
    server.query(f"KILL {connection.thread_id()}")
    with pytest.raises(ServiceUnavailable), telling("here", "asking"):
        ask(connection, "SELECT 1")


def test_a_server_that_has_too_many_connections_is_unavailable(kind, new_server):
    server = new_server(kind, lines=["max-connections=10"])
    held = []
    with pytest.raises(ServiceUnavailable, match="Too many connections"):
        while len(held) < 20:
            held.append(connect(config_of(server)))
    for each in held:
        each.close()


def test_what_the_user_may_not_do_is_wrong_input(server):
    connection = connect(config_of(server))
    with pytest.raises(InputError, match="denied"), telling("here", "asking"):
        ask(connection, "CREATE DATABASE forbidden")


@pytest.fixture(scope="module")
def secure(kind, tmp_path_factory):
    """A server with a certificate for `localhost`, and the authority's file."""
    from databus.testing.servers import ServerMissing, open_server

    if kind == "mysql-5.7":
        pytest.skip("mysql-5.7.22 from Maven is built with yaSSL, which speaks no TLS newer than 1.1")
    certificates = server_certificates(tmp_path_factory.mktemp("certificates"))
    server = open_server(kind, tmp_path_factory.mktemp(kind), certificates=certificates)
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server, str(certificates.ca)
    server.close()


def cipher(connection):
    return ask(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0]["Value"]


def test_tls_is_verified_by_default_and_a_wrong_name_is_refused(secure):
    server, ca = secure
    by_name = [f"localhost:{server.port}"]
    with connect(config_of(server, hosts=by_name, tls="on", tls_ca=ca)) as connection:
        assert cipher(connection)
    with connect(config_of(server, hosts=by_name, tls_ca=ca)) as connection:  # a CA alone means that it is on
        assert cipher(connection)
    with connect(config_of(server, tls="on", tls_ca=ca, tls_server_name="localhost")) as connection:
        assert cipher(connection)
    with pytest.raises(InputError, match=r"not trusted.*127\.0\.0\.1"):
        connect(config_of(server, tls="on", tls_ca=ca))
    with pytest.raises(InputError, match=r"not trusted.*tls_ca"):
        connect(config_of(server, hosts=by_name, tls="on"))
    with pytest.raises(InputError, match="not trusted"):
        connect(config_of(server, hosts=by_name, tls_ca=ca, tls="on", tls_server_name="elsewhere"))


def test_tls_without_verification_and_none_are_what_they_say(secure):
    server, _ = secure
    with connect(config_of(server, tls="unverified")) as connection:
        assert cipher(connection)
    with connect(config_of(server, tls="off")) as connection:
        assert cipher(connection) == ""


def test_a_server_that_insists_on_tls_says_so(secure):
    server, ca = secure
    server.query("SET GLOBAL require_secure_transport = ON")
    try:
        # MariaDB says no more than that.
        with pytest.raises(InputError, match="Access denied" if server.flavor == "mariadb" else "tls: on"):
            connect(config_of(server))
        connect(config_of(server, tls_ca=ca, tls_server_name="localhost")).close()
    finally:
        with server.connect(ssl={"ca": ca, "check_hostname": False}) as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL require_secure_transport = OFF")


def test_a_server_without_tls_gets_no_password_when_tls_is_on(kind, new_server):
    without = {"mariadb-10.11": [], "mysql-5.7": ["skip-ssl"]}  # MariaDB has none without a certificate
    server = new_server(kind, lines=without.get(kind, ["tls-version="]))
    with pytest.raises(InputError, match=r"TLS|SSL"):
        connect(config_of(server, tls="unverified"))


def test_a_ca_file_that_is_none_is_named(tmp_path):
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    for name in (str(path), str(tmp_path / "gone.pem")):
        with pytest.raises(ConfigError, match=f"tls_ca: {name}"):
            connect(MysqlConfig(hosts=["127.0.0.1:1"], user="x", tls="on", tls_ca=name))


def test_facts_tell_who_the_server_is_and_what_it_has(server, database):
    server.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", "FLUSH LOGS")
    with connect(config_of(server)) as connection:
        facts = server_facts(connection, "here")
        server.query(f"INSERT INTO {database}.t VALUES (1)")
        later = server_facts(connection, "here")
    assert facts.flavor == server.flavor
    assert facts.version_text.startswith(".".join(str(each) for each in facts.version))
    assert (facts.server_id, facts.gtid, scheme_of(facts)) == (
        server.server_id,
        "on",
        "domains" if server.flavor == "mariadb" else "gtid",
    )
    assert facts.executed == server.gtids() or later.executed == server.gtids()
    assert facts.uuid == later.uuid != ""
    assert (facts.file, facts.offset) < (later.file, later.offset) == server.position()
    assert facts.logs[-1].name == facts.file
    assert facts.has(facts.logs[0].name)
    assert not facts.has("binlog.999999")
    assert later.logs[-1].bytes == later.offset
    assert facts.checksum == "CRC32"
    assert facts.row_metadata == (None if server.kind == "mysql-5.7" else "FULL")


def test_facts_tell_what_was_purged(kind, new_server):
    server = new_server(kind)
    server.run("CREATE TABLE test.t (id INT PRIMARY KEY)", "FLUSH LOGS")
    before = server.gtids()
    server.run("INSERT INTO test.t VALUES (1)", "FLUSH LOGS")
    with connect(config_of(server)) as connection:
        assert server_facts(connection, "here").purged == ""
        server.query(f"PURGE BINARY LOGS TO '{server.binlogs()[1].name}'")
        facts = server_facts(connection, "here")
    assert facts.purged == before
    assert not facts.has("binlog.000001")


def test_the_gtids_at_a_place_of_the_log_tell_two_logs_of_mariadb_apart(new_server):
    server = new_server("mariadb-10.11", gtid=False)
    with connect(config_of(server)) as connection:
        server.query("CREATE TABLE test.t (id INT PRIMARY KEY)")
        file, offset = server.position()
        known = server.gtids()
        assert gtids_at(connection, file, offset) == known
        assert gtids_at(connection, file, 4) == ""
        assert gtids_at(connection, "binlog.999999", 4) is None
        server.reset_logs()
        server.run("SET GLOBAL server_id = 77", "CREATE TABLE test.u (id INT PRIMARY KEY)")
        assert gtids_at(connection, file, offset) != known


def test_an_error_that_nobody_expects_keeps_its_number(server):
    with connect(config_of(server)) as connection:
        with pytest.raises(Exception, match=r"here: asking: .*\(1064\)") as raised, telling("here", "asking"):
            ask(connection, "SELEKT 1")
        assert isinstance(raised.value.__cause__, pymysql.err.ProgrammingError)


def test_one_host_may_stand_without_a_list() -> None:
    assert MysqlConfig(hosts="db1", user="u").hosts == ["db1:3306"]  # type: ignore[arg-type]  # as a configuration may have it: one host
