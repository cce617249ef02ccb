"""Requests to somebody who may be away: in order, each until it is taken; a bounded number of them waits."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from databus.core import ConfigError
from databus.operate import logger_of

Headers = Callable[[], Mapping[str, str]]
"""Asked for before each try: a signature may be of now."""

_ANSWER_S_MAX: Final = 10.0
_AGAIN_S: Final = (1.0, 60.0)
_SUCCESS: Final = range(200, 300)
_WRONG: Final = frozenset({400, 401, 403, 404, 405, 413, 422})
"""What asking again does not mend; where requests are worth little, the next one may be better."""

_logger = logger_of("databus.dashboard")


class Outbox:
    """`put` by the loop's thread, where `run` sends until it is cancelled. what: who is sent to, for people.

    waiting_max: the oldest are dropped beyond that. gives_up: what is refused for good is dropped, not sent again.
    """

    def __init__(self, what: str, url: str, waiting_max: int, *, gives_up: bool) -> None:
        """Raises `ConfigError` for an address that is none."""
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"{what}: {url}: expected an address, such as https://hooks.example/databus")
        self._what = what
        self._url = url
        self._gives_up = gives_up
        self._waiting: deque[tuple[bytes, Headers]] = deque()
        self._waiting_max = waiting_max
        self._has_come = asyncio.Event()
        self.dropped = 0
        self.trouble = ""
        """Why nothing can be sent; empty where it can."""

    def put(self, body: bytes, headers: Headers) -> None:
        """Send it when its turn comes."""
        if len(self._waiting) >= self._waiting_max:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((body, headers))
        self._has_come.set()

    async def run(self) -> None:
        """Send what there is."""
        async with ClientSession(timeout=ClientTimeout(total=_ANSWER_S_MAX)) as session:
            wait_s = _AGAIN_S[0]
            while True:
                await self._has_come.wait()
                if not self._waiting:
                    self._has_come.clear()
                    continue
                first = self._waiting[0]
                if await self._is_taken(session, *first):
                    wait_s = _AGAIN_S[0]
                    if self._waiting and self._waiting[0] is first:  # else it was dropped meanwhile
                        self._waiting.popleft()
                    continue
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_S[1])

    async def _is_taken(self, session: ClientSession, body: bytes, headers: Headers) -> bool:
        status = 0
        with suppress(ClientError, TimeoutError, OSError):
            async with session.post(self._url, data=body, headers=headers(), allow_redirects=False) as answer:
                status = answer.status
        is_taken = status in _SUCCESS
        trouble = "" if is_taken else f"{self._what} answers {status}" if status else f"{self._what} does not answer"
        if trouble and trouble != self.trouble:
            _logger.warning("not sent; tried again", to=urlsplit(self._url).hostname, why=trouble)
        self.trouble = trouble
        if self._gives_up and status in _WRONG:
            self.dropped += 1
            return True
        return is_taken
