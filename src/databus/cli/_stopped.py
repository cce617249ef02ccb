"""The log of a relay that does not run, for verbs that mend it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from databus.log import Log, LogConfig
    from databus.sources import SourceConfig


@contextmanager
def stopped_log(config: Path, physical: str) -> "Iterator[tuple[Log, SourceConfig]]":
    """Own the log of one physical source of a pipeline's file or a relay's, and its options.

    Raises `LockHeld` naming the relay while it runs, `UnknownSource`, and `InputError` where there is no log yet.
    """
    from databus.core import InputError, UnknownSource
    from databus.log import Log
    from databus.relay import held_identity

    folder, log_config, sources = _of(config)
    if physical not in sources:
        raise UnknownSource(f"{config}: no physical source called {physical!r}; there are {', '.join(sources)}")
    identity = held_identity(folder / physical)
    if identity is None:
        raise InputError(f"{folder / physical}: there is no log yet; say where it begins by the option `start`")
    with Log.open(
        folder / physical, physical=physical, identity=identity, config=log_config, ids=sources[physical].ids
    ) as log:
        yield log, sources[physical]


@contextmanager
def connected_source(log: "Log", config: "SourceConfig", capability: Any) -> Iterator[Any]:
    """The source of that log, connected, for what it offers: a protocol of `databus.sources`.

    Raises `UnsupportedFeature` where it does not, `SourceChanged` unless it is the one that the log is of.
    """
    from databus.relay import check_identity
    from databus.sources import offered, open_source

    offered(capability, config, log.physical)
    source = open_source(log.physical, config)
    try:
        check_identity(log, source.identify())
        yield source
    finally:
        source.close()


def note(log: "Log", action: str, asked: dict[str, Any]) -> None:
    """Write down in the relay's audit log that somebody changed this log."""
    from databus.relay import Audit, operator

    Audit(log.folder.parent).note(action, operator(), {"sources": [log.physical], **asked}, "done")


def _of(path: Path) -> "tuple[Path, LogConfig, dict[str, SourceConfig]]":
    from databus.formats import load_yaml
    from databus.log import LogConfig
    from databus.relay import load_relay

    if load_yaml(path).keys() & {"inputs", "outputs"}:
        from databus.pipeline import load_pipeline

        pipeline = load_pipeline(path).config
        return pipeline.relay_folder, LogConfig.model_validate(pipeline.relay.log), dict(pipeline.sources)
    relay = load_relay(path)
    return relay.folder, relay.log, dict(relay.sources)
