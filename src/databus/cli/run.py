"""`databus run`: run a pipeline."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from databus.cli._app import LogFormat, LogLevel, app, say_error, say_table
from databus.cli._dashboard_beside import Beside, dashboard_beside
from databus.cli._file import DEFAULT_FILE, File
from databus.cli._screen import in_time
from databus.core import DatabusError

if TYPE_CHECKING:
    from databus.cli._run_view import RunView
    from databus.cli._screen import Screen
    from databus.pipeline import EdgeRates


@app.command(epilog="Example: databus run databus.yml --once")
def run(
    pipeline: File = DEFAULT_FILE,
    master: Annotated[str | None, typer.Option(help="Spark's master, such as spark://host:7077.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Write what is there now, then end.")] = False,
    progress: Annotated[Path | None, typer.Option(help="File for events of progress, a JSON line each.")] = None,
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT for health, metrics and status, such as 127.0.0.1:11116.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Count what goes over each edge of the graph; touch neither targets nor state."),
    ] = False,
    dashboard: Beside = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run a pipeline until Ctrl-C; the sources in its file are captured by a relay of its own.

    A dry run reads from the oldest that the relay has, unless the inputs say from where, and prints the rates at its
    end: at Ctrl-C, or with --once when it has read what is there. A relay of its own captures as always.
    """
    from databus.cli._remedy import NamedRelay
    from databus.cli._run_view import RunView
    from databus.cli._screen import Screen
    from databus.operate import configure_logs
    from databus.pipeline import EdgeRates, edge_name, load_pipeline
    from databus.pipeline import run as run_pipeline

    graph = load_pipeline(pipeline, master=master)
    config, rates = graph.config, EdgeRates(graph)
    names = {True: [edge_name(edge) for edge in graph.edges], False: sorted(config.sections.outputs)}
    relay = NamedRelay(config.relay.url or "", pipeline if config.embeds_relay else None, config.token_file)
    view = RunView(names[dry_run], relay)
    screen = Screen(view.board)
    log_file = config.state / "pipeline.log" if screen.is_live else None
    configure_logs(level=log_level, style=log_format, file=log_file, pipeline=config.name)

    def show(event: Mapping[str, Any]) -> None:
        rates.take(event)
        line = view.take(event)
        if not screen.is_live:
            _say_plainly(screen, view, event, line)
        elif line:
            screen.say(line)

    def cut_off(what: str, code: int) -> None:
        screen.close()
        in_time(lambda: sys.stderr.write(f"databus: not waited for any longer: {what}\n"))
        _end_now(code)

    try:
        beside = dashboard_beside(dashboard, [str(pipeline)], screen.say)
        with screen, _state_for_once(dry_run) as dry_in, beside:
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
                dry_in=dry_in,
            )
    except DatabusError as error:
        if screen.is_shown:
            raise
        message = f"databus: {error}\n"
        in_time(lambda: sys.stderr.write(message))
        _end_now(error.exit_code)
    _say_rates(rates if dry_run else None)
    in_time(lambda: _say_reasons(view))
    # A thread that is left, in a call to a Java process that is gone say, would crash an ordinary end.
    if view.cut_off or not screen.is_shown or threading.active_count() > 1:
        _end_now(code)
    raise typer.Exit(code)


def _say_plainly(screen: "Screen", view: "RunView", event: Mapping[str, Any], line: str) -> None:
    """What an event is where there is no terminal. What the log has too is not said a second time."""
    from databus.cli._run_view import LOGGED

    name = event["event"]
    if name == "stopped":
        screen.say(view.written())
    if name == "doing" and event["what"]:
        screen.say(event["what"])
    elif line and name not in LOGGED:
        screen.say(line)
    elif not line:
        screen.show(view.board().lines)


def _say_reasons(view: "RunView") -> None:
    """Why the run did not end well, behind all else that it says; the reason of its exit code comes last."""
    for reason in view.reasons:
        say_error(reason)


def _say_rates(rates: "EdgeRates | None") -> None:
    if rates is not None:
        say_table(["from", "to", "rows", "batches", "rows_per_s"], rates.to_json())


@contextmanager
def _state_for_once(is_wanted: bool) -> Iterator[Path | None]:
    """A folder that is removed afterwards, for the state of a dry run."""
    if not is_wanted:
        yield None
        return
    with TemporaryDirectory(prefix="databus-dry-run-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _end_now(code: int) -> NoReturn:
    """End without waiting for threads that still write: at an ordinary end they would lose their interpreter."""
    in_time(sys.stdout.flush)
    in_time(sys.stderr.flush)
    os._exit(code)
