"""`databus relay`: run a relay."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import LogFormat, LogLevel, app
from databus.cli._dashboard_beside import Beside, dashboard_beside


@app.command(epilog="Example: databus relay relay.yml")
def relay(
    config: Annotated[Path, typer.Argument(help="The relay's configuration.")],
    dashboard: Beside = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Capture the sources of a configuration into logs and serve them over HTTP until Ctrl-C.

    Logs go to stderr: as text on a terminal, as a line of JSON each in a pipe or file. For text there too:
    `databus relay relay.yml --log-format text 2>&1 | tee relay.log`.
    """
    from databus.operate import configure_logs, logger_of, starting

    configure_logs(level=log_level, style=log_format)
    if log_format == "auto" and not sys.stderr.isatty():
        logger_of("databus.relay").info("relay starts", hint="for logs as text: --log-format text")
    with starting():
        from databus.relay import load_relay, run_relay

        loaded = load_relay(config)
    with dashboard_beside(dashboard, [str(config)], typer.echo):
        run_relay(loaded)
