"""What several files of these tests begin with."""

from pathlib import Path

import pytest

from databus.relay import _capture
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=["in turn", "behind"])
def writing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a group is written before the next is asked for or, as large ones are, meanwhile; the rest is as ever."""
    if request.param == "behind":
        monkeypatch.setattr(_capture, "_BEHIND_BYTES_MIN", 0)
