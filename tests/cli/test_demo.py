"""The demo keeps its word: identical at the end, and an exit code that tells."""

import re

import pytest

from tests.cli.test_cli import databus


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_demo_survives_its_kills_and_ends_identical(tmp_path):
    done = databus("demo", "--seconds", 6, "--keep", tmp_path / "demo", timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"source and copy identical: 4 tables, [\d,]+ rows, [\d,]+ changes, 2 kills survived", last), (
        done.stdout
    )
