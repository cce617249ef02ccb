"""An S3 of this machine for tests, in memory."""

import http.server
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
def answering(status, body):
    """A store that answers everything in one way."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
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
