"""One dialect: the same changes by `/stream`, `databus tail`, the output `files` and the console are equal lines."""

import json
import subprocess
import sys
import urllib.request

import pytest

from databus.pipeline import run
from databus.schema import Column, TableSchema
from databus.testing import RelayProcess
from tests.schema.test_schema import EXTREMES
from tests.spark.script import control, insert, schema, transaction, write

TABLE = TableSchema("main.t", (Column("id", "int64"), *(Column(f"c {kind}", kind) for kind in EXTREMES)), ("id",))
OTHER = TableSchema("main.u", (Column("id", "uint64"), Column("f", "float64")), ("id",))


def extremes(index, **more):
    return {"id": index, **{f"c {kind}": values[index % len(values)] for kind, values in EXTREMES.items()}, **more}


def script():
    first = insert(TABLE, **extremes(2**53 - 1))
    before, after = (insert(TABLE, **extremes(i))["insert"] for i in (0, 1))
    nulls = insert(TABLE, id=2**53, **{f"c {kind}": None for kind in EXTREMES})
    yield transaction(schema(TABLE), schema(OTHER), first, insert(OTHER, id=2**64 - 1, f=float("nan")), nulls)
    yield transaction({"table": "main.t", "update": after, "before": before}, insert(OTHER, id=1, f=1e300))
    yield transaction(control(OTHER, "truncate", rows=2**60))
    yield transaction({"table": "main.t", "delete": after})


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relay")
    with RelayProcess(folder, {"shop": write(folder / "script.jsonl", script())}) as running:
        yield running


def streamed(relay, big_integers):
    asked = f"{relay.url}/stream?follow=1&start=beginning&to=4&big_integers={big_integers}"
    with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310 - our own relay
        lines = answer.read().decode().splitlines()
    assert json.loads(lines[-1])["_position"]["scn"] == 4
    return [line for line in lines if "_position" not in json.loads(line)]


def tailed(relay, *more):
    command = [sys.executable, "-m", "databus.cli", "tail", "--relay", relay.url, "--from", "beginning", "--json"]
    return subprocess.run([*command, *more], check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


def of_table(lines, name):
    return [line for line in lines if json.loads(line)["_source"] == f"shop/main.{name}"]


@pytest.mark.parametrize("big_integers", ["number", "string"])
def test_tail_prints_the_lines_of_the_stream(relay, big_integers):
    lines = streamed(relay, big_integers)
    assert tailed(relay, "-n", "7", "--big-integers", big_integers) == lines
    assert [json.loads(line).get("_change_type") for line in lines] == [
        *["insert"] * 3, "update_preimage", "update_postimage", "insert", None, "delete",
    ]  # fmt: skip
    first, other = json.loads(lines[0]), json.loads(lines[1])
    big = str if big_integers == "string" else int
    assert (first["id"], first["c uint64"], other["id"]) == (2**53 - 1, big(2**64 - 1), big(2**64 - 1))
    assert json.loads(lines[6])["_control"]["rows"] == big(2**60)
    assert (first["c timestamptz"], other["f"]) == ("9999-12-31T23:59:59.999999Z", "NaN")


def test_a_count_never_ends_between_the_two_lines_of_an_update(relay):
    assert tailed(relay, "-n", "4") == streamed(relay, "number")[:5]


@pytest.mark.spark
@pytest.mark.parametrize("big_integers", ["number", "string"])
def test_files_and_the_console_hold_the_lines_of_the_stream(spark, relay, tmp_path, capfd, big_integers):
    path = tmp_path / "databus.yml"
    path.write_text(
        f"name: lines\nrelay: {{url: '{relay.url}'}}\ninputs: {{shop: {{type: databus}}}}\n"
        "outputs:\n"
        f"  files: {{type: files, from: shop, path: out, format: json, big_integers: {big_integers}}}\n"
        "  console: {type: console, from: shop}\n"
    )
    assert run(path, once=True, session=spark) == 0
    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith('{"_source"')]
    for name in ("t", "u"):
        files = sorted((tmp_path / "out" / name).iterdir(), key=lambda each: each.name.lstrip("_"))
        written = [line for file in files for line in file.read_text().splitlines()]
        assert written == of_table(streamed(relay, big_integers), name)
        assert of_table(printed, name) == of_table(streamed(relay, "number"), name)
    read = spark.read.json(str(tmp_path / "out" / "t"))
    assert read.count() == 5
    assert {"_source", "_change_type", "c uint64"} < set(read.columns)
