"""docs/cli.md, from the commands themselves."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

import databus.cli  # noqa: F401 - adds the commands
from databus.cli._app import app
from databus.core import FatalError, InputError, TransientError

_HEAD: Final = """\
# Command line

Generated from the code by `make docs`; do not edit.

`databus COMMAND --help` prints the same. Without a console script: `python -m databus.cli COMMAND`. What a command
prints goes to stdout, errors and logs to stderr. `--json` prints JSON, for scripts.
"""

_CODES: Final = (
    ("0", "done"),
    ("1", "`compare` found a difference, `check-source` found an error, or a question was answered with no"),
    (str(InputError.exit_code), "wrong input: an option, a configuration, a name; or another process holds the folder"),
    (str(FatalError.exit_code), "stopped: going on would lose changes or guess; somebody has to decide"),
    (
        str(TransientError.exit_code),
        "not now: a relay or database does not answer, or the disk is full; try again later",
    ),
    ("130", "Ctrl-C; of `databus run` a second one, since the first ends it in order, with 0"),
)

_MORE_VARIABLES: Final = (
    ("DATABUS_TOKEN", "the relay's bearer token, for commands, the client library and Spark, where no other is given"),
    ("DATABUS_CA_FILE", "for relays at `https://`, in the same places: whose signature of their certificates counts"),
    ("DATABUS_CERTIFICATE_FILE", "a certificate to show to a relay that wants to see one, in the same places"),
    ("DATABUS_KEY_FILE", "that certificate's key; without it, it is in the same file"),
    ("JAVA_HOME", "the Java that Spark uses"),
    ("DATABUS_CACHE", "where `databus warm-up` keeps Spark's classes; `~/.cache/databus` by default"),
    ("DATABUS_SERVERS", "where test servers are kept; `~/.cache/databus/servers` by default"),
    ("DATABUS_SEED", "tests only: the seed of random tests; `random` takes another one each time"),
    ("DATABUS_CRASH_AT", "tests only: kills the process at a named place"),
)


@dataclass(frozen=True)
class _Option:
    """An option or an argument of a command, as its signature declares it."""

    shown: str
    default: str
    meaning: str
    variable: str


@dataclass(frozen=True)
class _Command:
    """A command. example: how it is called."""

    help: str
    example: str
    options: list[_Option]


def cli_markdown() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    commands = dict(sorted(_commands(app, "databus")))
    yield _HEAD
    yield "| command | |"
    yield "|---|---|"
    for name, command in commands.items():
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {_first_sentence(command.help)} |"
    yield ""
    for name, command in commands.items():
        yield from _section(name, command)
    yield "## Exit codes\n"
    yield "| code | meaning |"
    yield "|---|---|"
    yield from (f"| {code} | {meaning} |" for code, meaning in _CODES)
    yield "\nAn error that shows a traceback is a defect of databus; its code is 1, too.\n"
    yield "Each kind of error is a class with its code; see [errors](client-api.md#errors).\n"
    yield "## Environment variables\n"
    yield "| variable | meaning |"
    yield "|---|---|"
    found = {each.variable: each for command in commands.values() for each in command.options if each.variable}
    yield from (f"| `{name}` | the default of {each.shown} |" for name, each in sorted(found.items()))
    yield from (f"| `{name}` | {meaning} |" for name, meaning in _MORE_VARIABLES)
    yield "\nA configuration file can refer to any variable; see [references](reference.md)."


def _section(name: str, command: _Command) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{command.help}\n"
    if command.example:
        yield f"    {command.example}\n"
    if command.options:
        yield "| option | default | meaning |"
        yield "|---|---|---|"
        yield from (f"| {each.shown} | {each.default} | {each.meaning} |" for each in command.options)
        yield ""


def _commands(of: typer.Typer, name: str) -> Iterator[tuple[str, _Command]]:
    """Each command that does something, by its whole name."""
    for each in of.registered_commands:
        assert each.callback is not None  # noqa: S101 - all of ours have one
        word = each.name or each.callback.__name__.replace("_", "-")
        example = (each.epilog or "").removeprefix("Example: ")
        yield f"{name} {word}", _Command(inspect.getdoc(each.callback) or "", example, _options(each.callback))
    for group in of.registered_groups:
        assert group.typer_instance is not None  # noqa: S101 - all of ours have one
        own = group.typer_instance.registered_callback
        if own is not None and own.callback is not None:  # it does something without a further word, too
            example = str(group.typer_instance.info.epilog or "").removeprefix("Example: ")
            yield f"{name} {group.name}", _Command(inspect.getdoc(own.callback) or "", example, _options(own.callback))
        yield from _commands(group.typer_instance, f"{name} {group.name}")


def _options(callback: Callable[..., Any]) -> list[_Option]:
    hints = get_type_hints(callback, include_extras=True)
    given = inspect.signature(callback).parameters
    return [_option(name, hints[name], given[name].default) for name in given if hints[name] is not typer.Context]


def _option(name: str, hint: Any, default: Any) -> _Option:
    type_, told = get_args(hint)
    is_argument = isinstance(told, ArgumentInfo)
    if is_argument:
        shown = f"`{name.upper()}`"
    else:
        first = told.default if isinstance(told.default, str) and told.default.startswith("-") else None
        names = [each for each in (first, *(told.param_decls or ())) if each]
        shown = ", ".join(f"`{each}`" for each in names or [f"--{name.replace('_', '-')}"])
    kind = _kind(type_)
    variable = str(told.envvar or "")
    meaning = str(told.help or "").replace("|", "\\|") + (f" Or set `{variable}`." if variable else "")
    return _Option(shown + (f" {kind}" if kind and not is_argument else ""), _default(default), meaning, variable)


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return "" if value is None or value is False else f"`{getattr(value, 'value', value)}`"


def _kind(type_: Any) -> str:
    known = [each for each in get_args(type_) or (type_,) if each is not type(None)]
    if isinstance(known[0], type) and issubclass(known[0], Enum):
        return " or ".join(each.value for each in known[0])
    return {str: "text", int: "integer", float: "number", Path: "path"}.get(known[0], "")


def _first_sentence(text: str) -> str:
    first = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return f"{first.split('. ')[0].rstrip('.')}."
