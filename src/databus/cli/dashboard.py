"""`databus dashboard`: see what flows, in a browser, and step in."""

import json
import signal
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from databus.cli._app import LogFormat, LogLevel, TokenFile, app
from databus.cli._dashboard_beside import END_S_MAX, FOLDER

if TYPE_CHECKING:
    from databus.dashboard import Alerting, DashboardConfig, Hook, Push

DEFAULT_LISTEN: Final = "127.0.0.1:11117"
_LOOKED_FOR: Final = ("databus.yml", "relay.yml")


class Export(StrEnum):
    """What is printed for other programs."""

    GRAFANA = "grafana"
    PROMETHEUS = "prometheus"


@app.command(epilog="Example: databus dashboard databus.yml --relay http://127.0.0.1:11115")
def dashboard(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of pipelines and relays; databus.yml and relay.yml, if they are there."),
    ] = None,
    relay: Annotated[list[str] | None, typer.Option(help="Address of a relay; more than once for several.")] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(help="Address of a pipeline's `run --http`; more than once for several.")
    ] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT to serve at.")] = DEFAULT_LISTEN,
    principals: Annotated[
        Path | None, typer.Option(help="File that says who may do what; without it, only who is at this machine.")
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(help="Where people find it, if a proxy stands before it: https://databus.example.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder of its audit log.")] = FOLDER,
    alerts: Annotated[Path | None, typer.Option(help="File with rules of your own, and where else alerts go.")] = None,
    webhook: Annotated[str | None, typer.Option(help="Address that alerts are sent to, as JSON.")] = None,
    webhook_secret_file: Annotated[
        Path | None, typer.Option(help="File with the secret by which they are signed, as those of the output `http`.")
    ] = None,
    push: Annotated[
        list[str] | None,
        typer.Option(help="Send numbers there each 10 s: influx=URL or otlp=URL; more than once for several."),
    ] = None,
    export: Annotated[
        Export | None, typer.Option(help="Print a dashboard for Grafana, or the rules for Prometheus, and end.")
    ] = None,
    connections_max: Annotated[
        int, typer.Option(min=1, help="Connections of those who have signed in; more are answered with 429.")
    ] = 500,
    address_connections_max: Annotated[
        int, typer.Option(min=1, help="The same of one address; behind a proxy all have its address.")
    ] = 200,
    token_file: TokenFile = None,
    beside: Annotated[bool, typer.Option("--beside", hidden=True)] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Show pipelines and relays in a browser: what flows where, how fast, and what is wrong; pause, resume, read again.

    It keeps nothing that others need: ending it changes nothing else. Without --principals it prints a link, by which
    whoever started it signs in.
    """
    import asyncio
    from contextlib import suppress

    from databus.dashboard import Alerting, Dashboard
    from databus.operate import configure_logs, end_with_parent

    alerting = Alerting() if alerts is None else Alerting.in_file(alerts)
    if export is not None:
        _say_exported(export, alerting)
        return
    config = replace(
        _config(files or [], relay or [], pipeline or [], listen, principals, public_url, folder, token_file),
        hook=_hook(webhook, webhook_secret_file),
        alerting=alerting,
        pushes=[_push(text) for text in push or []],
        connections_max=connections_max,
        address_connections_max=address_connections_max,
        takes_any_port=beside,
    )
    if beside:
        end_with_parent(signal.SIGINT, END_S_MAX)
    configure_logs(level=log_level, style=log_format)
    made = Dashboard(config, on_link=lambda link: typer.echo(f"sign in: {link}"))

    def is_ready() -> None:
        typer.echo(f"databus dashboard at {public_url or made.url}, Ctrl-C ends it")

    with suppress(KeyboardInterrupt):
        asyncio.run(made.run(is_ready))


def _say_exported(what: Export, alerting: "Alerting") -> None:
    import yaml

    from databus.dashboard import grafana_dashboard, prometheus_rules

    if what is Export.GRAFANA:
        typer.echo(json.dumps(grafana_dashboard(), indent=2))
    else:
        typer.echo(yaml.safe_dump(prometheus_rules(alerting.rules), sort_keys=False, width=120), nl=False)


def _hook(url: str | None, secret_file: Path | None) -> "Hook | None":
    from databus.core import ConfigError
    from databus.dashboard import Hook

    if url is None and secret_file is not None:
        raise ConfigError("--webhook-secret-file: whose? give --webhook too")
    try:
        return None if url is None else Hook.of(url, None if secret_file is None else secret_file.read_text().strip())
    except OSError as error:
        raise ConfigError(f"--webhook-secret-file {secret_file}: {error.strerror}") from None


def _push(text: str) -> "Push":
    from databus.core import ConfigError
    from databus.dashboard import Form, Push

    form, _, url = text.partition("=")
    if form not in list(Form) or not url:
        raise ConfigError(
            f"--push {text}: expected influx=URL or otlp=URL, such as otlp=http://127.0.0.1:4318/v1/metrics"
        )
    return Push(Form(form), url)


def _config(
    files: list[Path],
    relays: list[str],
    pipelines: list[str],
    listen: str,
    principals: Path | None,
    public_url: str | None,
    folder: Path,
    token_file: str | None,
) -> "DashboardConfig":
    from databus.core import ConfigError
    from databus.dashboard import DashboardConfig, part_of_file, part_of_pipeline, part_of_relay
    from databus.link import Access
    from databus.relay import address_of

    try:
        address = address_of(listen)
    except ValueError:
        raise ConfigError(f"--listen {listen}: expected HOST:PORT, such as {DEFAULT_LISTEN}") from None
    if not files and not relays and not pipelines:
        files = [Path(name) for name in _LOOKED_FOR if Path(name).is_file()]
        if not files:
            raise ConfigError(
                f"there is no {' and no '.join(_LOOKED_FOR)} here; name files, or give --relay or --pipeline; "
                "`databus init` writes a project to begin with"
            )
    access = Access.of(token_file)
    parts = [part_of_file(path) for path in files]
    parts += [part_of_pipeline(url, access) for url in pipelines]
    parts += [part_of_relay(url, access) for url in relays]
    folder.mkdir(parents=True, exist_ok=True)
    return DashboardConfig(address, parts, folder, principals, public_url)
