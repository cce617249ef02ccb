"""The table of commands for people, as `/help` answers it."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from databus.relay._command import EVERYWHERE, Command, Parameter, Table

_WIDTH: Final = 42
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def help_text(commands: Table) -> str:
    """All commands and parameters, for a terminal."""
    return _LINK.sub(r"\1", "\n".join(_help_lines(commands))).replace("`", "") + "\n"


def _help_lines(commands: Table) -> Iterator[str]:
    yield "databus relay\n"
    for command in commands:
        yield f"{asked_as(command):{_WIDTH}}  {command.answer.text}"
        if command.parameters:
            yield f"    {' '.join(f'{parameter.name}=' for parameter in command.parameters)}"
    yield "\nparameters"
    for parameter, paths in parameters_of(commands):
        of = "" if paths is None else f" ({', '.join(paths)})"
        yield f"  {parameter.name + '=' + parameter.type.written:34}  {parameter.help}{of}"
    yield "\nParameters that are too long for an address may be sent as a form: curl URL --data-urlencode 'from=...'"


def parameters_of(commands: Table) -> list[tuple[Parameter, Sequence[str] | None]]:
    """Each parameter once, with the commands that take it; None for all of them."""
    parameters: dict[tuple[str, str, str], tuple[Parameter, list[str]]] = {}
    for command in commands:
        for parameter in command.parameters:
            key = (parameter.name, parameter.type.written, parameter.help)
            parameters.setdefault(key, (parameter, []))[1].append(command.path)
    return [*parameters.values(), *((parameter, None) for parameter in EVERYWHERE)]


def asked_as(command: Command) -> str:
    """The command as it is asked: by which method, where that is not GET."""
    return command.path if "GET" in command.methods else f"{command.methods[0]} {command.path}"
