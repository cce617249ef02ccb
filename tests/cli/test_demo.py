"""The demo keeps its word: identical at the end, and an exit code that tells."""

import re

import pytest

from databus.testing.servers import ServerMissing, open_server
from tests.cli.test_cli import databus

KINDS = {"mariadb": "mariadb-10.11", "mysql": "mysql-8.0"}


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("source", "kills"), [("sqlite", 2), ("mariadb", 3), pytest.param("mysql", 3, marks=pytest.mark.soak)]
)
def test_the_demo_survives_its_kills_and_ends_identical(source, kills, tmp_path):
    if source in KINDS:
        try:
            open_server(KINDS[source], tmp_path / "unused").prepare()
        except ServerMissing as missing:
            pytest.skip(str(missing))
    done = databus("demo", "--source", source, "--seconds", 6, "--keep", tmp_path / "demo", timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    expected = rf"source and copy identical: 4 tables, [\d,]+ rows, [\d,]+ changes, {kills} kills survived"
    assert re.fullmatch(expected, last), done.stdout
