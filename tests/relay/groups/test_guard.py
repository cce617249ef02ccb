"""A guarded name keeps the log beyond its retention, up to a bound and never against the disk's; then it says so."""

from pathlib import Path
from typing import Any

import pytest

from tests.relay.groups.test_groups_http import Member
from tests.relay.support import Database, get, order, published, scripted, until

SEGMENTS = {"segment_bytes_max": 4_096, "retention_bytes_max": 8_192}


def oldest(relay: Any) -> int:
    capture = relay.captures["shop"]
    capture.log.retain()
    return int(capture.log.head().oldest.scn)


def fill(relay: Any, database: Database, first: int, last: int) -> None:
    database.add(*(order(scn, "x" * 500) for scn in range(first, last + 1)))
    published(relay, "shop", last)


@pytest.mark.parametrize("guard", [True, False])
def test_a_guard_keeps_what_a_name_has_not_saved_and_lets_go_of_the_rest(tmp_path: Path, guard: bool) -> None:
    database = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": database}, log=SEGMENTS) as relay:
        published(relay, "shop", 1)
        member = Member(relay, start="beginning", guard=guard)
        member.call()
        fill(relay, database, 2, 80)
        assert (oldest(relay) == 0) is guard
    with scripted(tmp_path, {"shop": database}, log=SEGMENTS) as relay:  # kept over a restart
        published(relay, "shop", 80)
        fill(relay, database, 81, 100)
        assert (oldest(relay) == 0) is guard
        member.relay = relay
        member.call(holds={"0": member.saved("0", 60)})
        if guard:
            until(lambda: 0 < oldest(relay) <= 60, "what was saved to go")


def test_a_guard_ends_at_its_bound_with_a_warning_and_a_metric(tmp_path, caplog):
    database = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": database}, log=SEGMENTS, groups={"guard_bytes_max": 100_000}) as relay:
        published(relay, "shop", 1)
        Member(relay, start="beginning", guard=True).call()
        fill(relay, database, 2, 20)
        assert oldest(relay) == 0
        fill(relay, database, 21, 160)
        assert oldest(relay) > 0
        until(lambda: "the guard of a group has ended" in caplog.text, "the warning")
        text = until(lambda: (page := get(relay, "/metrics").body.decode()) and page, "the page")
        assert "databus_group_guards_ended_total 1.0" in text
        assert 'databus_group_guard{group="billing"} 0.0' in text
