"""docs/dbus.md names tests: each is there."""

import re
from pathlib import Path

PAGE = Path("docs/dbus.md").read_text(encoding="utf-8")


def test_every_defect_has_a_line_and_every_test_that_is_named_is_there():
    assert re.findall(r"^\| (\d+) \|", PAGE, re.M) == [str(number) for number in range(1, 23)]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    missing = [each for each in named if f"def {each[1]}(" not in Path(each[0]).read_text(encoding="utf-8")]
    assert missing == []
