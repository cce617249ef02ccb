"""The registry of schemas over HTTP, as Confluent's own clients ask: below `/registry`, which is their URL's end.

Source: Confluent's Schema Registry API reference. There is no deleting, and one level of compatibility for all
subjects. Parameters change nothing: clients send some by themselves, about what was deleted and about formats that
there are not here.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from databus.core import DatabusError, LimitExceeded
from databus.relay._avro_registry import SCHEMA_BYTES_MAX, RegistryRefusal, SchemaRegistry, Version

_BODY_BYTES_MAX: Final = 2 * SCHEMA_BYTES_MAX  # as text in JSON it is longer
_BODIES_MAX: Final = 4
REGISTRY_MEDIA: Final = "application/vnd.schemaregistry.v1+json"
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class RegistryCommands:
    """Answers requests. in_thread: runs what reads or writes the file."""

    def __init__(self, registry: SchemaRegistry, request_ms_max: int, in_thread: InThread) -> None:
        self._registry = registry
        self._request_ms_max = request_ms_max
        self._in_thread = in_thread
        self._bodies = asyncio.Semaphore(_BODIES_MAX)

    async def answer(self, request: web.Request, path: list[str]) -> web.Response:
        """Answer a request for what is below `/registry`; refusals in the words that these clients understand."""
        try:
            schema = await self._schema_of(request) if request.method == "POST" else None
            asked = _RegistryCall(self._registry, path, schema)
            answer = await self._in_thread(asked.answer)
        except RegistryRefusal as error:
            return _json({"error_code": error.code, "message": str(error)}, int(str(error.code)[:3]))
        except LimitExceeded as error:
            return _json({"error_code": 42201, "message": str(error)}, HTTPStatus.UNPROCESSABLE_ENTITY)
        except DatabusError as error:
            return _json({"error_code": 50001, "message": str(error)}, error.http_status)
        return _json(answer)

    def unknown(self, path: list[str]) -> web.Response:
        """Answer that there is no such call, in the words that these clients understand."""
        message = f"there is no /{'/'.join(path)[:200]} of this registry for such a request"
        return _json({"error_code": 40400, "message": message}, HTTPStatus.NOT_FOUND)

    async def _schema_of(self, request: web.Request) -> str:
        """The schema in a request's body."""
        try:
            async with self._bodies, asyncio.timeout(self._request_ms_max / 1e3):
                body = await _read(request)
        except TimeoutError:
            raise RegistryRefusal(
                40801, f"the schema did not come within request_ms_max={self._request_ms_max}"
            ) from None
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise RegistryRefusal(42201, "the body is no JSON") from None
        schema = value.get("schema") if isinstance(value, dict) else None
        if not isinstance(schema, str):
            raise RegistryRefusal(42201, "the body has no member `schema` with a schema as text")
        if value.get("schemaType", "AVRO") != "AVRO" or value.get("references"):
            raise RegistryRefusal(42201, "this registry takes schemas of Avro alone, without references")
        return schema


async def _read(request: web.Request) -> bytes:
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > _BODY_BYTES_MAX:
            raise RegistryRefusal(41301, f"the body has more than {_BODY_BYTES_MAX} bytes")
    return bytes(body)


@dataclass(frozen=True)
class _RegistryCall:
    """A request without its HTTP."""

    registry: SchemaRegistry
    path: list[str]
    schema: str | None
    """What was posted, None for a GET."""

    def answer(self) -> Any:  # noqa: PLR0911 - a line for each call
        """What is answered, as JSON. Raises `RegistryRefusal`, and what the registry raises."""
        match self.schema, self.path:
            case None, ["subjects", *rest]:
                return self._subjects(rest)
            case None, ["schemas", "types"]:
                return ["AVRO"]
            case None, ["schemas", "ids", number, *rest]:
                return self._by_id(number, rest)
            case None, ["config", *_]:
                return {"compatibilityLevel": self.registry.compatibility.value}
            case None, ["mode", *_]:
                return {"mode": "READWRITE"}
            case None, []:
                return {}
            case str(schema), ["subjects", subject]:
                return self.registry.find(subject, schema).to_json()
            case str(schema), ["subjects", subject, "versions"]:
                made = self.registry.register(subject, schema)
                return {"id": made.id, "version": made.number, "schema": made.schema}
            case str(schema), ["compatibility", "subjects", subject, "versions", number]:
                troubles = self.registry.is_compatible(subject, number, schema)
                return {"is_compatible": not troubles, "messages": troubles}
        raise RegistryRefusal(40400, f"there is no /{'/'.join(self.path)[:200]} of this registry for such a request")

    def _subjects(self, path: list[str]) -> Any:
        match path:
            case []:
                return self.registry.subjects()
            case [subject, "versions"]:
                return [version.number for version in self.registry.versions(subject)]
            case [subject, "versions", number]:
                return self.registry.version(subject, number).to_json()
            case [subject, "versions", number, "schema"]:
                return json.loads(self.registry.version(subject, number).schema)
        raise RegistryRefusal(40400, f"there is no /subjects/{'/'.join(path)[:200]}")

    def _by_id(self, number: str, path: list[str]) -> Any:
        if not (number.isascii() and number.isdigit()):
            raise RegistryRefusal(40403, f"schema {number[:100]!r} not found")
        of: Mapping[tuple[str, ...], Callable[[Version], Any]] = {
            ("subjects",): lambda version: version.subject,
            ("versions",): lambda version: {"subject": version.subject, "version": version.number},
        }
        if not path:
            return {"schema": self.registry.schema(int(number[:12]))}
        if tuple(path) not in of:
            raise RegistryRefusal(40400, f"there is no /schemas/ids/{number[:12]}/{'/'.join(path)[:200]}")
        return [of[tuple(path)](version) for version in self.registry.uses(int(number[:12]))]


def _json(value: Any, status: int = HTTPStatus.OK) -> web.Response:
    body = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")
    return web.Response(body=body, status=status, headers={"Content-Type": REGISTRY_MEDIA})
