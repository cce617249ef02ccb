"""Settings that every test shares. Fixtures that need servers or Spark are in tests/conftest.py."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

# Derandomized: the same examples in each run of `make test`; the soak profile has other ones each time. By kernels that
# check each access (tests/mysql/test_checked.py) fewer are tried.
# No deadline: no timed assertions in tests. The blob that is printed on failure reproduces the example.
settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", settings.get_profile("default"), derandomize=False, print_blob=True, max_examples=2000
)
settings.register_profile("checked", settings.get_profile("default"), max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Examples are looked for in the modules that have any: each worker of a run would search others too."""
    found = yield
    return [each for each in found if not isinstance(each, DoctestModule) or ">>>" in file_path.read_text()]


class _Failures:
    """Tells a failure when it happens: a run that is killed later has said by then what failed."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)")
            self._terminal.write_line(report.longreprtext[-2000:])


@pytest.hookimpl(trylast=True)  # the terminal is there then
def pytest_configure(config: pytest.Config) -> None:
    """Where there is a terminal; the workers of a run have none."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(terminal), "failures-at-once")
