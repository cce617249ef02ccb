"""The API of a dashboard: what each right and project may ask, what pages of others cannot, what comes of a change."""

import asyncio
import hashlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import jsonschema
import pytest
import yaml

from databus.core import ConfigError
from databus.dashboard import Dashboard, DashboardConfig, part_of_file, part_of_pipeline, part_of_relay
from databus.dashboard._endpoint_table import ENDPOINTS
from databus.dashboard._rights import DashboardRight, Principals
from databus.dashboard._sessions import SESSION_S, Sessions
from databus.link import Access
from tests.dashboard.parts import FILE, HOSTILE, WAIT_S, Pipeline, ask, now_us, wait_until
from tests.dashboard.running import MARK, Running, entry, token_of
from tests.relay.support import Database, scripted, state_of

RIGHTS = [str(right) for right in DashboardRight]
PRINCIPALS = [
    {"name": "ann", "rights": RIGHTS},
    {"name": "bill", "rights": RIGHTS, "projects": ["billing"]},
    *({"name": f"only-{right}", "rights": [right]} for right in RIGHTS),
    {"name": "foreign", "rights": RIGHTS, "projects": ["nothing"]},
]


@dataclass
class World:
    shop: Pipeline
    crm: Pipeline
    relay: Any
    running: Running

    def api(self, who: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any, dict[str, str]]:
        return self.running.api(path, body, token=token_of(who), **more)

    def state(self, output: str = "copy") -> str:
        (found,) = [
            each["state"]
            for each in self.api("ann", "/status")[1]["outputs"]
            if each["node"] == f"shop/outputs.{output}"
        ]
        return str(found)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    """A pipeline by its file, one by its address, and a relay."""
    folder = tmp_path_factory.mktemp("world")
    with (
        Pipeline(folder / "shop", "shop", "billing") as shop,
        Pipeline(folder / "crm", "crm", "sales", http="127.0.0.1:0") as crm,
        scripted(folder / "relay", {"erp": Database()}) as relay,
    ):
        for pipeline in (shop, crm):
            state = {"name": f"{pipeline.config.name}_db", "status": "running", "state": "RUNNING", "message": HOSTILE}
            pipeline.published.sources([state], "")
        parts = [
            part_of_file(shop.file),
            ("crm", part_of_pipeline(crm.url, Access())[1]),
            ("erp-relay", part_of_relay(relay.url, Access())[1]),
        ]
        with Running(folder / "dashboard", parts, PRINCIPALS) as running:
            made = World(shop, crm, relay, running)
            running.wait_for_outputs(4, token_of("ann"))
            wait_until(lambda: len(made.api("ann", "/status")[1]["sources"]) == 3)
            wait_until(lambda: len(made.api("ann", "/graph")[1]["nodes"]) == 11)
            yield made


def path_of(endpoint: Any, values: dict[str, str]) -> str:
    path = endpoint.path
    for name in endpoint.names:
        path = path.replace(f"{{{name}}}", quote(values[name], safe=""))
    return path


SHOP = {
    "pipeline": "shop", "output": "copy", "relay": "erp-relay", "source": "erp", "id": "x",
    "table": "shop_db/main.events",
}  # fmt: skip


def needed_by(endpoint: Any) -> dict[str, str]:
    """The parameters of an address without which nothing is answered."""
    return {each.name: {"pipeline": "shop"}.get(each.name, "id=1") for each in endpoint.parameters if each.is_required}


def body_of(endpoint: Any, values: dict[str, str]) -> dict[str, str] | None:
    if not endpoint.changes:
        return None
    given = {"reason": "a test", "token": "x", "tables": "main.orders", "minutes": "10"}
    confirm = values[endpoint.names[-1]] if endpoint.names else ""
    given["confirm"] = confirm + " but not quite"  # so that nothing is done
    return {each.name: given[each.name] for each in endpoint.parameters if each.is_required}


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.right], ids=lambda each: each.key)
def test_an_endpoint_answers_who_has_its_right_and_sees_its_project_alone(world, endpoint):
    path, method = path_of(endpoint, SHOP), endpoint.method
    if endpoint.path == "/events":
        return  # has a test of its own
    needed = {
        each.name: {"pipeline": "shop"}.get(each.name, "id=1") for each in endpoint.parameters if each.is_required
    }
    query = "" if endpoint.changes or not needed else f"?{urlencode(needed)}"
    body = {"reason": "a test", "surplus": 1} if endpoint.changes else None  # is refused when all else is checked
    for right in RIGHTS:
        status, said, _ = world.api(f"only-{right}", path + query, body, method=method)
        assert (status == 403) == (right != endpoint.right), (right, said)
    assert world.running.api(path + query, body, method=method)[0] == 401
    assert world.running.api(path + query, body, method=method, token=token_of("nobody"))[0] == 401
    if endpoint.names or query:
        whole = body_of(endpoint, SHOP)
        foreign = world.api("foreign", path + query, whole, method=method)
        absent = path_of(endpoint, {**SHOP, "pipeline": "absent", "relay": "absent", "id": "absent"})
        missing = world.api("ann", absent + query.replace("shop", "absent"), whole, method=method)
        assert foreign[0] == missing[0] == 404
        told = [
            each[1]["message"].replace("absent", "?").replace("shop", "?").replace("erp-relay", "?")
            for each in (foreign, missing)
        ]
        assert told[0].replace("'x'", "'?'") == told[1], "what is another's is as if it were not there"


def test_lists_hold_what_a_project_s_principal_sees(world):
    world.api("ann", "/outputs/crm/copy/resume", {"reason": "for the lists"})
    for path, name in (
        ("/graph", "nodes"),
        ("/status", "outputs"),
        ("/status", "sources"),
        ("/operations", "operations"),
    ):
        everything, mine, none = (world.api(who, path)[1][name] for who in ("ann", "bill", "foreign"))
        assert "crm" in json.dumps(everything), path
        assert "crm" not in json.dumps(mine), path
        assert none == [], path
    for path in ("/journal", "/audit", "/letters"):
        assert "crm" not in json.dumps(world.api("bill", path)[1])
    assert "crm" in json.dumps(world.api("ann", "/audit")[1])
    assert world.api("bill", "/metrics?node=crm/outputs.copy")[0] == 404


def test_an_output_is_paused_once_and_who_did_it_stands_in_both_logs(world):
    reason, key = "the disk is nearly full", {"Idempotency_Key": "k1"}
    body = {"reason": reason, "if_seen": "running"}
    status, operation, headers = world.api("bill", "/outputs/shop/copy/pause", body, **key)
    assert (status, operation["state"]) == (202, "done")
    assert world.api("bill", headers["location"].removeprefix("/api/v1"))[1] == operation
    wait_until(lambda: world.state() == "paused")
    assert world.api("bill", "/outputs/shop/copy/pause", body, **key)[1]["id"] == operation["id"]
    assert world.api("bill", "/outputs/shop/copy/resume", body, **key)[0] == 400, "the key meant something else"
    assert world.api("ann", "/outputs/shop/copy/pause", body)[0] == 412, "it is no longer running"
    assert world.api("ann", "/outputs/shop/copy/resume", {"reason": "done"})[0] == 202
    wait_until(lambda: world.state() == "running")
    entries = [each for each in world.api("bill", "/audit")[1]["entries"] if each["asked"].get("reason") == reason]
    assert {each["where"] for each in entries} == {"shop", "dashboard"}
    done = {each["where"]: each for each in entries if each["result"] == "done"}
    assert done["dashboard"]["who"] == {"principal": "bill", "address": "127.0.0.1"}
    assert done["dashboard"]["asked"]["target"] == "shop/outputs.copy"
    assert done["shop"]["who"]["principal"] == "bill"
    assert done["shop"]["who"]["asker"].startswith("process ")
    refused = [each for each in entries if each["result"].startswith("StateDiffers")]
    assert {each["who"]["principal"] for each in refused} == {"ann"}


def test_a_source_is_paused_at_its_relay(world):
    body = {"reason": "index is being made", "if_seen": "running"}
    assert world.api("ann", "/sources/erp-relay/erp/pause", body)[0] == 202
    assert state_of(world.relay, "erp")["status"] == "paused"
    assert world.api("ann", "/sources/erp-relay/erp/pause", body)[0] == 412
    assert world.api("ann", "/sources/erp-relay/erp/resume", {"reason": "made"})[0] == 202
    body = {"reason": "look again", "tables": "main.orders"}
    assert world.api("ann", "/sources/erp-relay/erp/snapshot", body)[0] == 202
    assert (
        world.api("ann", "/sources/erp-relay/erp/snapshot", body, method="DELETE")[1]["action"]
        == "source cancel snapshot"
    )
    found = world.api("ann", "/sources/erp-relay/erp")[1]
    assert {"main.orders", "main.stock"} <= {each["table"] for each in found["tables"]}
    log = (world.relay.config.folder / "audit.jsonl").read_text()
    assert "dashboard: ann at 127.0.0.1" in log
    assert "index is being made" in log
    assert "cancelSnapshot" in log


def test_an_output_is_throttled_until_it_is_resumed(world):
    path, body = "/outputs/shop/hook", {"reason": "the target is slow", "rows": 500}
    assert world.api("bill", f"{path}/throttle", {"reason": "x"})[0] == 400, "to what?"
    assert world.api("bill", f"{path}/throttle", {**body, "rows": 0})[0] == 400
    assert world.api("bill", f"{path}/throttle", body)[1]["state"] == "done"

    def throttle():
        (found,) = [each for each in world.api("bill", "/status")[1]["outputs"] if each["node"] == "shop/outputs.hook"]
        return found["throttle"]

    wait_until(lambda: throttle() == {"rows": 500})
    assert world.api("bill", f"{path}/resume", {"reason": "it is well"})[1]["state"] == "done"
    wait_until(lambda: throttle() == {})
    asked = [each["asked"] for each in world.api("bill", "/audit?pipeline=shop")[1]["entries"]]
    assert {"outputs": ["hook"], "rows": 500, "reason": "the target is slow"} in asked


def test_a_thousand_tables_of_an_output_are_found_by_name_and_page_by_page(world):
    plan = next(plan for plan in world.shop._plans if any("hook" in feed.output for feed in plan.feeds))
    tables = {f"main.t{number:04}": 1 for number in range(1_000)}
    told = {"event": "batch", "query": plan.name, "output": "hook", "rows": 1_000, "at_us": 1, "physical": "shop_db"}
    world.shop.published.take({**told, "tables": tables, "changes": [], "lag_ms": 1.0})
    path = "/outputs/shop/hook/tables"
    wait_until(lambda: world.api("ann", path)[1]["count"] == 1_000)
    assert world.api("ann", f"{path}?offset=950&limit=100")[1]["tables"] == [f"shop_db/{each}" for each in tables][950:]
    found = world.api("ann", f"{path}?like=T099&limit=3")[1]
    assert (found["count"], found["tables"][0], len(found["tables"])) == (10, "shop_db/main.t0990", 3)
    assert world.api("foreign", path)[0] == 404
    (output,) = [each for each in world.api("ann", "/status")[1]["outputs"] if each["node"] == "shop/outputs.hook"]
    assert "tables" not in output, "each tab is sent the status once a second"
    found = world.api("ann", "/sources/erp-relay/erp?like=STOCK")[1]
    assert ([each["table"] for each in found["tables"]], found["count"]) == (["main.stock"], 1)


def test_a_table_is_made_anew_by_who_has_typed_its_name_and_may(world):
    table = "shop_db/main.events"
    path, body = f"/tables/shop/copy/{quote(table, safe='')}/rebuild", {"reason": "it is wrong", "confirm": table}
    assert world.api("only-control", path, body)[0] == 403
    assert world.api("ann", path, {**body, "confirm": "copy"})[0] == 400
    done = world.api("ann", path, body)[1]
    assert (done["state"], done["result"]["tables"]) == ("done", [table])
    assert f"rebuild {table} of copy" in world.shop.asked


def test_what_stops_wants_its_name_typed(world):
    status, said, _ = world.api("ann", "/pipelines/crm/stop", {"reason": "end", "confirm": "shop"})
    assert (status, "'crm'" in said["message"]) == (400, True)
    assert world.crm.asked == [] or "databus stop" not in world.crm.asked
    assert world.api("ann", "/pipelines/crm/stop", {"reason": "end", "confirm": "crm"})[0] == 202
    assert "databus stop" in world.crm.asked


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"X-Databus-Dashboard": "0"}, 403),
        ({"Content-Type": "text/plain"}, 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
        ({"Host": "evil.example"}, 401),
        ({"Host": "evil.example:80"}, 401),
        ({"Host": "127.0.0.1.evil.example"}, 401),
        ({"Host": "[::1"}, 401),
    ],
    ids=str,
)
def test_pages_of_others_change_nothing(world, headers, status):
    cookie = world.api("", "/session", {"token": token_of("ann")})[2]["set-cookie"]
    assert all(each in cookie for each in ("HttpOnly", "SameSite=Strict", f"Max-Age={SESSION_S}", "Path=/"))
    ours = {"Cookie": cookie.partition(";")[0], "Origin": world.running.url, **MARK}
    before = world.state("hook")
    found = ask(world.running.url, "/api/v1/outputs/shop/hook/resume", {"reason": "x"}, headers={**ours, **headers})
    assert found[0] == status, found[1]
    assert world.state("hook") == before
    without_origin = {name: each for name, each in {**ours, **headers}.items() if name != "Origin"}
    path = "/api/v1/outputs/shop/hook/pause"
    assert ask(world.running.url, path, {"reason": "x"}, headers=without_origin)[0] in (400, 401, 403)


def test_a_page_of_another_site_reads_nothing(world):
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site"}, {"Host": "evil.example"}):
        told = ask(
            world.running.url, "/api/v1/status", headers={"Authorization": f"Bearer {token_of('ann')}", **headers}
        )
        assert told[0] in (401, 403)
        assert "access-control-allow-origin" not in told[2]
    page = ask(world.running.url, "/")
    policy = page[2]["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert page[2]["x-frame-options"] == "DENY"


HOSTILE_VALUES = (HOSTILE, "x" * 30_000, "\x00", "é", "-1", "9" * 40, "1e9", "true", "../..", "%2e%2e", " ", "'\"")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.key)
def test_whatever_is_sent_is_answered_as_described(world, endpoint):
    """Each parameter with values that are none: a sentence with a status that the description has, never a defect."""
    described = world.api("ann", "/openapi.json")[1]["paths"][f"/api/v1{endpoint.path}"][endpoint.method.lower()]
    if endpoint.path == "/events" or endpoint.key == "DELETE /session":
        return
    needed = {
        each.name: {"pipeline": "shop"}.get(each.name, "id=1") for each in endpoint.parameters if each.is_required
    }
    for value in HOSTILE_VALUES:
        asks: list[tuple[str, Any]] = []
        for each in endpoint.parameters:
            whole = {**(body_of(endpoint, SHOP) or {}), each.name: value}
            if endpoint.changes:
                asks += [(path_of(endpoint, SHOP), whole), (path_of(endpoint, SHOP), {**whole, each.name: [value]})]
            else:
                asks.append((f"{endpoint.path}?{urlencode({**needed, each.name: value})}", None))
        if endpoint.names:
            asks.append((path_of(endpoint, dict.fromkeys(endpoint.names, value)), body_of(endpoint, SHOP)))
        for path, body in asks:
            is_done = body is not None and "confirm" not in body and endpoint.right is not None
            sent = {**body, "if_seen": "never so"} if is_done else body  # nothing is done, whatever else is right
            status, said, _ = world.api("ann", path[:7_000], sent, method=endpoint.method)
            assert str(status) in described["responses"], (path[:200], sent, status, said)
            assert status in (200, 202, 503) or status < 500, said
            schema = {"type": "object"} if status == endpoint.status else {"required": ["error", "message"]}
            jsonschema.validate(said, schema)


def test_statuses_come_once_a_second_to_who_is_still_signed_in(world):
    value = world.api("", "/session", {"token": token_of("bill")})[2]["set-cookie"].partition(";")[0]
    connection = HTTPConnection(urlsplit(world.running.url).netloc, timeout=WAIT_S)
    connection.request("GET", "/api/v1/events", headers={"Cookie": value})
    answer = connection.getresponse()
    assert answer.status == 200
    for _ in range(2):
        assert answer.readline() == b"event: status\n"
        told = json.loads(answer.readline().removeprefix(b"data: "))
        assert {each["pipeline"] for each in told["outputs"]} == {"shop"}
        answer.readline()
    assert world.running.api("/session", cookie=value, method="DELETE")[0] == 200
    while answer.readline():
        pass
    connection.close()


def test_a_message_of_a_megabyte_or_of_no_text_costs_each_tab_little(world):
    message = HOSTILE + "\udcff" + "x" * (1 << 20)
    (plan, *_) = world.crm._plans
    refused = {f"crm_db/main.t{number}": message[:20_000] for number in range(300)}
    world.crm.published.take({"event": "refused", "query": plan.name, "output": "hook", "tables": refused})
    world.crm.published.take({"event": "failed", "query": plan.name, "message": message, "error": "E", "at_us": 1})

    def failed() -> Any:
        found = world.api("ann", "/status")[1]["outputs"]
        return [each for each in found if each["pipeline"] == "crm" and each["state"] == "failed"]

    (found, *_) = wait_until(failed)
    assert found["message"].startswith(HOSTILE)
    assert len(json.dumps(world.api("ann", "/status")[1])) < 400_000
    world.crm.look()


def test_a_message_is_shown_to_who_may_see_rows_and_its_class_and_place_to_the_others(world):
    failing = {"state": "SUSPENDED_ON_ERROR", "error": "UnrepresentableValue"}
    told_row = "shop_db/main.events: column born: 'the 3rd of Ann' is no date"
    (plan, *_) = world.shop._plans
    failed = {"event": "failed", "query": plan.name, "outputs": ["copy"], "error": "UnrepresentableValue", "at_us": 2}
    world.shop.published.take({**failed, "message": told_row})
    refused = {"event": "refused", "query": plan.name, "output": "copy", "tables": {"shop_db/main.t": told_row}}
    world.shop.published.take(refused)
    world.shop.published.sources([{"name": "shop_db", "status": "suspended", "message": told_row, **failing}], "")

    def told(who):
        return [
            json.dumps(world.api(who, path)[1]) for path in ("/status", "/journal", "/audit", "/operations", "/alerts")
        ]

    try:
        wait_until(lambda: "3rd of Ann" in told("ann")[0])
        assert "3rd of Ann" in told("ann")[1]
        for text in told("only-see"):
            assert "3rd of Ann" not in text
        assert "UnrepresentableValue at shop_db/main.events" in told("only-see")[0]
    finally:
        state = {"name": "shop_db", "status": "running", "state": "RUNNING", "message": HOSTILE}
        world.shop.published.sources([state], "")
        world.shop.published.take({**refused, "tables": {}})
        world.shop.look()


def test_the_values_in_a_statement_are_shown_to_who_may_see_rows(world):
    ddl = "ALTER TABLE orders ADD note text DEFAULT 'Ann' COMMENT 'see mysql://root:hunter2@db'"
    change = {"table": "main.orders", "kind": "schema", "pair": [5, 1], "ddl": ddl}
    told = {"event": "batch", "query": "q", "output": "copy", "rows": 0, "at_us": now_us(), "lag_ms": None}
    world.shop.published.take({**told, "physical": "shop_db", "tables": {}, "changes": [change]})

    def shown_to(who):
        events = world.api(who, "/journal")[1]["events"]
        return next(each for each in events if each.get("pair") == [5, 1])

    assert shown_to("only-see")["ddl"] == "ALTER TABLE (the right `rows` shows the statement)"
    assert shown_to("only-see")["source"] == "shop_db/main.orders"
    assert "DEFAULT 'Ann' COMMENT 'see mysql://(hidden)@db'" in shown_to("ann")["ddl"]


def test_a_link_signs_in_once_and_a_pipeline_that_does_not_run_is_shown(tmp_path):
    file = tmp_path / "databus.yml"
    file.write_text(FILE.format(name="shop", project="billing"))
    with Running(tmp_path / "dashboard", [part_of_file(file)]) as running:
        assert running.api("/status")[0] == 401
        (link,) = running.links
        token = link.partition("#once=")[2]
        status, _, headers = running.api("/session", {"token": token})
        assert status == 200
        cookie = headers["set-cookie"].partition(";")[0]
        assert running.api("/session", {"token": token})[0] == 401, "it was for once"
        assert running.api("/session", {"token": ""})[0] == 401
        assert len(running.links) == 2, "the next one is told where the dashboard was started"
        assert running.api("/session", cookie=cookie)[1]["principal"]["name"] == "owner"
        (part,) = wait_until(
            lambda: [each for each in running.api("/status", cookie=cookie)[1]["parts"] if each["seen_us"]]
        )
        assert (part["name"], part["state"]) == ("shop", "stopped")
        said = running.api("/pipelines/shop/reload", {"reason": "x"}, cookie=cookie)
        assert (said[0], "does not run" in said[1]["message"]) == (400, True)


def test_principals_that_are_wrong_are_refused_with_the_reason(tmp_path):
    twice = {"principals": [entry("ann"), {**entry("bill"), "name": "ann"}]}
    for value, why in (
        ({}, "principals"),
        ({"principals": []}, "principals"),
        (twice, "two have the name ann"),
        ({"principals": [{**entry("a"), "token_sha256": "abc"}]}, "token_sha256"),
        ({"principals": [{**entry("a"), "rights": ["all"]}]}, "rights"),
        ({"principals": [{**entry("a"), "token": "x"}]}, "token"),
    ):
        with pytest.raises(ConfigError, match=why):
            Principals.of(value, "principals.yml")
    with pytest.raises(ConfigError, match="can be reached by others"):
        Dashboard(DashboardConfig(("0.0.0.0", 0), [], tmp_path))  # noqa: S104


def test_a_port_that_is_taken_is_a_sentence(tmp_path):
    file = tmp_path / "databus.yml"
    file.write_text(FILE.format(name="shop", project="billing"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = DashboardConfig(taken.getsockname(), [part_of_file(file)], tmp_path)
        with pytest.raises(ConfigError, match="another program listens there"):
            asyncio.run(Dashboard(config).run())


def test_a_program_follows_no_longer_when_its_token_has_gone(tmp_path):
    file = tmp_path / "databus.yml"
    file.write_text(FILE.format(name="shop", project="billing"))
    with Running(tmp_path / "d", [part_of_file(file)], [{"name": "ann"}, {"name": "bot"}]) as running:
        connection = HTTPConnection(urlsplit(running.url).netloc, timeout=WAIT_S)
        connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token_of('bot')}"})
        answer = connection.getresponse()
        assert answer.readline() == b"event: status\n"
        running.file.write_text("principals: nobody")  # is no good, and changes nothing
        assert running.api("/status", token=token_of("bot"))[0] == 200
        running.file.write_text(yaml.safe_dump({"principals": [entry("ann")]}))
        while answer.readline():
            pass  # until it ends
        assert running.api("/status", token=token_of("bot"))[0] == 401
        assert running.api("/status", token=token_of("ann"))[0] == 200
        connection.close()


def test_a_session_ends_after_eight_hours():
    now = [0.0]
    sessions = Sessions(Principals.of({"principals": [entry("ann")]}, "f"), clock=lambda: now[0])
    first, _ = sessions.sign_in(token_of("ann"))
    now[0] = SESSION_S - 1
    second, _ = sessions.sign_in(token_of("ann"))
    assert sessions.of_cookie(first)
    now[0] = SESSION_S + 1
    assert sessions.of_cookie(first) is None
    assert sessions.of_cookie(second)


@pytest.mark.parametrize("other", [{"rights": ["see", "rows"]}, {"projects": ["billing"]}, {"token": "a new one"}])
def test_a_session_ends_when_its_principal_has_other_rights_projects_or_another_token(other):
    before = entry("ann")
    now = {**before, **other}
    if token := now.pop("token", None):
        now["token_sha256"] = hashlib.sha256(token.encode()).hexdigest()
    sessions = Sessions(Principals.of({"principals": [before]}, "f"))
    value, ann = sessions.sign_in(token_of("ann"))
    sessions.take(Principals.of({"principals": [before, entry("bob")]}, "f"))
    assert sessions.of_cookie(value) == ann, "somebody else has come"
    sessions.take(Principals.of({"principals": [now]}, "f"))
    assert (sessions.of_cookie(value), sessions.knows(ann)) == (None, False)
