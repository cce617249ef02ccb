"""docs/client-api.md, from the signatures and docstrings of the client."""

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from databus import client, core

_HEAD: Final = """\
# Client library

Generated from the code by `make docs`; do not edit.

`import databus.client`; checkpoints and errors are in `databus.core`. No Spark and no database driver is needed. Start
with `windows`, an iterator, or with `Client` and `Consumer`, callbacks. [Recipes](recipes.md) has whole programs.
"""

_SECTIONS: Final = {
    "Windows: an iterator": "windows Subscription Window WindowBatch Changes Row ControlEvent",
    "Callbacks": "Client Consumer Result ClientConfig FollowConfig ClientState SourceStatus ReaderState",
    "Checkpoints": "Checkpoint SourceCheckpoint Checkpoints FileCheckpoints MemoryCheckpoints load_checkpoint",
    "Asking a relay": "RelayClient SourceInfo RegisteredSchema Head Range RangeControl FrameStream",
}
_GIVEN: Final = ("Subscription", "Window", "WindowBatch", "Row", "Changes", "ControlEvent", "FrameStream")
"""Classes of objects that a user is given and never makes."""
_INTERNAL: Final = ("changes_until", "complete", "is_of_group_of", "is_passed_over", "stand_beside")
_WIDTH: Final = 110


def client_markdown() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    named: set[str] = set()
    for title, names in _SECTIONS.items():
        named |= set(names.split())
        yield f"## {title}\n"
        for name in names.split():
            yield from _entry(name, getattr(client, name, None) or getattr(core, name))
    yield "## Building blocks\n"
    for name in client.__all__:
        if name not in named:
            yield from _entry(name, getattr(client, name))
    yield "## Errors\n"
    yield "Every error that databus raises on purpose is a `databus.core.DatabusError`.\n"
    yield "| error | exit code | HTTP status | |"
    yield "|---|---|---|---|"
    yield from _errors(core.DatabusError, "")


def _errors(error: type[core.DatabusError], indent: str) -> Iterator[str]:
    doc = " ".join((error.__doc__ or "").split())
    yield f"| {indent}`{error.__name__}` | {error.exit_code} | {error.http_status} | {doc} |"
    for each in error.__subclasses__():
        if each.__module__.startswith("databus.core"):
            yield from _errors(each, f"{indent}&nbsp;&nbsp;")


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not inspect.isclass(value):
        if inspect.isfunction(value):
            yield _code(f"{name}{_signature(value)}")
            yield f"{_doc(value)}\n"
        else:
            yield _code(f"{name} = {_short(str(value))}")
        return
    if issubclass(value, enum.Enum):
        yield f"{_doc(value)}\n"
        yield f"Values: {', '.join(f'`{each.name}`' for each in value)}.\n"
        return
    is_protocol = bool(getattr(value, "_is_protocol", False))
    if not is_protocol and name not in _GIVEN and value.__init__ is not object.__init__:
        yield _code(f"{name}{_signature(value.__init__)}")
    yield f"{_doc(value)}\n"
    members = [
        (member, each) for member, each in vars(value).items() if not member.startswith("_") and member not in _INTERNAL
    ]
    rows = [f"| `{field}` | {_cell(doc)} |" for field, doc in _fields(value)]
    rows += [row for member, each in members if (row := _member(member, each))]
    if rows:
        yield "| member | |"
        yield "|---|---|"
        yield from rows
        yield ""


def _fields(value: Any) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass or named tuple that are explained where they stand, by the text below each."""
    if not (dataclasses.is_dataclass(value) or issubclass(value, tuple)):
        return
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    lines = tree.body if isinstance(tree, ast.ClassDef) else []
    for line, below in pairwise(lines):
        match line, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(doc))) if not name.startswith("_"):
                yield name, doc


def _code(text: str) -> str:
    """A signature, on as many lines as it needs."""
    if len(text) > _WIDTH:
        head, _, rest = text.partition("(")
        inside, _, tail = rest.rpartition(")")
        params = re.split(r", (?=[a-z_*]\w*(?::|,|$))", inside)
        text = "\n    ".join((f"{head}(", *(f"    {each}," for each in params), f"){tail}"))
    return f"    {text}\n"


def _member(name: str, value: Any) -> str | None:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, property):
        return f"| `{name}` | {_cell(_doc(value.fget))} |"
    if inspect.isfunction(value):
        return f"| `{_cell(f'{name}{_signature(value)}')}` | {_cell(_doc(value))} |"
    return None


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    params = [each for name, each in signature.parameters.items() if name not in ("self", "cls")]
    returns = signature.return_annotation if signature.return_annotation is not None else inspect.Signature.empty
    return _short(str(signature.replace(parameters=params, return_annotation=returns)))


def _short(text: str) -> str:
    """Names without their modules."""
    text = re.sub(r"<(\w+)\.\w+: ('[^']*'|\d+)>", r"\2", text)
    text = re.sub(r"<factory>", "...", text)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(\w)", r"\1", text)
    start = r"Union\[SourceCheckpoint, Literal\['beginning', 'earliest', 'latest'\]\]"
    return re.sub(r"'([A-Z]\w*)'", r"\1", re.sub(start, "Start", text))


def _doc(value: Any) -> str:
    return re.sub(r"(?m)^(>>> .*\n.*)$", _indented, inspect.cleandoc(value.__doc__ or "").strip())


def _indented(found: re.Match[str]) -> str:
    return f"    {found[1]}".replace("\n", "\n    ")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
