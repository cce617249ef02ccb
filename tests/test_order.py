"""The order in which the files of tests run, and which of them one worker runs."""

from pathlib import Path

from tests.conftest import LONGEST_FIRST, SHARES_SPARK, scope_of


def test_each_file_that_is_to_come_first_is_there():
    assert [name for name in LONGEST_FIRST if not (Path(__file__).parent / name).is_file()] == []


def test_files_that_take_longest_come_first_and_each_stays_in_one_piece(request):
    seen = list(dict.fromkeys(item.path for item in request.session.items))
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    first = [ranks[path] for path in seen if path in ranks]
    assert first == sorted(first)
    assert [path for path in seen[: len(first)] if path not in ranks] == []
    pieces = [
        a.path for a, b in zip(request.session.items, request.session.items[1:], strict=False) if a.path != b.path
    ]
    assert len(pieces) == len(set(pieces))


def test_files_that_share_a_spark_session_are_one_workers(request):
    root = Path(__file__).parent
    shares = {item.path.relative_to(root).as_posix() for item in request.session.items if "spark" in item.fixturenames}
    assert {name for name in shares if not name.startswith(SHARES_SPARK)} == set()
    assert [name for name in SHARES_SPARK if not (root / name).exists()] == []
    assert {scope_of(f"tests/{name}::test_it[a::b]") for name in SHARES_SPARK} == {"spark"}
    assert scope_of("tests/log/test_log.py::test_it") == "log/test_log.py"
