"""Tokens of a server: read from their file, and again when it changes. So one can be replaced while the server runs."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from databus.core import ConfigError
from databus.operate import logger_of
from databus.relay._certificates import LOOK_S, state_of

_logger = logger_of("databus.relay")


class Tokens:
    """What requests must carry. `renew` may be called by another thread than uses `headers`.

    file: where they are; None where there are none. read: the tokens in it; raises `ConfigError` if it is no good.
    """

    def __init__(self, file: Path | None, read: Callable[[], Sequence[str]]) -> None:
        """Read the file. Raises what `read` does."""
        self._file = file
        self._read = read
        self._seen = self._state()
        self.headers = self._headers()

    def renew(self) -> None:
        """Read the file again if it has changed. If it is no good, the tokens that were read before stay: a server is
        never without one that began with one.
        """
        seen = self._state()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.headers = self._headers()
        except ConfigError as error:
            _logger.warning("the token's file has changed and cannot be used; the tokens stay", message=str(error))
        else:
            _logger.info("the token's file has been read again", file=str(self._file), count=len(self.headers))

    def _headers(self) -> Sequence[bytes]:
        """The whole values of the header."""
        return [f"Bearer {each}".encode() for each in self._read()]

    def _state(self) -> tuple[int, int, int] | None:
        return None if self._file is None else state_of(self._file)


class Renewable(Protocol):
    """What was read from files that may change."""

    def renew(self) -> None:
        """Read them again if they have."""


async def keep_renewing(*read: Renewable) -> None:
    """Look at files as long as a server runs, in a thread: they may be on a slow disk."""
    while True:
        await asyncio.sleep(LOOK_S)
        for each in read:
            await asyncio.to_thread(each.renew)
