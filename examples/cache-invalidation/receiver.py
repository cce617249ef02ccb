"""Receives changes of products and removes their pages from the cache, a folder of files.

A page that is removed twice is removed: repeats do no harm, and need not be recognized.
"""

import base64
import hashlib
import hmac
import json
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CACHE = Path("cache")
SECRET = Path("hook.secret").read_text().strip().encode()
PORT = int(re.search(r"127\.0\.0\.1:(\d+)", Path("databus.yml").read_text())[1])


def is_ours(headers, body):
    """Whether databus has sent this, not long ago."""
    at = headers["webhook-timestamp"] or "0"
    signed = f"{headers['webhook-id']}.{at}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    is_signed = any(hmac.compare_digest(wanted, each) for each in (headers["webhook-signature"] or "").split())
    return is_signed and abs(time.time() - int(at)) < 300


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not is_ours(self.headers, body):
            self.answer(401)
            return
        for change in json.loads(body):
            if "_control" not in change:
                (CACHE / f"product-{change['id']}.html").unlink(missing_ok=True)
            elif change["_control"]["kind"] in ("truncate", "drop"):
                for page in CACHE.glob("product-*.html"):
                    page.unlink()
        self.answer(204)  # only now: what is answered does not come again

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", PORT), Receiver) as server:
        print(f"receiving at 127.0.0.1:{PORT}", flush=True)
        server.serve_forever()
