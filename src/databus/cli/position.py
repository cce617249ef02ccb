"""`databus position`: where a log goes on in its server's log; and `databus skip`: what it leaves out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from databus.cli._app import AsJson, app, say_json
from databus.cli._file import DEFAULT_FILE, AnyFile, FileTyper

if TYPE_CHECKING:
    from databus.log import Log, LogConfig
    from databus.sources import SourceConfig

position_app = FileTyper(no_args_is_help=True, help="Look at, or change, where the log of a stopped relay goes on.")
app.add_typer(position_app, name="position")

Physical = Annotated[str, typer.Argument(help="The physical source.")]
Reads = Annotated[bool, typer.Option("--resnapshot", help="Have all its tables read again when capture goes on.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@position_app.command(epilog="Example: databus position show relay.yml shop")
def show(physical: Physical, config: AnyFile = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """Where the log of a stopped relay ends, and with it where capture goes on."""
    from databus.core import ordinal_of

    with stopped_log(config, physical) as (log, _):
        resume = log.resume()
    shown = {
        "physical": physical,
        "scn": resume.scn,
        "timeline": resume.timeline,
        "ordinal": ordinal_of(resume.scn),
        "txid": resume.txid,
        "position": dict(resume.position or {}),
        "snapshots": sorted(resume.snapshots),
    }
    if as_json:
        say_json(shown)
        return
    last = f", {resume.txid}" if resume.txid else ""  # nothing was captured so far
    typer.echo(f"{physical}: SCN {shown['scn']} (timeline {shown['timeline']}, ordinal {shown['ordinal']}){last}")
    for name, value in (resume.position or {}).items():
        typer.echo(f"  {name:<12} {value}")
    if resume.snapshots:
        typer.echo(f"  being read   {', '.join(sorted(resume.snapshots))}")


@position_app.command("set", epilog="Example: databus position set relay.yml shop latest --resnapshot")
def set_(
    physical: Physical,
    place: Annotated[str, typer.Argument(help="latest, earliest, gtid:SET, FILE:POSITION or a time in ISO form.")],
    config: AnyFile = DEFAULT_FILE,
    resnapshot: Reads = False,
    yes: Yes = False,
) -> None:
    """Have capture go on at another place of the server's log. Consumers get a `gap` for each captured table.

    What lies between is lost to consumers, or comes again; --resnapshot makes their copies right. Where SCNs would not
    rise, a new timeline begins.
    """
    from databus.core import InputError
    from databus.sources import Movable

    source: Movable
    with stopped_log(config, physical) as (log, options), connected_source(log, options, Movable) as source:
        source.check_place(place)
        resume = log.resume()
        if resume.position is None:
            raise InputError(f"{physical}: the log holds nothing yet; say where it begins by the option `start`")
        _confirm(f"{physical}: go on at {place} instead of {_words(resume.position)}?", yes=yes)
        for group in source.move(resume, place, reads=resnapshot):
            log.append(group)
        note(log, "position set", {"place": place, "resnapshot": resnapshot})
        resume = log.resume()
    typer.echo(f"{physical}: goes on at {_words(resume.position or {})}, timeline {resume.timeline}")


@app.command(epilog="Example: databus skip relay.yml shop --transactions 1")
def skip(
    physical: Physical,
    config: AnyFile = DEFAULT_FILE,
    transactions: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many of the next ones.")] = 1,
    resnapshot: Reads = False,
    yes: Yes = False,
) -> None:
    """Leave out the next transactions of the server's log, such as one that capture stopped at.

    Consumers get a `gap` that names them for each captured table; --resnapshot makes their copies right.
    """
    from databus.core import InputError
    from databus.sources import Skippable

    source: Skippable
    with stopped_log(config, physical) as (log, options), connected_source(log, options, Skippable) as source:
        resume = log.resume()
        if resume.position is None:
            raise InputError(f"{physical}: the log holds nothing yet; there is nothing to skip")
        groups, ids = source.pass_over(resume, transactions, reads=resnapshot)
        named = ", ".join(ids[:10]) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
        _confirm(f"{physical}: leave out {named}?", yes=yes)
        for group in groups:
            log.append(group)
        note(log, "skip", {"transactions": ids, "resnapshot": resnapshot})
    typer.echo(f"{physical}: left out {named}")


def _words(position: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in position.items())


def _confirm(question: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True)


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
    """Note in the relay's audit log who changed this log."""
    from databus.relay import Audit, operator

    Audit(log.folder.parent).note(action, operator(), {"sources": [log.physical], **asked}, "done")


def _of(path: Path) -> "tuple[Path, LogConfig, dict[str, SourceConfig]]":
    from databus.cli._configured import is_pipeline
    from databus.log import LogConfig
    from databus.relay import load_relay

    if is_pipeline(path):
        from databus.pipeline import load_pipeline

        pipeline = load_pipeline(path).config
        return pipeline.relay_folder, LogConfig.model_validate(pipeline.relay.log), dict(pipeline.sources)
    relay = load_relay(path)
    return relay.folder, relay.log, dict(relay.sources)
