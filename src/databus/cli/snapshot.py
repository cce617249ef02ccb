"""`databus snapshot`: read tables again."""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from databus.cli._app import AsJson, app, say_json
from databus.cli._relay_of import AskRelay, asks_relay
from databus.core import InputError

if TYPE_CHECKING:
    from databus.link import RelayClient

_ASK_S: Final = 0.2
_STARTING: Final = "initializing"


@app.command(epilog="Example: databus snapshot shop main.orders main.stock")
@asks_relay
def snapshot(
    *,
    physical: Annotated[str, typer.Argument(help="The physical source.")],
    tables: Annotated[list[str], typer.Argument(help="Its tables, as db.table.")],
    where: Annotated[
        str | None, typer.Option(help="Only rows for which this holds, in the server's own SQL; copies delete nothing.")
    ] = None,
    wait_s: Annotated[float, typer.Option(help="How long to wait for a source that is still starting.")] = 60.0,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Read them no further instead; copies keep what they have.")
    ] = False,
    ask: AskRelay,
    as_json: AsJson = False,
) -> None:
    """Ask a relay to read tables again, while changes go on; mirrors end identical to the source.

    A source that is still starting is waited for, which is said on standard error; after `--wait-s` it ends with exit
    code 75, and nothing was asked for. One that is paused reads when it is resumed. One that is suspended has to be
    resumed first: exit code 3, with the reason.

    With --cancel, a reading that is under way, or waits, ends where it is. Outputs that had begun with it ask for the
    table again when they start the next time. If the reading was to close a gap, the gap stays: copies lack what is in
    it until the tables are read again.

    With --where, for sources of type mysql: `databus snapshot shop shop.orders --where "id > 1000"`.
    """
    asked = ask()
    client = asked.client()
    if cancel:
        if where is not None:
            raise InputError("--where: with --cancel it has no meaning")
        answer = client.cancel_snapshot(physical, tables)
        if as_json:
            say_json({"physical": physical, "tables": tables, "status": answer["status"]})
        else:
            typer.echo(f"{physical}: {', '.join(tables)} will be read no further")
        return
    _wait_until_started(client, physical, wait_s)
    status = client.request_snapshot(physical, tables, where)["status"]
    if as_json:
        say_json({"physical": physical, "tables": tables, "where": where, "status": status})
    elif status == "paused":
        typer.echo(
            f"{physical}: {', '.join(tables)} will be read again when the source is resumed; it is paused: "
            f"databus sources resume {physical}{asked.option}"
        )
    else:
        typer.echo(f"{physical}: {', '.join(tables)} will be read again; watch it with: databus tail{asked.option}")


def _wait_until_started(client: "RelayClient", physical: str, wait_s: float) -> None:
    """Wait while the source is starting. Any other state, and a name that is none, is for the request to answer."""
    from databus.core import ServiceUnavailable

    deadline: float | None = None  # from the first answer on: a relay that is busy does not shorten the wait
    shown = ""
    while True:
        doing = [
            state["message"] for state in client.states() if (state["name"], state["status"]) == (physical, _STARTING)
        ]
        if not doing:
            return
        if deadline is None:
            deadline = time.monotonic() + wait_s
        elif time.monotonic() >= deadline:
            raise ServiceUnavailable(
                f"{physical}: nothing was asked for: the source is still starting after {wait_s:g} s: {doing[0]}"
            )
        if doing[0] != shown:
            shown = doing[0]
            typer.echo(f"{physical}: waiting for the source to start: {shown}", err=True)
        time.sleep(_ASK_S)  # a relay tells of no change of state; it has to be asked
