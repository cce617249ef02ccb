"""The servers that other tests rely on do what they promise."""

import os
import signal
import subprocess
import sys
import time

import pymysql
import pytest
from confluent_kafka import Consumer, Producer

from databus.core import ServiceUnavailable
from databus.testing.servers import (
    KINDS,
    SEARCH_KINDS,
    SOAK_KINDS,
    Kafka,
    ServerMissing,
    open_search_server,
    open_server,
)
from databus.testing.servers._ports import Port
from tests.certificates import server_certificates

FAMILIES = ["mariadb-10.11", "mysql-5.7"]  # the one of each that starts soonest: for what all kinds have from `Server`


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.soak) for kind in SOAK_KINDS)])
def kind(request):
    return request.param


@pytest.fixture
def make(kind, tmp_path):
    servers = []

    def new(**options):
        servers.append(open_server(kind, tmp_path / str(len(servers)), **options))
        try:
            servers[-1].start()
        except ServerMissing as missing:
            pytest.skip(str(missing))
        return servers[-1]

    yield new
    for each in servers:
        each.close()


def test_a_server_keeps_its_rows_and_port_over_restart_and_kill(make):
    server = make()
    port = server.port
    server.run("CREATE TABLE test.t (id INT PRIMARY KEY) ENGINE=InnoDB", "INSERT INTO test.t VALUES (1)")
    server.restart()
    server.query("INSERT INTO test.t VALUES (2)")
    server.kill()
    assert not server.is_running
    server.start()
    assert server.port == port
    assert server.query("SELECT id FROM test.t WHERE id > %s ORDER BY id", 0) == [(1,), (2,)]


def test_nobody_gets_the_port_of_a_server_that_is_down():
    held = [Port.claim() for _ in range(200)]
    assert len({port.number for port in held}) == 200
    for port in held:
        port.close()


def test_a_new_server_logs_rows_with_gtids_and_nothing_of_its_making(make):
    server = make()
    assert server.query("SELECT @@log_bin, @@binlog_format, @@binlog_row_image") == [(1, "ROW", "FULL")]
    assert server.gtids() == ""
    before = server.position()
    server.query("CREATE TABLE test.t (id INT PRIMARY KEY)")
    assert server.position() > before
    assert server.gtids().endswith(("-1", ":1"))
    assert [path.is_file() for path in server.binlogs()] == [True]


@pytest.mark.parametrize("kind", FAMILIES)
def test_two_servers_have_identities_of_their_own(make):
    first, second = make(), make()
    ask = "SELECT @@server_id" if first.flavor == "mariadb" else "SELECT @@server_id, @@server_uuid"
    assert set(first.query(ask)[0]).isdisjoint(second.query(ask)[0])


def test_a_replica_without_gtids_follows_and_takes_over(make):
    primary, replica = make(gtid=False), make(gtid=False)
    primary.run("CREATE TABLE test.t (id INT PRIMARY KEY)", "INSERT INTO test.t VALUES (1), (2)")
    replica.replicate_from(primary)
    replica.catch_up(primary)
    assert replica.query("SELECT COUNT(*) FROM test.t") == [(2,)]
    primary.kill()
    replica.promote()
    replica.query("INSERT INTO test.t VALUES (3)")
    assert replica.query("SELECT COUNT(*) FROM test.t") == [(3,)]


@pytest.mark.nightly
def test_after_a_failover_the_others_follow_the_new_primary_the_old_one_too(make):
    old, new, third = make(), make(), make()
    old.run("CREATE TABLE test.t (id INT PRIMARY KEY)", "INSERT INTO test.t VALUES (1)")
    for each in (new, third):
        each.replicate_from(old)
        each.catch_up(old)
    old.kill()
    new.promote()
    new.query("INSERT INTO test.t VALUES (2)")
    old.start()
    for each in (old, third):
        each.replicate_from(new)
        each.catch_up(new)
        assert each.query("SELECT COUNT(*) FROM test.t") == [(2,)]
        assert each.gtids() == new.gtids()


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_suspended_server_keeps_connections_and_answers_nothing(make):
    server = make()
    connection = server.connect(read_timeout=1)
    server.suspend()
    try:
        with pytest.raises(pymysql.err.OperationalError), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        server.resume()
    assert server.query("SELECT 1") == [(1,)]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_server_that_cannot_start_says_what_its_log_says(make):
    server = make()
    with pytest.raises(ServiceUnavailable, match=r"no.such.option"):
        server.restart(lines=["no-such-option=1"])


def test_a_server_shows_the_certificate_that_it_was_given(make, kind, tmp_path):
    if kind == "mysql-5.7":
        pytest.skip("mysql-5.7.22 from Maven is built with yaSSL, which speaks no TLS newer than 1.1")
    certificates = server_certificates(tmp_path / "certificates")
    server = make(certificates=certificates)
    connection = server.connect(host="localhost", ssl={"ca": str(certificates.ca), "check_hostname": True})
    with connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
        assert cursor.fetchall()[0][1].startswith("TLSv1.")


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_server_dies_with_the_process_that_started_it(make, kind, tmp_path):
    try:
        open_server(kind, tmp_path / "fetched").prepare()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    code = (
        "import sys, time; from pathlib import Path; from databus.testing.servers import open_server\n"
        "server = open_server(sys.argv[1], Path(sys.argv[2])); server.start(); print(server.pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, kind, str(tmp_path / "x")], stdout=subprocess.PIPE) as parent:
        server = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(server, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail(f"server {server} outlived its parent")


def test_a_servers_own_tool_prints_its_log(make):
    server = make()
    server.run("CREATE TABLE test.t (id INT PRIMARY KEY)", "INSERT INTO test.t VALUES (4711)")
    try:
        command = server.binlog_command()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    said = subprocess.run([*command, "-v", str(server.binlogs()[0])], capture_output=True, text=True, check=True)
    assert "@1=4711" in said.stdout


def test_a_server_that_cannot_be_had_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABUS_SERVERS", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match="no `mvn`"):
        open_server("mysql-8.0", tmp_path / "a").start()
    with pytest.raises(ServerMissing, match="this is no Debian"):
        open_server("mysql-9.7", tmp_path / "b").start()
    monkeypatch.setenv("DATABUS_SERVERS", "/proc/nowhere")
    with pytest.raises(ServerMissing, match="/proc/nowhere, which cannot be written"):
        open_server("mysql-8.0", tmp_path / "c").start()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SEARCH_KINDS)
def test_a_search_server_keeps_its_documents_and_port_over_stop_and_kill(kind, tmp_path):
    server = open_search_server(kind, tmp_path)
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with server:
        port = server.port
        assert server.ask("PUT", "/orders/_doc/1", {"id": 1})["result"] == "created"
        server.stop()
        assert not server.is_running
        server.start()
        server.ask("PUT", "/orders/_doc/2", {"id": 2})
        server.kill()
        server.start()
        assert server.port == port
        assert server.documents("orders") == {"1": {"id": 1}, "2": {"id": 2}}
        server.suspend()
        with pytest.raises(TimeoutError):
            server.ask("GET", "/", wait_s_max=0.2)
        server.resume()
        assert server.ask("GET", "/")["version"]["number"] in ("2.19.6", "6.8.23")


@pytest.mark.nightly
def test_kafka_keeps_its_messages_and_port_over_stop_and_kill_and_hides_aborted_ones(tmp_path):
    server = Kafka(tmp_path)
    try:
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with server:
        port = server.port
        writer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "t"})
        writer.init_transactions(30)
        for value, is_kept in (("one", True), ("two", False), ("three", True)):
            writer.begin_transaction()
            writer.produce("orders", value)
            writer.flush(30)
            (writer.commit_transaction if is_kept else writer.abort_transaction)(30)
        server.stop()
        assert not server.is_running
        server.start()
        server.kill()
        server.start()
        assert server.port == port
        group = {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        reader = Consumer({"bootstrap.servers": server.bootstrap, **group})
        reader.subscribe(["orders"])
        try:
            assert [each.value() for each in reader.consume(2, 60)] == [b"one", b"three"]
        finally:
            reader.close()
