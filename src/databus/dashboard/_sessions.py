"""Who has signed in: sessions by cookie, in memory, for eight hours. A restart signs everybody out.

Without a file of principals, a one-time token signs its holder in; each use makes the next token.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from databus.core import AccessDenied
from databus.dashboard._rights import OWNER, Principal, Principals

COOKIE: Final = "databus_dashboard"
SESSION_S: Final = 8 * 3600
_OF_ONE_MAX: Final = 100
"""Sessions of one principal; beyond it the oldest of them ends."""
_TOKEN_BYTES: Final = 32


class Sessions:
    """Used by one thread. principals: None: only the one-time token signs in. on_once: called with each new token."""

    def __init__(
        self,
        principals: Principals | None,
        on_once: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._principals = principals
        self._on_once = on_once
        self._clock = clock
        self._open: dict[bytes, tuple[Principal, float]] = {}
        self.cookie = COOKIE
        """The cookie's name. Browsers send cookies to all ports of a host: each dashboard there needs its own."""
        self._once = ""

    def begin(self) -> None:
        """Make the first one-time token, if there are no principals."""
        if self._principals is None:
            self._renew_once()

    def sign_in(self, token: str) -> tuple[str, Principal]:
        """Begin a session for the holder of a token: the cookie's value, and the principal. Raises `AccessDenied`."""
        principal = self._of_token(token)
        if principal is None:
            raise AccessDenied("this token is not known here" if self._principals else self._why_no_longer())
        now_s = self._clock()
        self._open = {key: session for key, session in self._open.items() if session[1] > now_s}
        for key in [key for key, session in self._open.items() if session[0] == principal][: 1 - _OF_ONE_MAX]:
            del self._open[key]
        value = secrets.token_urlsafe(_TOKEN_BYTES)
        self._open[_key(value)] = principal, now_s + SESSION_S
        return value, principal

    def of_cookie(self, value: str) -> Principal | None:
        """The principal of a cookie; None for one that is unknown or has expired."""
        session = self._open.get(_key(value))
        return session[0] if session is not None and session[1] > self._clock() else None

    def of_bearer(self, token: str) -> Principal | None:
        """The principal of a token that a request brings itself, as programs do."""
        return None if self._principals is None else self._principals.by_token(token)

    def knows(self, principal: Principal) -> bool:
        """Whether the principal is still listed, with the same token, rights and projects."""
        return principal == OWNER if self._principals is None else principal in self._principals

    def sign_out(self, value: str) -> None:
        """Forget a cookie."""
        self._open.pop(_key(value), None)

    def take(self, principals: Principals) -> None:
        """Replace the principals: who is no longer listed, or has other rights or another token now, is signed
        out.
        """
        self._principals = principals
        self._open = {key: session for key, session in self._open.items() if session[0] in principals}

    def _of_token(self, token: str) -> Principal | None:
        if self._principals is not None:
            return self._principals.by_token(token)
        if not self._once or not hmac.compare_digest(token.encode(errors="surrogateescape"), self._once.encode()):
            return None
        self._renew_once()
        return OWNER

    def _renew_once(self) -> None:
        self._once = secrets.token_urlsafe(_TOKEN_BYTES)
        self._on_once(self._once)

    @staticmethod
    def _why_no_longer() -> str:
        return (
            "this link was used already, or is of an earlier start; the newest one is where the dashboard was started"
        )


def _key(value: str) -> bytes:
    """The key of a session: a hash, so that the time of a look-up says nothing about the cookie."""
    return hashlib.sha256(value.encode(errors="surrogateescape")).digest()
