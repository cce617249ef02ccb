"""The relay: captures physical sources into logs and serves them. Start with `Relay.start`.

    with Relay(load_relay(Path("relay.yml"))) as relay:
        print(relay.url)

`run_relay` is the same for a process of its own, with signals.
"""

import json
import os
import resource
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import FrameType
from typing import Final, Self

import pyarrow as pa

from databus.core import SIGNAL_S_MAX, Clock, DatabusError, ServiceUnavailable, SystemClock, UnknownSource
from databus.disk import FolderLock, is_readable_by_all, make_folder, replace_file
from databus.operate import has_terminal, logger_of, starting
from databus.relay._access_mistakes import mistakes_of
from databus.relay._capture import Capture, OpenSource
from databus.relay._capture_state import State
from databus.relay._catalog import Catalog
from databus.relay._commands import RelayCommands
from databus.relay._config import RelayConfig, is_loopback
from databus.relay._copying import LogCopy
from databus.relay._feed import PublishFeed
from databus.relay._reload import RelayReloads, SourceChanges
from databus.relay._server import RelayServer
from databus.sources import RelayHop, SourceConfig, open_source

RELAY_FILE: Final = "relay.json"
_SETTLE_S_MAX: Final = 2.0
_SWITCH_INTERVAL_S: Final = 0.0005
_FILES_WANTED: Final = 65_536

_logger = logger_of("databus.relay")


def told_url(folder: Path) -> str | None:
    """Where the relay of this folder said last that it answers; None if it never did."""
    try:
        return str(json.loads((folder / RELAY_FILE).read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Relay:
    """A relay in this process. `start` and `stop` once each; also a context manager.

    open_source: how sources are made, for those that are no plugin.
    """

    def __init__(
        self, config: RelayConfig, *, open_source: OpenSource = open_source, clock: Clock | None = None
    ) -> None:
        self.config = config
        self._server = RelayServer(config)
        self._feeds = {name: PublishFeed(self._server.loop) for name in config.sources}
        self._id = str(uuid.uuid4())
        self._open_source = open_source
        self._clock = clock or SystemClock()
        self.captures = {name: self._capture(name, options) for name, options in config.sources.items()}
        self._catalog = Catalog(self.captures, config.file)
        self.reloads = RelayReloads(self)
        self._commands = RelayCommands(config, self._catalog, self._feeds, self.reloads)
        self._lock: FolderLock | None = None
        self._changing = threading.Lock()  # of sources, or the end of all
        self._is_stopping = False

    def _capture(self, name: str, options: SourceConfig) -> Capture:
        return Capture(
            name,
            options,
            self.config.folder / name,
            open_source=self._open_source,
            options=self.config.capture,
            log_config=self.config.log,
            published=partial(self._tell_published, name),
            log_ended=partial(self._end_streams, name),
            copy=LogCopy(lambda: RelayHop(self._id, self.url)),
            guard=lambda: self._commands.groups.guard_of(name),  # the commands are made after the captures
            clock=self._clock,
        )

    def _tell_published(self, name: str) -> None:
        self._feeds[name].published()  # which is another one once streams were ended

    def _end_streams(self, name: str, error: DatabusError | None = None) -> None:
        """End the streams of a log that is no longer served; a client that asks again gets what is there now."""
        feed, self._feeds[name] = self._feeds[name], PublishFeed(self._server.loop)
        with suppress(RuntimeError):  # the loop has ended, and they with it
            self._server.loop.call_soon_threadsafe(feed.end, error)

    def change(self, config: RelayConfig, changes: SourceChanges) -> None:
        """Go over to the sources of another file; see `databus.relay._reload`. Raises `ServiceUnavailable` where it
        stops.
        """
        with self._changing:
            if self._is_stopping:
                raise ServiceUnavailable("the relay stops")
            self._change(config, changes)

    def _change(self, config: RelayConfig, changes: SourceChanges) -> None:
        captures = {name: capture for name, capture in self.captures.items() if name not in changes.removed}
        removed = [self.captures[name] for name in changes.removed]
        for name in changes.added:
            self._feeds[name] = PublishFeed(self._server.loop)
            captures[name] = self._capture(name, config.sources[name])
        self.config.take_sources(config)
        self.captures = self._catalog.captures = captures  # in one step, for those who look meanwhile
        for name in changes.changed:
            captures[name].change(config.sources[name])
        for capture in removed:
            capture.ask_to_stop()
            gone = f"{capture.physical}: this relay does not capture it any more; its log is kept, and not served"
            self._end_streams(capture.physical, UnknownSource(gone))
        for capture in removed:
            capture.stop()
        for name in changes.added:
            captures[name].start()
        for name in (*changes.added, *changes.changed):
            captures[name].wait_until_settled(_SETTLE_S_MAX)

    @property
    def url(self) -> str:
        """Where it answers, once started."""
        return url_at(self.config, self._server.port)

    def start(self) -> Self:
        """Own the folder, bind, begin to capture, and tell the address in `relay.json`.

        Returns when every source runs or has met its first error, after two seconds at most. Raises `LockHeld` naming
        the relay that owns the folder, `ConfigError` if the address cannot be had. What raises leaves nothing running.
        """
        try:
            return self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> Self:
        folder = self.config.folder
        make_folder(folder)
        self._lock = FolderLock.take(folder)
        keeper = self._commands.groups.keeper
        keeper.open()
        self._server.start(self._commands)
        self._server.loop.call_soon_threadsafe(keeper.start)
        for capture in self.captures.values():
            capture.start()
        for capture in self.captures.values():
            capture.wait_until_settled(_SETTLE_S_MAX)
        address = json.dumps({"url": self.url, "pid": os.getpid()}) + "\n"
        replace_file(folder / RELAY_FILE, [address.encode()], durable=False)
        self._say_ready()
        return self

    def _say_ready(self) -> None:
        config = self.config
        if config.tls is None and not is_loopback(config.address[0]):
            _logger.warning(
                "the relay listens beyond this machine without TLS: its token and all rows cross the network in clear; "
                "set tls",
                listen=config.listen,
            )
        for token_file in filter(is_readable_by_all, config.token_files):
            _logger.warning(
                "every user of this machine can read the token's file; take the right away: chmod o= FILE",
                file=str(token_file),
            )
        stores = [capture.log.schemas for capture in self.captures.values() if capture.log is not None]
        for mistake in mistakes_of(config.access, stores):
            _logger.warning(mistake, hint="correct `access`, unless it comes later")
        well = (State.RUNNING, State.PAUSED, State.INITIALIZING)
        failing = {
            name: capture.describe() for name, capture in self.captures.items() if capture.status.state not in well
        }
        if failing:
            _logger.warning("relay answers, but does not capture", url=self.url, not_captured=failing)
        else:
            _logger.info("relay ready", url=self.url, sources=sorted(self.captures))

    def stop(self) -> None:
        """End in good order: streams first, then capture, then the logs. Callable twice, and after half a start.

        Whatever one step meets, the others are taken; its error is raised at the end.
        """
        with self._changing:
            self._is_stopping = True
        with ExitStack() as steps:  # the last one is taken first
            steps.callback(self._give_folder_back)
            steps.callback(self._commands.close)
            for capture in self.captures.values():
                steps.callback(capture.stop)
            for capture in self.captures.values():
                steps.callback(capture.ask_to_stop)
            steps.callback(self._server.stop)

    def _give_folder_back(self) -> None:
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            (self.config.folder / RELAY_FILE).unlink(missing_ok=True)
        finally:
            lock.release()
        _logger.info("relay stopped")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def relay_url(config: RelayConfig) -> str | None:
    """Where a relay with this configuration answers, as it has said itself; else where it listens.

    None where it listens at a port that only a running relay can tell.
    """
    port = config.address[1]
    return told_url(config.folder) or (url_at(config, port) if port else None)


def url_at(config: RelayConfig, port: int) -> str:
    """By which address this machine asks a relay that listens on this port."""
    host = config.address[0]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    scheme = "http" if config.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def run_relay(config: RelayConfig, *, ready: Callable[[Relay], None] | None = None) -> None:
    """Run a relay in this process, which is its own, until SIGINT or SIGTERM. Call it from the main thread.

    SIGHUP has it read its file again, unless that is ignored (`nohup`); where the terminal has gone that this process
    had, SIGHUP ends it. ready: called once it answers.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)  # a thread that serves waits no longer for one that captures
    _allow_many_files()
    _leave_pandas_out(config)
    ended, hung_up = threading.Event(), threading.Event()
    had_terminal = has_terminal()

    def end(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and (has_terminal() or not had_terminal):
            hung_up.set()
            return
        _logger.info("relay stops", signal=signal.Signals(number).name)
        ended.set()

    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    taken = (signal.SIGINT, signal.SIGTERM) if is_ignored else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in taken}
    try:
        with ExitStack() as running:
            with starting():
                relay = running.enter_context(Relay(config))
            if ready is not None:
                ready(relay)
            while not ended.wait(SIGNAL_S_MAX):
                if hung_up.is_set():
                    hung_up.clear()
                    relay.reloads.hangup()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_pandas_out(config: RelayConfig) -> None:
    """Make Arrow's first array here, without pandas: otherwise the first change would wait until Arrow has imported it.

    Arrow does so, for half a second, in order to know pandas' objects where it is given any. Our sources
    give it none; a source that is a plugin may.
    """
    is_ours = all(type(source).__module__.startswith("databus.") for source in config.sources.values())
    if "pandas" in sys.modules or not is_ours:
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)


class _Hidden(MetaPathFinder):
    """While it is asked first, there is no pandas."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
