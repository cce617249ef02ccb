"""Every built-in output passes the suite that users' own are put through."""

import pytest

from databus.testing import OUTPUT_CHECKS
from tests.outputs.harnesses import ChestHarness, ConsoleHarness, DeltaHarness, FilesHarness

MAKE = {
    "delta mirror": lambda folder, capture: DeltaHarness(folder, "mirror"),
    "delta mirror, small merges": lambda folder, capture: DeltaHarness(
        folder, "mirror", merge_rows_max=5, compact_every_commits=3, checkpoint_every_commits=2
    ),
    "delta history": lambda folder, capture: DeltaHarness(folder, "history"),
    "parquet": lambda folder, capture: FilesHarness(folder, "parquet"),
    "parquet, small files": lambda folder, capture: FilesHarness(folder, "parquet", rows_per_file_max=3),
    "json": lambda folder, capture: FilesHarness(folder, "json"),
    "console": ConsoleHarness,
    "direct, one bucket": lambda folder, capture: ChestHarness(folder, 1),
    "direct, three buckets": lambda folder, capture: ChestHarness(folder, 3),
}


SMALL = ("delta mirror, small merges", "parquet, small files")
"""The same outputs with other limits: a matter of the nights."""


@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in SMALL else ()) for name in MAKE]
)
def test_output_conforms(name, check, tmp_path, capsys):
    check(MAKE[name](tmp_path, capsys))
