"""Which worker takes which tests, and in which order."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.schedule import (
    GROUPS,
    Scheduling,
    arranged,
    as_recorded,
    groups_of,
    left_to_tiers,
    recorded,
    too_long_for_their_file,
    twins_left_out,
    write_groups,
)

TESTS = Path(__file__).parent


def item(file: str, *fixtures: str, tier: str = "", name: str = "test_a") -> pytest.Item:
    return SimpleNamespace(
        path=TESTS / file,
        nodeid=f"tests/{file}::{name}",
        fixturenames=fixtures,
        get_closest_marker=lambda marker: marker == tier,
    )


def test_files_that_share_a_fixture_are_one_group_and_the_dearer_one_decides():
    items = [item("a.py"), item("b.py", "kafka"), item("c.py", "kafka", "spark"), item("d.py", "other_kafka")]
    found = groups_of([*items, item("b.py", "tmp_path")])
    assert {path.name: group for path, group in found.items()} == {"b.py": "kafka", "c.py": "spark", "d.py": "kafka"}


def test_the_longest_group_comes_first_and_each_is_in_one_piece():
    items = [item("a.py"), item("b.py", "spark"), item("c.py"), item("d.py", "spark"), item("b.py")]
    seconds = {"a.py": 15.0, "b.py": 9.0, "c.py": 20.0, "c.py::test_a": 10.0, "d.py": 11.0, "d.py::test_b": 99.0}
    assert [each.path.name for each in arranged(items, seconds)] == ["c.py", "b.py", "b.py", "d.py", "a.py"]


def test_a_worker_s_word_on_groups_decides_which_worker_takes_a_file(tmp_path):
    file = tmp_path / "groups.json"
    write_groups({TESTS / "a" / "test_b.py": "spark"}, TESTS.parent, file)
    scheduling = Scheduling.__new__(Scheduling)
    scheduling._groups_file = file
    names = ["tests/a/test_b.py::test_c[x::y]", "tests/a/test_b.py::Test::test_d", "tests/a/test_c.py::test_c"]
    assert [*map(scheduling._split_scope, names)] == ["spark", "spark", "tests/a/test_c.py"]
    assert [path.name for path in tmp_path.iterdir()] == ["groups.json"]


def test_one_worker_of_this_run_alone_has_a_spark(tmp_path_factory):
    """Each would start one, with a server of each kind, as soon as pytest says otherwise which file a test is of."""
    workers = tmp_path_factory.getbasetemp().parent
    assert len([*workers.glob("popen-*/spark0")]) <= 1


def test_what_is_left_to_other_tiers_is_counted_by_folder():
    items = [
        item("a/x.py", tier="nightly"),
        item("a/y.py", tier="nightly"),
        item("b/x.py", tier="soak"),
        item("b/x.py"),
    ]
    assert left_to_tiers(items) == {"nightly": {"a": 2}, "soak": {"b": 1}}


def test_of_each_pair_of_servers_one_is_left_to_the_nights_and_half_of_them_either():
    def named(name, *marks):
        return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: mark in marks or None)

    pairs = [
        named(f"a.py::test_{number}[{kind}-x]") for number in range(200) for kind in ("mysql-8.0", "mariadb-10.11")
    ]
    alone = [named("a.py::test_b[mysql-8.0]"), named("a.py::test_c"), named("a.py::test_d[mysql-8.4]")]
    both = [named(f"a.py::test_e[{kind}]", "both_servers") for kind in ("mysql-8.0", "mariadb-10.11")]
    left = [each.nodeid for each in twins_left_out([*pairs, *alone, *both])]
    assert [name.partition("[")[0] for name in left] == [f"a.py::test_{number}" for number in range(200)]
    assert 60 < sum("mysql" in name for name in left) < 140


def test_of_a_long_file_the_quickest_tests_are_run_and_those_that_always_are():
    tests = [item("a.py", name=name) for name in ("test_8", "test_quick", "test_5", "test_6")]
    tests += [item("a.py", name="test_7", tier="always"), item("a.py", name="test_1", tier="soak"), item("b.py")]
    seconds = {"a.py": 1.0, "b.py::test_a": 19.0, **{f"a.py::test_{took}": float(took) for took in (5, 6, 7, 8)}}
    assert [each.nodeid for each in too_long_for_their_file(tests, seconds)] == ["tests/a.py::test_8"]


def test_what_is_recorded_are_long_tests_and_files():
    assert as_recorded({"a.py::b": 1.5, "a.py::c": 0.4, "a.py::d": 0.3}) == {"a.py::b": 1.5, "a.py": 0.7}


def test_this_run_is_arranged_and_only_of_files_that_are_there(request):
    pieces = Counter(path for path, before in _paths(request.session.items) if path != before)
    assert {path for path, count in pieces.items() if count > 1} == set()
    assert [name for name in recorded() if not (TESTS / name.partition("::")[0]).exists()] == []
    assert set(GROUPS.values()) == {"spark", "kafka", "search"}


def _paths(items):
    paths = [each.path for each in items]
    return zip(paths, [None, *paths], strict=False)
