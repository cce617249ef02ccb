"""Mistakes in a configuration, in plain words: where, what stands there, and what is expected.

    run.retry_ms_min: "soon" is not a whole number
    outputs.copy.mode: "mirorr" is neither "mirror" nor "history"

A value that may be a secret is not shown: one that a reference brought, and one under a name that sounds secret.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_SECRET_WORDS: Final = ("password", "passwd", "secret", "token", "authorization", "credential")
_SHOWN_MAX: Final = 60
_BRANCH: Final = re.compile(r"str|int|float|bool|none|path|(?:list|dict|tuple|literal|constrained|function)[-\[].*")
_MEMBER: Final = re.compile(r"<\w+\.\w+: ([^>]+)>")  # of an enum, as pydantic writes it
"""What pydantic puts at the end of a place to say which of several forms it tried."""

_KINDS: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "keys and values",
    "model": "keys and values",
    "mapping": "keys and values",
    "none": "null",
}
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than_equal": ("below", "ge"),
    "greater_than": ("not above", "gt"),
    "less_than_equal": ("above", "le"),
    "less_than": ("not below", "lt"),
}


_QUOTES: Final = "; write it with quotes if it is"


class Replaced(str):
    """Text that came from the environment or a file by a reference."""

    __slots__ = ()


def lines_of(error: "ValidationError", model: "type[BaseModel] | None" = None, where: str = "") -> list[str]:
    """What pydantic found, a line for each place: `outputs.copy.path: missing`."""
    fields = {} if model is None else {field.alias or name: field for name, field in model.model_fields.items()}
    known = [*fields]
    by_path: dict[str, list[Any]] = {}
    for detail in error.errors(include_url=False):
        loc = detail["loc"]
        if len(loc) > 1 and isinstance(loc[-1], str) and _BRANCH.fullmatch(loc[-1]) and not _is_inside(detail):
            loc = loc[:-1]
        by_path.setdefault(path_of(where, loc), []).append(detail)
    lines = {path: _explained(path, details, known) for path, details in by_path.items()}
    for name, field in fields.items():
        path = path_of(where, [name])
        if lines.get(path) == "missing" and get_origin(field.annotation) is Literal:
            choices = [f'"{choice}"' for choice in get_args(field.annotation)]
            lines[path] = f"missing; write {' or '.join(choices)}"
    return [f"{path}: {text}" for path, text in lines.items()]


def _is_inside(detail: Mapping[str, Any]) -> bool:
    """Whether the last part of the place is a name in the file, which is missing or unknown there."""
    return detail["type"] in ("missing", "extra_forbidden")


def _explained(path: str, details: list[Any], known: list[str]) -> str:
    expected = [_expected(detail) for detail in details]
    wanted = [noun for noun in dict.fromkeys(expected) if noun is not None]
    if len(wanted) < len(details) and not (wanted and len(set(expected)) > 1):
        return "; ".join(dict.fromkeys(_otherwise(path, detail, known) for detail in details))
    shown = _shown(path, details[0]["input"])
    nouns = " nor ".join(wanted)
    # Whatever YAML made of a text without quotes: a number, `true`, a day.
    is_unquoted = wanted == [_KINDS["string"]] and isinstance(details[0]["input"], int | float | date)
    return f"{shown} is {'neither' if ' nor ' in nouns else 'not'} {nouns}{_QUOTES if is_unquoted else ''}"


def _expected(detail: Mapping[str, Any]) -> str | None:
    """What should stand there, as a noun; None where the sentence is another."""
    kind = str(detail["type"])
    if kind in ("literal_error", "enum"):
        expected = _MEMBER.sub(r"\1", str(detail["ctx"]["expected"]))
        return expected.replace("'", '"').replace(", ", " nor ").replace(" or ", " nor ")
    if kind == "int_from_float":
        return _KINDS["int"]
    name, _, rest = kind.partition("_")
    return _KINDS.get(name) if rest in ("type", "parsing", "attributes_type") else None


def _otherwise(path: str, detail: Mapping[str, Any], known: list[str]) -> str:
    kind, message = str(detail["type"]), str(detail["msg"])
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, 1) if len(detail["loc"]) == 1 else []
        comma = "; if it belongs to the text before it, that needs quotes, since a comma ends it"
        hint = f'; did you mean "{near[0]}"?' if near else comma if " " in str(detail["loc"][-1]) else ""
        return f"there is no such option{hint}"
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"{_shown(path, detail['input'])} is {word} {context[name]:g}"
    if kind in ("string_too_short", "too_short"):
        return "empty" if context["min_length"] == 1 else f"shorter than {context['min_length']}"
    if kind in ("string_too_long", "too_long"):
        return f"longer than {context['max_length']}"
    is_form = kind == "string_pattern_mismatch"
    text = f"{_shown(path, detail['input'])} does not match {context['pattern']}" if is_form else message
    return text.removeprefix("Value error, ")


def _shown(path: str, value: object) -> str:
    names = path.lower()
    is_secret = isinstance(value, Replaced) or any(word in names for word in _SECRET_WORDS)
    kinds: list[tuple[type, Callable[[Any], str]]] = [
        (bool, lambda v: str(v).lower()),
        (int, str),
        (float, str),
        (str, lambda v: f'"{v[:_SHOWN_MAX]}"'),
        (Mapping, lambda _: "a mapping"),
        (list, lambda _: "a list"),
    ]
    if value is None:
        return "null"
    if is_secret and not isinstance(value, Mapping | list):
        return "what stands there"
    return next((show(value) for kind, show in kinds if isinstance(value, kind)), f"a {type(value).__name__}")


def hint_for(name: str, known: Iterable[str]) -> str:
    """What to say of an unknown name.

    >>> hint_for("ordrs", ["orders", "stock"]), hint_for("x", ["orders", "stock"])
    ('did you mean "orders"?', 'there are orders, stock')
    """
    names = [*known]
    near = difflib.get_close_matches(name, names, 1)
    return f'did you mean "{near[0]}"?' if near else f"there are {', '.join(names) or 'none'}"


def path_of(where: str, loc: Iterable[int | str]) -> str:
    """A path in a configuration.

    >>> path_of("outputs", ("search", "from", 1))
    'outputs.search.from[1]'
    """
    path = where
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "configuration"
