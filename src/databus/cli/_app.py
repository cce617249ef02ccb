"""The command line's frame: one application, errors as one paragraph, output as text or JSON.

Nothing heavy is imported here or at the top of a verb's file: `databus --help` answers at once.
"""

import datetime as dt
import errno
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from databus import __version__
from databus.cli._file import FileTyper
from databus.core import SEQ_DONE, ConfigError, DatabusError, DiskFull, InputError, how_to_install

_PANELS: Final = {
    "Start": "init demo check-source prepare validate test run relay bootstrap warm-up schema plugins archive bench",
    "Look": "status dashboard tail trace history audit diff state sources consumers graph lineage checkpoints compare",
    "Steer": "pause resume drain stop throttle reload snapshot",
    "Repair": "rebuild rename dead-letters position skip sqlite remove",
}
"""How `databus --help` groups the commands, in its order."""


class _Grouped(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Click's
        names = [(name, panel) for panel, words in _PANELS.items() for name in words.split()]
        for name, panel in names:
            self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]  # Typer's are all of one kind
        return [name for name, _ in names]


app = FileTyper(
    cls=_Grouped,
    name="databus",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_WRITES_FAIL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What an operating system says of a write that it did not do, mostly without the file's name."""

RELAY_VARIABLE = "DATABUS_RELAY"
DEFAULT_RELAY = "http://127.0.0.1:11115"

_EXTRAS: Final = {"deltalake": "spark", "pandas": "spark", "pymysql": "mysql", "pyspark": "spark"}
"""Which extra brings a package, by the name that it is imported by."""


class FromEnvironment(str):
    """An address from the environment, not from the command line."""

    __slots__ = ()


def _noted(context: typer.Context, value: str | None) -> str | None:
    source = context.get_parameter_source("relay")
    return FromEnvironment(value) if value and source is not None and source.name == "ENVIRONMENT" else value


RelayUrl = Annotated[
    str | None,
    typer.Option(
        "--relay",
        help=f"Where the relay answers, instead of FILE's; without both, {DEFAULT_RELAY}. FILE beats the variable.",
        envvar=RELAY_VARIABLE,
        callback=_noted,
    ),
]
TokenFile = Annotated[
    str | None, typer.Option("--token-file", help="File with the relay's token; or set DATABUS_TOKEN.")
]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", help="For https://: the certificate of who signed the relay's; or set DATABUS_CA_FILE."),
]
CertificateFile = Annotated[
    str | None,
    typer.Option(
        "--certificate-file", help="A certificate for a relay that wants to see one; or set DATABUS_CERTIFICATE_FILE."
    ),
]
KeyFile = Annotated[
    str | None, typer.Option("--key-file", help="File with that certificate's key; or set DATABUS_KEY_FILE.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
LogLevel = Annotated[
    str, typer.Option("--log-level", help="debug, info, warning or error.", envvar="DATABUS_LOG_LEVEL")
]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        help="text, json, or auto: text on a terminal, JSON lines in a pipe or file.",
        envvar="DATABUS_LOG_FORMAT",
    ),
]


Wait = Annotated[
    float, typer.Option("--wait", min=0, max=86_400, help="How long to wait until it is done, in seconds.")
]
_ASK_S: Final = 0.2


def rounds(wait_s: float) -> Iterator[bool]:
    """Poll, for what does not report by itself: yields False for each look in `wait_s`, at last True."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        yield False
        time.sleep(_ASK_S)  # a relay that starts, or a process that ends, sends no signal
    yield True


def printable(text: str, instead: str = "?") -> str:
    """A text from elsewhere on one line, without what a terminal takes for commands."""
    return "".join(char if char.isprintable() else instead for char in text)


def utc(us: int, precision: str = "seconds") -> str:
    """A time in ISO form."""
    return dt.datetime.fromtimestamp(us / 1e6, dt.UTC).isoformat(timespec=precision)


def local_time(us: int) -> str:
    """A time as clocks here show it."""
    return dt.datetime.fromtimestamp(us / 1e6, dt.UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def place_text(pair: Sequence[int]) -> str:
    """SCN and `_seq`; the SCN alone where all of it is done."""
    scn, seq = pair
    return str(scn) if seq == SEQ_DONE else f"{scn}/{seq}"


def say_json(value: Any) -> None:
    """Print one JSON value on a line of its own."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def say_wait(why: str) -> None:
    """Say what is waited for, beside the answer."""
    typer.echo(why, err=True)


def say_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as a plain table, as wide as what is in it."""
    cells = [[str(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(name), *(len(line[at]) for line in cells), 0) for at, name in enumerate(columns)]
    for line in [list(columns), *cells]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def say_reloaded(answer: Mapping[str, Any]) -> None:
    """Print what a reload has done to each thing in a file."""
    words = {"goes on": "unchanged", "starts again": "changed", "is new": "added", "has ended": "removed"}
    for what, key in words.items():
        for name in answer[key]:
            typer.echo(f"{name}: {what}")


def options_given(context: typer.Context) -> list[str]:
    """The names of the parameters that stand on the command line, as its function has them."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def fail(error: DatabusError) -> NoReturn:
    """Print an error as one paragraph and leave with its exit code."""
    say_error(str(error))
    sys.exit(error.exit_code)


def say_error(message: str) -> None:
    """Print what went wrong as one paragraph."""
    typer.secho(f"databus: {message}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)


def _say_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"databus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version, and end.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Change data capture for Python and Spark. Start with `databus demo` or `databus init`."""
    from databus.operate import configure_logs

    del version  # its callback has said it
    configure_logs(level="warning", style="text")  # verbs that run for long choose again; stdout is for the answer


def _say_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_app() -> None:
    """Run the command line. A user's mistake never shows a traceback; a mistake of ours does."""
    try:
        app()
    except DatabusError as error:
        fail(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra = _EXTRAS[package]
        fail(ConfigError(f"this needs {package}, which is not installed: {how_to_install(extra)}"))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `databus tail | head` is an ordinary thing to do
        _say_no_more()
        sys.exit(0)
    except OSError as error:
        if error.errno in _WRITES_FAIL:
            _say_no_more()  # what is still to be written would fail once more at the end of the process
            where = error.filename or "the standard output, or a file that it was writing"
            fail(DiskFull(f"{where}: {error.strerror}; what it was to have is not whole. Make room and run this again"))
        if error.filename is None:  # not about a file: a mistake of ours
            raise
        fail(InputError(f"{error.filename}: {error.strerror}; databus needs to write there or read from there"))
