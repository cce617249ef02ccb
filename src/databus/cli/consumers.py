"""`databus consumers`: the names under which a relay keeps how far consumers have come, and what an operator does."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from databus.cli._app import AsJson, app, rounds, say_json, say_table
from databus.cli._file import FileGroup, FileTyper
from databus.cli._relay_of import AskRelay, asks_relay

if TYPE_CHECKING:
    from databus.link import Groups

_LISTED: Final = ["name", "state", "partitions", "members", "held", "lag_s", "changes", "bytes", "retention_left_s"]

Name = Annotated[str, typer.Argument(help="The consumer's or group's name.")]
Wait = Annotated[
    float,
    typer.Option("--wait", min=0, max=86_400, help="How long to wait until no member holds a partition, in seconds."),
]

consumers_app = FileTyper(cls=FileGroup, no_args_is_help=True, epilog="Example: databus consumers list")
app.add_typer(consumers_app, name="consumers", help="Durable consumers and groups: who is how far, and who moves them.")


@consumers_app.command(name="list", epilog="Example: databus consumers list --relay http://127.0.0.1:11115")
@asks_relay
def list_(ask: AskRelay, as_json: AsJson = False) -> None:
    """List all names, connected or not, and how far the last of their partitions is behind."""
    client = _groups(ask)
    page = client.page()
    if as_json:
        say_json(page)
        return
    rows = [_row(group, physical) for group in page["groups"] for physical in group["lag"]]
    say_table(_LISTED, rows)
    for name in page["lost"]:
        typer.echo(
            f"{name}: its state is lost; databus consumers import {name} --from FILE, or reset {name} --to ...",
            err=True,
        )


@consumers_app.command(epilog="Example: databus consumers show billing")
@asks_relay
def show(name: Name, ask: AskRelay, as_json: AsJson = False) -> None:
    """Show one name: its members, and where each partition stands."""
    page = _groups(ask).group(name)
    if as_json:
        say_json(page)
        return
    sources = "all" if page["sources"] is None else ", ".join(page["sources"])
    typer.echo(f"{name}: {page['state']}, {page['n']} partitions of {sources}")
    idle = [member["member"] for member in page["members"] if not member["holds"]]
    if idle:
        typer.echo(f"members that hold nothing, and wait: {', '.join(idle)}")
    rows = [
        {
            "partition": f"{partition['partition']} of {partition['of']}",
            "holder": partition["holder"] or "-",
            **_place(partition, physical),
        }
        for partition in page["partitions"]
        for physical in partition["lag"]
    ]
    say_table(["partition", "holder", "source", "scn", "lag_s", "changes", "bytes", "retention_left_s"], rows)


@consumers_app.command(epilog="Example: databus consumers reset billing --to earliest")
@asks_relay
def reset(
    *,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="`latest`, `earliest`, `beginning`, a time such as 2026-07-01T12:00Z or 15m ago, an SCN, behind which "
            "it goes on, or a checkpoint's file (--to FILE).",
        ),
    ],
    wait: Wait = 60.0,
    ask: AskRelay,
) -> None:
    """Have all partitions of a name stand elsewhere. Its members give up what they hold for that, and go on after it.

    What a target keeps itself is not moved: a table that is guarded by a fence and its own checkpoint goes on from
    there. Empty it, or set its checkpoint, where rows are to come again.
    """
    from databus.cli._tail_bounds import place_of

    place = place_of(to, "--to")
    client = _groups(ask)
    with _at_rest(client, name, wait):
        page = client.act(name, "reset", place)
    typer.echo(f"{name}: reset to {to}" + ("" if "partitions" in page else ", where it begins when a member comes"))
    typer.echo("What a target keeps itself was not moved: a guarded table goes on from its own checkpoint.", err=True)


@consumers_app.command(epilog="Example: databus consumers resize billing 16")
@asks_relay
def resize(
    name: Name, partitions: Annotated[int, typer.Argument(min=1, help="A multiple of today's number.")], ask: AskRelay
) -> None:
    """Split each partition of a name in equal parts, as soon as it is given up."""
    client = _groups(ask)
    page = client.act(name, "resize", {"to": partitions})
    typer.echo(f"{name}: {page['state']}, {page['n']} partitions")


@consumers_app.command(epilog="Example: databus consumers pause billing")
@asks_relay
def pause(name: Name, ask: AskRelay) -> None:
    """Have all members of a name give up what they hold, until `databus consumers resume`."""
    client = _groups(ask)
    page = client.act(name, "pause")
    typer.echo(f"{name}: {page['state']}; {page['held']} partitions are still held")


@consumers_app.command(epilog="Example: databus consumers resume billing")
@asks_relay
def resume(name: Name, ask: AskRelay) -> None:
    """Have a name that is paused go on."""
    client = _groups(ask)
    typer.echo(f"{name}: {client.act(name, 'resume')['state']}")


@consumers_app.command(epilog="Example: databus consumers delete billing")
@asks_relay
def delete(
    *,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also while it has members; they stop.")] = False,
    ask: AskRelay,
) -> None:
    """Forget a name, and how far it has come."""
    client = _groups(ask)
    client.act(name, "delete", {"force": int(force)})
    typer.echo(f"{name}: deleted")


@consumers_app.command(epilog="Example: databus consumers export billing > billing.json")
@asks_relay
def export(name: Name, ask: AskRelay) -> None:
    """Print a name with all that makes it go on: to keep, or to bring into another relay."""
    client = _groups(ask)
    say_json(client.group(name, "export"))


@consumers_app.command(name="import", epilog="Example: databus consumers import billing --from billing.json")
@asks_relay
def import_(
    name: Name,
    exported: Annotated[
        Path, typer.Option("--from", help="What `databus consumers export` printed; - for standard input.")
    ],
    ask: AskRelay,
) -> None:
    """Bring in a name that was exported, in the place of one that has no members or whose state is lost."""
    from databus.core import ConfigError

    text = sys.stdin.read() if str(exported) == "-" else exported.read_text()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{exported}: not what `databus consumers export` prints: {error}") from error
    client = _groups(ask)
    page = client.act(name, "import", None, json.dumps(value).encode())
    typer.echo(f"{name}: {page['state']}, {page['n']} partitions")


def _groups(ask: AskRelay) -> "Groups":
    from databus.link import Groups

    return Groups(ask().client())


@contextmanager
def _at_rest(client: "Groups", name: str, wait_s: float) -> Iterator[None]:
    """Keep a group paused meanwhile, once no member holds a partition. A name without a state has no members."""
    from databus.core import GroupStateLost, ServiceUnavailable

    try:
        page = client.group(name)
    except GroupStateLost:
        yield
        return
    was_paused = page["state"] == "paused"
    if not was_paused:
        client.act(name, "pause")
    try:
        for is_over in rounds(wait_s):
            held = sum(partition["holder"] is not None for partition in client.group(name)["partitions"])
            if not held:
                break
            if is_over:
                raise ServiceUnavailable(f"{name}: {held} partitions are still held; nothing was changed. Try again")
        yield
    finally:
        if not was_paused:
            client.act(name, "resume")


def _row(group: Mapping[str, Any], physical: str) -> dict[str, Any]:
    lag = group["lag"][physical]
    return {**{field: group[field] for field in ("name", "state", "partitions", "members", "held")}, **_lag(lag)}


def _place(partition: Mapping[str, Any], physical: str) -> dict[str, Any]:
    position = partition["checkpoint"]["sources"][physical]
    return {"source": physical, "scn": position["scn"], **_lag(partition["lag"][physical])}


def _lag(lag: Mapping[str, Any]) -> dict[str, Any]:
    counts = {"lag_s": lag["s"], "changes": lag["changes"], "bytes": lag["bytes"]}
    return {
        name: "-" if value is None else value
        for name, value in {**counts, "retention_left_s": lag["retention_left_s"]}.items()
    }
