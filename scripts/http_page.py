"""The reference of commands in docs/http.md, from the relay's table of them."""

from collections.abc import Iterator
from typing import Final

from databus.relay._command import Table
from databus.relay._command_table import table
from databus.relay._grant import Right
from databus.relay._help import asked_as, parameters_of

BEGIN: Final = "<!-- commands: from the code, by `make docs` -->"
END: Final = "<!-- end of commands -->"


def with_commands(page: str) -> str:
    """A page with its reference of commands as the table is. Raises ValueError if it has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    lines = "\n".join(_markdown(table()))
    return f"{before}{BEGIN}\n{lines}\n{END}{behind}"


def _markdown(commands: Table) -> Iterator[str]:
    yield "| command | right | answers |"
    yield "|---|---|---|"
    for command in commands:
        right = "" if command.right is Right.NONE else command.right.value
        yield f"| `{asked_as(command)}` | {right} | {_cell(command.answer.text)} |"
    yield ""
    yield "| parameter | of | |"
    yield "|---|---|---|"
    for parameter, paths in parameters_of(commands):
        of = "every command" if paths is None else ", ".join(f"`{path}`" for path in paths)
        yield f"| `{_cell(f'{parameter.name}={parameter.type.written}')}` | {of} | {_cell(parameter.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
