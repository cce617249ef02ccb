"""Tokens of a server: read from their file, and again when it changes. So one can be replaced while the server runs."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from aiohttp import web

from databus.core import AccessDenied, ConfigError
from databus.operate import logger_of
from databus.relay._admission import admit
from databus.relay._certificates import LOOK_S, state_of
from databus.relay._config import RelayConfig, tokens_in
from databus.relay._grant import ALL, Grant

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
        return [f"Bearer {token}".encode() for token in self._read()]

    def _state(self) -> tuple[int, int, int] | None:
        return None if self._file is None else state_of(self._file)


class Keys:
    """The tokens of a relay, and what each allows; like `Tokens` for all its files."""

    def __init__(self, config: RelayConfig, who: str = "relay") -> None:
        """Read the files. Raises `ConfigError` if one is no good, or missing where it is needed. who: what errors call
        the server.
        """
        self._who = who
        config.check_tokens()
        option = "token_file" if config.token_file is not None else "access.{name}.token_file"
        self._held = [
            (grant, Tokens(file, partial(tokens_in, file, option.format(name=grant.name))))
            for file, grant in config.token_files.items()
        ]
        self.renewals = 0
        """How often tokens have changed."""
        owner: dict[bytes, str] = {}
        for grant, tokens in self._held:
            for header in tokens.headers:
                if owner.setdefault(header, grant.name) != grant.name:
                    raise ConfigError(
                        f"access: {owner[header]} and {grant.name} have the same token; what it allows would be unclear"
                    )

    def admit(self, request: web.Request) -> Grant:
        """What whoever asks may do and see. Raises `AccessDenied` if nothing."""
        known = [(header, grant) for grant, tokens in self._held for header in tokens.headers]
        has = admit(request, [header for header, _ in known], self._who)
        grants = {grant for (_, grant), is_it in zip(known, has, strict=True) if is_it} if known else {ALL}
        if len(grants) > 1:  # a file was changed so while the relay runs
            raise AccessDenied("the token is that of several entries of `access`; each needs one of its own")
        return grants.pop()

    def still_admits(self, request: web.Request, grant: Grant) -> bool:
        """Whether who was let in as this would be so now."""
        try:
            return self.admit(request) == grant
        except AccessDenied:
            return False

    def renew(self) -> None:
        """Read again the files that have changed."""
        before = [tokens.headers for _, tokens in self._held]
        for _, tokens in self._held:
            tokens.renew()
        self.renewals += before != [tokens.headers for _, tokens in self._held]


class Renewable(Protocol):
    """What was read from files that may change."""

    def renew(self) -> None:
        """Read them again if they have."""


async def keep_renewing(*read: Renewable) -> None:
    """Look at files as long as a server runs, in a thread: they may be on a slow disk."""
    while True:
        await asyncio.sleep(LOOK_S)
        for renewable in read:
            await asyncio.to_thread(renewable.renew)
