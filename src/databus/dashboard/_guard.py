"""Whether a request may be answered at all: Host, Origin, headers that pages of others cannot send. Pure.

A browser sends the cookie with every request, also with one that a page of another site makes. So a request that
changes something must come from our own page: with our Origin, as JSON, and with a header that no form can send. A
request for another host name is refused, since the owner of that name could point it here (DNS rebinding).
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from databus.core import AccessDenied, MalformedRequest, RightMissing
from databus.relay import is_loopback

MARK: Final = "X-Databus-Dashboard"
"""A header that a form cannot send."""

PAGE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class RequestGuard:
    """host: the address that the dashboard listens at. public_url: its address for people, if that is another one."""

    def __init__(self, host: str, public_url: str | None) -> None:
        self._host = host.lower()
        self._public = "" if public_url is None else urlsplit(public_url).netloc.lower()
        self.is_https = public_url is not None and public_url.startswith("https://")

    def check_host(self, host: str) -> None:
        """Raise `AccessDenied` unless the Host header names us."""
        name = _name_of(host)
        if host.lower() != self._public and name != self._host and not is_loopback(name):
            raise AccessDenied(
                f"this dashboard does not answer as {host[:100]!r}; start it with --public-url if people find it there"
            )

    def check_page(self, headers: Mapping[str, str], host: str) -> None:
        """Raise `RightMissing` for a request that a page of another origin has made."""
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
        if site not in ("none", "same-origin"):
            raise RightMissing("this dashboard does not answer pages of other sites")
        if origin is not None and not self._is_ours(origin, host):
            raise RightMissing("this dashboard does not answer pages of another origin")

    def check_change(self, headers: Mapping[str, str], host: str, *, has_cookie: bool, has_body: bool) -> None:
        """Raise `RightMissing` or `MalformedRequest` unless our own page or a program asks."""
        self.check_page(headers, host)
        if headers.get(MARK) != "1":
            raise RightMissing(f"what changes something needs the header {MARK}: 1")
        if has_cookie and "Origin" not in headers:
            # Browsers send it with every change; without it the cookie may have been sent by a page of others.
            raise RightMissing(
                "what changes something by a cookie needs the header Origin with this dashboard's address, as browsers "
                "send it; programs send their token instead"
            )
        if has_body and headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise MalformedRequest("send JSON, and the header Content-Type: application/json")

    def _is_ours(self, origin: str, host: str) -> bool:
        try:
            address = urlsplit(origin)
        except ValueError:
            return False
        ours = {host.lower(), self._public} - {""}
        return address.scheme in ("http", "https") and address.netloc.lower() in ours


def _name_of(host: str) -> str:
    """The Host header without its port; empty where it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
