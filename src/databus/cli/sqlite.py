"""`databus sqlite`: prepare a database, change its tables safely, take everything out again."""

from pathlib import Path
from typing import Annotated, Any

import typer

from databus.cli._app import AsJson, app, say_json, utc
from databus.core import InputError

sqlite_app = typer.Typer(no_args_is_help=True, help="Prepare an SQLite database, alter it, or take databus out of it.")
app.add_typer(sqlite_app, name="sqlite")

Database = Annotated[Path, typer.Argument(help="The database's file.", exists=True, dir_okay=False)]
Tables = Annotated[list[str] | None, typer.Option("--table", help="Tables, as main.*; all of them.")]


@sqlite_app.command(epilog="Example: databus sqlite install shop.db --wal")
def install(
    path: Database,
    tables: Tables = None,
    wal: Annotated[bool, typer.Option("--wal", help="Switch the journal to WAL, which capture needs.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Let another relay capture it; the one before cannot go on then.")
    ] = False,
) -> None:
    """Put the triggers in; also renews them after an ALTER TABLE. `databus relay` does the same by itself."""
    from databus.sources.sqlite import SqliteConfig
    from databus.sources.sqlite import install as install_triggers
    from databus.sources.sqlite import status as status_of

    config = SqliteConfig(path=str(path), tables=tables) if tables else None
    install_triggers(str(path), config, set_wal=wal, take_over=take_over)
    captured = status_of(str(path))["tables"]
    if tables and not captured:
        raise InputError(f"{path}: no table is captured: none is called {', '.join(tables)}")
    typer.echo(f"{path}: tables captured: {', '.join(captured) or 'none'}")


@sqlite_app.command(epilog="Example: databus sqlite remove shop.db")
def remove(path: Database) -> None:
    """Take triggers and tables of databus out of the database."""
    from databus.sources.sqlite import remove as remove_triggers

    remove_triggers(str(path))
    typer.echo(f"{path}: nothing of databus is left in it")


@sqlite_app.command(epilog="Example: databus sqlite alter shop.db 'ALTER TABLE orders DROP COLUMN placed_at'")
def alter(
    path: Database,
    statement: Annotated[str, typer.Argument(help="One ALTER TABLE statement; CREATE and DROP are taken, too.")],
) -> None:
    """Run an ALTER TABLE so that no change is recorded in the wrong shape; the way to drop a column."""
    from databus.sources.sqlite import alter as alter_table

    alter_table(str(path), statement)
    typer.echo(f"{path}: done")


@sqlite_app.command(epilog="Example: databus sqlite status shop.db --json")
def status(path: Database, as_json: AsJson = False) -> None:
    """What is captured, by which relay, and how much waits."""
    from databus.sources.sqlite import status as status_of

    facts = status_of(str(path))
    if as_json:
        say_json(facts)
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' ')}: {_for_people(value)}")


def _for_people(value: Any) -> str:
    """A value of `status`, as one says it."""
    match value:
        case None | []:
            return "none"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value))
        case {"id": number, "token": token, "time_us": time_us}:
            return f"{number} of {utc(time_us, 'milliseconds')}, token {token}"
        case _:
            return str(value)
