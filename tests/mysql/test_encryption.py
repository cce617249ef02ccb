"""Logs that a server keeps encrypted: read through it as any other, and refused by name as files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from databus.core import ConfigError, UnsupportedFeature
from databus.testing._source_suite import Tape
from databus.testing.servers import SOAK_KINDS, Server, ServerMissing
from tests.mysql.following import Follower, Load, config_of, create
from tests.mysql.test_files import read, source_of

# MySQL 8.0 and 5.7 as they are had for tests come without a keyring
KINDS = ["mariadb-10.11", *(pytest.param(kind, marks=pytest.mark.soak) for kind in SOAK_KINDS)]


def _encrypting(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines for the option file of a server that may encrypt its log; the keys are in `folder`."""
    folder.mkdir()
    if "mariadb" in server.kind:
        keys = folder / "keys"
        keys.write_text(f"1;{'a7' * 32}\n")
        plugins = server.plugin_folder("file_key_management.so")
        load = [f"plugin-dir={plugins}", "plugin-load-add=file_key_management"]
        return [*load, f"file-key-management-filename={keys}", "encrypt-binlog=ON"]
    inside: Any = server
    *loader, program = inside._command()
    (folder / "mysqld").symlink_to(program)  # what it is to load is looked for beside it
    (folder / "mysqld.my").write_text(json.dumps({"components": "file://component_keyring_file"}))
    monkeypatch.setattr(server, "_command", lambda: [*loader, str(folder / "mysqld")])
    plugins = folder / "plugins"
    plugins.mkdir()
    shutil.copy(server.plugin_folder("component_keyring_file.so") / "component_keyring_file.so", plugins)
    keyring = json.dumps({"path": str(folder / "keys"), "read_only": False})
    (plugins / "component_keyring_file.cnf").write_text(keyring)
    return [f"plugin-dir={plugins}", "binlog-encryption=ON"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_encrypted_log_is_read_through_its_server_and_refused_as_a_file(
    kind: str, new_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = new_server(kind)
    try:
        lines = _encrypting(server, tmp_path / "keys", monkeypatch)
    except ServerMissing as missing:
        pytest.skip(str(missing))
    server.run("CREATE DATABASE shop")
    create(server, "shop")
    follower = Follower(config_of("shop", server), tmp_path / "source")
    try:
        with Load(server, "shop", 1) as load:
            load.wait_for(10, follower)
            with load.paused():
                server.restart(lines=lines)
            load.wait_for(20, follower)
            server.run("FLUSH BINARY LOGS")
            load.wait_for(10, follower)
            load.stop()
            follower.check(server, "shop")
    finally:
        follower.kill()
    plain, first, *_, last = paths = server.binlogs()
    both, alone = tmp_path / "both", tmp_path / "alone"
    both.mkdir()
    alone.mkdir()
    for path in paths:
        shutil.copy(path, both)
    shutil.copy(last, alone)
    tape = Tape()
    with pytest.raises(UnsupportedFeature, match=f"{first.name}.*encrypted.*through its server only"):
        read(source_of(both, "shop"), tape, tmp_path / "state")
    assert {group.commit.position["file"] for group in tape.groups if group.rows} == {plain.name}
    with pytest.raises((UnsupportedFeature, ConfigError), match=f"{last.name}.*encrypted.*through its server only"):
        read(source_of(alone, "shop"), Tape(), tmp_path / "state2")
