"""The relay's tokens: read from their file, and again when it changes. So one can be replaced while the relay runs."""

from collections.abc import Sequence

import structlog

from databus.core import ConfigError
from databus.relay._certificates import state_of
from databus.relay._config import RelayConfig

_logger = structlog.get_logger("databus.relay")


class Tokens:
    """What requests must carry. `renew` may be called by another thread than uses `headers`."""

    def __init__(self, config: RelayConfig) -> None:
        """Read the file. Raises `ConfigError` if it is no good, or missing where it is needed."""
        self._config = config
        self._seen = self._state()
        self.headers = _headers(config)

    def renew(self) -> None:
        """Read the file again if it has changed. If it is no good, the tokens that were read before stay: the relay is
        never without one that began with one.
        """
        seen = self._state()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.headers = _headers(self._config)
        except ConfigError as error:
            _logger.warning("the token's file has changed and cannot be used; the tokens stay", message=str(error))
        else:
            _logger.info(
                "the token's file has been read again", file=str(self._config.token_file), count=len(self.headers)
            )

    def _state(self) -> tuple[int, int, int] | None:
        file = self._config.token_file
        return None if file is None else state_of(file)


def _headers(config: RelayConfig) -> Sequence[bytes]:
    """The whole values of the header."""
    return [f"Bearer {each}".encode() for each in config.tokens()]
