"""`databus demo`: all of it, on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import app


@app.command(epilog="Example: databus demo --keep my-demo")
def demo(
    seconds: Annotated[float, typer.Option(min=5, max=600, help="How long the application works.")] = 24.0,
    keep: Annotated[Path | None, typer.Option(help="Folder to leave everything in; else it is removed.")] = None,
) -> None:
    """Capture a busy shop, copy it with Spark, kill relay and pipeline once each, and compare every table."""
    import shutil
    import tempfile

    from databus.cli._demo import Demo
    from databus.cli._screen import Screen
    from databus.core import WrongInput

    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise WrongInput(f"--keep {keep}: the folder is not empty")
    folder = (keep or Path(tempfile.mkdtemp(prefix="databus-demo-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with Screen() as screen:
        last = Demo(folder, seconds, screen).run()
    typer.echo(last)
    if keep is None:
        shutil.rmtree(folder)
