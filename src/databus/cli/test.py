"""`databus test`: the tests of filters that stand in a pipeline's file."""

from typing import Annotated

import typer

from databus.cli._app import AsJson, app, say_json, say_wait
from databus.cli._file import DEFAULT_FILE, File


@app.command("test", epilog="Example: databus test databus.yml --only large_orders")
def run_tests(
    pipeline: File = DEFAULT_FILE,
    only: Annotated[list[str] | None, typer.Option(help="Run this test alone; may be given several times.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the `tests` of a pipeline's file: rows of a table, and what is to come out of its filters.

    No source or target is touched; a relay elsewhere is asked for the columns that a test does not name. Spark is
    started, once, where a filter of typed rows is tested. Exits with 1 if a test fails, with 2 if the file has an error
    or no tests, with 75 if that relay does not answer.
    """
    from databus.pipeline import load_pipeline, run_filter_tests

    results = []
    for result in run_filter_tests(load_pipeline(pipeline), only or (), on_start=say_wait):
        results.append(result)
        if not as_json:
            typer.echo(f"{'passed' if result.is_passed else 'FAILED'}  {result.name}  ({result.table} to {result.to})")
            for line in result.differences:
                typer.echo(f"        {line}")
    failed = sum(not result.is_passed for result in results)
    if as_json:
        say_json([result.to_json() for result in results])
    else:
        typer.echo(f"{pipeline}: {len(results) - failed} passed, {failed} failed")
    if failed:
        raise typer.Exit(1)
