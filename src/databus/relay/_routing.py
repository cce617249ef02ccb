"""From a request to what it asks for: the command, who may, parameters and body, read and checked."""

import asyncio
from collections.abc import Sequence
from urllib.parse import unquote

from aiohttp import web
from pydantic import BaseModel, ValidationError

from databus.core import MalformedRequest, RightMissing
from databus.formats import lines_of
from databus.relay._ask import Ask
from databus.relay._catalog import Catalog
from databus.relay._command import Command, JsonBody, Table, method_of
from databus.relay._grant import Grant


class Router:
    """Finds commands in a table. request_ms_max: how long what a request brings may take to come."""

    def __init__(self, table: Table, request_ms_max: int) -> None:
        self.table = table
        self._request_ms_max = request_ms_max

    async def ask(self, request: web.Request, client: str, grant: Grant, catalog: Catalog) -> Ask:
        """What a request of the holder of a grant asks for. Raises a `DatabusError` to be made an answer."""
        path = [unquote(part) for part in request.rel_url.raw_path.split("/") if part]
        command = self._find(path, method_of(request.method), request.method)
        _check_right(command, grant)
        ask = Ask(request, command, path, client, grant, catalog)
        if not command.checks_itself:
            await self._read(ask)
        return ask

    def _find(self, path: Sequence[str], method: str, asked: str) -> Command:
        """The command that is meant. Raises an answer that says which there are."""
        there = self.table.at(path)
        command = next((command for command in there if method in command.methods), self.table.rest(path, method))
        if command is not None:
            return command
        if there:
            methods = list(dict.fromkeys(method for command in there for method in command.methods))
            text = f"{asked[:20]}: {' or '.join(methods)}"
            if asked in ("GET", "HEAD"):
                text = f"{there[0].path} changes something: send it as POST (curl -X POST)"
            raise web.HTTPMethodNotAllowed(asked, methods, text=text)
        head = path[0] if path else ""
        below = self.table.below(head)
        if not below:
            there_are = ", ".join(f"/{head}" for head in self.table.heads())
            raise web.HTTPNotFound(text=f"no command /{head[:100]}; there are {there_are}")
        raise MalformedRequest(f"/{head}: there {'are' if len(below) > 1 else 'is'} {', '.join(below)}")

    async def _read(self, ask: Ask) -> None:
        """Read the parameters and the body, and check them."""
        if ask.request.content.is_eof():  # all of it has come: there is nothing to wait for
            return await _read_now(ask)
        try:
            async with asyncio.timeout(self._request_ms_max / 1e3):
                await _read_now(ask)
        except TimeoutError:
            limit = f"request_ms_max={self._request_ms_max}"
            raise web.HTTPRequestTimeout(text=f"the form did not come within {limit}; ask again") from None


def _check_right(command: Command, grant: Grant) -> None:
    """Raise `RightMissing` unless a command may be asked by the holder of a grant."""
    if not grant.allows(command.right):
        raise RightMissing(f"{command.path}: needs the right `{command.right}`, which access {grant.name!r} lacks")
    if command.needs_all_tables and grant.is_limited:
        raise RightMissing(f"{command.path}: is for those only whose access is not limited by tables or columns")


async def _read_now(ask: Ask) -> None:
    query = await _query_of(ask.request)
    ask.body = None if ask.command.body is None else await _body_of(ask.request, ask.command.body)
    ask.given = ask.command.check(query)


async def _query_of(request: web.Request) -> dict[str, str]:
    """The parameters in the address, and those in the body of a form, which may be longer."""
    pairs = list(request.query.items()) if request.query_string else []
    if request.method == "POST" and request.content_type == "application/x-www-form-urlencoded":
        pairs += [(name, str(value)) for name, value in (await request.post()).items()]
    query: dict[str, str] = {}
    for name, value in pairs:
        if name in query:
            raise MalformedRequest(f"{name[:100]}: given twice")
        query[name] = value
    return query


async def _body_of(request: web.Request, body: JsonBody) -> BaseModel:
    """A body in JSON, as the command's model."""
    if request.content_type == "application/x-www-form-urlencoded":  # whose body was taken as parameters
        raise MalformedRequest("the body came as a form; say that it is JSON: curl -H 'Content-Type: application/json'")
    text = bytearray()
    async for piece in request.content.iter_any():
        text += piece
        if len(text) > body.bytes_max:
            raise web.HTTPRequestEntityTooLarge(
                body.bytes_max, len(text), text=f"the body exceeds {body.bytes_max} bytes"
            )
    try:
        return body.model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise MalformedRequest(f"the body is not JSON: {first['ctx']['error']}") from None
        raise MalformedRequest("; ".join(lines_of(error, body.model))) from None
