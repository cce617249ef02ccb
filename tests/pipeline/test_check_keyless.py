"""A table without a key that a mirror is to follow is an error before Spark starts, with what to write."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from databus.cli._app import app
from databus.schema import Column, TableSchema
from databus.sources import Finding
from databus.sources.mysql import MysqlSource

SOURCE = {"type": "mysql", "hosts": ["db"], "user": "databus", "password": "secret"}
MIRROR = {"type": "delta", "from": "all", "mode": "mirror", "path": "copy"}


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose tables `shop.note` and `shop.line` have no key."""
    info = Finding("info", "no_key", "db:3306", "without a primary key", "ALTER ...")
    tables = [TableSchema(name, (Column("number", "int32"),), ()) for name in ("shop.note", "shop.line")]
    monkeypatch.setattr(MysqlSource, "check", staticmethod(lambda config: [info]))
    monkeypatch.setattr(MysqlSource, "definitions", staticmethod(lambda physical, config: tables))
    monkeypatch.setattr(MysqlSource, "warm_up", staticmethod(lambda physical, say: None))


def checked(folder: Path, outputs: dict[str, object], **options: object) -> tuple[int, list[str]]:
    """The exit code, and the errors."""
    path, named = folder / "databus.yml", options.pop("named", [])
    tables = {"type": "databus", "tables": ["shop/*"], **options}
    path.write_text(yaml.safe_dump({"sources": {"shop": SOURCE}, "inputs": {"all": tables}, "outputs": outputs}))
    found = CliRunner().invoke(app, ["check-source", *named, str(path)])
    return found.exit_code, [line for line in found.stdout.splitlines() if line.startswith("error")]


@pytest.mark.parametrize("named", [[], ["shop"]])
def test_each_table_that_a_mirror_cannot_follow_is_named_once_with_the_ways_out(
    tmp_path: Path, named: list[str]
) -> None:
    code, errors = checked(tmp_path, {"copy": MIRROR}, named=named)
    assert code == 1
    assert [each.partition("outputs.copy: ")[2][:39] for each in errors] == [
        "shop.line comes without a key, by which",
        "shop.note comes without a key, by which",
    ]
    assert "(`inputs: ... exclude: [shop.note]`)" in errors[1]


def test_what_a_mirror_is_not_given_or_has_a_key_for_is_no_error(tmp_path: Path) -> None:
    mirror = {**MIRROR, "key": {"shop.line": ["number"]}}
    assert checked(tmp_path, {"copy": mirror}, exclude=["shop.note"]) == (0, [])
    assert checked(tmp_path, {"log": {**MIRROR, "mode": "history"}}) == (0, [])
