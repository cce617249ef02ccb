"""Which Java Spark will take."""

import os
import shutil
from pathlib import Path


def java_path() -> str | None:
    """That of JAVA_HOME, else the one on the PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")
