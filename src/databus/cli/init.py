"""`databus init`: a project that runs as it is, or as soon as a server is prepared; or a package with a plugin."""

import re
import socket
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from databus.cli._app import app, options_given
from databus.cli._plugin_texts import plugin_files
from databus.cli._project_texts import pipeline_files, relay_files

_PORTS: Final = {"relay": 11115, "sqlite": 11115, "mysql": 11116, "mariadb": 11117, "kafka": 11118, "stream": 11119}
"""Where the search for a free port begins: projects of two kinds do not meet, though neither runs yet."""
_PORTS_TRIED: Final = 100


class PluginKind(StrEnum):
    """What a package is to bring."""

    output = "output"
    input = "input"
    filter = "filter"


class ProjectSource(StrEnum):
    """What is captured."""

    sqlite = "sqlite"
    mysql = "mysql"
    mariadb = "mariadb"
    kafka = "kafka"
    stream = "stream"


@app.command(epilog="Example: databus init my-project && cd my-project && databus run")
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Where to write it; made if it is not there.")] = Path(),
    source: Annotated[
        ProjectSource,
        typer.Option(help="What is captured: a small shop in SQLite that comes with it, or what you have."),
    ] = ProjectSource.sqlite,
    relay: Annotated[
        bool, typer.Option("--relay", help="A relay of its own, which pipelines and programs elsewhere read.")
    ] = False,
    plugin: Annotated[
        PluginKind | None,
        typer.Option(help="A package with a plugin instead, and tests that pass; FOLDER is its name, such as my-sink."),
    ] = None,
) -> None:
    """Write a project: a source and a pipeline that copies it, a relay, or a plugin. With SQLite it runs as it is."""
    if plugin is not None:
        _refuse_with_plugin(options_given(context))
        _write_plugin(plugin.value, folder)
        return
    port = free_port(_PORTS["relay" if relay else source.value])
    written = (relay_files if relay else pipeline_files)(source.value, port)
    names = [*written, "shop.db"] if source is ProjectSource.sqlite else [*written]
    _write(folder, written, names)
    if source is ProjectSource.sqlite:
        from databus.testing.shop import create_shop

        create_shop(folder / "shop.db")
    into = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"wrote {', '.join(names)}")
    typer.echo(f"next: {into}" + "\n      ".join(_next_steps(source, is_relay=relay)))


def _next_steps(source: ProjectSource, *, is_relay: bool) -> list[str]:
    """What to type now, a line each."""
    file = "relay.yml" if is_relay else "databus.yml"
    runs = "databus relay relay.yml" if is_relay else "databus run"
    checks = "databus check-source relay.yml" if is_relay else "databus check-source"
    match source:
        case ProjectSource.sqlite:
            return [runs]
        case ProjectSource.kafka:
            edit = f"${{EDITOR:-vi}} {file}   # your topics; how the brokers are to be asked"
            return [edit, "export KAFKA_SERVERS=...", f"{checks} && {runs}"]
        case ProjectSource.stream:
            return [f"${{EDITOR:-vi}} {file}   # your file or process instead of app.log", runs]
        case ProjectSource.mysql | ProjectSource.mariadb:
            edit = f"${{EDITOR:-vi}} prepare.sql {file}   # a password; your database instead of shop"
            return [edit, "mysql -u root -p < prepare.sql", "export MYSQL_PASSWORD=...", f"{checks} && {runs}"]


def _refuse_with_plugin(given: Sequence[str]) -> None:
    """A plugin's package captures nothing, so an option that says what is would be passed over in silence."""
    from databus.core import InputError

    others = [option for option in given if option in ("source", "relay")]
    if others:
        raise InputError(f"--{others[0]} is for a project, and --plugin writes a package without one; leave one out")


def _write(folder: Path, texts: Mapping[str, str], names: Sequence[str]) -> None:
    """Write files into a folder where none of these names is taken. Raises `InputError`."""
    from databus.core import InputError

    there = [name for name in names if (folder / name).exists()]
    if there:
        raise InputError(f"{folder}: {', '.join(there)} is already there; choose an empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{folder}: there is a file of that name; choose a folder") from error
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _write_plugin(kind: str, folder: Path) -> None:
    """Write a package into a folder that has the plugin's name."""
    from databus.core import InputError

    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise InputError(
            f"{name or folder}: a plugin's name, and that of its folder, has small letters, digits, - and _ only, such "
            f"as `databus init --plugin {kind} my-{kind}`"
        )
    texts = plugin_files(kind, name)
    _write(folder, texts, [*texts])
    typer.echo(f"wrote {', '.join(f'{folder}/{path}' for path in texts)}")
    typer.echo(f"next: cd {folder} && pip install -e '.[test]' && pytest")


def free_port(first: int) -> int:
    """The first free port from here on, so that a project runs beside others."""
    for port in range(first, first + _PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return first
