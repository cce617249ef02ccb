"""`databus sources`: what a relay captures; `databus sources pause` and `resume`: whether it does."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from databus.cli._app import AsJson, Wait, app, options_given, rounds, say_json, say_reloaded, say_table
from databus.cli._file import FileGroup, FileTyper
from databus.cli._relay_of import AskRelay, asks_relay

if TYPE_CHECKING:
    from databus.link import RelayClient

Physicals = Annotated[list[str], typer.Argument(help="Physical sources, by name.")]

sources_app = FileTyper(
    cls=FileGroup, invoke_without_command=True, epilog="Example: databus sources --relay http://127.0.0.1:11115"
)
app.add_typer(sources_app, name="sources")


@sources_app.callback()
@asks_relay
def sources(context: typer.Context, ask: AskRelay, as_json: AsJson = False) -> None:
    """List the tables that a relay captures, with their ids, keys and schema versions."""
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    tables = ask().client().sources()
    rows = [
        {
            "name": table.name,
            "id": table.id,
            "version": table.version,
            "key": ",".join(table.key),
            "fingerprint": f"{table.fingerprint:016x}",
        }
        for table in tables
    ]
    if as_json:
        say_json(rows)
    else:
        say_table(["name", "id", "version", "key", "fingerprint"], rows)


@sources_app.command(epilog="Example: databus sources pause shop")
@asks_relay
def pause(*, physicals: Physicals, wait: Wait = 60.0, ask: AskRelay, as_json: AsJson = False) -> None:
    """Have a relay take no more changes of physical sources, until `databus sources resume` or the relay's restart.

    The database keeps the changes meanwhile, for as long as its retention lasts; what the relay holds is served on.
    `databus pause` is for the outputs of a pipeline.
    """
    client = ask().client()
    client.pause(physicals)
    _say(_settled(client, physicals, "paused", {"suspended"}, wait), as_json=as_json)


@sources_app.command(epilog="Example: databus sources resume shop")
@asks_relay
def resume(*, physicals: Physicals, wait: Wait = 60.0, ask: AskRelay, as_json: AsJson = False) -> None:
    """Have a relay go on with physical sources that are paused, or try again at once those that are suspended.

    Exits with 3 where one is suspended again, since its reason is still there; with 75 where one does not run yet.
    `databus resume` is for the outputs of a pipeline.
    """
    client = ask().client()
    client.resume(physicals)
    _say(_settled(client, physicals, "running", {"suspended", "retrying"}, wait), as_json=as_json)


@sources_app.command(epilog="Example: databus sources reload")
@asks_relay
def reload(ask: AskRelay, as_json: AsJson = False) -> None:
    """Have a relay take its file as it is now; SIGHUP does the same.

    Physical sources are added, removed and changed; the others go on untouched. A file with a mistake changes nothing.
    `databus reload` is for a pipeline.
    """
    answer = ask().client().reload()
    if as_json:
        say_json(answer)
        return
    for line in answer["kept"]:
        typer.echo(line, err=True)
    say_reloaded(answer)


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
    from databus.cli._remedy import NamedRelay, remedy
    from databus.core import ServiceUnavailable, SourceSuspended

    for is_over in rounds(wait_s):
        states = [state for state in client.states() if state["name"] in physicals]
        left = [state for state in states if state["status"] != wished]
        stuck = next((state for state in left if state["status"] in failed), None)
        if stuck is not None:
            kind = SourceSuspended if stuck["status"] == "suspended" else ServiceUnavailable
            is_of_use = stuck.get("remedy") not in (None, "resume")  # else that has just been tried
            mend = f". To go on: {remedy(stuck, NamedRelay())}" if is_of_use else ""
            raise kind(f"{stuck['name']}: not {wished}: {stuck['status']}: {stuck['message']}{mend}")
        if not left or is_over:
            break
    if left:
        reasons = "; ".join(
            f"{state['name']}: not {wished} yet, {state['status']}: {state['message']}" for state in left
        )
        raise ServiceUnavailable(f"{reasons}. It was asked to, and does so as soon as it can")
    return states


def _say(states: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        say_json(states)
        return
    for state in states:
        typer.echo(f"{state['name']}: {state['status']}")
