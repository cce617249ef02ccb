"""`databus trace`: what became of the changes of one row."""

import datetime as dt
import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from databus.cli._app import AsJson, app, place_text, printable, say_json, say_wait
from databus.cli._file import DEFAULT_FILE, File

if TYPE_CHECKING:
    from databus.link import RelayClient, Start
    from databus.pipeline import Fate, Traced


@app.command(epilog="Example: databus trace databus.yml main.orders id=17 --since 2h")
def trace(
    table: Annotated[str, typer.Argument(help="The table: shop/main.orders, main.orders or orders.")],
    key: Annotated[list[str], typer.Argument(help="The key of the row: id=17; of a wide key, each column.")],
    pipeline: File = DEFAULT_FILE,
    since: Annotated[
        str, typer.Option("--since", help="From a time on: 2026-07-01T12:00:00Z, or 90s, 15m, 2h, 1d ago; `earliest`.")
    ] = "1h",
    scn: Annotated[int | None, typer.Option("--scn", min=1, help="Instead: from this SCN on.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1_000, help="The last so many changes.")] = 20,
    with_spark: Annotated[
        bool, typer.Option("--spark", help="Try `sql` and `python` filters, too, in a Spark session.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the changes of a row that the relay's log has, and what became of each in every output of a pipeline.

    An output has it written, in which batch and when; not yet; filtered it out, by which filter; superseded it by a
    later change; or keeps it as a dead letter. `lost`: its ledger is past the change, and its target has neither it nor
    a later one. Delta tables, files, search indices and topics of Kafka are looked into; other targets are taken at
    the word of their ledgers. The filters are those of the file now; those of typed rows (`sql`, `python`) are tried
    with --spark alone. Without it, ledger, dead letters, target and journal often tell the same; else the verdict is
    unknown, with what is known. Exits with 1 where something is lost.
    """
    from databus.core import InputError
    from databus.pipeline import Verdict, load_pipeline, spark_on_demand
    from databus.pipeline import trace as trace_row

    graph = load_pipeline(pipeline)
    given = dict(part.partition("=")[::2] for part in key)
    if not all("=" in part for part in key) or len(given) != len(key):
        raise InputError(f"{' '.join(key)}: write each column of the key once: id=17")
    client = graph.config.relay_client()
    start = _start(client, table, since, scn)
    with spark_on_demand("databus trace", on_start=say_wait) as spark:
        changes = list(trace_row(graph, client, table, given, start, spark if with_spark else None))[-count:]
    if as_json:
        say_json([change.to_json() for change in changes])
    elif not changes:
        typer.echo(f"the log has no change of this row since {scn or since}; --since earliest looks at all of it")
    else:
        for line in (line for change in changes for line in _lines(change)):
            typer.echo(line)
        if not with_spark and any(fate.verdict is Verdict.UNKNOWN for change in changes for fate in change.fates):
            words = ["--since", since] if scn is None else ["--scn", str(scn)]
            command = shlex.join(["databus", "trace", str(pipeline), table, *key, *words, "--spark"])
            typer.echo(f"what is unknown here, filters may decide that Spark alone can try: {command}")
    if any(fate.verdict is Verdict.LOST for change in changes for fate in change.fates):
        raise typer.Exit(1)


def _start(client: "RelayClient", table: str, since: str, scn: int | None) -> "Start":
    from databus.cli._tail_bounds import begin_of
    from databus.core import split_physical

    if scn is None:
        return begin_of(since, "--since", client, [table]).start
    physical, _ = split_physical(table)
    name = physical or next(iter(client.physicals()))
    return client.position(name, scn=scn - 1) if scn > 1 else "beginning"


def _lines(traced: "Traced") -> Iterator[str]:
    from databus.pipeline import cut_image

    change = traced.change
    txid = f", transaction {printable(change.txid)}" if change.txid else ""
    kind = change.kind.label.removesuffix("_postimage")
    yield f"{kind} at {place_text(change.pair)}, committed {_at(change.commit_us)}{txid}"
    for name, image in (("before", change.before), ("after", change.after)):
        if image is not None:
            yield f"  {name:7} {printable(json.dumps(cut_image(image), ensure_ascii=False))}"
    for fate in traced.fates:
        yield f"  {fate.output}: {_fate_text(fate)}"


def _fate_text(fate: "Fate") -> str:
    at = "" if fate.at_us is None else f" {_at(fate.at_us)}"
    batch = (
        "" if fate.batch is None else f", in the batch from {place_text(fate.batch[0])} to {place_text(fate.batch[1])}"
    )
    return f"{fate.verdict}{at}{batch}{f': {printable(fate.why)}' if fate.why else ''}"


def _at(us: int) -> str:
    return dt.datetime.fromtimestamp(us / 1e6, dt.UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")
