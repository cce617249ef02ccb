"""`databus pause`, `resume`, `drain`, `stop`, `throttle`, `reload`: what a running pipeline is asked by its socket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from databus.cli._app import Wait, app, rounds, say_reloaded
from databus.cli._file import DEFAULT_FILE, File

Outputs = Annotated[list[str] | None, typer.Argument(help="Names of outputs; all of them.")]


@app.command(epilog="Example: databus pause copy")
def pause(outputs: Outputs = None, file: File = DEFAULT_FILE, wait: Wait = 60.0) -> None:
    """Have outputs of a running pipeline rest, from the end of the batch that is being written.

    They stay paused until `databus resume`, also when the pipeline is started again. Capture goes on, and so do the
    other outputs; those of the same lane pause together.
    """
    answer = _ask(file, "pause", outputs)
    _wait_for(file, answer, "paused", wait)


@app.command(epilog="Example: databus resume copy")
def resume(outputs: Outputs = None, file: File = DEFAULT_FILE) -> None:
    """Have outputs go on where their targets stand: after `pause`, `stop` or `drain`, or after they have failed."""
    answer = _ask(file, "resume", outputs)
    typer.echo(f"{', '.join(answer['outputs'])}: resumed")


@app.command(epilog="Example: databus drain")
def drain(outputs: Outputs = None, file: File = DEFAULT_FILE, wait: Wait = 3600.0) -> None:
    """Have outputs write what the relay has now, and then stop; without OUTPUTS, the pipeline ends after that.

    What is paused stays paused, and is not drained.
    """
    answer = _ask(file, "drain", outputs)
    if outputs:
        _wait_for(file, answer, "stopped", wait)
    else:
        _wait_for_end(file, answer, wait)


@app.command(epilog="Example: databus throttle copy --rows 1000")
def throttle(
    outputs: Outputs = None,
    file: File = DEFAULT_FILE,
    rows: Annotated[int | None, typer.Option(min=1, help="So many rows in a batch at most.")] = None,
    size: Annotated[int | None, typer.Option("--bytes", min=1, help="So many bytes in a batch at most.")] = None,
) -> None:
    """Have outputs write slowly, until `databus resume` or the pipeline's next start.

    A batch that is being written ends first. Those of the same lane are throttled together.
    """
    answer = _ask(file, "throttle", outputs, rows=rows, bytes=size)
    typer.echo(f"{', '.join(answer['outputs'])}: throttled")


@app.command(epilog="Example: databus stop")
def stop(outputs: Outputs = None, file: File = DEFAULT_FILE, wait: Wait = 60.0) -> None:
    """End a running pipeline in order, as Ctrl-C does; or stop some of its outputs until it is started again."""
    answer = _ask(file, "stop", outputs)
    if outputs:
        _wait_for(file, answer, "stopped", wait)
    else:
        _wait_for_end(file, answer, wait)


@app.command(epilog="Example: databus reload")
def reload(file: File = DEFAULT_FILE, wait: Wait = 60.0) -> None:
    """Have a running pipeline take its file as it is now; SIGHUP does the same.

    The file is examined whole, as `databus validate` does; a file with a problem changes nothing. Outputs of which
    nothing has changed go on untouched. What has changed ends with its batch, and goes on where its target stands.
    """
    from databus.pipeline import ask, state_of

    answer = ask(state_of(file), "reload")
    for warning in answer["warnings"]:
        typer.echo(warning, err=True)
    say_reloaded(answer)
    _wait_for_start(file, [*answer["changed"], *answer["added"]], wait)


def _ask(file: Path, verb: str, outputs: list[str] | None, **more: Any) -> dict[str, Any]:
    from databus.pipeline import ask, state_of

    return ask(state_of(file), verb, outputs=outputs or [], **more)


def _wait_for(file: Path, answer: Mapping[str, Any], state: str, seconds: float) -> None:
    """Wait until outputs are in that state, and say so. Fails where one fails first, or the time is over."""
    from databus.core import FatalError

    names: list[str] = answer["outputs"]
    for is_over in rounds(seconds):
        outputs = _ask(file, "status", None)["outputs"]
        failed = [name for name in names if outputs[name]["state"] == "failed"]
        left = [name for name in names if outputs[name]["state"] != state]
        if failed and state != "paused":
            raise FatalError(f"{failed[0]} has failed: {outputs[failed[0]]['message']}")
        if not left:
            typer.echo(f"{', '.join(names) or 'no output'}: {state}")
            return
        if is_over:
            _too_late(f"{', '.join(left)}: not {state} yet, {outputs[left[0]]['state']}")


def _wait_for_start(file: Path, names: list[str], seconds: float) -> None:
    """Wait until outputs have started after a reload. Fails as `_wait_for` does."""
    from databus.core import FatalError

    for is_over in rounds(seconds):
        outputs = _ask(file, "status", None)["outputs"]
        there = {name: outputs[name] for name in names if name in outputs}  # another reload may have taken it out
        failed = [name for name, output in there.items() if output["state"] in ("failed", "retrying")]
        if failed:
            raise FatalError(f"{failed[0]} does not start: {there[failed[0]]['message']}")
        left = [name for name, output in there.items() if output["state"] in ("starting", "hanging")]
        if not left:
            return
        if is_over:
            why = "its batch from before does not end" if there[left[0]]["state"] == "hanging" else "it is starting"
            _too_late(f"{', '.join(left)}: not running yet; {why}")


def _wait_for_end(file: Path, answer: Mapping[str, Any], seconds: float) -> None:
    from databus.pipeline import holder_of, state_of

    for is_over in rounds(seconds):
        if holder_of(state_of(file)) is None:
            typer.echo("the pipeline has ended")
            return
        if is_over:
            _too_late(f"the pipeline has not ended yet; it runs as process {answer['pid']}")


def _too_late(message: str) -> NoReturn:
    from databus.core import ServiceUnavailable

    raise ServiceUnavailable(f"{message}. It was asked to, and does so as soon as it can; see `databus status`")
