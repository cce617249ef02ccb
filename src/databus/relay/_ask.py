"""One request to the relay, and answers in JSON: what all who answer commands have in common."""

import json
from typing import Any, Final

from aiohttp import web

from databus.relay._catalog import Catalog
from databus.relay._command import Command
from databus.relay._grant import Grant
from databus.relay._params import Given

_encoded: Final = json.JSONEncoder(ensure_ascii=False).encode  # made once, not by each answer


class Ask:
    """One request: its command, its path, and who asks; `given` and `body` once they have been read and checked."""

    def __init__(
        self, request: web.Request, command: Command, path: list[str], client: str, grant: Grant, catalog: Catalog
    ) -> None:
        self.request = request
        self.grant = grant
        self.catalog = catalog  # as far as the grant goes
        self.command = command
        self.path = path
        self.client = client
        self.given: Given = {}
        self.body: Any = None
        peer = None if request.transport is None else request.transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"


def json_answer(value: Any) -> web.Response:
    """An answer in JSON."""
    return web.Response(body=_encoded(value).encode() + b"\n", content_type="application/json", charset="utf-8")
