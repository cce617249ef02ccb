"""A followed file keeps what every source promises."""

import pytest

from databus.sources.stream import StreamSource
from databus.testing import SourceSuite
from tests.stream_source.support import config_of, numbered


class FileHarness:
    is_snapshottable = False
    knows_its_history = True
    makes_its_transactions = True

    def __init__(self, folder):
        self._paths = [folder / "app.log", folder / "other.log"]
        for path in self._paths:
            path.touch()

    def make(self):
        return StreamSource("app", config_of(path=str(self._paths[0]), group_bytes_max=1024))

    def another(self):
        return StreamSource("app", config_of(path=str(self._paths[1])))

    def transact(self, number):
        for path in self._paths:
            with path.open("a") as file:
                file.write(numbered(number * 1000, number * 1000 + (300 if number % 3 == 0 else 3)))
                file.write("half a line; ")
            if number % 5 == 4:
                path.rename(path.with_name(f"{path.name}.{number}"))
                path.write_text("")


class TestFile(SourceSuite):
    @pytest.fixture
    def harness(self, tmp_path):
        return FileHarness(tmp_path)
