"""`databus snapshot`: have tables read anew."""

from typing import Annotated

import typer

from databus.cli._app import DEFAULT_RELAY, AsJson, RelayUrl, TokenFile, app, say_json, token_of


@app.command(epilog="Example: databus snapshot shop main.orders main.stock")
def snapshot(
    physical: Annotated[str, typer.Argument(help="The physical source.")],
    tables: Annotated[list[str], typer.Argument(help="Its tables, as db.table.")],
    where: Annotated[
        str | None, typer.Option(help="Only rows for which this holds, in the server's own SQL; copies delete nothing.")
    ] = None,
    relay: RelayUrl = DEFAULT_RELAY,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Ask a relay to read tables anew, while changes go on; mirrors end identical to the source.

    With --where, for sources of type mysql: `databus snapshot shop shop.orders --where "id > 1000"`.
    """
    from databus.link import RelayClient

    RelayClient(relay, token=token_of(token_file)).request_snapshot(physical, tables, where)
    if as_json:
        say_json({"physical": physical, "tables": tables, "where": where})
    else:
        typer.echo(f"{physical}: {', '.join(tables)} will be read anew; follow it with: databus tail")
