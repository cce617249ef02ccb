"""FILE is given to every command in the same way, and says where its relay is."""

import json
from pathlib import Path

import pytest
import typer

from databus.cli._app import app
from tests.client.conftest import captured, mock, relay_of  # noqa: F401 - a fixture
from tests.commands import databus, failed

ROOT = typer.main.get_command(app)
WITHOUT_FILE = {
    "archive", "bench", "bootstrap run", "bootstrap status", "dashboard", "demo", "init", "plugins list",
    "plugins show", "relay", "schema", "sqlite alter", "sqlite install", "sqlite remove", "sqlite status", "warm-up",
}  # fmt: skip


def commands(group=ROOT, before=""):
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def given(line, folder):
    """What a command line means: the file, and the rest."""
    words, command = [each.format(folder=folder) for each in line.split()], ROOT
    while getattr(command, "commands", None) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    params = command.make_context("databus", words, resilient_parsing=True).params
    (name,) = [each.name for each in command.params if "--file" in each.opts]
    return params.pop(name), {name: value for name, value in params.items() if value}


def test_every_command_takes_file_or_is_about_none():
    has_file = {name: any("--file" in each.opts for each in command.params) for name, command in commands()}
    assert {name for name, has in has_file.items() if not has} == WITHOUT_FILE


@pytest.mark.parametrize(
    ("line", "file", "rest"),
    [
        ("status my.yml", "my.yml", {}),
        ("status my.conf", "my.conf", {}),
        ("status", "databus.yml", {}),
        ("pause copy my.yml", "my.yml", {"outputs": ["copy"]}),
        ("pause my.yml copy other", "my.yml", {"outputs": ["copy", "other"]}),
        ("pause copy", "databus.yml", {"outputs": ["copy"]}),
        ("pause -f my.yml copy", "my.yml", {"outputs": ["copy"]}),
        ("rebuild copy main.orders --yes", "databus.yml", {"output": "copy", "tables": ["main.orders"], "yes": True}),
        ("rebuild {folder}/conf.d copy", "{folder}/conf.d", {"output": "copy"}),
        ("check-source shop", "databus.yml", {"physical": "shop"}),
        ("position set shop binlog.7:4 relay.yaml", "relay.yaml", {"physical": "shop", "place": "binlog.7:4"}),
        ("dead-letters show my.yml search", "my.yml", {"output": "search"}),
        ("compare other", "databus.yml", {"output": "other"}),
        ("compare --relay-config relay.yml", "databus.yml", {"relay_config": "relay.yml", "output": "copy"}),
        ("tail shop/main.orders -n 3 my.yml", "my.yml", {"tables": ["shop/main.orders"], "count": 3}),
        ("sources my.yml", "my.yml", {}),
        ("sources pause shop my.yml", "my.yml", {"physicals": ["shop"]}),
    ],
)
def test_file_is_a_word_of_any_place(line, file, rest, tmp_path):
    (tmp_path / "conf.d").touch()
    found, others = given(line, tmp_path)
    assert str(found) == file.format(folder=tmp_path)
    others = {name: str(value) if isinstance(value, Path) else value for name, value in others.items()}
    assert {name: value for name, value in others.items() if name in rest} == rest


def test_the_relay_is_that_of_the_file(relay_of, tmp_path, monkeypatch):  # noqa: F811
    relay = relay_of(shop=mock(transactions_total=2))
    captured(relay, 2)
    (tmp_path / "databus.yml").write_text(
        f"relay: {{url: '{relay.url}'}}\ninputs: {{shop: {{type: databus}}}}\n"
        "outputs: {copy: {type: files, from: shop, path: '${env:NOT_SET}'}}\n"
    )
    relays = "listen: '127.0.0.1:0'\nfolder: relay\nsources: {shop: {type: mock}}\n"
    (tmp_path / "relay.yml").write_text(relays)
    names = [each["name"] for each in json.loads(databus("sources", "--json", cwd=tmp_path).stdout)]
    assert names[0] == "shop/main.t0"
    assert [
        each["name"] for each in json.loads(databus("sources", "relay.yml", "--json", cwd=tmp_path).stdout)
    ] == names
    with monkeypatch.context() as elsewhere:  # of which a file that is named knows nothing
        elsewhere.setenv("DATABUS_RELAY", "http://127.0.0.1:1")
        found = json.loads(databus("sources", "relay.yml", "--json", cwd=tmp_path).stdout)
        assert [each["name"] for each in found] == names
        assert "127.0.0.1:1" in failed(databus("sources", "--json", cwd=tmp_path), 75)
    (tmp_path / "other.yml").write_text(relays.replace("folder: relay", "folder: other"))
    assert "its relay does not run" in failed(databus("tail", "other.yml", cwd=tmp_path), 75)
    for text in ("90000d", "1970-01-01T00:00Z"):
        said = databus("tail", "--since", text, "--no-follow", "--json", "shop/main.t0", cwd=tmp_path)
        assert json.loads(said.stdout.splitlines()[0])["_commit_version"] == 1
    assert "only one" in failed(databus("tail", "--since", "1h", "--from", "latest", cwd=tmp_path), 2)
    assert "neither a time" in failed(databus("tail", "--since", "yesterday", cwd=tmp_path), 2)


def test_help_has_every_command_in_a_group():
    assert sorted(ROOT.list_commands(None)) == sorted(ROOT.commands)
    said = databus("--help").stdout
    places = [said.index(f" {panel} ─") for panel in ("Start", "Look", "Steer", "Repair")]
    assert places == sorted(places)
    assert "─ Commands ─" not in said
