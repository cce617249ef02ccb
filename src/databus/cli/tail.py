"""`databus tail`: changes as they happen."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from databus.cli._app import DEFAULT_RELAY, AsJson, RelayUrl, TokenFile, app, token_of

if TYPE_CHECKING:
    from databus.client import Window
    from databus.core import Checkpoint

_STARTS: Final[dict[str, Literal["beginning", "earliest", "latest"]]] = {
    "beginning": "beginning",
    "earliest": "earliest",
    "latest": "latest",
}

_FIRST_ANSWER_MS_MAX: Final = 5_000


@app.command(epilog="Example: databus tail main.orders --from beginning -n 20")
def tail(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, `*` standing for anything; all of them.")] = None,
    start: Annotated[
        str, typer.Option("--from", help="latest, earliest, beginning, or a checkpoint's file.")
    ] = "latest",
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after so many changes.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Or stop at what is there now.")] = True,
    relay: RelayUrl = DEFAULT_RELAY,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print changes as they are committed, transaction by transaction, until Ctrl-C.

    A source that is not captured now is named on standard error, with the reason.
    """
    from databus.cli._trouble import trouble_told
    from databus.client import tail_lines, windows
    from databus.link import RelayClient

    token = token_of(token_file)
    client = RelayClient(relay, token=token)
    left = count
    checkpoint = _checkpoint_of(start)
    first = RelayClient(relay, token=token, read_ms_max=_FIRST_ANSWER_MS_MAX)
    with (
        trouble_told(first, tables, lambda said: typer.echo(said, err=True)),
        windows(
            client, sources=tables, start=_STARTS.get(start, "beginning"), checkpoint=checkpoint, follow=follow
        ) as following,
    ):
        for window in following:
            for line in tail_lines([window]) if as_json else _lines(window):
                typer.echo(line)
                if left is not None and (left := left - 1) == 0:
                    return


def _checkpoint_of(start: str) -> "Checkpoint | None":
    """The checkpoint in a file; None where `start` is one of the three words."""
    from pathlib import Path

    from databus.core import Checkpoint, ConfigError

    if start in _STARTS:
        return None
    try:
        text = Path(start).read_text()
    except OSError as error:
        raise ConfigError(
            f"--from {start}: not latest, earliest or beginning, and as a checkpoint's file: {error.strerror}"
        ) from error
    return Checkpoint.from_json(text.splitlines()[0] if text else "", f"--from {start}")


def _lines(window: "Window") -> Iterator[str]:
    """Changes for people; `tail_lines` has them for programs."""
    import json

    from databus.formats import to_json_value

    if window.control is not None:
        yield f"{window.scn}:{window.control.pair[1]} {window.control.source} {json.dumps(dict(window.control.body))}"
    for row in window.rows():
        kind = "read" if window.is_snapshot else row.change_type.label.removesuffix("_postimage")
        images = [
            json.dumps({name: to_json_value(value) for name, value in image.items()}, ensure_ascii=False)
            for image in (row.before, row.after)
            if image is not None
        ]
        yield f"{row.scn}:{row.seq} {row.source} {kind} {' -> '.join(images)}"
