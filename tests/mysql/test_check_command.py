"""The command `databus check-source` as people and scripts use it."""

import json

import yaml

from databus.pipeline import validate
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


PIPELINE = """
name: shop
inputs: {shop: {type: databus}}
filters:
  slim: {type: mask, from: shop, redact: [email], tables: [asked.people]}
  large: {type: sql, from: shop, table: asked.people, where: age > 7}
outputs:
  copy: {type: delta, from: slim, mode: mirror, path: lake/copy}
  large: {type: delta, from: large, mode: mirror, path: lake/large}
"""


def test_a_pipelines_names_are_looked_up_in_its_database(plain_server, tmp_path):
    server = plain_server("mariadb-10.11")
    people = "CREATE TABLE asked.people (id INT PRIMARY KEY, email TEXT, age INT)"
    server.run("DROP DATABASE IF EXISTS asked", "CREATE DATABASE asked", people)
    source = {
        "type": "mysql",
        "hosts": [f"127.0.0.1:{server.port}"],
        "user": server.capture_user,
        "password": server.capture_password,
        "tables": ["asked.*"],
    }
    path = tmp_path / "databus.yml"

    def problems(pipeline):
        path.write_text(pipeline + yaml.safe_dump({"sources": {"shop": source}}))
        return [str(each) for each in validate(path, asks_sources=True)]

    assert problems(PIPELINE) == []
    told = [
        'filters.large.where: asked.people has no column "aeg"; did you mean "age"?',
        'filters.slim.redact: shop/asked.people has no column "emial"; did you mean "email"?',
    ]
    found = problems(PIPELINE.replace("[email]", "[emial]").replace("age > 7", "aeg > 7"))
    assert [each.partition("?")[0] + "?" for each in found] == told
    for verb, code in (("validate", 2), ("check-source", 1)):
        ended = databus(verb, path, cwd=tmp_path)
        assert (ended.returncode, all(each in ended.stdout + ended.stderr for each in told)) == (code, True)
    server.run("CREATE TABLE asked.log (at INT)")
    (found,) = problems(PIPELINE)
    assert found.startswith("outputs.copy: asked.log comes without a key")
    server.run("DROP DATABASE asked")
