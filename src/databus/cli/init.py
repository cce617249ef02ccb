"""`databus init`: a project that runs as it is."""

from pathlib import Path
from typing import Annotated, Final

import typer

from databus.cli._app import app

_PIPELINE: Final = """\
# A pipeline of databus: what is captured, and where it goes. Reference: docs/reference.md.
#   databus validate     finds every mistake in this file
#   databus run          runs it until Ctrl-C
name: shop

relay:                          # the relay that `databus run` starts for the sources below
  folder: .databus/relay        # its logs: the stream, for as long as retention keeps it
  listen: 127.0.0.1:11115

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
"""

_README: Final = """\
# A databus project

    databus run                                  # captures shop.db and keeps the tables in lake/ up to date
    python -m databus.testing.shop shop.db       # in another terminal: somebody who keeps the shop busy
    databus tail --relay http://127.0.0.1:11115  # every change, as it happens
    databus compare databus.yml copy             # is the copy identical?

`databus.yml` says what is captured and where it goes.
"""


@app.command(epilog="Example: databus init my-project && cd my-project && databus run")
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write it; made if it is not there.")] = Path(),
) -> None:
    """Write a project that runs as it is: a small shop in SQLite and a pipeline that copies it."""
    from databus.core import WrongInput
    from databus.testing.shop import create_shop

    written = {"databus.yml": _PIPELINE, "README.md": _README, ".gitignore": ".databus/\nlake/\nshop.db*\n"}
    there = [name for name in (*written, "shop.db") if (folder / name).exists()]
    if there:
        raise WrongInput(f"{folder}: {', '.join(there)} is already there; choose an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).write_text(text)
    create_shop(folder / "shop.db")
    into = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"wrote {', '.join([*written, 'shop.db'])}\nnext: {into}databus run")
