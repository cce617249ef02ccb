"""`databus audit`: whether the batches of each output follow each other, and have all rows."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from databus.cli._app import AsJson, app, place_text, say_json, say_table
from databus.cli._file import DEFAULT_FILE, File

if TYPE_CHECKING:
    from databus.pipeline import Audited


@app.command(epilog="Example: databus audit databus.yml")
def audit(pipeline: File = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """Check from a pipeline's journal that the batches of each output follow each other, place by place, and that they
    have as many rows as the log has between the same places.

    Rows are counted before filters, table by table, and compared as far back as the relay's log goes; not of tables of
    which the input itself leaves something out. A table that is behind has ranges of its own, which follow each other
    too. The journal has the last 64 MiB of batches of each output. Exits with 1 where something is missing.
    """
    from databus.pipeline import audit as audit_batches
    from databus.pipeline import load_pipeline

    graph = load_pipeline(pipeline)
    client = graph.config.relay_client_if_there()
    chains = list(audit_batches(graph, client))
    if as_json:
        say_json([chain.to_json() for chain in chains])
    elif not chains:
        typer.echo(f"{pipeline}: no batches have been written since the journal began")
    else:
        columns = ["output", "of", "from", "to", "batches", "rows", "written", "in the log", "verdict"]
        say_table(columns, map(_row, chains))
        for line in (line for chain in chains for line in _said(chain)):
            typer.secho(line, err=True)
    if not all(chain.is_whole for chain in chains):
        raise typer.Exit(1)


def _row(audited: "Audited") -> dict[str, Any]:
    chain, is_known = audited.chain, audited.log_rows is not None
    why = f"no breaks; {audited.why_unknown}" if audited.why_unknown else "whole"
    return {
        "output": chain.output,
        "of": chain.physical,
        "from": place_text(chain.start),
        "to": place_text(chain.end),
        "batches": chain.batches,
        "rows": f"{chain.rows.total():,}",
        "written": f"{chain.written.total():,}",
        "in the log": f"{audited.log_rows:,}" if is_known else "-",
        "verdict": why if audited.is_whole else "broken",
    }


def _said(audited: "Audited") -> Iterator[str]:
    chain = audited.chain
    for start, end, table in chain.breaks:
        what = f"{chain.physical}/{table}" if table else chain.physical
        yield (
            f"{chain.output}: no batch has the changes of {what} from {place_text(start)} to {place_text(end)} "
            f"(SCN/_seq). A snapshot may have brought their rows; `databus compare` tells"
        )
    if audited.why_not_whole:
        yield f"{chain.output}: between {place_text(chain.start)} and {place_text(chain.end)} {audited.why_not_whole}"
    for lost in chain.unbalanced:
        yield f"{chain.output}: the batch from {place_text(lost.start)} to {place_text(lost.end)}: {lost}"
