"""Requests made from `/openapi.json`, right and wrong ones: each is answered as that says, and changes nothing for who
lacks the right.
"""

import hashlib
import http.client
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from databus.relay import Relay
from tests.relay.support import ORDERS, STOCK, Database, connect, get, order, published, sale, scripted, truncate, until

RIGHTS = {"ops": ["read", "control"], "reader": ["read"], "probe": [], "some": ["read"]}
WORDS = (
    "shop", "crm", "main.orders", "shop/main.orders", "main.*", "*", "all", "1", "2", "0", "-1", "9" * 19, "1:1",
    "true", "latest", "beginning", "frames", "json", "string", "{}", "[]", '{"scn": 1}', '{"v": 1, "sources": {}}',
    '{"windowScn": 1}', "2026-01-01T00:00:00Z", "12ab", "a,,b", "", "\u0661", "%00", "../..", "x" * 300, "id > 1",
)  # fmt: skip
AVRO = '{"type": "record", "name": "a", "fields": []}'


@dataclass(frozen=True)
class Request:
    who: str
    path: str
    template: str
    method: str
    query: tuple[tuple[str, str], ...]
    is_form: bool
    body: bytes | None
    is_bent: bool
    """Whether its path is not the template's."""

    @property
    def follows(self) -> bool:
        return any(name == "follow" and value.lower() in ("1", "true") for name, value in self.query)


def texts() -> st.SearchStrategy[str]:
    return st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


def values(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """Mostly what a schema allows."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | texts()
    if schema.get("type") == "integer":
        return st.integers(schema["minimum"], min(schema["maximum"], schema["minimum"] + 5)).map(str) | texts()
    return texts()


@st.composite
def requests(draw: st.DrawFn, described: dict[str, Any], who: Sequence[str]) -> Request:
    template = draw(st.sampled_from(sorted(described["paths"])))
    operations = described["paths"][template]
    method = draw(st.sampled_from([*operations, *operations, *operations, "get", "post", "head", "put", "delete"]))
    operation = operations.get(method) or next(iter(operations.values()))
    pairs: list[tuple[str, str]] = []
    path = template
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(draw(texts()) or "x", safe=""))
        elif draw(st.integers(0, 3)) == 0 or (parameter["required"] and draw(st.booleans())):
            pairs.append((parameter["name"], draw(values(parameter["schema"]))))
    if draw(st.integers(0, 9)) == 0:
        pairs.append((draw(texts()), draw(texts())))
    is_bent = draw(st.integers(0, 9)) == 0
    if is_bent:
        path += draw(st.sampled_from(["/", "/x", "//", "/%2e%2e/config", "?"]))
    body = None
    if method == "post" and "application/json" in operation.get("requestBody", {}).get("content", {}):
        body = draw(
            st.sampled_from([b"", b"{", b"[]", b"{}", b"\xff"]) | st.just(json.dumps({"schema": AVRO}).encode())
        )
    return Request(
        draw(st.sampled_from(who)), path, template, method.upper(), tuple(pairs), draw(st.booleans()), body, is_bent
    )


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    folder = tmp_path
    for name in RIGHTS:
        (folder / name).write_text(f"token-of-{name}\n")
    access = [
        {"name": name, "token_file": name, "rights": rights, **({"tables": ["shop/main.o*"]} if name == "some" else {})}
        for name, rights in RIGHTS.items()
    ]
    databases = {
        "shop": Database(tables=(ORDERS, STOCK), groups=[order(1), sale(2), truncate(3), order(4)]),
        "crm": Database(uuid="22222222-2222-2222-2222-222222222222", groups=[order(1)]),
    }
    quiet = {"capture": {"progress_ms": 3_600_000}, "serve": {"wait_ms_max": 5}}
    with scripted(folder, databases, access=access, **quiet) as relay:
        published(relay, "shop", 4)
        published(relay, "crm", 1)
        until(lambda: all(capture.log.head().unsynced_bytes == 0 for capture in relay.captures.values() if capture.log))
        yield relay


def state_of(relay: Relay) -> Any:
    """All that a command could change: files, what is captured and how."""
    folder: Path = relay.config.folder
    files = {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}
    captures = [(each.status, each.is_pause_pending, each.log and each.log.head()) for each in relay.captures.values()]
    return files, captures


def answer_of(relay: Relay, asked: Request) -> tuple[int, http.client.HTTPMessage, bytes]:
    headers = {} if asked.who == "nobody" else {"Authorization": f"Bearer token-of-{asked.who}"}
    target, body, encoded = asked.path, asked.body, urlencode(asked.query)
    if asked.is_form and asked.method == "POST" and body is None:
        body, headers["Content-Type"] = encoded.encode(), "application/x-www-form-urlencoded"
    elif encoded:
        target += f"?{encoded}"
    connection = connect(relay)
    try:
        connection.request(asked.method, target, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, b"" if asked.follows and response.status == 200 else response.read()
    finally:
        connection.close()


def check_answer(described: dict[str, Any], asked: Request, answer: tuple[int, http.client.HTTPMessage, bytes]) -> None:
    """It has a status that is written down, and the form that is written down for it."""
    status, headers, body = answer
    assert status < 500 or status == 503, body
    if asked.is_bent:
        return
    operation = described["paths"][asked.template].get("get" if asked.method == "HEAD" else asked.method.lower())
    if operation is None:
        assert status in (401, 403, 404, 405), (status, body)  # the registry's clients expect 404
        return
    assert str(status) in operation["responses"], (status, body)
    if asked.who == "nobody":
        assert status == 401
    contents = operation["responses"][str(status)]["content"]
    media = headers.get_content_type()
    assert media in contents, (media, body)
    if "schema" in contents[media] and asked.method != "HEAD":
        schema = {**contents[media]["schema"], "components": described["components"]}
        jsonschema.validate(json.loads(body), schema)


@pytest.mark.parametrize("examples", [150, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)])])
@pytest.mark.parametrize("who", [("reader", "probe", "some", "nobody"), ("ops",)], ids=["without the right", "with it"])
def test_every_request_is_answered_as_described_and_changes_nothing_without_the_right(
    relay: Relay, who: Sequence[str], examples: int
) -> None:
    described = get(relay, "/openapi.json", headers={"Authorization": "Bearer token-of-probe"}).json
    before = state_of(relay)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(requests(described, who))
    def each(asked: Request) -> None:
        check_answer(described, asked, answer_of(relay, asked))
        assert who == ("ops",) or state_of(relay) == before

    each()
