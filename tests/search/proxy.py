"""A proxy of a search server that answers what a test wants it to, and notes what it was asked."""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CUT = "cut"


class SearchProxy:
    """before: takes a bulk request's lines and returns None, to pass it on, or a status and an answer; an answer of
    bytes is sent as it is; `CUT` closes the connection, and nothing is passed on. instead: the same for all requests,
    given the method and the path. after: takes a path and what the server answered; where it is true, the connection is
    closed in the place of an answer.
    """

    def __init__(self, server, before=lambda _: None, *, instead=lambda *_: None, after=lambda *_: False):
        self.seen = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # else head and body are two packets, and the second waits until the first was acknowledged

            def log_message(self, *_):
                pass

            def answer(self):
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.seen.append((self.command, self.path, dict(self.headers)))
                told = before(content) if self.path.startswith("/_bulk") else None
                told = told or instead(self.command, self.path)
                if told == CUT:
                    self.close_connection = True
                    return
                if told is None:
                    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
                    kept = {k: v for k, v in self.headers.items() if k in ("Content-Type", "Accept")}
                    connection.request(self.command, self.path, content or None, kept)
                    response = connection.getresponse()
                    status, found = response.status, response.read()
                    connection.close()
                    if after(self.path, found):
                        self.close_connection = True
                        return
                else:
                    status, found = told
                    found = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.kind = server.kind
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
