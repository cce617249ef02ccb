"""The bootstrap service: a pipeline that fills the stores, a thread that notes states, a server that answers."""

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from databus.bootstrap._commands import ServiceCommands
from databus.bootstrap._config import BootstrapConfig
from databus.bootstrap._noting import NoteTaker
from databus.filters import matches
from databus.operate import logger_of
from databus.pipeline import StateLock, run
from databus.relay import RelayServer, url_at

_logger = logger_of("databus.bootstrap")


class BootstrapServer:
    """Serves the stores, whoever fills them. `start` and `stop` once each; also a context manager."""

    def __init__(self, config: BootstrapConfig) -> None:
        self._config = config
        self._server = RelayServer(config.server, "bootstrap service")
        self._commands = ServiceCommands(config)

    @property
    def url(self) -> str:
        """Where it answers, once started."""
        return url_at(self._config.server, self._server.port)

    def start(self) -> Self:
        """Bind and serve. Raises `ConfigError` if the address cannot be had."""
        self._server.start(self._commands)
        _logger.info("bootstrap service ready", url=self.url)
        return self

    def stop(self) -> None:
        """End all answers and give the port back."""
        self._server.stop()
        self._commands.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def keyless_tables(config: BootstrapConfig) -> list[str]:
    """The tables that are kept and have no key, by full names, as the relay knows them now."""
    relay = config.relay()
    try:
        return [
            source.name for source in relay.sources() if not source.key and matches(source.name, config.options.tables)
        ]
    finally:
        relay.close()


def run_bootstrap(config: BootstrapConfig, ready: Callable[[str], None] | None = None, **options: Any) -> int:
    """Fill the stores and serve them until a signal; returns the pipeline's exit code. Call it from the main thread.

    ready: called with the server's address. options: of the pipeline's `run`. Raises `LockHeld`, before it writes
    anything, where the service runs already.
    """
    lock = StateLock(config.state, config.name)
    with ExitStack() as running:
        lock.take()
        running.callback(lock.release)
        path = config.write_pipeline(keyless_tables(config))
        server = running.enter_context(BootstrapServer(config))
        notes = NoteTaker(config)
        running.callback(notes.close)
        notes.start()
        if ready is not None:
            ready(server.url)
        return run(path, on_event=notes.on_event, lock=lock, **options)
