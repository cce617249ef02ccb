"""Commands whose first word is a pipeline's file, which may be left out."""

import os
from pathlib import Path
from typing import Any, Final

from typer.core import TyperCommand

_FILE: Final = "databus.yml"
FILE_HELP: Final = f"The pipeline's file; {_FILE} where the first word is an output."


class FileFirst(TyperCommand):
    """Puts `databus.yml` in front where the first word is no file's name. Options of such a command take no values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See Click's `Command.parse_args`."""
        at = next((at for at, each in enumerate(args) if not each.startswith("-")), None)
        if at is not None and not _is_file(args[at]):
            args = [*args[:at], _FILE, *args[at:]]
        return super().parse_args(ctx, args)


def _is_file(word: str) -> bool:
    """Whether a word means a file: no name of an output has a dot or a slash."""
    return "." in word or os.sep in word or Path(word).is_file()
