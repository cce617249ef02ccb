"""Taking the relay's file again while it runs: asked for, or by a signal. Start with `RelayReloads`.

The file is read and checked whole first; one with a mistake changes nothing. Then physical sources are added, removed
and changed; those whose options are as they were are not touched. What else the file says now is named, and kept as it
was.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from databus.core import DatabusError, ServiceUnavailable
from databus.operate import logger_of
from databus.relay._config import RelayConfig
from databus.sources import SourceConfig

_OTHERS_S_MAX: Final = 60.0
_SECTIONS: Final = tuple(name for name in RelayConfig.model_fields if name != "sources")
_RESTART: Final = "it stays as it was until the relay is started again"

_logger = logger_of("databus.relay")


@dataclass(frozen=True)
class SourceChanges:
    """Names of physical sources."""

    unchanged: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """They go on with other options, where their logs end."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def between(cls, old: Mapping[str, SourceConfig], new: Mapping[str, SourceConfig]) -> "SourceChanges":
        """What there is to do."""
        return cls(
            tuple(name for name in new if name in old and old[name] == new[name]),
            tuple(name for name in new if name in old and old[name] != new[name]),
            tuple(name for name in new if name not in old),
            tuple(name for name in old if name not in new),
        )

    def to_json(self) -> dict[str, list[str]]:
        """For answers and logs."""
        return {name: list(getattr(self, name)) for name in ("unchanged", "changed", "added", "removed")}


def kept(old: RelayConfig, new: RelayConfig) -> list[str]:
    """What the new file says otherwise and a running relay cannot change, a line each."""
    options = [name for name in _SECTIONS if getattr(old, name) != getattr(new, name)]
    options += [
        f"sources.{name}.ids"
        for name, source in old.sources.items()
        if name in new.sources and new.sources[name].ids != source.ids
    ]
    return [f"{name}: cannot change while the relay runs; {_RESTART}" for name in options]


class Reloadable(Protocol):
    """What takes other sources."""

    @property
    def config(self) -> RelayConfig:
        """As it is by now."""

    def change(self, config: RelayConfig, changes: SourceChanges) -> None:
        """Go over to the sources of another file. Raises `ServiceUnavailable` where it stops."""


class RelayReloads:
    """Called by any thread; one reload at a time, others wait for it."""

    def __init__(self, run: Reloadable) -> None:
        self._run = run
        self._lock = threading.Lock()

    def reload(self, by: str) -> Mapping[str, Any]:
        """Take the file as it is now; returns the changes, and what of it was not taken (`kept`).

        Raises `ConfigError` with a line for each mistake, `InputError` where there is no file, `ServiceUnavailable`
        where another one is at work; nothing has changed then.
        """
        if not self._lock.acquire(timeout=_OTHERS_S_MAX):
            raise ServiceUnavailable("another reload is at work, and does not end; ask again later")
        try:
            outcome = self._reloaded()
        except DatabusError as error:
            _logger.warning("the file was not taken; nothing has changed", by=by, why=str(error))
            raise
        finally:
            self._lock.release()
        _logger.info("the file was taken", by=by, **outcome)
        return outcome

    def _reloaded(self) -> Mapping[str, Any]:
        before = self._run.config
        new = before.read_again()
        changes = SourceChanges.between(before.sources, new.sources)
        left = kept(before, new)
        self._run.change(new, changes)
        return {**changes.to_json(), "kept": left}

    def hangup(self) -> None:
        """Take it in the background, as SIGHUP asks for; never blocks. Why it failed is in the log."""
        threading.Thread(target=self._quietly, name="reload", daemon=True).start()

    def _quietly(self) -> None:
        try:
            self.reload("SIGHUP")
        except DatabusError:
            return  # it was logged
        except Exception:
            _logger.exception("a reload ended by a defect", by="SIGHUP")
