"""Groups of a real relay, over HTTP: calls, waiting, operations, restarts and kills."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from databus.relay.groups import Listed, NameState
from databus.relay.groups._names import write_names
from tests.relay.support import Answer, Database, ask, get, order, post, published, sale, scripted

ANNE, BERT = "anne-aaaaaaaa", "bert-bbbbbbbb"


class Member:
    """Calls as a member does, one call at a time, with what it holds."""

    def __init__(self, relay: Any, uuid: str = ANNE, name: str = "billing", **always: Any) -> None:
        self.relay, self.uuid, self.name, self.always = relay, uuid, name, always
        self.number = 0
        self.holds: dict[str, Any] = {}
        self.places: dict[str, Any] = {}

    def call(self, **fields: Any) -> Answer:
        self.number += 1
        body = {"member": self.uuid, "call": self.number, "holds": self.holds, **self.always, **fields}
        answer = ask("POST", self.relay, f"/groups/{self.name}", body=json.dumps(body).encode())
        if answer.status == 200:
            self.holds = {n: {"fence": each["fence"]} for n, each in body["holds"].items()}
            for number, taken in answer.json["take"].items():
                self.holds[number] = {"fence": taken["fence"]}
                self.places[number] = taken["checkpoint"]
        return answer

    def saved(self, number: str, scn: int) -> dict[str, Any]:
        place = self.places[number]["sources"]["shop"]
        return {**self.holds[number], "checkpoint": {"v": 1, "sources": {"shop": {**place, "scn": scn}}}}


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    database = Database(groups=[order(scn) for scn in range(1, 6)])
    with scripted(tmp_path, {"shop": database}, groups={"lease_ms": 1_000}) as relay:
        published(relay, "shop", 5)
        yield relay


def test_a_group_begins_where_its_first_call_says_and_goes_on_where_it_saved(shop):
    member = Member(shop, start="beginning")
    answer = member.call().json
    assert (answer["lease_ms"], answer["partitions"], answer["give_up"], answer["pass"]) == (1_000, 1, [], {})
    assert member.places["0"]["sources"]["shop"]["scn"] == 0
    assert answer["take"]["0"]["of"] == 1
    assert member.call(holds={"0": member.saved("0", 3)}).status == 200
    assert member.call(leave=True).json["take"] == {}
    other = Member(shop, BERT)
    other.call()
    assert other.places["0"]["sources"]["shop"]["scn"] == 3


@pytest.mark.parametrize(
    ("start", "scn"),
    [("latest", 5), ("earliest", 0), ({"scn": 2}, 2), ({"time": 1_700_000_000_000_004}, 3)],
)
def test_where_a_group_begins_is_found_by_the_relay(shop, start, scn):
    member = Member(shop, start=start)
    assert member.call().status == 200
    assert member.places["0"]["sources"]["shop"]["scn"] == scn


def test_a_call_that_waits_is_answered_when_a_partition_is_given_back(shop):
    anne = Member(shop)
    anne.call()
    bert = Member(shop, BERT)
    bert.call()
    found: list[tuple[float, Answer]] = []

    def wait() -> None:
        while not bert.holds:
            answer = bert.call(wait_ms=60_000)
            found.append((time.monotonic(), answer))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    anne.call(leave=True)
    left = time.monotonic()
    waiting.join(20)
    assert found[-1][1].json["take"]
    assert found[-1][0] - left < 0.5


def test_refusals_say_what_is_wrong_over_http(shop):
    anne = Member(shop, sources=["shop/main.orders"])
    assert anne.call().status == 200
    answer = Member(shop, BERT, sources=["shop/main.stock"]).call()
    assert (answer.status, answer.json["error"]) == (409, "GroupDiffers")
    assert answer.json["differs"]["sources"]["group"] == ["shop/main.orders"]
    answer = anne.call(holds={"0": {"fence": 1}})
    assert (answer.status, answer.json["error"], answer.json["fenced"]) == (409, "Fenced", ["0"])
    anne.number = 0
    answer = anne.call()
    assert (answer.status, answer.json["error"], answer.json["last"]) == (409, "StaleCall", 1)
    answer = get(shop, "/groups/biling")
    assert answer.status == 404
    assert "did you mean 'billing'" in answer.json["message"]
    answer = anne.call(hold={})
    assert answer.status == 400
    assert "hold" in answer.json["message"]
    assert Member(shop, name=".x").call().status == 400
    assert Member(shop, name="new", start="someday").call().status == 400
    assert Member(shop, name="new", sources=["shop/main.nothing"]).call().status == 404
    answer = Member(shop, name="new", sources=["crm/main.orders"]).call()
    assert (answer.status, "does not capture crm" in answer.json["message"]) == (400, True)
    assert ask("PUT", shop, "/groups/billing").status == 405
    assert [each["name"] for each in get(shop, "/groups").json["groups"]] == ["billing"]


def test_a_checkpoint_of_somebody_else_names_the_physical_sources_that_the_coordinator_lacks(shop):
    checkpoint = {"v": 1, "sources": {"crm": {"scn": 7, "txid": "t7"}}}
    member = Member(shop, sources=["crm/main.orders"], start=checkpoint)
    assert member.call().status == 200
    assert member.places["0"]["sources"]["crm"]["scn"] == 7


def test_the_lag_of_every_partition_is_there_with_nobody_connected(shop):
    member = Member(shop, start="beginning", partitions=2)
    member.call()
    place = member.saved("1", 5)
    head = get(shop, "/position").json["position"]
    place["checkpoint"]["sources"]["shop"] = head
    member.call(holds={}, gives={"1": place}, leave=True)
    page = get(shop, "/groups/billing").json
    first, second = page["partitions"]
    assert first["lag"]["shop"]["changes"] == 5
    assert first["lag"]["shop"]["bytes"] > 0
    assert {**second["lag"]["shop"], "s": 0} == {"s": 0, "changes": 0, "bytes": 0, "retention_left_s": 604800.0}
    line = get(shop, "/groups").json["groups"][0]
    assert (line["members"], line["held"], line["lag"]["shop"]["changes"]) == (0, 0, 5)
    text = get(shop, "/metrics").body.decode()
    assert 'databus_group_lag_changes{group="billing",partition="0",physical="shop"} 5.0' in text
    assert 'databus_group_partitions_held{group="billing"} 0.0' in text


def test_an_operator_pauses_resets_resizes_exports_deletes_and_imports(shop, tmp_path):
    member = Member(shop, partitions=2)
    member.call()
    assert post(shop, "/groups/billing/reset", to="earliest").status == 409
    assert post(shop, "/groups/billing/pause").json["state"] == "paused"
    assert member.call().json["give_up"] == ["0", "1"]
    member.call(holds={})
    assert post(shop, "/groups/billing/reset", to="3").status == 200
    assert post(shop, "/groups/billing/resize", to=4).json["n"] == 4
    assert post(shop, "/groups/billing/resize", to=6).status == 400
    assert post(shop, "/groups/billing/resume").json["state"] == "running"
    member.call()
    assert {each["sources"]["shop"]["scn"] for each in member.places.values()} == {3}
    assert list(member.holds) == ["0", "1", "2", "3"]
    exported = get(shop, "/groups/billing/export")
    assert post(shop, "/groups/billing/delete").status == 409
    assert post(shop, "/groups/billing/delete", force=1).json == {"name": "billing", "state": "deleted"}
    assert member.call().json["error"] == "GroupStateLost"
    answer = ask("POST", shop, "/groups/billing/import", body=exported.body)
    assert (answer.status, len(answer.json["partitions"])) == (200, 4)
    audit = (tmp_path / "relay" / "audit.jsonl").read_text().splitlines()
    actions = [json.loads(line)["action"] for line in audit]
    assert actions[0] == "groups.reset"
    assert "GroupBusy" in json.loads(audit[0])["result"]
    assert {"groups.pause", "groups.resize", "groups.resume", "groups.delete", "groups.import"} <= set(actions)


def test_a_relay_that_does_not_coordinate_says_who_does(tmp_path):
    database = Database(groups=[order(1)])
    url = "http://relay-a.example:11115"
    with scripted(tmp_path, {"shop": database}, groups={"coordinator": url, "coordinates": False}) as relay:
        page = get(relay, "/groups").json
        assert (page["coordinator"], page["is_coordinator"], "groups" in page) == (url, False, False)
        for answer in (Member(relay).call(), get(relay, "/groups/billing"), post(relay, "/groups/billing/pause")):
            assert (answer.status, answer.json["error"], answer.json["coordinator"]) == (421, "OtherCoordinator", url)


def test_a_relay_finds_that_it_is_the_one_that_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = {"listen": f"127.0.0.1:{port}", "groups": {"coordinator": f"http://localhost:{port}"}}
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}, **options) as relay:
        published(relay, "shop", 1)
        assert get(relay, "/groups").json["is_coordinator"] is True
        assert Member(relay).call().status == 200


def test_what_a_relay_cannot_look_up_now_it_asks_again(tmp_path, monkeypatch):
    look_up = socket.getaddrinfo

    def fails(host: str, *given: Any, **more: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return look_up(host, *given, **more)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = {"listen": f"127.0.0.1:{port}", "groups": {"coordinator": f"http://localhost:{port}"}}
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}, **options) as relay:
        published(relay, "shop", 1)
        with monkeypatch.context() as patched:
            patched.setattr("databus.relay._group_commands.socket.getaddrinfo", fails)
            answer = Member(f"http://127.0.0.1:{port}").call()
            assert (answer.status, "localhost cannot be looked up" in answer.json["message"]) == (503, True)
        assert Member(relay).call().status == 200


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"where": "nope = 1"}, "has no column 'nope'"),
        ({"columns": "id,nope"}, "has no column 'nope'"),
        ({"where": "id ="}, "where: character"),
        ({"where": 5}, "where: "),
        ({"filters": '{"shop/main.order": {"where": "id = 1"}}'}, "did you mean 'shop/main.orders'"),
    ],
)
def test_a_name_is_not_made_with_filters_that_no_stream_would_take(shop, filters, says):
    for start in ("beginning", "latest"):
        refused = Member(shop, start=start).call(filters=filters)
        assert (refused.status, says in refused.json["message"]) == (400, True)
    assert get(shop, "/groups").json["groups"] == []
    assert Member(shop).call(filters={"where": "id = 1"}).status == 200


def test_a_body_that_was_sent_as_a_form_is_told_so(shop):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    refused = ask("POST", shop, "/groups/billing", form, b'{"member": "anne-aaaaaaaa", "call": 1}')
    assert (refused.status, "Content-Type: application/json" in refused.json["message"]) == (400, True)


def test_a_lost_name_of_another_access_is_not_made_to_begin_anew(tmp_path):
    access = [
        {"name": "ops", "token_file": "ops", "rights": ["read", "control"]},
        {"name": "clerk", "token_file": "clerk", "rights": ["read", "control"], "tables": ["shop/main.orders"]},
    ]
    for each in access:
        (tmp_path / each["name"]).write_text(f"token-of-{each['name']}\n")
    ops, clerk = ({"Authorization": f"Bearer token-of-{each['name']}"} for each in access)
    (tmp_path / "relay").mkdir()
    write_names(tmp_path / "relay", {"bills": Listed(NameState.KEPT, 1)})
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}, access=access) as relay:
        published(relay, "shop", 1)
        for path in ("delete?force=1", "reset?to=latest"):
            assert ask("POST", relay, f"/groups/bills/{path}", clerk).status == 403
        assert get(relay, "/groups", headers=ops).json["lost"] == ["bills"]
        assert ask("POST", relay, "/groups/bills/reset?to=latest", ops).status == 200


def test_who_sees_some_tables_only_sees_the_groups_of_its_own_access(tmp_path):
    for name in ("ops", "billing"):
        (tmp_path / name).write_text(f"token-of-{name}\n")
    access = [
        {"name": "ops", "token_file": "ops", "rights": ["read", "control"]},
        {"name": "billing", "token_file": "billing", "rights": ["read"], "tables": ["shop/main.orders"]},
    ]
    ops, billing = ({"Authorization": f"Bearer token-of-{name}"} for name in ("ops", "billing"))
    with scripted(tmp_path, {"shop": Database(groups=[order(1), sale(2)])}, access=access) as relay:
        published(relay, "shop", 2)

        def call(name: str, headers: Any, source: str = "shop/main.orders", **fields: Any) -> Answer:
            body = json.dumps({"member": ANNE, "call": 1, "sources": [source], **fields}).encode()
            return ask("POST", relay, f"/groups/{name}", headers, body)

        assert call("audit", ops).status == 200
        assert call("bills", billing).status == 200
        assert call("audit", billing).status == 403
        assert [each["name"] for each in get(relay, "/groups", headers=ops).json["groups"]] == ["audit", "bills"]
        assert [each["name"] for each in get(relay, "/groups", headers=billing).json["groups"]] == ["bills"]
        assert b'group="audit"' not in get(relay, "/metrics", headers=billing).body
        assert post(relay, "/groups/bills/pause", headers=billing).status == 403
        for hidden in ("shop/main.stock", "shop/main.stok", "stok"):  # said of each as of one that is not there
            refused = call("finds", billing, hidden)
            assert refused.status == 404
            assert "main.stock" not in refused.json["message"].replace(f"called {hidden!r}", "")
        for answer in (get(relay, "/groups/audt", headers=billing), get(relay, "/groups/audt/export", headers=billing)):
            assert (answer.status, "'audit'" in answer.json["message"]) == (404, False)
        assert "'audit'" in get(relay, "/groups/audt", headers=ops).json["message"]
        asked = {"member": ANNE, "call": 1, "sources": ["shop/main.stok"]}
        for headers, hint in ((billing, "main.orders"), (ops, "did you mean 'shop/main.stock'")):
            answer = ask("POST", relay, "/groups/new", headers, json.dumps(asked).encode())
            assert (answer.status, hint in answer.json["message"]) == (404, True)
            assert ("main.stock" in answer.json["message"]) == (headers is ops)
        exported = get(relay, "/groups/bills/export", headers=ops).body
        assert post(relay, "/groups/bills/delete", headers=ops, force=1).status == 200
        assert ask("POST", relay, "/groups/bills/import", ops, exported).status == 200
        assert call("bills", billing).status == 200, "it is still that of its access"


def test_what_a_pipeline_reports_is_shown_with_its_lag_and_nobody_can_join_it(shop):
    body = {"checkpoint": {"v": 1, "sources": {"shop": place_of(shop, 3)}}, "sources": ["shop/*"]}
    answer = ask("POST", shop, "/groups/shop.copy/report", body=json.dumps(body).encode())
    assert (answer.status, answer.json) == (200, {})
    (line,) = get(shop, "/groups").json["groups"]
    assert (line["name"], line["state"], line["members"]) == ("shop.copy", "reported", 0)
    assert line["lag"]["shop"]["changes"] == 2
    page = get(shop, "/groups/shop.copy").json
    assert (page["sources"], page["partitions"][0]["checkpoint"]["sources"]["shop"]["scn"]) == (["shop/*"], 3)
    metrics = get(shop, "/metrics").body.decode()
    assert 'databus_group_lag_changes{group="shop.copy",partition="0",physical="shop"} 2.0' in metrics
    assert 'databus_group_partitions_held{group="shop.copy"}' not in metrics  # it would look as if nobody worked
    assert Member(shop, name="shop.copy").call().json["error"] == "GroupDiffers"
    for refused in ({}, {"checkpoint": {"v": 1, "sources": {}}}, {**body, "lease": 1}):
        answer = ask("POST", shop, "/groups/shop.copy/report", body=json.dumps(refused).encode())
        assert answer.status == 400, answer


def place_of(relay: Any, scn: int) -> Any:
    return get(relay, f"/position?physical=shop&scn={scn}").json["position"]
