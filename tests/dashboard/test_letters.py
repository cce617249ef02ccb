"""Dead letters seen, replayed and dropped through a dashboard, by who may."""

from databus.dashboard import part_of_file
from databus.pipeline import OutputLetters
from databus.pipeline.trying._filter_tests import rows_given
from tests.dashboard.parts import FILE, HOSTILE, Pipeline, wait_until
from tests.dashboard.receiver import receiver
from tests.dashboard.running import Running, token_of
from tests.relay.support import ORDERS

__all__ = ["receiver"]
PRINCIPALS = [
    {"name": "ann", "rights": ["see", "rows", "control", "admin"]},
    {"name": "bill", "rights": ["see", "control"]},
]


def test_letters_are_replayed_and_dropped_by_who_may(tmp_path, receiver):
    receiver.heard.append(({}, b""))  # so that none is refused
    text = FILE.format(name="shop", project="billing").replace("127.0.0.1:9/", f"127.0.0.1:{receiver.server_port}/")
    (tmp_path / "databus.yml").write_text(text.replace("type: http,", "type: http, on_error: dead_letter,"))
    with (
        Pipeline(tmp_path) as shop,
        Running(tmp_path / "dashboard", [part_of_file(shop.file)], PRINCIPALS) as running,
    ):
        letters = OutputLetters(shop.graph, "hook")._letters
        for scn in (1, 2):
            row = {"id": scn, "name": HOSTILE, "_commit_version": scn}
            letters.put("shop_db/main.orders", ORDERS, rows_given("r", ORDERS, [row]), [(f"o{scn}", "no such note")])
        ann, bill = ({"token": token_of(name)} for name in ("ann", "bill"))
        wait_until(lambda: running.api("/status", **ann)[1]["outputs"])
        (count,) = wait_until(lambda: merged(running.api("/letters", **bill)[1]["counts"]))
        assert count == ("shop", "hook", "shop_db/main.orders", 2)
        assert running.api("/letters/rows?pipeline=shop&output=hook", **bill)[0] == 403
        found = running.api("/letters/rows?pipeline=shop&output=hook", **ann)[1]["letters"]
        assert [each["reason"] for each in found] == ["no such note"] * 2
        assert HOSTILE in found[0]["row"]

        reason = {"reason": "the target knows notes now"}
        nothing = running.api("/letters/shop/hook/replay", {**reason, "tables": "main.stock"}, **bill)[1]
        assert (nothing["state"], nothing["result"]["written"]) == ("done", 0)
        path = f"/operations/{running.api('/letters/shop/hook/replay', reason, **bill)[1]['id']}"
        done = wait_until(lambda: (now := running.api(path, **bill)[1])["state"] != "running" and now)
        assert (done["state"], done["result"]["written"], done["result"]["refused"]) == ("done", 2, 0)
        assert len(receiver.heard) > 1
        assert running.api("/letters", **bill)[1]["counts"] == []

        letters.put("shop_db/main.orders", ORDERS, rows_given("r", ORDERS, [{"id": 3, "name": "x"}]), [("o3", "no")])
        drop = {**reason, "confirm": "hook"}
        assert running.api("/letters/shop/hook/drop", {**drop, "count": 2}, **ann)[0] == 412, "another one has come"
        assert running.api("/letters/shop/hook/drop", drop, **bill)[0] == 403
        assert running.api("/letters/shop/hook/drop", {**drop, "confirm": "copy"}, **ann)[0] == 400
        assert running.api("/letters/shop/hook/drop", {**drop, "count": 1}, **ann)[1]["result"]["dropped"] == 1
        actions = [each["action"] for each in running.api("/audit?pipeline=shop", **ann)[1]["entries"]]
        assert actions == ["drop", "drop", "replay", "replay"]


def merged(counts):
    """By output and table, whatever the number of files."""
    return [(each["pipeline"], each["output"], each["table"], each["count"]) for each in counts]
