"""`databus checkpoints`: where consumers stand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from databus.cli._app import AsJson, app, say_json, say_table


@app.command(epilog="Example: databus checkpoints databus.yml")
def checkpoints(
    path: Annotated[
        Path, typer.Argument(help="A pipeline's file or state folder, or the checkpoint file of a consumer.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show where a consumer, or each query of a pipeline, stands in each physical source."""
    from databus.core import InputError

    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    if path.suffix in (".yml", ".yaml"):
        from databus.pipeline import load_pipeline

        path = load_pipeline(path).config.state
    found = list(_of_pipeline(path) if path.is_dir() else _of_file(path))
    if not found:
        raise InputError(
            f"{path}: no checkpoint is there. A pipeline writes its first one with its first batch, a consumer "
            f"where its program says; name the pipeline's file, its state folder, or the consumer's file"
        )
    if as_json:
        for each in found:
            say_json(each)
        return
    rows = [
        {"consumer": each["consumer"], "physical": name, **position}
        for each in found
        for name, position in each["checkpoint"]["sources"].items()
    ]
    say_table(["consumer", "physical", "scn", "seq", "txid", "time"], [{**row, "time": _iso(row)} for row in rows])


def _iso(position: dict[str, Any]) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(position["ts_us"] / 1e6, dt.UTC).isoformat(timespec="milliseconds")


def _of_file(path: Path) -> Iterator[dict[str, Any]]:
    from databus.client import load_checkpoint

    if not path.exists():
        return
    checkpoint = load_checkpoint(path)
    if checkpoint is not None:
        yield {"consumer": path.name, "checkpoint": checkpoint.to_json()}


def _of_pipeline(folder: Path) -> Iterator[dict[str, Any]]:
    """The newest offsets of each query, from Spark's own checkpoint: the third line on is one object a source."""
    from databus.core import Checkpoint

    for offsets in sorted(folder.rglob("offsets")):
        numbers = sorted(int(each.name) for each in offsets.iterdir() if each.name.isdigit())
        if not numbers:
            continue
        lines = (offsets / str(numbers[-1])).read_text().splitlines()
        for line in lines[2:]:
            value = json.loads(line)
            if isinstance(value, dict) and "sources" in value:
                name = str(offsets.parent.relative_to(folder))
                yield {"consumer": name, "checkpoint": Checkpoint.from_json(value, str(offsets)).to_json()}
