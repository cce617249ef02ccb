"""`databus init`: a project that runs as it is, or as soon as a server is prepared; or a package with a plugin."""

import re
import socket
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Annotated, Final

import typer

from databus.cli._app import app
from databus.cli._plugin_texts import plugin_files

_SQLITE_PIPELINE: Final = """\
# A pipeline of databus: what is captured, and where it goes. Reference: docs/reference.md.
#   databus validate     finds every mistake in this file
#   databus test         runs the tests at its end
#   databus run          runs it until Ctrl-C
name: shop

relay:                          # the relay that `databus run` starts for the sources below
  folder: .databus/relay        # its logs: the stream, for as long as retention keeps it
  listen: 127.0.0.1:@PORT@

sources:
  shop:
    type: sqlite
    path: shop.db
    tables: [main.*]

inputs:
  shop:
    type: databus
    tables: [shop/main.*]

filters:
  large:                        # a WHERE over one table; the bus's own columns pass by themselves
    type: sql
    from: shop
    table: main.orders
    where: total_cents > 20000

outputs:
  copy:                         # tables that stay identical to the source
    type: delta
    from: shop
    mode: mirror
    path: lake/copy
  history:                      # every change that ever happened
    type: delta
    from: shop
    mode: history
    path: lake/history
  large_orders:
    type: files
    from: large
    format: json
    path: lake/large_orders

tests:
  a_small_order_is_no_large_one:
    table: main.orders
    to: large_orders
    rows:
      - {id: 1, total_cents: 20000}
      - {id: 2, total_cents: 20001}
    expect:
      - {id: 2, total_cents: 20001}
"""

_SQLITE_README: Final = """\
# A databus project

    databus run                                  # captures shop.db and keeps the tables in lake/ up to date
    python -m databus.testing.shop shop.db       # in another terminal: somebody who keeps the shop busy
    databus tail --relay http://127.0.0.1:@PORT@  # every change, as it happens
    databus compare databus.yml copy             # is the copy identical?

`databus.yml` says what is captured and where it goes.
"""


_MYSQL_PIPELINE: Final = """\
# A pipeline of databus: what is captured, and where it goes. Reference: docs/reference.md.
#   databus check-source    asks the server what is missing, and names the statement that mends it
#   databus validate        finds every mistake in this file
#   databus run             runs it until Ctrl-C
# A text may hold ${NAME}, ${NAME:default} and ${file:PATH}.
name: shop

relay:                          # the relay that `databus run` starts for the sources below
  folder: .databus/relay        # its logs: the stream, for as long as retention keeps it
  listen: 127.0.0.1:@PORT@

sources:
  shop:
    type: mysql                 # MariaDB, too
    hosts: ["${MYSQL_HOST:127.0.0.1}:${MYSQL_PORT:3306}"]
    user: ${MYSQL_USER:databus}
    password: ${MYSQL_PASSWORD}
    tables: [shop.*]            # database.table; all tables of the database `shop`

inputs:
  shop:
    type: databus
    tables: [shop/*]            # all that is captured of the source above

outputs:
  copy:                         # tables that stay identical to the source
    type: delta
    from: shop
    mode: mirror
    path: lake/copy
  history:                      # every change that ever happened
    type: delta
    from: shop
    mode: history
    path: lake/history
"""

_MYSQL_PREPARE: Final = """\
-- What databus needs of a MySQL server, 8.0 or later: run this as an administrator, with a password of your own.
CREATE USER databus IDENTIFIED BY 'change-me';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO databus;
SET PERSIST binlog_row_metadata = 'FULL';  -- the log names its columns
SET PERSIST binlog_expire_logs_seconds = 604800;  -- and is kept for a week
-- GTIDs are recommended; `databus check-source` names the steps to them where they are off. Without them, also:
--   GRANT LOCK TABLES ON shop.* TO databus;
"""

_MARIADB_PREPARE: Final = """\
-- What databus needs of a MariaDB server, 10.5 or later: run this as an administrator, with a password of your own.
-- First, these lines under [mysqld] in its option file, and a restart; a MariaDB keeps no binary log by itself:
--   log-bin = binlog
--   server-id = 1
--   binlog-format = ROW
--   binlog-row-metadata = FULL
--   gtid-strict-mode = ON
--   binlog-expire-logs-seconds = 604800
CREATE USER databus IDENTIFIED BY 'change-me';
GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR ON *.* TO databus;
"""

_MYSQL_README: Final = """\
# A databus project

    mysql -u root -p < prepare.sql               # as an administrator of the server; read it first
    export MYSQL_PASSWORD=change-me              # what prepare.sql gave the user; MYSQL_HOST, MYSQL_PORT if not here
    databus check-source                         # is the server fit to be captured?
    databus run                                  # captures the tables and keeps those in lake/ up to date
    databus tail --relay http://127.0.0.1:@PORT@  # in another terminal: every change, as it happens
    databus compare databus.yml copy             # is the copy identical?

`databus.yml` says what is captured and where it goes.
"""

_RELAY: Final = """\
# A relay of databus: it captures databases into logs and serves them over HTTP, to pipelines and programs anywhere.
#   databus check-source relay.yml    asks each server what is missing, and names the statement that mends it
#   databus relay relay.yml           runs it until it is stopped
# A text may hold ${NAME}, ${NAME:default} and ${file:PATH}. Every option: docs/reference.md, "A relay's file".
listen: 127.0.0.1:@PORT@        # beyond this machine, such as 0.0.0.0:@PORT@, it needs the token, and should have tls
# token_file: token             # what every request must carry; make one: (umask 77; openssl rand -hex 24 > token)
# tls: {certificate_file: relay.pem, key_file: relay.key}     # then clients ask by https://; see docs/tls.md
folder: relay                   # its logs: the streams, for as long as retention keeps them

log:
  retention_ms_max: 604800000   # a week
  retention_bytes_max: 10737418240

sources:
"""

_RELAY_SQLITE: Final = """\
shop:
  type: sqlite
  path: shop.db
  tables: [main.*]
"""

_RELAY_MYSQL: Final = """\
orders:
  type: mysql                   # MariaDB, too; prepare.sql makes the user
  hosts: ["${MYSQL_HOST:127.0.0.1}:${MYSQL_PORT:3306}"]
  user: ${MYSQL_USER:databus}
  password: ${MYSQL_PASSWORD}   # or password_file: FILE
  tables: [shop.*]              # database.table
  # exclude: [shop.tmp_*]
  # columns: {shop.users: {exclude: [ssn]}}
"""

_RELAY_README: Final = """\
# A databus relay

    databus relay relay.yml                                     # captures and serves until it is stopped
    databus sources --relay http://127.0.0.1:@PORT@             # what it captures
    databus tail --relay http://127.0.0.1:@PORT@                # every change, as it happens
    curl http://127.0.0.1:@PORT@/admin/ready                    # for probes; /metrics is for Prometheus

With a token, programs set the environment variable DATABUS_TOKEN or give `--token-file`. A pipeline reads the relay by

    relay: {url: "http://127.0.0.1:@PORT@", token_file: token}

in its file, instead of `sources`.
"""

_IGNORED: Final = ".databus/\nlake/\n"


_PORTS: Final = {"relay": 11115, "sqlite": 11115, "mysql": 11116, "mariadb": 11117}
"""Where the search for a free port begins: projects of two kinds do not meet, though neither runs yet."""
_PORTS_TRIED: Final = 100


class Plugin(StrEnum):
    """What a package is to bring."""

    output = "output"
    input = "input"
    filter = "filter"


class Source(StrEnum):
    """What is captured."""

    sqlite = "sqlite"
    mysql = "mysql"
    mariadb = "mariadb"


@app.command(epilog="Example: databus init my-project && cd my-project && databus run")
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write it; made if it is not there.")] = Path(),
    source: Annotated[
        Source, typer.Option(help="What is captured: a small shop in SQLite that comes with it, or a server of yours.")
    ] = Source.sqlite,
    relay: Annotated[
        bool, typer.Option("--relay", help="A relay of its own, which pipelines and programs elsewhere read.")
    ] = False,
    plugin: Annotated[
        Plugin | None,
        typer.Option(help="A package with a plugin instead, and tests that pass; FOLDER is its name, such as my-sink."),
    ] = None,
) -> None:
    """Write a project: a source and a pipeline that copies it, a relay, or a plugin. With SQLite it runs as it is."""
    if plugin is not None:
        _write_plugin(plugin.value, folder)
        return
    port = free_port(_PORTS["relay" if relay else source.value])
    texts = _relay_files(source) if relay else _files(source)
    written = {name: text.replace("@PORT@", str(port)) for name, text in texts.items()}
    names = [*written, "shop.db"] if source is Source.sqlite else [*written]
    _write(folder, written, names)
    into = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"wrote {', '.join(names)}")
    file = "relay.yml" if relay else "databus.yml"
    runs = "databus relay relay.yml" if relay else "databus run"
    checks = "databus check-source relay.yml" if relay else "databus check-source"
    if source is Source.sqlite:
        from databus.testing.shop import create_shop

        create_shop(folder / "shop.db")
        typer.echo(f"next: {into}{runs}")
    else:
        typer.echo(
            f"next: {into}${{EDITOR:-vi}} prepare.sql {file}   # a password; your database instead of shop\n"
            f"      mysql -u root -p < prepare.sql\n"
            f"      export MYSQL_PASSWORD=...\n"
            f"      {checks} && {runs}"
        )


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
    typer.echo(f"wrote {', '.join(f'{folder}/{each}' for each in texts)}")
    typer.echo(f"next: cd {folder} && pip install -e '.[test]' && pytest")


def free_port(first: int) -> int:
    """The first port from here on where nobody listens now, so that a project runs beside those that do."""
    for port in range(first, first + _PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return first


def _relay_files(source: Source) -> dict[str, str]:
    """The texts of a relay's project: the source that was asked for, and the other kind as an example."""
    is_sqlite = source is Source.sqlite
    used, other = (_RELAY_SQLITE, _RELAY_MYSQL) if is_sqlite else (_RELAY_MYSQL, _RELAY_SQLITE)
    example = indent(other, "  # ", lambda line: bool(line.strip()))
    files = {
        "relay.yml": f"{_RELAY}{indent(used, '  ')}\n  # Another source beside it:\n{example}",
        "README.md": _RELAY_README,
        ".gitignore": "relay/\ntoken\n" + ("shop.db*\n" if is_sqlite else ""),
    }
    return files if is_sqlite else {**files, "prepare.sql": _prepare_of(source)}


def _prepare_of(source: Source) -> str:
    return _MARIADB_PREPARE if source is Source.mariadb else _MYSQL_PREPARE


def _files(source: Source) -> dict[str, str]:
    """The texts of a project, by name."""
    if source is Source.sqlite:
        return {
            "databus.yml": _SQLITE_PIPELINE,
            "README.md": _SQLITE_README,
            ".gitignore": f"{_IGNORED}shop.db*\n",
        }
    return {
        "databus.yml": _MYSQL_PIPELINE,
        "prepare.sql": _prepare_of(source),
        "README.md": _MYSQL_README,
        ".gitignore": _IGNORED,
    }
