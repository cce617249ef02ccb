"""`databus run`: run a pipeline."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from databus.cli._app import LogFormat, LogLevel, app
from databus.cli._screen import in_time
from databus.core import DatabusError


@app.command(epilog="Example: databus run databus.yml --once")
def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline's file.")] = Path("databus.yml"),
    master: Annotated[str | None, typer.Option(help="Spark's master, such as spark://host:7077.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Write what is there now, then end.")] = False,
    progress: Annotated[Path | None, typer.Option(help="File for events of progress, a JSON line each.")] = None,
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT for health, metrics and status, such as 127.0.0.1:11116.")
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run a pipeline until Ctrl-C; the sources in its file are captured by a relay of its own."""
    from databus.cli._run_view import RunView
    from databus.cli._screen import Screen
    from databus.operate import configure_logs
    from databus.pipeline import load_pipeline
    from databus.pipeline import run as run_pipeline

    config = load_pipeline(pipeline, master=master).config
    view = RunView(sorted(config.sections.outputs))
    screen = Screen(view.board)
    log_file = config.state / "pipeline.log" if screen.is_live else None
    configure_logs(level=log_level, style=log_format, file=log_file, pipeline=pipeline.stem)

    def show(event: Mapping[str, Any]) -> None:
        said = view.take(event)
        if said:
            screen.say(said)
        elif not screen.is_live and event["event"] == "doing" and event["what"]:
            screen.say(event["what"])
        elif not screen.is_live:
            screen.show(view.board().lines)

    def cut_off(what: str, code: int) -> None:
        screen.close()
        in_time(lambda: sys.stderr.write(f"databus: not waited for any longer: {what}\n"))
        _end_now(code)

    try:
        with screen:
            if log_file is not None:
                screen.say(f"logs go to {log_file}; Ctrl-C stops")
            code = run_pipeline(
                pipeline,
                master=master,
                once=once,
                on_event=show,
                on_sources=view.sources,
                events_file=progress,
                on_overdue=cut_off,
                http=http,
            )
    except DatabusError as error:
        if screen.is_shown:
            raise
        said = f"databus: {error}\n"
        in_time(lambda: sys.stderr.write(said))
        _end_now(error.exit_code)
    if view.cut_off or not screen.is_shown:
        _end_now(code)
    raise typer.Exit(code)


def _end_now(code: int) -> NoReturn:
    """End without waiting for threads that still write: at an ordinary end they would lose their interpreter."""
    in_time(sys.stdout.flush)
    in_time(sys.stderr.flush)
    os._exit(code)
