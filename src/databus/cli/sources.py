"""`databus sources`: what a relay captures; `databus sources pause` and `resume`: whether it does."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from databus.cli._app import (
    AsJson,
    app,
    options_given,
    say_json,
    say_table,
)
from databus.cli._file import Commands, FileGroup
from databus.cli._relay_of import Ask, asks_relay

if TYPE_CHECKING:
    from databus.link import RelayClient

_ASK_S: Final = 0.2  # a relay tells of no change of state; it has to be asked

Physicals = Annotated[list[str], typer.Argument(help="Physical sources, by name.")]
Wait = Annotated[
    float, typer.Option("--wait", min=0, max=86_400, help="How long to wait until it is done, in seconds.")
]

sources_app = Commands(
    cls=FileGroup, invoke_without_command=True, epilog="Example: databus sources --relay http://127.0.0.1:11115"
)
app.add_typer(sources_app, name="sources")


@sources_app.callback()
@asks_relay
def sources(
    context: typer.Context,
    ask: Ask,
    as_json: AsJson = False,
) -> None:
    """List the tables that a relay captures, with their ids, keys and schema versions."""
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    found = ask().client().sources()
    rows = [
        {
            "name": each.name,
            "id": each.id,
            "version": each.version,
            "key": ",".join(each.key),
            "fingerprint": f"{each.fingerprint:016x}",
        }
        for each in found
    ]
    if as_json:
        say_json(rows)
    else:
        say_table(["name", "id", "version", "key", "fingerprint"], rows)


@sources_app.command(epilog="Example: databus sources pause shop")
@asks_relay
def pause(
    *,
    physicals: Physicals,
    wait: Wait = 60.0,
    ask: Ask,
    as_json: AsJson = False,
) -> None:
    """Have a relay take no more changes of physical sources, until `databus sources resume` or the relay's restart.

    The database keeps the changes meanwhile, for as long as its retention lasts; what the relay holds is served on.
    `databus pause` is for the outputs of a pipeline.
    """
    client = ask().client()
    client.pause(physicals)
    _say(_settled(client, physicals, "paused", {"suspended"}, wait), as_json=as_json)


@sources_app.command(epilog="Example: databus sources resume shop")
@asks_relay
def resume(
    *,
    physicals: Physicals,
    wait: Wait = 60.0,
    ask: Ask,
    as_json: AsJson = False,
) -> None:
    """Have a relay go on with physical sources that are paused, or try again at once those that are suspended.

    Exits with 3 where one is suspended again, since its reason is still there; with 75 where one does not run yet.
    `databus resume` is for the outputs of a pipeline.
    """
    client = ask().client()
    client.resume(physicals)
    _say(_settled(client, physicals, "running", {"suspended", "retrying"}, wait), as_json=as_json)


@sources_app.command(epilog="Example: databus sources reload")
@asks_relay
def reload(
    ask: Ask,
    as_json: AsJson = False,
) -> None:
    """Have a relay take its file as it is now; SIGHUP does the same.

    Physical sources are added, removed and changed; the others go on untouched. A file with a mistake changes nothing.
    `databus reload` is for a pipeline.
    """
    found = ask().client().reload()
    if as_json:
        say_json(found)
        return
    for line in found["kept"]:
        typer.echo(line, err=True)
    said = {"goes on": "unchanged", "starts again": "changed", "is new": "added", "has ended": "removed"}
    for what, name in said.items():
        for physical in found[name]:
            typer.echo(f"{physical}: {what}")


def _refuse_options_before(context: typer.Context) -> None:
    """Options stand behind the verb: one before it would be another relay's, in silence."""
    given = options_given(context)
    if given:
        from databus.core import InputError

        verb = context.invoked_subcommand
        option = f"--{given[0].removeprefix('as_').replace('_', '-')}"
        raise InputError(f"{option} stands before {verb}; write: databus sources {verb} NAME {option} ...")


def _settled(
    client: "RelayClient", physicals: Sequence[str], wished: str, failed: set[str], wait_s: float
) -> list[Mapping[str, Any]]:
    """The states of the sources when all are as wished. Raises where one cannot get there, or not in time."""
    from databus.cli._remedy import RelayAt, remedy
    from databus.core import ServiceUnavailable, SourceSuspended

    deadline = time.monotonic() + wait_s
    while True:
        states = [each for each in client.states() if each["name"] in physicals]
        left = [each for each in states if each["status"] != wished]
        stuck = next((each for each in left if each["status"] in failed), None)
        if stuck is not None:
            kind = SourceSuspended if stuck["status"] == "suspended" else ServiceUnavailable
            is_of_use = stuck.get("remedy") not in (None, "resume")  # else that has just been tried
            mend = f". To go on: {remedy(stuck, RelayAt())}" if is_of_use else ""
            raise kind(f"{stuck['name']}: not {wished}: {stuck['status']}: {stuck['message']}{mend}")
        if not left:
            return states
        if time.monotonic() >= deadline:
            told = "; ".join(f"{each['name']}: not {wished} yet, {each['status']}: {each['message']}" for each in left)
            raise ServiceUnavailable(f"{told}. It was asked to, and does so as soon as it can")
        time.sleep(_ASK_S)


def _say(states: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        say_json(states)
        return
    for each in states:
        typer.echo(f"{each['name']}: {each['status']}")
