"""`python -m databus.testing.servers`: what it takes, and a server to try things with."""

import re
import signal
import subprocess
import sys

import pymysql
import pytest

from databus.testing.servers import ServerMissing, open_server

COMMAND = [sys.executable, "-m", "databus.testing.servers"]


def test_its_help_names_every_server_and_another_name_is_refused_without_a_traceback():
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert all(kind in shown for kind in ("mariadb-10.11", "mysql-8.0", "kafka-4.3", "opensearch-2.19"))
    refused = subprocess.run([*COMMAND, "postgres"], capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 2
    assert "no server called 'postgres'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_server_that_was_started_answers_until_it_is_ended_also_behind_a_shell():
    behind = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    command = [*behind, *COMMAND, "--start", "mysql-5.7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        if not said:
            pytest.skip("this machine cannot have that server")
        found = re.fullmatch(r"mysql-5.7 answers at (.+):(\d+), user (\w+), password '(.*)'; Ctrl-C ends it\n", said)
        with pymysql.connect(host=found[1], port=int(found[2]), user=found[3], password=found[4]) as connection:
            assert connection.get_server_info().startswith("5.7")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_server_with_a_folder_has_its_data_and_its_port_when_it_is_started_there_again(tmp_path):
    try:
        open_server("mysql-5.7", tmp_path / "other").prepare()
    except ServerMissing as missing:
        pytest.skip(str(missing))  # which says why it cannot be had here
    ports = []
    for statement in ("CREATE TABLE test.kept (id INT PRIMARY KEY)", "INSERT INTO test.kept VALUES (1)"):
        command = [*COMMAND, "--start", "mysql-5.7", "--folder", "here"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            said = process.stdout.readline()
            found = re.search(r"at (.+):(\d+), user (\w+), password '(.*)';", said)
            with pymysql.connect(host=found[1], port=int(found[2]), user=found[3], password=found[4]) as connection:
                connection.cursor().execute(statement)
            ports.append(found[2])
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    assert ports[0] == ports[1]
