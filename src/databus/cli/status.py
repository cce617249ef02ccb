"""`databus status`: what the outputs of a running pipeline do."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from databus.cli._app import AsJson, app, say_json, say_table
from databus.cli._file import DEFAULT_FILE, File


@app.command(epilog="Example: databus status databus.yml")
def status(
    pipeline: File = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Show each output of a running pipeline: state, lag, and what the relay still holds for it.

    Exits with 1 if the pipeline does not run, or one of its outputs has failed, hangs or tries again; with 2 if it has
    never run.
    """
    from databus.core import InputError
    from databus.pipeline import status_of, unwell

    found = status_of(pipeline)
    if found is None:
        raise InputError(f"{pipeline}: this pipeline has never run here; start it with `databus run {pipeline}`")
    if as_json:
        say_json(found)
    else:
        typer.echo(_headline(found))
        if (found.get("reload") or {}).get("problem"):
            typer.secho(f"the file is not what runs; a reload was refused:\n{found['reload']['problem']}", err=True)
        say_table(["output", "state", "rows", "lag", "rows left", "relay holds"], _rows(found))
        for line in (*_paused(found), *_letters(found, pipeline)):
            typer.echo(line)
        for line in unwell(found):
            typer.secho(line, err=True)
    if found["state"] == "stopped" or unwell(found):
        raise typer.Exit(1)


def _headline(found: Mapping[str, Any]) -> str:
    doing = f": {found['doing']}" if found["doing"] else ""
    if found["state"] == "stopped":
        if found["pid"] is None:
            return f"{found['pipeline']} does not run, and its last run left no status; its targets say this"
        if found["code"] is None:
            at = datetime.fromtimestamp(found["written_us"] / 1e6, UTC).isoformat(timespec="seconds")
            return (
                f"{found['pipeline']} does not run, and its last run left no exit code: it was killed, or its end "
                f"could not be written, as where the disk is full. Its log may say. What follows is of {at}"
            )
        why = f": {found['failure']}" if found.get("failure") else ""
        return f"{found['pipeline']} does not run; its exit code was {found['code']}{why}"
    http = f", {found['http']}" if found["http"] else ""
    return f"{found['pipeline']} is {found['state']} as process {found['pid']}{http}{doing}"


def _paused(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each source whose capture somebody paused: its outputs look idle and show no lag."""
    if found["state"] != "stopped":
        for name, source in found["sources"].items():
            if source["status"] == "paused":
                command = f"databus sources resume {name} --relay {found['relay']}"
                yield f"source {name}: paused; to continue capture: {command}"


def _letters(found: Mapping[str, Any], pipeline: Path) -> Iterator[str]:
    """A line for each output that has dead letters: it counts as well, and rows are missing in its target."""
    for name, output in found["outputs"].items():
        if output.get("dead_letters"):
            command = f"databus dead-letters show {pipeline} {name}"
            yield f"{name}: {output['dead_letters']:,} dead letters; `{command}` says why"


def _rows(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    from databus.pipeline import worst_backlogs

    for name, output in found["outputs"].items():
        known = worst_backlogs(output) or {"": {"lag_s": None, "rows": None, "held": None, "is_least": False}}
        for physical, worst in known.items():
            yield {
                "output": name + (f" ({physical})" if len(known) > 1 else ""),
                "state": output["state"],
                "rows": f"{output['rows']:,}",
                "lag": "-" if worst["lag_s"] is None else f"{worst['lag_s']:,.1f} s",
                "rows left": "-" if worst["rows"] is None else f"{worst['rows']:,}{'+' if worst['is_least'] else ''}",
                "relay holds": {None: "-", True: "all of it", False: "NOT what comes next"}[worst["held"]],
            }
