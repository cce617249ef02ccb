"""A small relay of ready-made groups, for what a real one does not do: other encodings, lies, silence."""

import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from databus.core import SEQ_DONE, SourceCheckpoint
from databus.log import Resume
from databus.sources.mock import MockConfig, MockSource
from databus.wire import Group, encode_group

LOG = "log-1"
UUID = "uuid-1"


class Numbers:
    """A registry that knows every table."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def number_of(self, table):
        return self.ids.setdefault(table.source, len(self.ids) + 1), 1


def encode(groups: list[Group]) -> list[bytes]:
    numbers = Numbers()
    return [b"".join(bytes(buffer) for buffer in encode_group(group, numbers, 1).buffers) for group in groups]


def mock_groups(transactions: int, **options) -> tuple[MockSource, list[Group]]:
    source = MockSource("shop", MockConfig(transactions_total=transactions, **options))
    source.start(Resume())
    groups = []
    while (group := source.poll(0)) is not None:
        groups.append(group)
    return source, groups


class Stub:
    def __init__(self, source: MockSource, groups: list[Group], *, chunk_bytes: int = 0) -> None:
        self.groups, self.frames, self.tables = groups, encode(groups), source.tables()
        self.requests: list[str] = []
        self.fail: tuple[int, dict[str, str], bytes] | None = None
        self.is_silent = False
        self.others: dict[str, list[bytes]] = {}  # frames of further physical sources
        self.gate = threading.Event()  # which those wait for
        self.away: set[str] = set()  # physical sources that are not served
        self.groups_max: int | None = None  # then the connection is closed, and the source is away
        self.chunk_bytes = chunk_bytes
        self.log = LOG
        self.stopping = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args):
                pass

            def do_GET(self):
                stub.requests.append(self.path)
                with suppress(BrokenPipeError, ConnectionResetError):
                    stub.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_args):
        self.stopping.set()
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(to.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.fail is not None:
            status, headers, body = self.fail
            return self.send(to, body, status, headers)
        if parts.path == "/stream" and query["physical"] in self.away:
            return self.send(to, b"", 503, {"x-dbus-error": "ServiceUnavailable"})
        if parts.path == "/stream":
            return self.stream(to, query)
        return self.send(to, json.dumps(self.told(parts.path, query)).encode())

    def told(self, path: str, query: dict[str, str]):
        published = SourceCheckpoint(UUID, self.groups[-1].commit.scn, None, self.groups[-1].commit.txid).to_json()
        if path == "/sources":
            return [
                {"name": f"shop/{t.source}", "id": i, "physical": "shop", "table": t.source, "version": 1,
                 "fingerprint": f"{t.fingerprint:016x}", "key": list(t.key)}
                for i, t in enumerate(self.tables)
            ] + [{"name": f"{name}/main.t", "id": 99, "physical": name, "table": "main.t", "version": 1,
                  "fingerprint": "0", "key": []} for name in self.others]  # fmt: skip
        if path == "/controlSources/status":
            return [{"name": name, "SCN": 0} for name in ("shop", *self.others)]
        if path == "/register":
            table = next(t for t in self.tables if f"{t.fingerprint:016x}" == query["fingerprint"])
            return [{"table": table.to_json()}]
        start = published if query.get("start") == "latest" else SourceCheckpoint(UUID).to_json()
        oldest = SourceCheckpoint(UUID).to_json()
        return {"physical": "shop", "uuid": UUID, "log": LOG, "position": start, "oldest": oldest,
                "published": published, "published_us": 0}  # fmt: skip

    def send(self, to, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        to.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            to.send_header(name, value)
        to.end_headers()
        to.wfile.write(body)

    def stream(self, to, query: dict[str, str]) -> None:
        start = SourceCheckpoint.from_json(json.loads(query["from"]), "from") if "from" in query else None
        after = (0, -1) if start is None else start.pair
        if start is not None and start.seq is not None and start.log != self.log:
            after = start.scn, -1  # another log goes on from the end of the transaction before
        to.send_response(200)
        for name, value in {"x-dbus-physical": "shop", "x-dbus-uuid": UUID, "x-dbus-log": self.log}.items():
            to.send_header(name, value)
        to.send_header(*(("transfer-encoding", "chunked") if self.chunk_bytes else ("connection", "close")))
        to.end_headers()
        if query["physical"] in self.others:
            self.gate.wait()
            self.write(to, b"".join(self.others[query["physical"]]))
            self.stay(to)
            return
        to_pair = tuple(int(x) for x in query["to"].split(":")) if "to" in query else None
        sent = 0
        for group, frames in zip(self.groups, self.frames, strict=True):
            if (group.commit.scn, SEQ_DONE) <= after:
                continue
            if sent == self.groups_max:
                self.away.add("shop")
                break
            sent += 1
            self.write(to, frames)
            if to_pair is not None and (group.commit.scn, SEQ_DONE) >= to_pair:
                break
        else:
            if "follow" in query or self.is_silent:
                self.stay(to)
        if self.chunk_bytes:
            to.wfile.write(b"0\r\n\r\n")
        to.close_connection = True

    def stay(self, to) -> None:
        self.stopping.wait()
        to.close_connection = True

    def write(self, to, frames: bytes) -> None:
        if not self.chunk_bytes:
            to.wfile.write(frames)
            return
        for at in range(0, len(frames), self.chunk_bytes):
            piece = frames[at : at + self.chunk_bytes]
            to.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
