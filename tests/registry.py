"""What stands at a schema registry's address in tests: a real HTTP server that answers what a test wants."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple


class Answer(NamedTuple):
    """body: whole, or in pieces as they come; then the answer ends where the connection does."""

    status: int
    body: bytes | Iterable[bytes] = b""
    headers: Mapping[str, str] = MappingProxyType({})


class Question(NamedTuple):
    """path: as it was asked for, which a proxy is by a whole URL."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class AnsweringServer(ThreadingHTTPServer):
    """Answers every request by `answer`, and notes what was asked."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Question], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[Question] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: AnsweringServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        question = Question(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.server.asked.append(question)
        status, said, headers = self.server.answer(question)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if isinstance(said, bytes):
            self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        try:
            for piece in [said] if isinstance(said, bytes) else said:
                self.wfile.write(piece)
        except OSError:
            self.close_connection = True  # the reader had enough

    do_POST = do_GET  # noqa: N815 - the name that `http.server` looks for

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def answering(answer: Callable[[Question], Answer]) -> Iterator[AnsweringServer]:
    with AnsweringServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
