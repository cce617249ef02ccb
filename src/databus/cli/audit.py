"""`databus audit`: whether the batches of each output follow each other, and have all rows."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from databus.cli._app import AsJson, app, say_json, say_table
from databus.cli._file import DEFAULT_FILE, File

if TYPE_CHECKING:
    from databus.core import Pair
    from databus.pipeline import Chain


@app.command(epilog="Example: databus audit databus.yml")
def audit(pipeline: File = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """Check from a pipeline's journal that the batches of each output follow each other, place by place, and that they
    have as many rows as the log has between the same places.

    Rows are compared where no filter stands before the output, and as far back as the relay's log goes. The journal has
    the last 64 MiB of batches of each output. Exits with 1 where something is missing.
    """
    from databus.link import RelayClient
    from databus.pipeline import audit as audit_batches
    from databus.pipeline import load_pipeline

    graph = load_pipeline(pipeline)
    url = graph.config.relay_url()
    client = None if url is None else RelayClient(url, access=graph.config.access)
    found = list(audit_batches(graph, client))
    if as_json:
        say_json([each.to_json() for each in found])
    elif not found:
        typer.echo(f"{pipeline}: no batches have been written since the journal began")
    else:
        say_table(["output", "of", "from", "to", "batches", "rows", "in the log", "verdict"], map(_row, found))
        for line in (line for each in found for line in _said(each)):
            typer.secho(line, err=True)
    if not all(each.is_whole for each in found):
        raise typer.Exit(1)


def _row(chain: "Chain") -> dict[str, Any]:
    is_known = chain.log_rows is not None
    return {
        "output": chain.output,
        "of": chain.physical,
        "from": _place(chain.start),
        "to": _place(chain.end),
        "batches": chain.batches,
        "rows": f"{chain.rows.total():,}",
        "in the log": f"{chain.log_rows:,}" if is_known else "-",
        "verdict": "broken" if not chain.is_whole else "whole" if is_known else f"no breaks; {chain.why_unknown}",
    }


def _said(chain: "Chain") -> Iterator[str]:
    for start, end in chain.breaks:
        yield (
            f"{chain.output}: no batch has the changes of {chain.physical} from {_place(start)} to {_place(end)} "
            f"(SCN/_seq). A snapshot may have brought their rows; `databus compare` tells"
        )
    if chain.missing:
        ends = f"between {_place(chain.start)} and {_place(chain.end)}"
        yield f"{chain.output}: {chain.missing:,} rows that the log has {ends} are in no batch"


def _place(pair: "Pair | Sequence[int]") -> str:
    from databus.core import SEQ_DONE

    scn, seq = pair
    return str(scn) if seq == SEQ_DONE else f"{scn}/{seq}"
