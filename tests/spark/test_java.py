"""Which Java Spark takes, and what is said where it has none."""

from pathlib import Path

import pytest

from databus.core import ConfigError
from databus.spark import tuned_session
from databus.spark._jvm import locale_for_java


def test_a_java_home_without_a_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))  # Spark looks nowhere else, whatever the PATH has
    with pytest.raises(
        ConfigError, match=rf"JAVA_HOME is {tmp_path / 'gone'}, which has no bin/java; correct or unset"
    ):
        tuned_session("test", master="local[1]", folder=tmp_path)


@pytest.mark.parametrize(
    ("environ", "more"),
    [
        ({}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_CTYPE": "POSIX"}, {"LC_ALL": "C.UTF-8"}),
        ({"LANG": "de_DE.UTF-8"}, {}),
        ({"LC_ALL": "de_DE.ISO-8859-1", "LANG": "C"}, {}),
    ],
)
def test_java_reads_names_of_files_as_python_does(environ, more):
    assert locale_for_java(environ) == more
