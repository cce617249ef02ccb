"""`databus status`: what the sources and outputs of a running pipeline do, or the sources of a relay."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from databus.cli._app import AsJson, app, say_json, say_table, utc
from databus.cli._file import DEFAULT_FILE, AnyFile


@app.command(epilog="Example: databus status databus.yml")
def status(file: AnyFile = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """Show each source and output of a running pipeline: state, lag, and what the relay still holds for the output.

    The sources are those that the pipeline reads, whether its own relay captures them or one elsewhere. Of a relay's
    file, the sources alone.
    Exits with 1 if the pipeline or the relay does not run, a source is not captured, or an output has failed, hangs or
    tries again; with 2 if the pipeline has never run. A run with --once that has written everything counts as well
    after its end.
    """
    from databus.cli._configured import is_pipeline
    from databus.core import InputError
    from databus.pipeline import relay_status_of, status_of, unwell

    page = status_of(file) if is_pipeline(file) else relay_status_of(file)
    if page is None:
        raise InputError(f"{file}: this pipeline has never run here; start it with `databus run {file}`")
    page = {"sources": {}, **page}  # one of an earlier version has none
    if as_json:
        say_json(page)
    else:
        _say(page, file)
    if page["state"] == "stopped" or unwell(page):
        raise typer.Exit(1)


def _say(page: Mapping[str, Any], file: Path) -> None:
    from databus.pipeline import unwell

    typer.echo(_headline(page))
    if (page.get("reload") or {}).get("problem"):
        typer.secho(f"the file is not what runs; a reload was refused:\n{page['reload']['problem']}", err=True)
    if any("lagMs" in source for source in page["sources"].values()):
        say_table(["source", "state", "lag"], _source_rows(page))
    if page["outputs"]:
        say_table(["output", "state", "rows", "lag", "rows left", "relay holds"], _rows(page))
    for line in (*_letters(page, file), *_source_notes(page)):
        typer.echo(line)
    for line in unwell(page):
        typer.secho(line, err=True)
    if page["state"] == "running":
        for line in _remedies(page, file):
            typer.echo(line)


def _headline(page: Mapping[str, Any]) -> str:
    if "pipeline" not in page:
        return f"the relay answers at {page['relay']}" if page["state"] == "running" else "the relay does not run"
    doing = f": {page['doing']}" if page["doing"] else ""
    if page["state"] == "ended":
        return f"{page['pipeline']} ended at {utc(page['ended_us'])}, with everything written that was there (--once)"
    if page["state"] == "stopped":
        if page["pid"] is None:
            return f"{page['pipeline']} does not run, and its last run left no status; its targets say this"
        if page["code"] is None:
            return (
                f"{page['pipeline']} does not run, and its last run left no exit code: it was killed, "
                f"or ended by a second Ctrl-C, or its end could not be written, as where the disk is full. "
                f"Its log may say. What follows is of {utc(page['written_us'])}"
            )
        why = f": {page['failure']}" if page.get("failure") else ""
        return f"{page['pipeline']} does not run; its exit code was {page['code']}{why}"
    http = f", {page['http']}" if page["http"] else ""
    return f"{page['pipeline']} is {page['state']} as process {page['pid']}{http}{doing}"


def _source_rows(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    is_known = not page.get("relay_error")
    for name, source in page["sources"].items():
        lag_ms = source.get("lagMs") if is_known and page["state"] == "running" else None
        yield {
            "source": name,
            "state": source["status"] if is_known else f"{source['status']} when the relay answered last",
            "lag": "-" if lag_ms is None else f"{lag_ms / 1e3:,.1f} s",
        }


def _source_notes(page: Mapping[str, Any]) -> Iterator[str]:
    """What is worth knowing of sources that are well."""
    from databus.cli._run_view import source_details

    for name, source in page["sources"].items():
        if "snapshots" in source:
            yield from (f"source {name}: {detail}" for detail in source_details(source))


def _remedies(page: Mapping[str, Any], file: Path) -> Iterator[str]:
    """What to do about each source that is not captured, as it is to be typed."""
    from databus.cli._remedy import NamedRelay, remedy

    at = NamedRelay(page["relay"] or "", file if page.get("relay_is_own") else None, _token_file(page))
    for name, source in page["sources"].items():
        if "state" in source and (what := remedy(source, at)):
            yield f"source {name}: {source['status']}; {what}"


def _token_file(page: Mapping[str, Any]) -> Path | None:
    given = page.get("token_file")
    return None if given is None else Path(given)


def _letters(page: Mapping[str, Any], pipeline: Path) -> Iterator[str]:
    """A line for each output that has dead letters: it counts as well, and rows are missing in its target."""
    for name, output in page["outputs"].items():
        if output.get("dead_letters"):
            command = f"databus dead-letters show {pipeline} {name}"
            yield f"{name}: {output['dead_letters']:,} dead letters; `{command}` says why"


def _rows(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    from databus.pipeline import worst_backlogs

    for name, output in page["outputs"].items():
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
