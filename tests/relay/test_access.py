"""What those who hold one token of several may do and see: what is out of reach does not exist for them."""

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from databus.client import windows
from databus.core import ConfigError
from databus.relay import Relay, mistakes_on_disk, parse_relay
from databus.schema import Column, TableSchema
from databus.wire import Commit, Group, OpenSnapshot
from tests.relay.support import (
    AT_US,
    ORDERS,
    STOCK,
    Answer,
    Database,
    ask,
    commit_of,
    get,
    order,
    path_of,
    published,
    rows_of,
    sale,
    scripted,
    until,
)

USERS = TableSchema("main.users", (Column("id", "int64"), Column("ssn", "string")), ("id",))
TOKENS = {name: f"token-of-{name}" for name in ("ops", "billing", "reader", "probe")}
ACCESS: list[dict[str, Any]] = [
    {"name": "ops", "token_file": "ops", "rights": ["read", "control"]},
    {"name": "reader", "token_file": "reader"},
    {"name": "probe", "token_file": "probe", "rights": []},
    {"name": "billing", "token_file": "billing", "rights": ["read", "control"], "tables": ["shop/main.orders"]},
]
OF_ALL = ("/config", "/chain")
HIDDEN = ("stock", "users", "ssn", "crm")


def user(scn: int) -> Group:
    return Group(commit_of(scn, 1), (rows_of(USERS, scn, [{"id": scn, "ssn": "756.1"}]),))


def write_tokens(folder: Path) -> None:
    for name, token in TOKENS.items():
        (folder / name).write_text(f"{token}\n")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """Two physical sources, of which `billing` sees one table."""
    folder = tmp_path_factory.mktemp("access")
    write_tokens(folder)
    shop = Database(tables=(ORDERS, STOCK, USERS), groups=[order(1), sale(2), user(3), order(4)])
    crm = Database(uuid="22222222-2222-2222-2222-222222222222", tables=(USERS,), groups=[user(1)])
    with scripted(folder, {"shop": shop, "crm": crm}, access=ACCESS) as relay:
        published(relay, "shop", 4)
        published(relay, "crm", 1)
        yield relay


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}", "x-dbus-client": f"client-of-{name}"}


def get_as(name: str, relay: Relay, path: str, **query: Any) -> Answer:
    return get(relay, path, headers=bearer(name), **query)


def post_as(name: str, relay: Relay, path: str, **query: Any) -> Answer:
    return ask("POST", relay, path_of(path, query), bearer(name))


def test_a_token_that_is_not_known_is_401_and_a_right_that_is_missing_403(relay: Relay) -> None:
    assert get(relay, "/sources").status == 401
    assert get(relay, "/sources", headers={"Authorization": "Bearer token-of-nobody"}).status == 401
    assert get_as("reader", relay, "/sources").status == 200
    refused = post_as("reader", relay, "/controlSources/pause", sources="shop")
    assert (refused.status, refused.json["error"]) == (403, "RightMissing")
    assert "right `control`, which access 'reader' lacks" in refused.json["message"]
    assert get_as("probe", relay, "/stream", physical="shop", wait_ms=0).status == 403
    assert [get_as("probe", relay, path).status for path in ("/admin/live", "/admin/ready", "/help")] == [200] * 3


def test_tables_out_of_reach_are_in_no_list(relay: Relay) -> None:
    assert get_as("billing", relay, "/sources").json == [{"name": "shop/main.orders", "id": 1}]
    assert len(get_as("reader", relay, "/sources").json) == 4
    assert {each["name"] for each in get_as("billing", relay, "/register").json} == {"shop/main.orders"}
    assert get_as("billing", relay, "/register", fingerprint=f"{USERS.fingerprint:016x}").status == 404
    assert get_as("billing", relay, "/containerStats/inbound/events/psources").json == ["shop"]
    assert [each["name"] for each in get_as("billing", relay, "/controlSources/status").json] == ["shop"]


def test_where_the_relay_has_its_file_is_for_those_who_see_all(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay._catalog, "file", Path("/etc/databus/relay.yml"))
    files = {name: get_as(name, relay, "/controlSources/status").json[0]["file"] for name in ("reader", "billing")}
    assert files == {"reader": "/etc/databus/relay.yml", "billing": None}


def test_rows_out_of_reach_are_in_no_stream_and_its_positions_go_on(relay: Relay) -> None:
    groups = get_as("billing", relay, "/stream", output="frames").groups
    assert [group.commit.last_scn for group in groups] == [1, 2, 3, 4]
    assert [[frame.header.source_id for frame in group.frames] for group in groups] == [[1], [1], [], [1]]
    lines = get_as("billing", relay, "/stream", wait_ms=0).lines
    assert {line["_source"] for line in lines if "_source" in line} == {"shop/main.orders"}
    assert get_as("billing", relay, "/range", start="beginning").json["rows"] == 3


def test_who_sees_less_and_who_sees_all_stand_at_the_tail_of_one_log(tmp_path: Path) -> None:
    write_tokens(tmp_path)
    shop = Database(tables=(ORDERS, STOCK), groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}, access=ACCESS) as relay, ThreadPoolExecutor(2) as threads:
        published(relay, "shop", 1)
        following = {"output": "frames", "start": "latest", "follow": 1, "to": 2}
        answers = {name: threads.submit(get_as, name, relay, "/stream", **following) for name in ("billing", "reader")}
        streams = relay._commands.stats.streams
        until(lambda: len(streams) == 2 and all(each.at_tail for each in list(streams)))
        shop.add(sale(2))
        counts = {name: [len(group.frames) for group in each.result().groups] for name, each in answers.items()}
        assert counts == {"billing": [1], "reader": [2]}


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/stream", {"sources": "main.users"}),
        ("/stream", {"sources": "shop/main.stock"}),
        ("/stream", {"sources": "2"}),
        ("/stream", {"sources": "usres"}),
        ("/stream", {"physical": "crm"}),
        ("/stream", {"physical": "cmr"}),
        ("/stream", {"sources": "crm/main.users"}),
        ("/range", {"sources": "main.stck"}),
        ("/register", {"sources": "main.usres"}),
        ("/position", {"physical": "crm"}),
        ("/bufferInfo/inbound/crm", {}),
        ("/containerStats/inbound/events/psource/crm", {}),
        ("/controlSources/status", {"sources": "crm"}),
        ("/admin/ready", {"sources": "crm"}),
        ("/relayStats/outbound/http/client/client-of-reader", {}),
    ],
)
def test_asking_for_what_is_out_of_reach_is_as_asking_for_what_is_not_there(
    relay: Relay, path: str, query: dict[str, str]
) -> None:
    answer = get_as("billing", relay, path, **query)
    assert answer.status == 404
    said = answer.json["message"]
    for value in (*query.values(), *query.get("sources", "").split("/"), path.rpartition("/")[2]):
        said = said.replace(value, "")
    assert not any(each in said for each in HIDDEN), said


def test_an_operator_of_some_tables_has_no_others_read_again_or_paused(relay: Relay) -> None:
    assert post_as("billing", relay, "/controlSources/snapshot", sources="shop", tables="main.users").status == 404
    assert post_as("billing", relay, "/controlSources/snapshot", sources="shop", tables="main.*").status == 404
    assert post_as("billing", relay, "/controlSources/snapshot", tables="main.orders", where="id > 1").status == 403
    assert post_as("billing", relay, "/controlSources/pause", sources="crm").status == 404
    assert post_as("billing", relay, "/controlSources/snapshot", tables="main.orders").status == 200


def test_what_tells_of_all_tables_is_for_those_who_see_all(relay: Relay) -> None:
    for path, query in {"/config": {}, "/chain": {"physical": "shop"}, "/registry/subjects": {}}.items():
        assert get_as("reader", relay, path, **query).status == 200
        assert get_as("billing", relay, path, **query).status == 403


def test_nothing_that_is_answered_to_who_sees_one_table_names_another(relay: Relay) -> None:
    get_as("reader", relay, "/stream", physical="crm", wait_ms=0)
    paths = [
        path.replace("{physical}", "shop").replace("{name}", "client-of-billing")
        for path, operations in get_as("billing", relay, "/openapi.json").json["paths"].items()
        if "get" in operations and not path.startswith("/registry") and path not in (*OF_ALL, "/stream")
    ]
    assert len(paths) > 15
    for path in paths:
        answer = get_as("billing", relay, path)
        assert answer.status == (404 if path.startswith("/groups/") else 200), path
        text = answer.body.decode()
        assert not any(f"main.{each}" in text or f'"{each}"' in text for each in HIDDEN), path
        assert "client-of-reader" not in text, path


def test_the_audit_log_and_statistics_say_which_access_it_was(relay: Relay) -> None:
    post_as("ops", relay, "/controlSources/unpause", sources="shop")
    entries = [json.loads(line) for line in (relay.config.folder / "audit.jsonl").read_text().splitlines()]
    (entry,) = [each for each in entries if each["action"] == "unpause"]
    assert (entry["who"]["access"], entry["who"]["token"], entry["who"]["client"]) == ("ops", "ops", "client-of-ops")
    stats = get_as("ops", relay, "/relayStats/outbound/http/client/client-of-ops").json
    assert stats["access"] == "ops"
    told = [path.read_bytes() for path in relay.config.folder.rglob("*") if path.is_file()]
    told += [get_as("ops", relay, path).body for path in ("/config", "/metrics", "/admin/status")]
    assert not any(token.encode() in text for token in TOKENS.values() for text in told)


def test_a_token_that_was_replaced_is_known_within_seconds(tmp_path: Path) -> None:
    write_tokens(tmp_path)
    with scripted(tmp_path, {"shop": Database()}, access=ACCESS) as relay:
        (tmp_path / "reader").write_text("another-token\n")
        new = {"Authorization": "Bearer another-token"}
        until(lambda: get(relay, "/sources", headers=new).status == 200)
        assert get_as("reader", relay, "/sources").status == 401
        assert ask("POST", relay, "/controlSources/pause", new).status == 403
        (tmp_path / "reader").write_text(f"{TOKENS['ops']}\nanother-token\n")
        until(lambda: get_as("ops", relay, "/sources").status == 401, "a token of two is nobody's")


def test_a_stream_ends_when_its_token_is_removed(tmp_path: Path) -> None:
    write_tokens(tmp_path)
    shop = Database(groups=[order(1)])
    with scripted(tmp_path, {"shop": shop}, access=ACCESS) as relay, ThreadPoolExecutor(2) as threads:
        published(relay, "shop", 1)
        following = {"output": "frames", "start": "beginning", "follow": 1}
        gone = threads.submit(get_as, "reader", relay, "/stream", **following)
        stays = threads.submit(get_as, "ops", relay, "/stream", **following, to=2)
        streams = relay._commands.stats.streams
        until(lambda: len(streams) == 2 and all(each.at_tail for each in list(streams)))
        (tmp_path / "reader").write_text("another-token\n")
        with pytest.raises((ConnectionError, IncompleteRead)):
            gone.result()
        until(lambda: [each.access for each in list(streams)] == ["ops"])
        shop.add(order(2))
        assert [group.commit.last_scn for group in stays.result().groups] == [1, 2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"token_file": "ops", "access": ACCESS[:1]}, "token_file, access: both say who may ask; give one"),
        ({"access": [ACCESS[0], ACCESS[0]]}, "two have the name ops"),
        ({"access": [ACCESS[0], {**ACCESS[1], "token_file": "ops"}]}, "two have the token_file"),
        (
            {"access": [{**ACCESS[0], "rights": ["write"]}]},
            'access[0].rights[0]: "write" is neither "read" nor "control"',
        ),
        ({"access": [{**ACCESS[0], "rihgts": []}]}, "access[0].rihgts: "),
        ({"access": [{**ACCESS[0], "where": {"shop/main.orders": "region ="}}]}, "access[0].where: shop/main.orders: "),
        ({"access": [{"name": "x"}]}, "access[0].token_file: missing"),
    ],
)
def test_a_mistake_in_access_is_said_with_its_place(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_relay({"sources": {"shop": {"type": "mock"}}, **options}, folder=tmp_path)
    assert says in str(raised.value)


def test_two_accesses_with_one_token_do_not_start(tmp_path: Path) -> None:
    (tmp_path / "ops").write_text("one-and-the-same\n")
    (tmp_path / "reader").write_text("one-and-the-same\n")
    config = parse_relay({"sources": {"shop": {"type": "mock"}}, "access": ACCESS[:2]}, folder=tmp_path)
    with pytest.raises(ConfigError, match="ops and reader have the same token"):
        Relay(config)


# Rows and columns


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """`billing` sees orders called `a`, users without their number, and no stock, which is being read by a snapshot."""
    folder = tmp_path_factory.mktemp("limited")
    write_tokens(folder)
    reading = {"main.stock": OpenSnapshot(1, ("secret-key",), (2, 1)), "main.users": OpenSnapshot(2, ("k",), (2, 1))}
    commit = Commit(3, 1, "t3", {"n": "secret-place"}, AT_US + 3, snapshots=reading)
    groups = [order(1, "a"), order(2, "b"), Group(commit, (rows_of(USERS, 3, [{"id": 3, "ssn": "756.1"}]),))]
    billing = {
        **ACCESS[3],
        "tables": ["shop/main.orders", "shop/main.users"],
        "where": {"shop/main.orders": "name = 'a'"},
        "hide": {"*": ["ssn"]},
    }
    shop = Database(tables=(ORDERS, STOCK, USERS), groups=groups)
    with scripted(folder, {"shop": shop}, access=[*ACCESS[:3], billing]) as relay:
        published(relay, "shop", 3)
        yield relay


def test_hidden_columns_and_rows_are_in_no_stream(limited: Relay) -> None:
    answer = get_as("billing", limited, "/stream", output="frames")
    rows = [row for group in answer.groups for frame in group.rows for row in frame.batch.to_pylist()]
    assert [{name: row[name] for name in row if name[0] != "_"} for row in rows] == [{"id": 1, "name": "a"}, {"id": 3}]
    assert not any(each in answer.body for each in (b"ssn", b"756.1", b"secret", b"stock"))
    lines = get_as("billing", limited, "/stream", wait_ms=0).body
    assert not any(each in lines for each in (b"ssn", b"756.1", b"secret", b"stock", b'"b"'))
    assert get_as("billing", limited, "/range", start="beginning").json["rows"] == 2
    assert len(get_as("reader", limited, "/stream", output="frames").groups[2].rows[0].batch.schema) == 8


def test_a_definition_is_that_of_what_is_sent(limited: Relay) -> None:
    (stream,) = [group.rows[0] for group in get_as("billing", limited, "/stream", output="frames", scn=2).groups]
    sent = f"{stream.header.fingerprint:016x}"
    (found,) = get_as("billing", limited, "/register", sources="users").json
    assert ([each["name"] for each in found["table"]["columns"]], found["fingerprint"]) == (["id"], sent)
    assert "ssn" not in json.dumps(get_as("billing", limited, "/register").json)
    assert [each["name"] for each in get_as("billing", limited, "/register", fingerprint=sent).json] == [found["name"]]
    assert get_as("billing", limited, "/register", fingerprint=f"{USERS.fingerprint:016x}").status == 404
    (listed,) = [each for each in get_as("billing", limited, "/sources", v=2).json if each["table"] == "main.users"]
    assert listed["fingerprint"] == sent


def test_a_filter_of_a_reader_knows_nothing_of_what_is_hidden(limited: Relay) -> None:
    for query in ({"where": "ssn = '756.1'"}, {"columns": "ssn"}, {"where": "snn = 'x'"}):
        answer = get_as("billing", limited, "/stream", sources="users", **query)
        assert answer.status == 400
        assert "'ssn'" not in answer.json["message"].replace("has no column 'ssn'", "")
    groups = get_as("billing", limited, "/stream", output="frames", sources="orders", where="name > ''").groups
    assert [row["id"] for group in groups for frame in group.rows for row in frame.batch.to_pylist()] == [1]


def test_where_a_condition_does_not_fit_nothing_is_sent_and_the_reader_is_not_told_by_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tokens(tmp_path)
    shop = Database(tables=(ORDERS, USERS), groups=[order(1), user(2)])
    access = [
        {"name": "billing", "token_file": "billing", "where": {"shop/main.users": "regoin = 'CH'"}},
        {"name": "reader", "token_file": "reader", "hide": {"shop/main.users": ["id"]}},
        {"name": "ops", "token_file": "ops", "tables": ["shop/main.ordrs"], "hide": {"shop/main.users": ["snn"]}},
    ]
    with scripted(tmp_path, {"shop": shop}, access=access):
        pass
    with scripted(tmp_path, {"shop": shop}, access=access) as relay:
        published(relay, "shop", 2)
        for mistake in (
            "access billing: shop/main.users: there is no column 'regoin'; nothing of that table is sent",
            "access reader: shop/main.users: hide: main.users: column id is part of the key",
            "access ops, tables: no table is called shop/main.ordrs yet; did you mean shop/main.orders?",
            "access ops, hide: shop/main.users has no column snn yet",
        ):
            assert mistake in caplog.text
        known = mistakes_on_disk(relay.config)
        assert len([each for each in known if "in reach" not in each]) == 4
        for name in ("billing", "reader"):
            answer = get_as(name, relay, "/stream", output="frames", sources="main.users")
            assert (answer.status, "main.users" in answer.json["message"]) == (400, True)
            assert "regoin" not in answer.json["message"]
            assert {each["name"] for each in get_as(name, relay, "/sources").json} == {"shop/main.orders"}
            assert get_as(name, relay, "/stream", output="frames", sources="main.orders").status == 200


def test_a_rule_that_rows_escape_under_another_name_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After RENAME TABLE, whoever saw a table without a column saw all of it, and nothing had said so."""
    write_tokens(tmp_path)
    hide = {"shop/main.users": ["ssn"]}
    access = [
        {"name": "ops", "token_file": "ops", "hide": hide},
        {"name": "billing", "token_file": "billing", "tables": ["shop/main.*"], "hide": hide},
        {"name": "reader", "token_file": "reader", "tables": ["shop/main.users", "shop/other.*"], "hide": hide},
        {"name": "masked", "token_file": "masked", "tables": ["shop/main.*"], "hide": {"shop/main.*": ["ssn"]}},
    ]
    (tmp_path / "masked").write_text("masked-token-1234\n")
    with scripted(tmp_path, {"shop": Database(tables=(ORDERS, USERS), groups=[user(1)])}, access=access) as relay:
        published(relay, "shop", 1)
        told = [each for each in mistakes_on_disk(relay.config) if "in reach" in each]
    assert [each.split(", ")[0] for each in told] == ["access ops", "access billing"]
    assert "holds for the name shop/main.users alone" in told[0]


def test_a_client_behind_an_access_has_what_the_database_answers_to_its_select(tmp_path: Path) -> None:
    """Over snapshots in small chunks, changes that move rows in and out of sight, and DDL that names other tables."""
    write_tokens(tmp_path)
    database = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, region TEXT, ssn TEXT)")
    database.execute("CREATE TABLE secrets (id INTEGER PRIMARY KEY, word TEXT)")
    database.executemany(
        "INSERT INTO users VALUES (?, ?, ?)", [(n, "CH" if n % 3 else "DE", "number-756") for n in range(50)]
    )
    database.executemany("INSERT INTO secrets VALUES (?, 'secret')", [(n,) for n in range(50)])
    access = [
        ACCESS[0],
        {
            "name": "billing",
            "token_file": "billing",
            "tables": ["shop/main.users"],
            "where": {"shop/main.users": "region = 'CH'"},
            "hide": {"shop/main.users": ["ssn"]},
        },
    ]
    source = {"type": "sqlite", "path": "shop.db", "chunk_rows_max": 10}
    config = parse_relay({"listen": "127.0.0.1:0", "sources": {"shop": source}, "access": access}, folder=tmp_path)
    with Relay(config) as relay:
        database.execute("UPDATE users SET region = 'CH' WHERE id IN (3, 6)")
        database.execute("UPDATE users SET region = 'AT' WHERE id IN (1, 2)")
        database.execute("UPDATE users SET ssn = '757' WHERE id < 20")
        database.execute("DELETE FROM users WHERE id IN (4, 9)")
        database.execute("ALTER TABLE users ADD COLUMN secret_id INTEGER REFERENCES secrets (id)")
        database.execute("INSERT INTO users VALUES (100, 'CH', '758', 7), (101, 'DE', '759', 8)")
        wanted = database.execute("SELECT id, region, secret_id FROM users WHERE region = 'CH' ORDER BY id").fetchall()
        seen: dict[int, tuple[Any, ...]] = {}

        def has_all() -> bool:
            seen.clear()
            with windows(relay.url, token=TOKENS["billing"], follow=False) as following:
                for window in following:
                    for row in window.rows():
                        assert "ssn" not in (row.after or row.before or {})
                        if row.after is None:
                            seen.pop(row.key[0], None)
                        else:
                            seen[row.key[0]] = tuple(row.after.get(name) for name in ("id", "region", "secret_id"))
            return sorted(seen.values()) == wanted

        until(has_all)
        told = get_as("billing", relay, "/stream", output="frames", wait_ms=0).body
        told += get_as("billing", relay, "/stream", output="json", wait_ms=0).body
        assert not any(each in told for each in (b"ssn", b"number-756", b"main.secrets", b'"secret"', b"REFERENCES"))
    database.close()
