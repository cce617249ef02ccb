"""`databus bootstrap`: keep what a relay forgets, and serve it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from databus.cli._app import AsJson, LogFormat, LogLevel, app, say_json, say_table
from databus.cli._file import Commands

_COLUMNS = ("physical", "log_scn", "oldest_scn", "state_scn", "states", "rows", "incomplete")

bootstrap_app = Commands(no_args_is_help=True, epilog="Example: databus bootstrap run bootstrap.yml")
app.add_typer(bootstrap_app, name="bootstrap", help="Keep what a relay forgets, and serve it.")

File = Annotated[Path, typer.Argument(help="The service's file.")]


@bootstrap_app.command(epilog="Example: databus bootstrap run bootstrap.yml")
def run(
    file: File,
    master: Annotated[str | None, typer.Option(help="Spark's master, such as spark://host:7077.")] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Fill the stores from a relay and serve them, until Ctrl-C."""
    from databus.bootstrap import load_bootstrap, run_bootstrap
    from databus.operate import configure_logs

    config = load_bootstrap(file)
    configure_logs(level=log_level, style=log_format, pipeline=config.name)
    raise typer.Exit(run_bootstrap(config, master=master))


@bootstrap_app.command(epilog="Example: databus bootstrap status bootstrap.yml")
def status(file: File, as_json: AsJson = False) -> None:
    """How far the stores are and how many states are kept, by the notes beside them; the service need not run."""
    from databus.bootstrap import load_bootstrap, status_of

    found: dict[str, Any] = status_of(load_bootstrap(file))
    if as_json:
        say_json(found)
        return
    if not found:
        typer.echo("nothing is kept yet: `databus bootstrap run` fills the stores, and notes states as they come")
        return
    say_table(
        _COLUMNS,
        [{"physical": name, **each, "incomplete": ", ".join(each["incomplete"])} for name, each in found.items()],
    )
