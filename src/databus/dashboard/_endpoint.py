"""What an endpoint of the dashboard's API is: path, method, parameters with bounds, right. Pure.

The rows are in `_endpoint_table.py`. From a row come the route, the checks of a request, its line in docs/api.md, its
part of the OpenAPI document, and what the tests try.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from databus.core import MalformedRequest
from databus.dashboard._rights import DashboardRight
from databus.relay import Parameter, ParameterType

PREFIX: Final = "/api/v1"
_NAMES: Final = re.compile(r"\{(\w+)\}")


def text(most: int, written: str = "TEXT") -> ParameterType:
    """Text of at most `most` characters; control characters and lone surrogates are refused."""

    def read(name: str, given: str) -> str:
        if len(given) > most:
            raise MalformedRequest(f"{name}: longer than {most} characters")
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in given):
            raise MalformedRequest(f"{name}: has control characters in it")
        return given

    return ParameterType(written, read, {"type": "string", "maxLength": most})


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """A row of the table. Add one there, and the method that answers it in `_answers.py`."""

    method: str
    path: str
    """Below `PREFIX`; `{name}` is any one part."""
    right: DashboardRight | None
    """None: no sign-in is needed."""
    says: str
    """What it answers or does, for docs/api.md and OpenAPI."""
    parameters: tuple[Parameter, ...] = ()
    """In the query string for GET; in a JSON object for what changes something."""
    status: int = 200
    """Of an answer without an error."""
    media: str = "application/json"
    """The content type of that answer."""
    errors: tuple[int, ...] = ()
    """The statuses of its errors, besides those that every endpoint has."""

    @property
    def changes(self) -> bool:
        """Whether it changes something: such a request needs the header `MARK` too (`_guard.py`)."""
        return self.method != "GET"

    @property
    def has_body(self) -> bool:
        """Whether its parameters are a JSON object."""
        return self.changes and (self.method == "POST" or bool(self.parameters))

    @property
    def names(self) -> list[str]:
        """The names of the variable parts of the path."""
        return _NAMES.findall(self.path)

    @property
    def key(self) -> str:
        """Its name in `ANSWERS` and docs/api.md: `POST /letters/{pipeline}/{output}/replay`."""
        return f"{self.method} {self.path}"

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values of all parameters; those that are missing have their default.

        Raises `MalformedRequest`, which names the first parameter that is wrong or unknown.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                raise MalformedRequest(f"{name[:100]}: no such parameter here; there are {there}")
        values = {name: parameter.default for name, parameter in known.items()}
        for name, parameter in known.items():
            value = given.get(name)
            if value is not None:
                values[name] = parameter.type.read(name, _as_text(name, value))
            elif parameter.is_required:
                raise MalformedRequest(f"{name}: is needed: {parameter.help}")
        return values


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise MalformedRequest(f"{name}: expected text or a whole number")
    return str(value)
