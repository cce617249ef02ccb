"""`databus history`: what a pipeline did in the last days, or what happened to a table that a service keeps."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from databus.cli._app import AsJson, app, local_time, printable, say_json, say_table
from databus.cli._file import DEFAULT_FILE, File
from databus.cli._past import Into, Until, end_of, moment_of, past_of, say, say_begin

Event = Mapping[str, Any]
_TROUBLE: Final = ("failed", "retry", "table_failed", "table_retry", "refused", "hanging", "no_source", "relay_died")


@app.command(epilog="Example: databus history shop/main.orders --key 'id = 7' --since 30d -f bootstrap.yml")
def history(
    table: Annotated[
        str | None, typer.Argument(help="A table, such as shop/main.orders, that a bootstrap service keeps.")
    ] = None,
    pipeline: File = DEFAULT_FILE,
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="How far to look back, at a pipeline.")] = 7.0,
    key: Annotated[str | None, typer.Option(help="Of a table: one row alone, such as 'id = 7'.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Of a table: from when on, a time, an SCN, or 15m or 30d ago; else from its begin."),
    ] = None,
    until: Until = None,
    into: Into = None,
    as_json: AsJson = False,
) -> None:
    """Show what a pipeline did in the last days: its runs, rows by day and table, changes of tables, and errors.

    It is kept in the pipeline's state folder, as journal.jsonl, in 8 MiB at most; `--json` prints its lines.

    With TABLE: every change of a table that a bootstrap service keeps, as lines of JSON, with its controls. FILE is the
    service's then, `bootstrap.yml` by default. The service need not run, and the database is not asked.
    """
    if table is not None:
        _of_table(table, pipeline, key, since, until, into)
        return
    import time

    from databus.pipeline import read_journal, state_of

    since_us = time.time_ns() // 1000 - round(days * 86_400e6)
    events = list(read_journal(state_of(pipeline), since_us))
    if as_json:
        for event in events:
            say_json(event)
        return
    if not events:
        typer.echo(f"{pipeline}: nothing in the last {days:g} days")
        return
    parts = {
        "runs": (["began", "ended", "exit code"], _runs(events)),
        "rows": (["day", "output", "batches", "table", "rows"], _rows(events)),
        "changes of tables": (["at", "table", "what", "why"], _controls(events)),
        "errors": (["at", "of", "event", "message"], _errors(events)),
    }
    for name, (columns, rows) in parts.items():
        listed = list(rows)
        if listed:
            typer.echo(f"\n{name}")
            say_table(columns, listed)


def _of_table(table: str, file: Path, key: str | None, since: str | None, until: str | None, into: Path | None) -> None:
    from databus.bootstrap import RowKey, history_of

    past = past_of(file, table)
    wanted = None if key is None else RowKey.of(key, past)
    begin = None if since is None else moment_of(since, "--since")
    say_begin(begin, past)
    say(past, history_of(past, wanted, begin, end_of(until, past)), into)


def _runs(events: Iterable[Event]) -> Iterator[Event]:
    began: str | None = None
    for event in events:
        if event["event"] == "began":
            if began is not None:
                yield {"began": began, "ended": "?", "exit code": "killed"}
            began = local_time(event["at_us"])
        elif event["event"] == "stopped":
            yield {
                "began": began or "earlier",
                "ended": local_time(event["at_us"]),
                "exit code": event.get("code", "?"),
            }
            began = None
    if began is not None:
        yield {"began": began, "ended": "-", "exit code": "-"}


def _rows(events: Iterable[Event]) -> Iterator[Event]:
    batches: dict[tuple[str, str], int] = {}
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for event in events:
        if event["event"] != "rows":
            continue
        key = local_time(event["at_us"])[:10], event["output"]
        batches[key] = batches.get(key, 0) + event["batches"]
        tables = rows.setdefault(key, {})
        others = event["rows"] - sum(event["tables"].values())  # of batches that do not say whose their rows are
        for table, count in (*event["tables"].items(), ("", others)):
            tables[table] = tables.get(table, 0) + count
    for (day, output), tables in rows.items():
        facts = {"day": day, "output": output, "batches": batches[day, output]}
        for table, count in sorted(tables.items()):
            if count or len(tables) == 1:
                yield {**facts, "table": table or "-", "rows": f"{count:,}"}


def _controls(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if event["event"] == "control":
            why = printable(event.get("ddl") or event.get("reason") or "", " ")
            yield {"at": local_time(event["at_us"]), "table": event["source"], "what": event["kind"], "why": why}


def _errors(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        is_source = event["event"] == "source" and not event.get("is_well", True)
        is_end = event["event"] == "stopped" and event.get("message")
        if is_source or is_end or event["event"] in _TROUBLE:
            of = event.get("source") or event.get("output") or ", ".join(event.get("outputs", ())) or "-"
            word = event.get("status") if is_source else event["event"]
            yield {
                "at": local_time(event["at_us"]),
                "of": of,
                "event": word,
                "message": printable(event.get("message") or "", " "),
            }
