"""`databus warm-up`: what first starts on a machine would wait for, done beforehand."""

from importlib.util import find_spec

import typer

from databus.cli._app import app
from databus.core import how_to_install


@app.command("warm-up", epilog="Example: databus warm-up")
def warm_up() -> None:
    """Do once on this machine, or in its image, what first starts wait for; some two minutes, and again after upgrades.

    Compiles the decoder of MySQL and MariaDB, and writes Spark's classes into a file that Java maps, in $DATABUS_CACHE
    or ~/.cache/databus: Spark then starts in half the time. What is not installed is left out.
    """
    from databus.sources import Checkable, all_offered

    for name, kind in all_offered(Checkable).items():
        kind.warm_up(name, lambda doing: typer.echo(doing) if doing else None)
    if find_spec("pyspark") is None:
        typer.echo(f"Spark is not installed: {how_to_install('spark')}")
        return
    from databus.spark import class_file, make_class_file

    path = class_file()
    if path is None:
        typer.echo("Spark's classes: there is no Java, or no folder to keep them in")
    elif path.is_file():
        typer.echo(f"Spark's classes: are in {path}")
    else:
        typer.echo(f"Spark's classes: writing {path}")
        make_class_file(path)
