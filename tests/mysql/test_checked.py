"""The tests of the kernels once more, by kernels that check every access to an array (NUMBA_BOUNDSCHECK=1)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TESTS = (
    "rows/test_images.py",
    "rows/test_bus.py",
    "snapshot/test_result.py",
    "binlog/test_accidents.py",
    "binlog/test_kernels.py",
    "binlog/test_packets.py",
)


def _check(tmp_path: Path, chosen: str, profile: str) -> None:
    words = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not soak", "-k", chosen, "--basetemp", str(tmp_path / "t")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *(str(FOLDER / name) for name in TESTS)],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "HYPOTHESIS_PROFILE": profile},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]


@pytest.mark.nightly
def test_no_kernel_leaves_an_array(tmp_path: Path) -> None:
    """Between walls of one kind, with fewer examples: the others are tried by kernels without checks."""
    _check(tmp_path, "not server and not in-front", "checked")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_kernel_leaves_an_array_whatever_the_example(tmp_path: Path) -> None:
    _check(tmp_path, "not server", "soak")
