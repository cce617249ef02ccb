"""Configuration files: YAML parsed first, then references substituted in string leaves, then checked by a model.

    token: ${DATABUS_TOKEN}             the environment's variable; an error where it is not set
    listen: ${HOST:127.0.0.1}:11115     with a default, which may be empty
    password: ${file:/run/secrets/pw}   a file's text without its last line end; relative to the configuration's folder
    price: $${not a reference}          two dollars stand for one

A reference never changes the shape of the file: what comes in is a string, whatever it holds. Errors name the path.
"""

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from databus.core import ConfigError
from databus.formats._mistakes import Replaced, lines_of, path_of

if TYPE_CHECKING:
    import yaml
    from pydantic import BaseModel

_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?:file:(?P<file>[^}]*)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:[^}]*)?)\}|\$\{"
)
FILE_BYTES_MAX: Final = 4 << 20
_DEPTH_MAX: Final = 64
_VALUES_MAX: Final = 1_000_000
"""In one file, an alias counted as often as it stands there: ten lines of aliases can name billions."""
_DECIMAL: Final = re.compile(
    r"[-+]?(0|[1-9][0-9_]*)|[-+]?[0-9_]*\.[0-9_]*(e[-+][0-9]+)?|[-+]?\.(inf|nan)", re.IGNORECASE
)
"""Numbers that mean in YAML 1.1 what everybody reads; `010` is 8 there, `1:30` is 90, and `0x10` is 16."""

M = TypeVar("M", bound="BaseModel")


class WrittenInt(int):
    """A whole number that stands otherwise in the file than Python writes it: `1_000`."""

    text: str


class WrittenFloat(float):
    """The same of a number with a fraction: `1.10`."""

    text: str


def text_of_setting(value: Any) -> Any:
    """A value for a setting that is text, where numbers and `true` may stand without quotes; others as they are.

    Raises `ValueError` for a number whose text is lost: who writes `sasl.password: 1_000` does not mean 1000.
    """
    if isinstance(value, WrittenInt | WrittenFloat):  # a ValueError, which pydantic collects with the others
        raise ValueError(  # noqa: TRY004 - see above
            f'YAML reads a number, {value}; if text is meant, write it with quotes: "{value.text}"'
        )
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return value


def load_yaml(path: Path, hint: str = "`databus init` writes one to begin with") -> dict[str, Any]:
    """Read a YAML file whose top is a mapping, references not yet substituted. hint: what to do if there is none.

    Raises `ConfigError` naming file, line and column: for what is not YAML, a key that stands twice or is no string,
    and a file above 4 MiB.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: No such file or directory; {hint}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: {len(text)} bytes; a configuration has at most {FILE_BYTES_MAX}")
    return parse_yaml(text, str(path))


_KIND: Final = {str: "text", list: "a list", int: "a number", float: "a number", bool: "true or false"}


def parse_yaml(text: str | bytes, where: str) -> dict[str, Any]:
    """Like `load_yaml`, of text; `where` names it in errors."""
    import yaml

    try:
        loader = _loader(text)
        node = loader.get_single_node()
        if node is not None:
            _check(node, where, 0, itertools.count())
        value = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{_place(error.problem_mark, where)}: {_explained(error)}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: not YAML: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = _KIND.get(type(value), "something else")
        raise ConfigError(f"{where}: expected keys and values at the top, such as `name: shop`, found {kind}")
    return value


def _loader(text: str | bytes) -> "yaml.SafeLoader":
    """PyYAML's own, whose numbers remember how they were written."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
            return _written(WrittenInt, super().construct_yaml_int(node), node.value)

        def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
            return _written(WrittenFloat, super().construct_yaml_float(node), node.value)

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    return Loader(text)


def _written(kind: Any, number: Any, text: str) -> Any:
    if str(number) == text:
        return number
    value = kind(number)
    value.text = text
    return value


def lines_in(path: Path) -> dict[str, int]:
    """Where each key and item of a YAML file stands, by its path: `outputs.copy.from[0]`; empty if it is not YAML."""
    import yaml

    lines: dict[str, int] = {}

    def walk(node: yaml.Node, where: str, depth: int) -> None:
        if depth > _DEPTH_MAX:
            return
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[path_of(where, (index,))] = item.start_mark.line + 1
                walk(item, path_of(where, (index,)), depth + 1)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                lines[path_of(where, (key.value,))] = key.start_mark.line + 1
                walk(value, path_of(where, (key.value,)), depth + 1)

    try:
        node = yaml.SafeLoader(path.read_bytes()).get_single_node()
    except (yaml.YAMLError, OSError, ValueError):
        return {}
    if node is not None:
        walk(node, "", 0)
    return lines


def line_of(where: str, lines: Mapping[str, int]) -> int | None:
    """The line of a path, or of the nearest above it that stands in the file.

    >>> line_of("outputs.copy.from[1]", {"outputs": 3, "outputs.copy": 4})
    4
    """
    while where:
        if where in lines:
            return lines[where]
        where = where[: max(where.rfind("."), where.rfind("["), 0)]
    return None


def _place(mark: "yaml.Mark | None", where: str) -> str:
    return where if mark is None else f"{where}:{mark.line + 1}:{mark.column + 1}"


_PLAIN: Final = (
    (
        re.compile("mapping values are not allowed here"),
        (
            "a `:` that does not belong here. A key needs a blank behind its colon (`type: sqlite`), also in the line "
            "above; a text that holds a colon and a blank needs quotes"
        ),
    ),
    (
        re.compile(r"expected ',' or '[}\]]', but got '\{'"),
        "a text with braces, such as `${NAME}`, needs quotes inside braces or brackets",
    ),
    (re.compile(r".*found character '\\t'"), "a tab; YAML allows only spaces in front of a key"),
    (
        re.compile("expected <block end>, but found"),
        "does not fit what stands above it: lines of one level begin in one column, and have all `- ` or none",
    ),
)
"""What PyYAML says, and what that means for who writes the file."""


def _explained(error: "yaml.MarkedYAMLError") -> str:
    """What is wrong, in the words of those who write the file where PyYAML's are those of its parser."""
    problem = error.problem or error.context or "not YAML"
    for begin, words in _PLAIN:
        if begin.match(problem):
            return words
    if "expected ',' or" in problem:
        return f"{problem}, or quotes around the text before it"
    if error.context == "while scanning a quoted scalar" and error.context_mark is not None:
        return f"the quotes that begin in line {error.context_mark.line + 1} do not end"
    return problem


def _check(node: "yaml.Node", where: str, depth: int, values: Iterator[int]) -> None:
    """values: counts what was looked at."""
    import yaml

    if depth > _DEPTH_MAX:
        raise ConfigError(f"{_place(node.start_mark, where)}: nested deeper than {_DEPTH_MAX}")
    if next(values) > _VALUES_MAX:
        raise ConfigError(f"{where}: more than {_VALUES_MAX:,} values where each alias stands for what it names")
    if isinstance(node, yaml.ScalarNode):
        _check_number(node, where)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, where, depth + 1, values)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            _check_key(key, value, where)
            if key.value in seen:
                raise ConfigError(f"{_place(key.start_mark, where)}: key {key.value!r} appears twice")
            seen.add(key.value)
            _check(value, where, depth + 1, values)


def _check_key(key: "yaml.Node", value: "yaml.Node", where: str) -> None:
    import yaml

    place = _place(key.start_mark, where)
    # The second is `<<`, by which YAML takes over what an alias names.
    if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
        hint = f'; write "{key.value}" with quotes' if isinstance(key, yaml.ScalarNode) else ""
        raise ConfigError(f"{place}: a key must be a string{hint}")
    if (form := _without_blank(key, value)) is not None:
        raise ConfigError(f"{place}: a blank is missing behind the colon: write `{form}`")


def _check_number(node: "yaml.ScalarNode", where: str) -> None:
    """Refuse what looks like one number and is another: a password of digits, a time of day, a 0 in front."""
    if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and not _DECIMAL.fullmatch(node.value):
        raise ConfigError(
            f"{_place(node.start_mark, where)}: YAML reads this as a number in another base than 10, which is hardly "
            "what it says; write text with quotes, and a number in decimal digits"
        )


_JOINED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):([^/\s].*)", re.DOTALL)


def _without_blank(key: "yaml.Node", value: "yaml.Node") -> str | None:
    """How `{type:sqlite}` is meant, which YAML takes for a key without a value."""
    has_value = value.start_mark.index != value.end_mark.index
    is_quoted = getattr(key, "style", None) is not None
    match = None if has_value or is_quoted else _JOINED.fullmatch(key.value)
    return None if match is None else f"{match[1]}: {match[2]}"


def substitute(
    value: Any, where: str = "", *, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> Any:
    """`value` with the references in its string leaves replaced; keys are left alone.

    folder: where relative `${file:...}` start, the working directory by default. Raises `ConfigError` naming the path
    of the leaf.
    """
    if isinstance(value, dict):
        return {
            key: substitute(item, f"{where}.{key}" if where else str(key), folder=folder, environ=environ)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [substitute(item, f"{where}[{i}]", folder=folder, environ=environ) for i, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    environment = os.environ if environ is None else environ
    replaced = _REFERENCE.sub(lambda match: _replacement(match, where, folder or Path(), environment), value)
    return Replaced(replaced)


def _replacement(match: re.Match[str], where: str, folder: Path, environ: Mapping[str, str]) -> str:
    if match[0] == "$${":
        return "${"
    if match[0] == "${":
        raise ConfigError(f"{where}: neither ${{NAME}}, ${{NAME:default}} nor ${{file:PATH}}; $${{ stands for itself")
    if match["file"] is not None:
        path = folder / match["file"]
        try:
            return path.read_text().removesuffix("\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(f"{where}: ${{file:{match['file']}}}: {path}: {reason}") from error
    variable = environ.get(match["name"])
    if variable is not None:
        return variable
    if match["default"] is None:
        raise ConfigError(
            f"{where}: the environment has no variable {match['name']}; set it, or write ${{{match['name']}:default}}"
        )
    return match["default"][1:]


def has_reference(value: object) -> bool:
    """Whether a leaf has something to substitute, so that what stands there after may be a secret."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def validated(model: type[M], value: object, where: str = "", context: Any = None) -> M:
    """`value` as `model`. Raises `ConfigError` with a line for each thing that is wrong, beginning with its path."""
    from pydantic import ValidationError

    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        raise ConfigError("\n".join(lines_of(error, model, where))) from None
