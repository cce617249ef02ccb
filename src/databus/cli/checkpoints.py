"""`databus checkpoints`: where consumers stand."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from databus.cli._app import AsJson, app, say_json, say_table, utc
from databus.cli._file import DEFAULT_FILE

if TYPE_CHECKING:
    from databus.core import DatabusError


@app.command(epilog="Example: databus checkpoints databus.yml")
def checkpoints(
    path: Annotated[
        Path, typer.Option("--file", "-f", help="A pipeline's file, or a consumer's checkpoint file; as a word, too.")
    ] = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Show where a consumer, or each output of a pipeline, stands in each physical source.

    Where an output stands is asked of its target, whether the pipeline runs or not.
    """
    from databus.core import InputError

    is_pipeline = path.suffix in (".yml", ".yaml")
    if not is_pipeline and not path.exists():
        raise InputError(
            f"{path}: No such file or directory; a consumer saves its first checkpoint, where its program says, once "
            "it has been given changes"
        )
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the pipeline's file, since outputs' targets know where they stand")
    entries, errors = _of_pipeline(path) if is_pipeline else (list(_of_file(path)), [])
    if not entries and not errors:
        raise InputError(
            f"{path}: no checkpoint is there. An output has its first one when its pipeline first runs, a consumer "
            f"where its program says; name the pipeline's file, or the consumer's"
        )
    if as_json:
        for entry in entries:
            say_json(entry)
    elif entries:
        rows = [
            {
                **position,
                "consumer": entry["consumer"],
                "table": entry.get("table", ""),
                "physical": name,
                "seq": "-" if position["seq"] is None else position["seq"],
                "time": utc(position["ts_us"], "milliseconds") if position["ts_us"] else "-",  # nothing was done yet
            }
            for entry in entries
            for name, position in entry["checkpoint"]["sources"].items()
        ]
        columns = ["consumer", "table", "physical", "scn", "seq", "txid", "time"]
        say_table(columns, rows)
    for error in errors:
        typer.secho(f"databus: {error}", err=True)
    if errors:
        raise typer.Exit(max(error.exit_code for error in errors))


def _of_file(path: Path) -> Iterator[dict[str, Any]]:
    from databus.client import load_checkpoint

    checkpoint = load_checkpoint(path)
    if checkpoint is not None:
        yield {"consumer": path.name, "checkpoint": checkpoint.to_json()}


def _of_pipeline(path: Path) -> "tuple[list[dict[str, Any]], list[DatabusError]]":
    """What each output's target says, and why others say nothing."""
    from databus.core import Checkpoint
    from databus.pipeline import load_pipeline, positions_of

    outputs = list(positions_of(load_pipeline(path).config))
    entries = [
        {
            "consumer": output.output,
            "table": table,
            "checkpoint": Checkpoint({physical: place}).to_json(),
            "incomplete": sorted(position.seeds),
            "ledger": str(output.ledger),
        }
        for output in outputs
        for physical, position in output.positions.items()
        for table, place in [("", position.at), *sorted(position.places.items())]
        if place is not None
    ]
    return entries, [output.error for output in outputs if output.error is not None]
