"""The table of commands for programs: OpenAPI 3.1, as `/openapi.json` answers it."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from databus import __version__
from databus.relay._command import EVERYWHERE, Command, JsonBody, Parameter, Table

_ERROR: Final = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {
        "error": {"type": "string", "description": "The class of the error; also in the header x-dbus-error."},
        "message": {"type": "string", "description": "What is wrong, where, and what to do."},
        "physical": {"type": "string"},
        "oldest": {"type": ["integer", "null"], "description": "410: the SCN after which all is held."},
    },
}
_REGISTRY_ERROR: Final = {
    "type": "object",
    "required": ["error_code", "message"],
    "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
}
_SAYS: Final = {
    400: "a parameter is malformed, unknown or given twice; the message names it",
    401: "no token, or one that is not known",
    403: "the right is missing",
    404: "no such name; the message has the nearest",
    408: "the form did not come in time",
    409: "a position of another history, something asked of a source that is suspended, or what a group refuses",
    410: "a position that has left the log; `oldest` is the SCN after which all is held",
    412: "what is to be changed is no longer in the state in which it was seen",
    413: "the form or body is too long",
    421: "another relay coordinates groups; `coordinator` is its address",
    422: "not a schema, or a version, that this registry takes",
    429: "too many streams or connections; ask again",
    503: "not now; ask again",
}
_ALWAYS: Final = (400, 401, 403, 429)
_WITH_BODY: Final = (408, 413)
_REGISTRY_SCHEMA: Final = {
    "type": "object",
    "required": ["schema"],
    "properties": {"schema": {"type": "string"}, "schemaType": {"type": "string", "enum": ["AVRO"]}},
}


def openapi(table: Table) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for command in table:
        operations = paths.setdefault(command.path, {})
        for method in command.methods:
            operations[method.lower()] = _operation(command, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "databus relay", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, "RegistryError": _REGISTRY_ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(command: Command, method: str) -> dict[str, Any]:
    has_form = method == "POST" and command.body is None and not command.checks_itself
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{command.path.replace('/', '_')}".replace("{", "").replace("}", ""),
        "summary": command.answer.text,
        "x-databus-right": command.right.value,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in command.names),
            *(_parameter(parameter, in_form=has_form) for parameter in (*command.parameters, *EVERYWHERE)),
        ],
        "responses": _responses(command, method),
    }
    if has_form:
        content = {"application/x-www-form-urlencoded": {"schema": _form(command)}}
        operation["requestBody"] = {"content": content, "description": "The parameters, where they are long."}
    elif method == "POST":
        operation["requestBody"] = {"required": True, "content": _body(command.body)}
    return operation


def _parameter(parameter: Parameter, *, in_form: bool) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.help,
        "required": parameter.is_required and not in_form,
        "schema": dict(parameter.type.schema),
    }


def _form(command: Command) -> dict[str, Any]:
    properties = {
        parameter.name: {**parameter.type.schema, "description": parameter.help}
        for parameter in (*command.parameters, *EVERYWHERE)
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _body(body: JsonBody | None) -> dict[str, Any]:
    schema = _REGISTRY_SCHEMA if body is None else body.model.model_json_schema()
    return {"application/json": {"schema": schema}}


def _responses(command: Command, method: str) -> dict[str, Any]:
    answered = {
        media: {} if schema is None else {"schema": dict(schema)} for media, schema in command.answer.media.items()
    }
    responses: dict[str, Any] = {
        str(status): {"description": command.answer.text, "content": answered} for status in command.answer.statuses
    }
    statuses = (*_ALWAYS, *command.errors, *(_WITH_BODY if method == "POST" else ()))
    for status in sorted(set(statuses)):
        if str(status) not in responses:
            responses[str(status)] = {
                "description": _SAYS.get(status, HTTPStatus(status).phrase),
                "content": _error_of(command, status),
            }
    return responses


def _error_of(command: Command, status: int) -> Mapping[str, Any]:
    if command.checks_itself and status in command.errors:
        (media,) = command.answer.media
        return {media: {"schema": {"$ref": "#/components/schemas/RegistryError"}}}
    return {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
