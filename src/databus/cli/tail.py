"""`databus tail`: changes as they happen."""

import datetime as dt
import re
import sys
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from databus.cli._app import CaFile, CertificateFile, KeyFile, RelayUrl, TokenFile, app, options_given
from databus.cli._file import FileOfRelay
from databus.cli._relay_of import relay_of

if TYPE_CHECKING:
    from databus.core import Checkpoint
    from databus.link import Start

_STARTS: Final[dict[str, Literal["beginning", "earliest", "latest"]]] = {
    "beginning": "beginning",
    "earliest": "earliest",
    "latest": "latest",
}

_BIG_INTEGERS: Final[dict[str, Literal["number", "string"]]] = {"number": "number", "string": "string"}

_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FIRST_ANSWER_MS_MAX: Final = 5_000


class Form(StrEnum):
    """How changes are printed."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


@app.command(epilog="Example: databus tail main.orders --from beginning -n 20")
def tail(
    context: typer.Context,
    tables: Annotated[list[str] | None, typer.Argument(help="Tables, `*` standing for anything; all of them.")] = None,
    start: Annotated[
        str, typer.Option("--from", help="latest, earliest, beginning, or a checkpoint's file.")
    ] = "latest",
    since: Annotated[
        str | None,
        typer.Option("--since", help="Instead: from a time on, such as 2026-07-01T12:00:00Z, or 90s, 15m, 2h, 1d ago."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Only rows for which this condition holds: total >= 100.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Only these columns, and the key: id,total.")] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="Stop after so many changes, an update being one.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Or stop at what is there now.")] = True,
    file: FileOfRelay = None,
    relay: RelayUrl = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    certificate_file: CertificateFile = None,
    key_file: KeyFile = None,
    form: Annotated[
        Form, typer.Option("--format", help="A line a change for people, the lines of /stream, or by who reads it.")
    ] = Form.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    big_integers: Annotated[
        str, typer.Option("--big-integers", help="With --json: integers beyond 2^53 as number or as string.")
    ] = "number",
) -> None:
    """Print changes as they are committed, transaction by transaction, until Ctrl-C.

    On a terminal, or with --format text, a change is a line: when it was committed, in local time, its table, what it
    is, its key, and what has changed. Elsewhere, or with --json, it is JSON for programs; there an update is two lines,
    the row before and the row after. See "Changes as JSON" in docs/http.md.

    A source that is not captured now is named on standard error, with the reason.
    """
    from databus.cli._change_lines import change_lines
    from databus.cli._trouble import trouble_told
    from databus.client import tail_lines, windows
    from databus.core import us_of

    integers = _big_integers_of(big_integers)
    is_json = as_json or form is Form.JSON or (form is Form.AUTO and not sys.stdout.isatty())
    asked = relay_of(file, relay, token_file, ca_file, certificate_file, key_file)
    begins, checkpoint = _start_of(context, start, since)
    first = asked.client(read_ms_max=_FIRST_ANSWER_MS_MAX)
    with (
        trouble_told(first, tables, lambda said: typer.echo(said, err=True)),
        windows(
            asked.client(),
            sources=tables,
            start=begins,
            checkpoint=checkpoint,
            follow=follow,
            where=where,
            columns=columns,
            on_filter_change="stop",
        ) as following,
    ):
        since_us = us_of(begins) if isinstance(begins, dt.datetime) else None  # the group there may begin before
        wanted = (each for each in following if since_us is None or each.commit_us >= since_us)
        lines = tail_lines(wanted, count, integers) if is_json else islice(change_lines(wanted), count)
        for line in lines:
            typer.echo(line)


def _start_of(context: typer.Context, start: str, since: str | None) -> "tuple[Start, Checkpoint | None]":
    """Where to begin, and the checkpoint to go on at, if there is one."""
    from databus.core import ConfigError

    if since is None:
        return _STARTS.get(start, "beginning"), _checkpoint_of(start)
    if "start" in options_given(context):
        raise ConfigError("--from and --since: only one of them can say where to start")
    return _time_of(since), None


def _time_of(text: str) -> dt.datetime:
    """A time, or how long ago it is."""
    from databus.core import ConfigError, time_us

    if found := _AGO.fullmatch(text):
        ago_s = int(found[1]) * _SECONDS[found[2]]
        return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago_s)
    try:
        return dt.datetime.fromtimestamp(time_us(text) / 1e6, dt.UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--since {text[:100]}: is neither a time such as 2026-07-01T12:00Z nor 15m or 2h") from error


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


def _big_integers_of(text: str) -> Literal["number", "string"]:
    from databus.core import ConfigError

    if text in _BIG_INTEGERS:
        return _BIG_INTEGERS[text]
    raise ConfigError(f"--big-integers {text}: is neither number nor string")
