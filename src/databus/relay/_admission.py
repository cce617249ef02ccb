"""Who may ask over HTTP, and errors as answers: for the relay's server and that of a running pipeline."""

import hmac
import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from databus.core import (
    AccessDenied,
    DatabusError,
    GroupRefused,
    OtherCoordinator,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    TooManyRequests,
)
from databus.operate import hide_in_text
from databus.relay._config import is_loopback

_FOR_NO_PAGE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""What tells browsers to show nothing of ours to another origin's pages, by whatever tag they ask."""
_MESSAGE_LENGTH_MAX: Final = 2_000


def _is_of_ours(record: logging.LogRecord) -> bool:
    """Not what anybody can have logged by sending what is no request, or by going away before the answer: as often as
    they like, and with the request's headers, in which a token may be.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError | ConnectionError)


HTTP_LOGGER: Final = logging.getLogger("databus.http")
"""Where the HTTP library says what went wrong."""
HTTP_LOGGER.addFilter(_is_of_ours)


def admit(request: web.Request, tokens: Sequence[bytes], who: str = "relay") -> list[bool]:
    """Raise unless whoever asks may. Without tokens only this machine may, and no web page that it shows.

    tokens: the whole values of the header, one of which it must have. who: what is asked, for the error. Returns which
    of the tokens it has.
    """
    if tokens:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        has = [hmac.compare_digest(given, token) for token in tokens]  # all of them: the time tells nothing
        if not sum(has):
            reason = f"the token is not this {who}'s" if given else f"this {who} wants a token"
            raise AccessDenied(f"{reason}: send the header `Authorization: Bearer TOKEN`")
        return has
    if not is_loopback(_host_of(request.host)):
        raise AccessDenied(
            f"this {who} has no token, so it answers only who addresses it as localhost, not as "
            f"{request.host[:100]!r}; set token_file to let others in"
        )
    if _is_of_a_page(request):
        raise AccessDenied(
            f"this {who} has no token, so it does not answer web pages (the request has an Origin, or a "
            "Sec-Fetch-Site of another site); set token_file to let others in"
        )
    return []


def _is_of_a_page(request: web.Request) -> bool:
    """Whether a browser asks because a page of another origin had it do so; we have no pages ourselves.

    `none` is what a person typed into the address bar: they may look.
    """
    site = request.headers.get("Sec-Fetch-Site", "none")
    return "Origin" in request.headers or site not in ("none", "same-origin")


async def hide_from_pages(_request: web.Request, response: web.StreamResponse) -> None:
    """Called before each response is sent."""
    response.headers.update(_FOR_NO_PAGE)


def _host_of(host: str) -> str:
    """The Host header without its port; empty where it is none."""
    if host.startswith("["):
        address, _, behind = host[1:].partition("]")
        return address if not behind or (behind[0] == ":" and behind[1:].isdigit()) else ""
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def error_response(error: DatabusError, status: int | None = None, allow: str | None = None) -> web.Response:
    """An error as an answer: its status, the seeds' headers, and a JSON body, without secrets in its text. Who may not
    ask, or not now, is let go.

    allow: the methods that there are instead.
    """
    message = hide_in_text(str(error))[:_MESSAGE_LENGTH_MAX]
    if isinstance(error, PositionPurged) and error.bootstrap is not None:
        message += f". A bootstrap service has it: {error.bootstrap}, which databus's clients ask by themselves"
    name = type(error).__name__
    value: dict[str, Any] = {"error": name, "message": message, **_details(error)}
    headers = {"x-dbus-error": name, "x-dbus-error-message": _header_text(message)}
    response = web.Response(
        status=status or error.http_status,
        body=json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n",
        content_type="application/json",
        headers=headers if allow is None else {**headers, "Allow": allow},
    )
    if isinstance(error, ServiceUnavailable | TooManyRequests):
        response.headers["Retry-After"] = "1"
    if isinstance(error, AccessDenied | TooManyRequests) or response.status == HTTPStatus.REQUEST_TIMEOUT:
        response.force_close()
    return response


def _details(error: DatabusError) -> dict[str, Any]:
    if isinstance(error, PositionPurged):
        bootstrap = {} if error.bootstrap is None else {"bootstrap": error.bootstrap}
        return {"physical": error.physical, "oldest": error.oldest, **bootstrap}
    if isinstance(error, GroupRefused | OtherCoordinator):
        return dict(error.details)
    return {"physical": error.physical} if isinstance(error, PositionForeign) else {}


def _header_text(text: str) -> str:
    """Text that a header can carry: one line of printable ASCII."""
    line = " ".join(text.split())
    return "".join(c if " " <= c <= "~" else "?" for c in line)
