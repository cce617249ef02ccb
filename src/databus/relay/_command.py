"""What a command of the relay's HTTP interface is: path, methods, right, parameters, answer. Pure.

The rows are in `databus.relay._command_table`. From a row come the checks of a request (`Table.find`, `Command.check`),
its line in `/help` (`_help.py`) and in docs/http.md, and its part of `/openapi.json` (`_openapi.py`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel

from databus.core import MalformedRequest
from databus.relay._grant import Right
from databus.relay._params import (
    INT64_MAX,
    fingerprint,
    flag,
    integer,
    names,
    original_position,
    pair,
    position,
    time_of,
)

ADDRESS_OF: Final = re.compile(r"\{(\*?)(\w+)\}")


@dataclass(frozen=True, slots=True)
class Type:
    """How the values of a parameter are written."""

    written: str
    read: Callable[[str, str], Any]
    """The value of a text; takes the parameter's name for errors."""
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


def whole(least: int = 0, most: int = INT64_MAX, written: str = "N") -> Type:
    """A whole number within bounds."""
    return Type(
        written,
        lambda name, text: integer(name, text, least, most),
        {"type": "integer", "minimum": least, "maximum": most},
    )


def choice(words: type[StrEnum], neither: str = "is none of {words}") -> Type:
    """One of some words. neither: what an error says of another."""

    def read(name: str, text: str) -> StrEnum:
        if text not in list(words):
            raise MalformedRequest(f"{name}: {text[:100]!r} {neither.format(words=', '.join(words))}")
        return words(text)

    return Type("|".join(words), read, {"type": "string", "enum": [word.value for word in words]})


TEXT: Final = Type("TEXT", lambda _, text: text)
FLAG: Final = Type("0|1", flag, {"type": "string", "enum": ["0", "1", "true", "false"]})
NAMES: Final = Type("NAME,NAME", names, {"type": "string", "minLength": 1})
PAIR: Final = Type("SCN[:SEQ]", pair, {"type": "string", "pattern": "^[0-9]{1,19}(:[0-9]{1,19})?$"})
FINGERPRINT: Final = Type("HEX", fingerprint, {"type": "string", "pattern": "^[0-9a-fA-F]{1,16}$"})
TIME: Final = Type("ISO", time_of)
CHECKPOINT: Final = Type("JSON", position, {"type": "string", "contentMediaType": "application/json"})
ORIGINAL: Final = Type("JSON", original_position, {"type": "string", "contentMediaType": "application/json"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, in the address or in a form."""

    name: str
    help: str
    """One line; it says what a missing one means where `default` does not."""
    type: Type = TEXT
    default: Any = None
    """The value where it is missing."""
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class OnlyOne:
    """Parameters of which one may be given at most."""

    names: frozenset[str]
    why: str
    """What the error says behind their names."""


CLIENT: Final = Parameter(
    "client", "what the client calls itself, in statistics and logs; or by the header x-dbus-client"
)
EVERYWHERE: Final = (CLIENT,)
"""Parameters that every command takes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answers."""

    text: str
    """One line."""
    media: Mapping[str, Mapping[str, Any] | None]
    """By content type, a JSON schema, or nothing for what is no JSON."""
    statuses: tuple[int, ...] = (200,)

    @classmethod
    def object(cls, text: str) -> "Answer":
        """A JSON object."""
        return cls(text, {"application/json": {"type": "object"}})

    @classmethod
    def array(cls, text: str) -> "Answer":
        """A JSON array."""
        return cls(text, {"application/json": {"type": "array"}})

    @classmethod
    def plain(cls, text: str) -> "Answer":
        """Text for people."""
        return cls(text, {"text/plain": None})


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON body that a command takes, checked by `model`."""

    model: type[BaseModel]
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table. Add one in `_command_table.py`, and who answers it in `_commands.py`."""

    path: str
    """Of the request; `{name}` is any one part, `{*name}` all that follow."""
    answer: Answer
    right: Right = Right.READ
    methods: tuple[str, ...] = ("GET", "POST")
    """GET is HEAD too. What only reads is answered to POST as well: its parameters may be sent as a form."""
    parameters: tuple[Parameter, ...] = ()
    only_one: tuple[OnlyOne, ...] = ()
    errors: tuple[int, ...] = ()
    """Statuses besides those that every command may answer with."""
    body: JsonBody | None = None
    needs_all_tables: bool = False
    """Not for who may see some tables or columns only: it tells of all."""
    checks_itself: bool = False
    """Parameters and body are the handler's business: it speaks another's protocol."""

    @property
    def parts(self) -> list[str]:
        """The path, in parts."""
        return [part for part in self.path.split("/") if part]

    @property
    def names(self) -> list[str]:
        """The names of what is variable in the path."""
        return [name for _, name in ADDRESS_OF.findall(self.path)]

    @property
    def is_shown(self) -> bool:
        """Whether pages list it: what only catches the rest is no command."""
        return "{*" not in self.path

    @property
    def changes(self) -> bool:
        """Whether it may change something, so that GET is not enough."""
        return "GET" not in self.methods

    def check(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The values of all parameters, those that are missing with their default.

        Raises `MalformedRequest` naming the first that is wrong, or that the command does not have: a misspelt limit
        would be no limit.
        """
        known = {parameter.name: parameter for parameter in (*self.parameters, *EVERYWHERE)}
        for name in query:
            if name not in known:
                raise MalformedRequest(f"{name[:100]}: no such parameter here; there are {', '.join(sorted(known))}")
        for group in self.only_one:
            given = sorted(group.names & query.keys())
            if len(given) > 1:
                raise MalformedRequest(f"{given[0]}, {given[1]}: {group.why}")
        values = {name: parameter.default for name, parameter in known.items()}
        for name, parameter in known.items():
            if name in query:
                values[name] = parameter.type.read(name, query[name])
            elif parameter.is_required:
                raise MalformedRequest(f"{name}: {self.path} needs it: {parameter.help}")
        return values


class Table:
    """All commands, found by path and method. The first part of a path is always a word."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = tuple(commands)
        self._by_head: dict[tuple[int, str], list[tuple[list[str], int, Command]]] = {}
        self._rests: list[Command] = []
        for command in commands:
            if command.is_shown:
                parts = command.parts
                self._by_head.setdefault((len(parts), parts[0]), []).append((parts, len(command.names), command))
            else:
                self._rests.append(command)

    def __iter__(self) -> Iterator[Command]:
        return (command for command in self.commands if command.is_shown)

    def at(self, path: Sequence[str]) -> list[Command]:
        """The commands of a path, one for each kind of method; none if there is no such path."""
        there = self._by_head.get((len(path), path[0]), []) if path else []
        fitting = [(names, command) for parts, names, command in there if _fits(parts, path)]
        literal = min((names for names, _ in fitting), default=0)
        return [command for names, command in fitting if names == literal]

    def rest(self, path: Sequence[str], method: str) -> Command | None:
        """The command that answers whatever begins so and is no other's."""
        heads = ((command, len(command.parts) - 1) for command in self._rests if method in command.methods)
        return next((command for command, count in heads if _fits(command.parts[:count], path[:count])), None)

    def below(self, head: str) -> list[str]:
        """The paths that begin with this part."""
        return list(dict.fromkeys(command.path for command in self if command.parts[0] == head))

    def heads(self) -> list[str]:
        """The first parts of all paths."""
        return list(dict.fromkeys(command.parts[0] for command in self))


def _fits(parts: Sequence[str], path: Sequence[str]) -> bool:
    return len(parts) == len(path) and all(
        part == given or part.startswith("{") for part, given in zip(parts, path, strict=True)
    )


def method_of(request_method: str) -> str:
    """The method by which the table knows a request."""
    return "GET" if request_method == "HEAD" else request_method
