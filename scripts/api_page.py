"""docs/api.md, from the table of the dashboard's API."""

from collections.abc import Iterator
from typing import Final

from databus.dashboard._endpoint import PREFIX
from databus.dashboard._endpoint_table import ENDPOINTS
from databus.dashboard._guard import MARK
from databus.dashboard._openapi import STATUSES
from databus.relay import Parameter

_HEAD: Final = """\
# API of the dashboard

Generated from the code by `make docs`; do not edit.

Below `{prefix}` of a [dashboard](dashboard.md). A program sends its token: `Authorization: Bearer TOKEN`. What changes
something needs the header `{mark}: 1` too (with a cookie, `Origin` as well), and its parameters as a JSON object; it
answers 202 with an operation; `GET /operations/ID` has its result. A request with an `Idempotency-Key` is done once,
however often it is sent: a repeated one is answered with the operation of the first, also where that has failed. If the
first was refused and nothing was done (412, a full disk, too much under way), it is tried again.
An error is JSON: `{{"error": ..., "message": ...}}`.
"""


def api_markdown() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD.format(prefix=PREFIX, mark=MARK)
    yield "| endpoint | right | answers |"
    yield "|---|---|---|"
    for endpoint in ENDPOINTS:
        yield f"| `{endpoint.key}` | {endpoint.right or ''} | {endpoint.says} |"
    yield ""
    yield "| parameter | of | |"
    yield "|---|---|---|"
    for parameter, keys in _parameters():
        written = parameter.type.written.replace("|", "\\|")
        endpoints = (
            f"{len(keys)} endpoints that change something" if len(keys) > 5 else ", ".join(f"`{key}`" for key in keys)
        )
        needed = "needed: " if parameter.is_required else ""
        yield f"| `{parameter.name}={written}` | {endpoints} | {needed}{parameter.help} |"
    yield "\n| status | |"
    yield "|---|---|"
    yield from (f"| {status} | {says} |" for status, says in STATUSES.items())


def _parameters() -> list[tuple[Parameter, list[str]]]:
    parameters: dict[tuple[str, str], tuple[Parameter, list[str]]] = {}
    for endpoint in ENDPOINTS:
        for parameter in endpoint.parameters:
            parameters.setdefault((parameter.name, parameter.help), (parameter, []))[1].append(endpoint.key)
    return list(parameters.values())
