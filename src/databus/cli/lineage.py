"""`databus lineage`: which tables and columns outputs are made of."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from databus.cli._app import AsJson, app, say_json, say_table
from databus.cli._file import DEFAULT_FILE, File

if TYPE_CHECKING:
    from databus.pipeline import TableLineage


@app.command(epilog="Example: databus lineage databus.yml")
def lineage(pipeline: File = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """Show of each output which tables come to it, by which filters, and of which columns each of its columns is made.

    The columns are those that tables have now, as the relay knows them; what a filter `python` makes of them is
    unknown. A pipeline can send the same as OpenLineage events while it runs: see `lineage` in its file.
    """
    from databus.link import RelayClient
    from databus.pipeline import load_pipeline, table_lineages

    graph = load_pipeline(pipeline)
    url = graph.config.relay_url()
    client = None if url is None else RelayClient(url, access=graph.config.access)
    found = table_lineages(graph, client)
    if as_json:
        say_json([each.to_json() for each in found])
    elif not found:
        typer.echo(f"{pipeline}: no table comes to an output now")
    else:
        say_table(["output", "table", "column", "from", "filters"], (row for each in found for row in _rows(each)))


def _rows(found: "TableLineage") -> Iterator[dict[str, Any]]:
    filters = ", ".join(found.filters)
    if found.columns is None:
        yield {"output": found.output, "table": found.table, "column": "unknown", "from": "", "filters": filters}
    for each in found.columns or ():
        origins = "unknown" if each.origins is None else ", ".join(each.origins) or "nothing"
        told = {"output": found.output, "table": found.table, "column": each.name, "from": origins}
        yield {**told, "filters": filters}
