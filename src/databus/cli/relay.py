"""`databus relay`: run a relay."""

from pathlib import Path
from typing import Annotated

import typer

from databus.cli._app import LogFormat, LogLevel, app


@app.command(epilog="Example: databus relay relay.yml")
def relay(
    config: Annotated[Path, typer.Argument(help="The relay's configuration.")],
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Capture the sources of a configuration into logs and serve them over HTTP until Ctrl-C."""
    from databus.operate import configure_logs
    from databus.relay import load_relay, run_relay

    configure_logs(level=log_level, style=log_format)
    run_relay(load_relay(config))
