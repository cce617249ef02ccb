"""`databus bootstrap`: keep what a relay forgets, and serve it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from databus.cli._app import AsJson, LogFormat, LogLevel, app, say_json, say_table
from databus.cli._file import FileTyper
from databus.cli._past import SERVICE_FILE, ServiceFile, Table

_COLUMNS = (
    "physical", "log_scn", "log_lag_ms", "oldest_scn", "oldest", "state_scn", "state_lag_ms", "merge_ms", "states",
    "oldest_state_scn", "rows", "log_bytes", "state_bytes", "incomplete",
)  # fmt: skip

bootstrap_app = FileTyper(no_args_is_help=True, epilog="Example: databus bootstrap run bootstrap.yml")
app.add_typer(bootstrap_app, name="bootstrap", help="Keep what a relay forgets, and serve it.")

File = Annotated[Path, typer.Argument(help="The service's file.")]


@bootstrap_app.command(epilog="Example: databus bootstrap run bootstrap.yml")
def run(
    file: File = SERVICE_FILE,
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


@bootstrap_app.command(epilog="Example: databus bootstrap verify shop/main.orders -f bootstrap.yml")
def verify(
    table: Annotated[str | None, typer.Argument(help="A table, such as shop/main.orders; else all.")] = None,
    file: ServiceFile = SERVICE_FILE,
    as_json: AsJson = False,
) -> None:
    """Whether each state is what the log store makes of the state before it, by counts and hashes per bucket of keys.

    Exits with 1 where one is not. The service may run meanwhile; the database is not asked.
    """
    from databus.bootstrap import TablePast, load_bootstrap, verified

    config, is_wrong = load_bootstrap(file), False
    for past in TablePast.all(config) if table is None else [TablePast.of(config, table)]:
        for state in verified(past):
            is_wrong |= state.is_equal is False
            word = {None: "not compared", True: "right", False: "WRONG"}[state.is_equal]
            if as_json:
                say_json(asdict(state))
                continue
            reason = f": {state.reason}" if state.reason else ""
            typer.echo(f"{state.name} at SCN {state.scn}: {state.rows:,} rows, {word}{reason}")
    if is_wrong:
        raise typer.Exit(1)


@bootstrap_app.command(epilog="Example: databus bootstrap erase shop/main.users --key 'id = 7' --reason 'ticket 12'")
def erase(
    table: Table,
    key: Annotated[str, typer.Option(help="Which row, such as 'id = 7'.")],
    reason: Annotated[str, typer.Option(help="Why; it is noted, beside a hash of the key.")],
    file: ServiceFile = SERVICE_FILE,
    as_json: AsJson = False,
) -> None:
    """Take all images of a row out of the stores: out of the log, and out of every state. Stop the service before.

    Each file that holds one is written again without it, and removed. Killed half-way, the same command does the rest.
    The relay's log is not rewritten: it forgets what its retention lets go, and the command says whether it has.
    """
    from databus.bootstrap import erase as erase_key
    from databus.bootstrap import load_bootstrap

    erased = erase_key(load_bootstrap(file), table, key, reason)
    if as_json:
        say_json(asdict(erased))
        return
    typer.echo(
        f"{table}: {erased.rows:,} images in {erased.files:,} files are gone; {erased.states:,} states were noted again"
    )
    if erased.is_still_there:
        typer.echo(
            f"{table}: the newest state had the row, so the source may have it still; its next change comes again"
        )
    if not erased.last_scn:
        return
    if erased.relay_scn is None:
        typer.echo(f"the relay could not be asked; its log may hold images up to SCN {erased.last_scn}")
    elif erased.relay_scn >= erased.last_scn:
        typer.echo("the relay's log has forgotten it too")
    else:
        typer.echo(
            f"the relay's log begins at SCN {erased.relay_scn}; it has forgotten all images when that is "
            f"{erased.last_scn} or more (`databus bootstrap status` shows it)"
        )


@bootstrap_app.command(epilog="Example: databus bootstrap status bootstrap.yml")
def status(file: File = SERVICE_FILE, as_json: AsJson = False) -> None:
    """How far the stores are and how many states are kept, by the notes beside them; the service need not run.

    Where the server answers, also how many answers it is giving, and what it has given since it started.
    """
    from databus.bootstrap import answers_of, load_bootstrap, status_of

    config = load_bootstrap(file)
    stores: dict[str, Any] = status_of(config)
    if as_json:
        say_json(stores)
        return
    if not stores:
        typer.echo("nothing is kept yet: `databus bootstrap run` fills the stores, and notes states as they come")
        return
    say_table(
        _COLUMNS,
        [
            {
                "physical": name,
                **{column: "unknown" if value is None else value for column, value in store.items()},
                "oldest": _time_text(store["oldest_us"]),
                "incomplete": ", ".join(store["incomplete"]),
            }
            for name, store in stores.items()
        ],
    )
    given = answers_of(config)
    if given is not None:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in given["answers"].items())
        typer.echo(f"answers: {given['open_answers']:,} open, {kinds}, {given['sent_bytes']:,} bytes")


def _time_text(us: int) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(us / 1e6, dt.UTC).isoformat(timespec="seconds") if us else "-"
