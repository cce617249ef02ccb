"""Which worker of a run takes which tests, and when; and what a run says of its parts and of the other tiers.

`durations.json` has the seconds of each test that takes one or more, and what the others of its file take together, as
`pytest --record-durations` wrote them on a quiet machine.
The longest come first: one that began last would keep one worker busy, and the others idle.
"""

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUPS = {"spark": "spark", "kafka": "kafka", "other_kafka": "kafka", "search_servers": "search"}
"""Fixtures that cost seconds and live as long as a run: all files with a test that uses one are one worker's.
A file that uses two belongs to the first of these; its worker starts the second for itself.
"""
TIERS = ("nightly", "soak")
OLD_SERVERS = ("mysql-5.7", "elasticsearch-6.8")
"""Their tests are of the tier `nightly`, but for those marked `old_servers`: there these differ from the others."""
BOTH_SERVERS = ("mysql-8.0", "mariadb-10.11")
"""Of a test that there is for each of them, `make test` runs one, half of such tests this one and half that one; the
other is of the tier `nightly`. Those marked `both_servers` are run for both: there the two differ most.
"""
FILE_S_MAX = 20.0
"""Of each file `make test` runs what fits into so many recorded seconds, the quickest tests first, so that most are
run; the others are of the tier `nightly`. Those marked `always` are run whatever they take.
"""
_FOLDER = Path(__file__).parent
_RECORDED = _FOLDER / "durations.json"
_UNKNOWN_S = 10.0  # a file of which nothing is recorded is rather taken for a long one
_RECORDED_S_MIN = 1.0


def groups_of(items: Iterable[pytest.Item]) -> dict[Path, str]:
    """The group of each file whose tests use a fixture of `GROUPS`."""
    used: dict[Path, set[str]] = {}
    for item in items:
        used.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))
    return {path: GROUPS[shared] for path, names in used.items() for shared in reversed(GROUPS) if shared in names}


def is_of_an_old_server(item: pytest.Item) -> bool:
    """Whether a test's parameters name one, and nothing says that it must be tried on each."""
    parameters = getattr(getattr(item, "callspec", None), "id", "")
    return any(kind in parameters for kind in OLD_SERVERS) and item.get_closest_marker("old_servers") is None


def twins_left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Of each pair of tests that differ in the server alone, the one that is left to the nights. Which one follows from
    the test's name, so that every run leaves the same.
    """
    pairs: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        servers = [server for server in BOTH_SERVERS if server in item.nodeid]
        if len(servers) == 1 and item.get_closest_marker("both_servers") is None:
            pairs.setdefault(item.nodeid.replace(servers[0], "SERVER"), {})[servers[0]] = item
    return [
        pair[BOTH_SERVERS[zlib.crc32(name.encode()) % 2]]
        for name, pair in pairs.items()
        if len(pair) == len(BOTH_SERVERS)
    ]


def too_long_for_their_file(items: Iterable[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """The tests that are left to the nights because their file takes too long with them."""
    files: dict[Path, list[tuple[float, pytest.Item]]] = {}
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            files.setdefault(item.path, []).append((seconds.get(_id(item), 0.0), item))
    left = []
    for path, tests in files.items():
        total = seconds.get(_name(path), 0.0)
        total += sum(took for took, item in tests if item.get_closest_marker("always"))
        for took, item in sorted(tests, key=lambda test: test[0]):
            if took and not item.get_closest_marker("always"):
                total += took
                left += [item] if total > FILE_S_MAX else []
    return left


def arranged(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """`items` with what takes longest first; groups, and in them files, in one piece."""
    groups = groups_of(items)
    names = {path: groups.get(path, _name(path)) for path in dict.fromkeys(item.path for item in items)}
    totals: Counter[str] = Counter()
    known = {name.partition("::")[0] for name in seconds}
    for path, group in names.items():
        file = _name(path)
        totals[group] += seconds.get(file, 0.0) if file in known else _UNKNOWN_S  # type: ignore[assignment] - Counter adds floats as well
    for item in items:
        totals[names[item.path]] += seconds.get(_id(item), 0.0)  # type: ignore[assignment] - as above
    places = {path: place for place, path in enumerate(names)}
    return sorted(items, key=lambda item: (-totals[names[item.path]], names[item.path], places[item.path]))


def recorded() -> dict[str, float]:
    """Seconds by test, as `file::test[parameters]`, and of the other tests of a file, as `file`."""
    found: dict[str, float] = json.loads(_RECORDED.read_text())
    return found


def _name(path: Path) -> str:
    return path.relative_to(_FOLDER).as_posix() if path.is_relative_to(_FOLDER) else path.name


def _id(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")


def write_groups(groups: Mapping[Path, str], root: Path, to: Path) -> None:
    """How a worker tells the first process, which collects nothing itself, which files belong to a group. Every worker
    writes the same.
    """
    draft = to.with_name(f"{to.name}.{os.getpid()}")
    draft.write_text(json.dumps({path.relative_to(root).as_posix(): group for path, group in groups.items()}))
    draft.replace(to)


class Scheduling(LoadScopeScheduling):
    """A worker takes a whole group, or a whole file. groups_file: what the workers have written before they
    say what they have collected.
    """

    def __init__(self, config: pytest.Config, log: object, groups_file: Path) -> None:
        super().__init__(config, log)
        self._groups_file = groups_file

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups: dict[str, str] = json.loads(self._groups_file.read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return self._groups.get(file, file)


class Parts:
    """Adds up the seconds of a run by test, and what the workers left to the other tiers."""

    def __init__(self, *, is_recording: bool) -> None:
        self._is_recording = is_recording
        self._seconds: Counter[str] = Counter()
        self._left: dict[str, Counter[str]] = {tier: Counter() for tier in TIERS}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setting up and tearing down count too."""
        self._seconds[report.nodeid.removeprefix("tests/")] += report.duration  # type: ignore[assignment] - as above

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """In a run without workers."""
        self._add(left_to_tiers(items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """All workers leave the same: what one says is enough."""
        if not any(self._left.values()):
            self._add(getattr(node, "workeroutput", {}).get("left", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Where the time went, in seconds of the workers, and what a run of another tier adds."""
        parts: Counter[str] = Counter()
        for name, seconds in self._seconds.items():
            parts[name.partition("/")[0].partition("::")[0]] += seconds  # type: ignore[assignment] - as above
        terminalreporter.section("parts")
        terminalreporter.line("seconds: " + (_listed(parts) or "none"))
        for tier, left in self._left.items():
            if left:
                terminalreporter.line(f"`make {tier}` has {left.total():,} more tests: {_listed(left)}")

    def pytest_sessionfinish(self) -> None:
        """Tests that did not run keep what is recorded of them."""
        if self._is_recording:
            new = as_recorded(self._seconds)
            kept = {
                name: took
                for name, took in {**recorded(), **new}.items()
                if (_FOLDER / name.partition("::")[0]).exists() and (name in new or name not in self._seconds)
            }
            _RECORDED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")

    def _add(self, left: Mapping[str, Mapping[str, int]]) -> None:
        for tier, counts in left.items():
            self._left[tier].update(counts)


def as_recorded(seconds: Mapping[str, float]) -> dict[str, float]:
    """By test where it takes long, else by file."""
    found: Counter[str] = Counter()
    for name, took in seconds.items():
        found[name if took >= _RECORDED_S_MIN else name.partition("::")[0]] += took  # type: ignore[assignment] - as above
    return {name: round(took, 1) for name, took in found.items()}


def left_to_tiers(items: Iterable[pytest.Item]) -> dict[str, dict[str, int]]:
    """How many tests of each folder are of another tier."""
    left: dict[str, Counter[str]] = {tier: Counter() for tier in TIERS}
    for item in items:
        tier = next((name for name in reversed(TIERS) if item.get_closest_marker(name)), None)
        if tier is not None:
            left[tier][_name(item.path).partition("/")[0]] += 1
    return {tier: dict(counts) for tier, counts in left.items()}


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {round(count):,}" for name, count in counts.most_common() if round(count))
