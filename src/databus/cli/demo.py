"""`databus demo`: all of it, on this machine."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import app
from databus.cli._dashboard_beside import Beside


class DemoSource(StrEnum):
    """Where the shop is."""

    sqlite = "sqlite"
    mariadb = "mariadb"
    mysql = "mysql"


class DemoSink(StrEnum):
    """Where it is copied to."""

    delta = "delta"
    kafka = "kafka"
    opensearch = "opensearch"


@app.command(epilog="Example: databus demo --source mariadb --sink kafka --keep my-demo")
def demo(
    source: Annotated[
        DemoSource,
        typer.Option(help="Where the shop is: in a SQLite file, or on a server that the demo starts itself."),
    ] = DemoSource.sqlite,
    sink: Annotated[
        DemoSink, typer.Option(help="Where it is copied to: Delta tables, or a server that the demo starts itself.")
    ] = DemoSink.delta,
    seconds: Annotated[float, typer.Option(min=5, max=600, help="How long the application works.")] = 24.0,
    rate: Annotated[int, typer.Option(min=1, help="How many transactions it makes a second, at most.")] = 150,
    keep: Annotated[
        Path | None, typer.Option(help="Folder to leave everything in; else it is removed, unless the demo fails.")
    ] = None,
    dashboard: Beside = False,
) -> None:
    """Capture a busy shop, copy it with Spark, kill relay, pipeline and servers once each, and compare every table."""
    import shutil
    import tempfile

    from databus.cli._demo import Demo
    from databus.cli._demo_stage import stage_of
    from databus.cli._demo_target import target_of
    from databus.cli._screen import Screen
    from databus.core import InputError

    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise InputError(f"--keep {keep}: the folder is not empty")
    folder = (keep or Path(tempfile.mkdtemp(prefix="databus-demo-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    stage, target = stage_of(source, folder), target_of(sink, folder)
    try:
        with Screen() as screen:
            try:
                target.build()
                stage.build()
                screen.say(f"created {stage.name}: 4 tables")
                last = Demo(folder, stage, target, seconds, screen, rate=rate, dashboard=dashboard).run()
            finally:
                for server in (stage.server, target.server):
                    if server is not None:
                        server.stop()
    except KeyboardInterrupt:
        if keep is None:  # after an error the folder stays, since the reason may be in it
            shutil.rmtree(folder)
        raise
    typer.echo(last)
    if keep is None:
        shutil.rmtree(folder)
