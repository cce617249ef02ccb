"""An S3 of this machine for tests, in memory."""

import http.client
import http.server
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from databus.disk import Storage, StoreLocation
from databus.testing.servers._ports import Port

START_S_MAX = 60.0
BUCKET = "lake"
KEY, SECRET = "AKIATESTSTESTSTESTS", "a-secret-that-nobody-may-see"  # as moto takes any


class ObjectStore:
    """moto, which is asked as S3 is. `options`: what a pipeline's file says under `storage: s3:`."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.options = {
            "endpoint": endpoint,
            "region": "eu-central-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }

    @property
    def storage(self) -> Storage:
        return Storage({"s3": self.options})

    @property
    def engine_options(self) -> dict[str, str]:
        """As readers that are not ours take them."""
        return {**self.options, "allow_http": "true"}

    def at(self, path: str) -> StoreLocation:
        return StoreLocation.of(f"s3://{BUCKET}", self.storage) / path


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A store with one empty bucket."""
    port = Port.claim()
    log = folder / "moto.log"
    with log.open("wb") as said:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port.number)]
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        endpoint = f"http://127.0.0.1:{port.number}"
        deadline = time.monotonic() + START_S_MAX
        while not _has_made_bucket(endpoint):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)  # moto does not tell when it listens
        yield ObjectStore(endpoint)
    finally:
        process.kill()
        process.wait()
        port.close()


def _has_made_bucket(endpoint: str) -> bool:
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")  # noqa: S310 - of this machine
    try:
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - as above
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
    return True


@contextmanager
def answering(status, body, headers=None, asked=None):
    """A store that answers everything in one way. asked: gets the headers of each request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if asked is not None:
                asked.append(self.headers)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - what its base looks for

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def denied():
    """A store that knows no keys, and tells whoever asks all that it was given."""
    body = f"<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId><X>{SECRET}</X></Error>"
    return answering(403, body.encode())


class LateStore:
    """Hands requests on to a store. While `holds` is set, commits of Delta tables wait in it, whoever gives them up.

    without: a header that it does not hand on. fails: so many commits are carried out, and answered by an error of the
    store's, after which who asked asks again. busy: so many writes on a condition are not carried out, and answered as
    S3 does while another request for the same object is under way.
    """

    def __init__(self, endpoint: str, without: str = "") -> None:
        self._without = without.lower()
        self._to = urlsplit(endpoint).netloc
        self.holds = threading.Event()
        self._released = threading.Event()
        self.endpoint = ""
        self.fails = 0
        self.busy = 0

    def release(self) -> None:
        """Have the store carry out what it was asked for."""
        self.holds.clear()
        self._released.set()

    def _hand_on(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if request.command == "PUT" and "/_delta_log/" in request.path and self.holds.is_set():
            assert self._released.wait(START_S_MAX)
        if self.busy and (request.headers.get("If-None-Match") or request.headers.get("If-Match")):
            self.busy -= 1
            answer = b"<Error><Code>ConditionalRequestConflict</Code><Message>was under way</Message></Error>"
            request.send_response_only(409)
            request.send_header("Content-Length", str(len(answer)))
            request.end_headers()
            request.wfile.write(answer)
            return
        to = http.client.HTTPConnection(self._to)
        to.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name.lower() != self._without:
                to.putheader(name, value)
        to.endheaders(body)
        answer = to.getresponse()
        content = answer.read()
        if request.command == "PUT" and "/_delta_log/" in request.path and self.fails:
            self.fails -= 1
            to.close()
            request.send_response_only(500)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        request.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                request.send_header(name, value)
        request.send_header("Content-Length", answer.headers.get("Content-Length", str(len(content))))
        request.end_headers()
        request.wfile.write(content)
        to.close()


@contextmanager
def late(endpoint: str, without: str = "") -> Iterator[LateStore]:
    """A store that may carry out a commit after whoever asked for it has gone; see `LateStore`."""
    store = LateStore(endpoint, without)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            with suppress(OSError):  # nobody waits any more
                store._hand_on(self)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - what its base looks for

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    store.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield store
    finally:
        store.release()
        server.shutdown()
        server.server_close()
