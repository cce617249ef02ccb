"""Where in a user's own code an error was raised: databus runs callbacks and functions that others wrote."""

import os
import sysconfig
import traceback
from pathlib import Path
from typing import Final

_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def place_in_user_code(error: BaseException) -> str:
    """File and line of the innermost frame that is a user's, as `FILE:LINE`; empty where none is.

    A library's frame is a user's only where no other is: callbacks may be installed as a package.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    others = [(file, line) for file, line in frames if not file.startswith(_OURS)]
    own = [(file, line) for file, line in others if not file.startswith((*_LIBRARIES, "<"))]
    if not others:
        return ""
    file, line = own[-1] if own else others[0]
    return f"{file}:{line}"
