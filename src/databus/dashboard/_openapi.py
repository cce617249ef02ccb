"""The table of the API for programs, as OpenAPI 3.1."""

from http import HTTPStatus
from typing import Any, Final

from databus import __version__
from databus.dashboard._endpoint import PREFIX, ApiEndpoint
from databus.dashboard._endpoint_table import ENDPOINTS
from databus.dashboard._guard import MARK
from databus.relay import Parameter

_ALWAYS: Final = (400, 403)
STATUSES: Final = {
    400: "a parameter is malformed or unknown; the message says which",
    401: "not signed in",
    403: "the right is missing, or a page of another origin asks",
    404: "no such name among what you see",
    409: "not in this state",
    412: "what is to be changed is no longer in the state in which you saw it",
    429: "too many; ask again later",
    503: "not now; ask again",
}
_ERROR: Final = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
}


def openapi() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(f"{PREFIX}{endpoint.path}", {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "databus dashboard", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: ApiEndpoint) -> dict[str, Any]:
    name = endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "")
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}_{name}",
        "summary": endpoint.says,
        "x-databus-right": endpoint.right,
        "parameters": [
            {"name": variable, "in": "path", "required": True, "schema": {"type": "string"}}
            for variable in endpoint.names
        ],
        "responses": _responses(endpoint),
    }
    if not endpoint.changes:
        operation["parameters"] += [
            {"name": parameter.name, "in": "query", "required": parameter.is_required, **_described(parameter)}
            for parameter in endpoint.parameters
        ]
        return operation
    mark = {"name": MARK, "in": "header", "required": True, "schema": {"const": "1"}}
    operation["parameters"].append(mark)
    if endpoint.has_body:
        schema = {
            "type": "object",
            "additionalProperties": False,
            "required": [parameter.name for parameter in endpoint.parameters if parameter.is_required],
            "properties": {parameter.name: dict(_described(parameter)["schema"]) for parameter in endpoint.parameters},
        }
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _described(parameter: Parameter) -> dict[str, Any]:
    return {"description": parameter.help, "schema": dict(parameter.type.schema)}


def _responses(endpoint: ApiEndpoint) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"} if endpoint.media == "application/json" else {"type": "string"}
    statuses = {*_ALWAYS, *endpoint.errors, *(() if endpoint.right is None else (401,))}
    if endpoint.method == "POST" and endpoint.right is None:
        statuses |= {401, 429}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        str(endpoint.status): {"description": endpoint.says, "content": {endpoint.media: {"schema": schema}}},
        **{
            str(status): {"description": STATUSES.get(status, HTTPStatus(status).phrase), "content": error}
            for status in sorted(statuses)
        },
    }
