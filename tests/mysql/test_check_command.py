"""The command `databus check-source` as people and scripts use it."""

import json

import yaml

from tests.commands import databus


def run_command(path, *more):
    return databus("check-source", path, *more)


def test_it_prints_lines_or_json_and_exits_by_what_it_found(new_server, tmp_path):
    server = new_server("mariadb-10.11")
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
    source = {
        "type": "mysql",
        "hosts": [f"127.0.0.1:{server.port}"],
        "user": server.capture_user,
        "password": "${SHOP_PASSWORD:" + server.capture_password + "}",
        "tables": ["shop.*"],
    }
    path = tmp_path / "relay.yml"
    path.write_text(yaml.safe_dump({"sources": {"shop": source, "mock": {"type": "mock"}}}))
    fine = run_command(path)
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "durability: sync_binlog is 0" in fine.stdout
    assert "> SET GLOBAL sync_binlog = 1" in fine.stdout
    assert "shop; errors: 0, warnings: 0, hints: 1" in fine.stdout
    server.query("SET GLOBAL binlog_format = 'STATEMENT'")
    told = run_command(path, "shop", "--json")
    assert told.returncode == 1
    worst = json.loads(told.stdout)[0]
    assert (worst["source"], worst["severity"], worst["name"]) == ("shop", "error", "binlog_format")
    assert "binlog_format = 'ROW'" in worst["mend"]
    assert server.capture_password not in told.stdout + fine.stdout
    wrong = run_command(path, "shoop")
    assert wrong.returncode == 2
    assert 'did you mean "shop"' in wrong.stderr
