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
    from databus.pipeline import load_pipeline, table_lineages

    graph = load_pipeline(pipeline)
    client = graph.config.relay_client_if_there()
    tables = table_lineages(graph, client)
    if as_json:
        say_json([table.to_json() for table in tables])
    elif not tables:
        typer.echo(f"{pipeline}: no table comes to an output now")
    else:
        say_table(["output", "table", "column", "from", "filters"], (row for table in tables for row in _rows(table)))


def _rows(table: "TableLineage") -> Iterator[dict[str, Any]]:
    filters = ", ".join(table.filters)
    if table.columns is None:
        yield {"output": table.output, "table": table.table, "column": "unknown", "from": "", "filters": filters}
    for column in table.columns or ():
        origins = "unknown" if column.origins is None else ", ".join(column.origins) or "nothing"
        row = {"output": table.output, "table": table.table, "column": column.name, "from": origins}
        yield {**row, "filters": filters}
