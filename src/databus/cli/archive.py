"""`databus archive`: the packages that Spark's executors need, in one file that travels with the job."""

from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json


@app.command(epilog="Example: databus archive executors.zip --with mypackage")
def archive(
    path: Annotated[Path, typer.Argument(help="The zip to write.")],
    more: Annotated[
        list[str] | None, typer.Option("--with", help="A further distribution, with all that it requires; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack what executors on other machines need beside databus, as it is installed here.

    Name the file as `spark.archive` in a pipeline's file. Executors need the same minor version of Python as this
    environment, on the same kind of machine. See docs/clusters.md.
    """
    from databus.spark import make_archive

    packages = make_archive(path, more or ())
    if as_json:
        say_json({"path": str(path), "bytes": path.stat().st_size, "packages": packages})
        return
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    for name, version in sorted(packages.items()):
        typer.echo(f"  {name} {version}")
