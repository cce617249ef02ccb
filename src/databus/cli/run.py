"""`databus run`: run a pipeline."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from databus.cli._app import LogFormat, LogLevel, app

if TYPE_CHECKING:
    from databus.cli._screen import Meter, Screen


@app.command(epilog="Example: databus run databus.yml --once")
def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline's file.")] = Path("databus.yml"),
    master: Annotated[str | None, typer.Option(help="Spark's master, such as spark://host:7077.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Write what is there now, then end.")] = False,
    progress: Annotated[Path | None, typer.Option(help="File for events of progress, a JSON line each.")] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run a pipeline until Ctrl-C; the sources in its file are captured by a relay of its own."""
    from databus.cli._screen import Screen
    from databus.operate import configure_logs
    from databus.pipeline import load_pipeline
    from databus.pipeline import run as run_pipeline

    screen = Screen()
    log_file = load_pipeline(pipeline, master=master).config.state / "pipeline.log" if screen.is_live else None
    configure_logs(level=log_level, style=log_format, file=log_file, pipeline=pipeline.stem)
    with screen:
        if log_file is not None:
            screen.say(f"logs go to {log_file}; Ctrl-C stops")
        code = run_pipeline(pipeline, master=master, once=once, on_event=_Shown(screen), events_file=progress)
    raise typer.Exit(code)


class _Shown:
    """Events of a pipeline on the screen."""

    def __init__(self, screen: "Screen") -> None:
        self._screen = screen
        self._meters: dict[str, Meter] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take an event; one at a time."""
        from databus.cli._screen import Line, Meter

        if event["event"] == "batch":
            meter = self._meters.setdefault(event["output"], Meter())
            meter.add(event.get("rows", 0), event.get("lag_ms"))
            self._screen.show(
                [Line(name, m.rows, m.rate(), "", m.percentiles()) for name, m in sorted(self._meters.items())]
            )
        else:
            told = " ".join(
                f"{key}={value}" for key, value in event.items() if key not in ("event", "at_us", "pipeline")
            )
            self._screen.say(f"{event['event']}  {told}")
