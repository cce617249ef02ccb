"""FILE: the file of a pipeline or of a relay that a command is about.

It stands anywhere among a command's words, or behind `--file`; without either it is `databus.yml`. One rule for all
commands: a parameter with the option `--file`, and the classes here, which `FileTyper` gives to each command.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

DEFAULT_FILE: Final = Path("databus.yml")
_OPTION: Final = "--file"
_SHORT: Final = "-f"
_SUFFIXES: Final = (".yml", ".yaml")
_AS_A_WORD: Final = "It may stand as a word alone."

_Verb = TypeVar("_Verb", bound=Callable[..., Any])

File = Annotated[Path, typer.Option(_OPTION, _SHORT, help=f"The pipeline's file. {_AS_A_WORD}")]
AnyFile = Annotated[Path, typer.Option(_OPTION, _SHORT, help=f"A pipeline's file, or a relay's. {_AS_A_WORD}")]
FileOfRelay = Annotated[
    Path | None,
    typer.Option(
        _OPTION,
        _SHORT,
        help=f"A pipeline's file, or a relay's, which says where its relay answers; {DEFAULT_FILE}, if it is there. "
        f"{_AS_A_WORD}",
    ),
]


class FileCommand(TyperCommand):
    """A command that takes its file as a word, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See Click's `Command.parse_args`."""
        words = _words(self.params, args)
        if any(param.param_type_name == "argument" for param in self.params):
            words = [at for at in words if _is_file(args[at])]  # the others are names
        return super().parse_args(ctx, _with_option(self.params, args, words))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """See Click's."""
        options, *arguments = super().collect_usage_pieces(ctx)
        return [options, *(["[FILE]"] if _takes_file(self.params) else []), *arguments]


class FileGroup(TyperGroup):
    """A group that does something by itself, and takes its file as a word then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See Click's `Group.parse_args`."""
        words = [at for at in _words(self.params, args)[:1] if _is_file(args[at])]  # what is behind a verb is its own
        return super().parse_args(ctx, _with_option(self.params, args, words))


class FileTyper(typer.Typer):
    """Commands that take their file as a word, too."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Verb], _Verb]:
        """See Typer's."""
        return super().command(name, **{"cls": FileCommand, **settings})


def _takes_file(params: list[Any]) -> bool:
    return any(_OPTION in param.opts for param in params)


def _with_option(params: list[Any], args: list[str], words: list[int]) -> list[str]:
    """The same with `--file` before the first of these words, unless it stands there already."""
    is_given = any(arg in (_OPTION, _SHORT) or arg.startswith(f"{_OPTION}=") for arg in args)
    if not words or is_given or not _takes_file(params):
        return args
    rest = [arg for at, arg in enumerate(args) if at != words[0]]
    return [_OPTION, args[words[0]], *rest]


def _words(params: list[Any], args: list[str]) -> list[int]:
    """Where words stand that are neither options nor their values."""
    options = [param for param in params if param.param_type_name == "option" and not param.is_flag]
    with_value = {name for option in options for name in option.opts}
    places: list[int] = []
    is_value = False
    for at, arg in enumerate(args):
        if arg == "--":
            return [*places, *range(at + 1, len(args))]
        if not is_value and (arg == "-" or not arg.startswith("-")):
            places.append(at)
        is_value = not is_value and arg in with_value
    return places


def _is_file(word: str) -> bool:
    """Whether a word means a file: names of outputs and sources have no such ending; tables have dots, and no file."""
    return word.endswith(_SUFFIXES) or (("." in word or "/" in word) and Path(word).is_file())
