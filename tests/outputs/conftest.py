"""Fresh Delta outputs."""

import pytest

from tests.outputs.harnesses import DeltaHarness


@pytest.fixture(params=["mirror", "history"])
def either(request, tmp_path):
    return DeltaHarness(tmp_path, request.param)


@pytest.fixture
def mirror(tmp_path):
    return DeltaHarness(tmp_path, "mirror")
