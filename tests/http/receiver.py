"""A receiver of web hooks for tests: a real HTTP server that notes what it was sent and answers what a test wants."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def changes(self):
        """What the body holds, whichever of the three forms it has."""
        if "json" in self.headers["content-type"] and "ndjson" not in self.headers["content-type"]:
            found = json.loads(self.body)
            return found if isinstance(found, list) else [found]
        return [json.loads(line) for line in self.body.decode().split("\n")[:-1]]


class Receiver:
    """answer: takes a request and returns a status, or a status, headers and a text; None is 204. It may block."""

    def __init__(self, answer=None, certificate=None):
        self.seen: list[Received] = []
        self.answer = answer or (lambda request: None)
        self.in_flight = self.in_flight_max = 0
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                with receiver._lock:
                    receiver.seen.append(request)
                    receiver.in_flight += 1
                    receiver.in_flight_max = max(receiver.in_flight_max, receiver.in_flight)
                try:
                    told = receiver.answer(request)
                finally:
                    with receiver._lock:
                        receiver.in_flight -= 1
                status, headers, text = told if isinstance(told, tuple) else (told or 204, {}, "")
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{scheme}://{self.host}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def changes(self):
        """All changes, in the order in which they came."""
        return [change for request in self.seen for change in request.changes]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
