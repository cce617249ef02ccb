"""Which Java Spark takes, and what is said where it has none."""

from pathlib import Path

import pytest

from databus.core import ConfigError
from databus.spark import tuned_session


def test_a_java_home_without_a_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))  # Spark looks nowhere else, whatever the PATH has
    with pytest.raises(
        ConfigError, match=rf"JAVA_HOME is {tmp_path / 'gone'}, which has no bin/java; correct or unset"
    ):
        tuned_session("test", master="local[1]", folder=tmp_path)
